"""Benchmark ``spark_acks``: a backlog read, written as Parquet, and acknowledged."""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import orjson
from redis import Redis
from redis.client import PubSub

from acks.journal import DEFAULT_PREFIX, ack_channel
from benchmarks.journal_fill import NODE, fill
from benchmarks.measure import Goal, Result, RunError, Sample, interleave
from benchmarks.meter import cpu_seconds
from benchmarks.processes import (
    REPOSITORY,
    START_S,
    Lab,
    Process,
    family,
    python,
    redis_server,
    running,
)

LABEL = "bench:spark"
EVENTS, WARM = 1_000_000, 400_000
"""Events, and how many of them are over before the figures begin."""
LONGEST_S = 300.0
FUNCTION, SOURCE, PLAIN = "function of a batch", "source (ackLabels)", "plain consumer"
SYSTEMS = {FUNCTION: "function", SOURCE: "source", PLAIN: "plain"}


def _count_acks(consumer: Process, listening: PubSub, until: int) -> tuple[int, int]:
    """Wait for the acks of ``until`` events: how many came, and how many were not good."""
    told, bad, deadline = 0, 0, time.monotonic() + LONGEST_S
    while told < until:
        message = listening.get_message(timeout=1.0)
        if message is None:
            consumer.alive()
            if time.monotonic() > deadline:
                raise RunError(f"{told:,} acks after {LONGEST_S:.0f} s")
        elif message["type"] == "message":
            records = orjson.loads(message["data"])
            told += len(records)
            bad += sum(record[3] != 200 for record in records)
    return told, bad


def saturated(lab: Lab, how: str) -> Sample:
    """One round of one consumer, not pinned: Spark needs all cores."""
    with (
        redis_server(lab, appendfsync="no") as store,
        tempfile.TemporaryDirectory(dir=lab.folder) as folder,
    ):
        fill(store.url, EVENTS, LABEL)
        redis = Redis.from_url(store.url)
        listening = PubSub(redis.connection_pool, ignore_subscribe_messages=True)
        listening.subscribe(ack_channel(DEFAULT_PREFIX, NODE))
        environment = {
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": folder,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONPATH": str(REPOSITORY),
        }
        command = python("-m", "benchmarks.spark_acks_job", how, store.url, LABEL, folder)
        log = Path(folder) / "consumer.log"
        with running(command, core=None, log=log, env=environment, output=True) as consumer:
            while consumer.read_line(START_S * 6) != "ready":
                pass
            before, _ = _count_acks(consumer, listening, WARM)
            begin, used = time.perf_counter(), _used(consumer)
            events, bad = _count_acks(consumer, listening, EVENTS - before)
            took = time.perf_counter() - begin
            java, python_s = (now - then for now, then in zip(_used(consumer), used, strict=True))
        redis.close()
    figures = {
        "events_per_s": events / took,
        "events_per_cpu_s": events / (java + python_s),
        "java_cpu_us": java / events * 1e6,
        "python_cpu_us": python_s / events * 1e6,
    }
    return Sample(figures, {"not 200": bad} if bad else {})


def _used(consumer: Process) -> tuple[float, float]:
    """CPU time (s) of its Java and of its other processes."""
    java: list[int] = []
    others: list[int] = []
    for pid in family(consumer.pid):
        with suppress(OSError):
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            (java if name == "java" else others).append(pid)
    return cpu_seconds(java), cpu_seconds(others)


def spark_acks(lab: Lab, rounds: int, _seconds: float) -> Result:
    """Events a second, and for each second of CPU time, against one plain Python process."""
    result = Result(
        "spark_acks",
        f"a backlog of {EVENTS:,} events, each written as Parquet and then acknowledged",
        [
            Goal("events_per_cpu_s", FUNCTION, PLAIN, True, 0.8),
            Goal("events_per_cpu_s", SOURCE, PLAIN, True, 0.8),
        ],
        ["events_per_s", "events_per_cpu_s", "java_cpu_us", "python_cpu_us"],
        notes=[
            "`plain consumer` is one Python process that reads pages of the journal, writes "
            "Parquet with pyarrow and sends the same acks. CPU time is that of the consumer's "
            "processes, without the store. The first "
            f"{WARM:,} events do not count: until then Java compiles."
        ],
    )
    lab = Lab(lab.folder, None, None, lab.redis)
    return interleave(
        result, {name: partial(saturated, lab, how) for name, how in SYSTEMS.items()}, rounds
    )
