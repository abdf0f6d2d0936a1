"""Benchmark ``spark``: event to Spark ack at low load."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.event_load import ACK_S, FIRST_ACK_S, PAUSE_S, Trickle, lay_out
from benchmarks.measure import Goal, Result, Sample, interleave
from benchmarks.processes import REPOSITORY, START_S, Lab, family, python, redis_server, running

LABEL = "bench:spark"
CONNECTOR, CONSUMER, FLOOR = "ackgate connector", "plain consumer", "connector floor"
WARMUP, EVENTS = 20, 50
MODULES = {
    CONNECTOR: "benchmarks.spark_job",
    CONSUMER: "benchmarks.baselines.journal_consumer",
    FLOOR: "benchmarks.baselines.spark_floor",
}


def consumed(lab: Lab, module: str) -> Sample:
    """One round with one consumer, not pinned: Spark needs all cores."""
    with redis_server(lab) as store, tempfile.TemporaryDirectory(dir=lab.folder) as folder:
        lay_out(store.url)
        log = Path(folder) / "consumer.log"
        environment = {
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": folder,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONPATH": str(REPOSITORY),
        }
        command = python("-m", module, store.url, LABEL, folder)
        with running(command, core=None, log=log, env=environment, output=True) as consumer:
            while consumer.read_line(FIRST_ACK_S) != "ready":
                pass
            watch = {"server": family(consumer.pid), "store": [store.pid]}
            plan = Trickle(store.url, LABEL, WARMUP, EVENTS, watch)
            load = python("-m", "benchmarks.event_load", plan.to_json())
            with running(load, core=None, log=lab.folder / "load.log", output=True) as process:
                longest = FIRST_ACK_S + START_S + (WARMUP + EVENTS) * PAUSE_S[1] + 3 * ACK_S
                try:
                    printed = process.finish(longest)
                finally:
                    consumer.alive()
    return Sample.from_json(json.loads(printed))


def spark(lab: Lab, rounds: int, _seconds: float) -> Result:
    """The connector, a plain consumer of the same stream, and the least connector."""
    result = Result(
        "spark",
        "event → Spark ack, one event at a time (journal entry appended → ack on the ack channel)",
        [Goal("p50_ms", CONNECTOR, FLOOR, False, 1.5)],
        ["p50_ms", "p99_ms"],
    )
    lab = Lab(lab.folder, None, None, lab.redis)
    systems: dict[str, Callable[[], Sample]] = {
        name: partial(consumed, lab, module) for name, module in MODULES.items()
    }
    return interleave(result, systems, rounds)
