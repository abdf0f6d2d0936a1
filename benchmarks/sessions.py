"""Benchmarks of sessions: ``fanout``, ``idle`` and ``labels``."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from benchmarks.audience import Audience
from benchmarks.measure import Goal, Result, Sample, interleave
from benchmarks.pending import connections
from benchmarks.processes import (
    START_S,
    Lab,
    Process,
    family,
    free_port,
    http_status,
    python,
    redis_server,
    running,
    wait_until,
)
from benchmarks.start import listener, memory_mb
from benchmarks.systems import (
    ACKGATE,
    PASSWORD,
    STRAIGHTFORWARD,
    USER,
    Load,
    Nodes,
    answers_well,
    nodes,
    sample,
    server_environment,
)

FLOOR = "floor"
SIZES = (1, 100, 1_000, 5_000)
IDLE_SESSIONS = 5_000
POOLED = 900
"""Sessions that the straightforward app's pool of store connections allows."""
LABELLED, LABELS = 1_000, 10
OPEN_S = 90.0
SETTLE_S = 0.5
SETTINGS = {"ACKGATE_MAX_SESSIONS": "20000"}


@contextmanager
def floor(lab: Lab) -> Iterator[Nodes]:
    """The least that brings events to WebSockets, on a fresh store."""
    with redis_server(lab) as store:
        port = free_port()
        command = python("-m", "benchmarks.baselines.fanout", str(port))
        log = lab.folder / "floor.log"
        environment = server_environment(store)
        with running(command, core=lab.server_core, log=log, env=environment) as process:
            wait_until("the floor", lambda: http_status(port, "/") == 200, process, START_S)
            yield Nodes([process], [port], store)


@contextmanager
def system(lab: Lab, name: str) -> Iterator[Nodes]:
    """One server process of a system, ready, whose users may have as many files as there are."""
    connections(1)
    if name == FLOOR:
        with floor(lab) as started:
            yield started
        return
    with nodes(lab, name, 1, SETTINGS if name == ACKGATE else None) as started:
        port, process = started.ports[0], started.processes[0]
        wait_until("a good answer", lambda: answers_well(port, "twin-persisted"), process, START_S)
        yield started


@contextmanager
def audience(lab: Lab, plan: Audience) -> Iterator[tuple[Process, float]]:
    """The sessions of ``plan``, once they are open, and how long that took in s."""
    command = python("-m", "benchmarks.audience", plan.to_json())
    log = lab.folder / "audience.log"
    with running(command, core=lab.load_core, log=log, output=True) as process:
        yield process, json.loads(process.read_line(OPEN_S))["opened_s"]


def heard(lab: Lab, name: str, sessions: int, seconds: float) -> Sample:
    """One round: events to ``sessions`` sessions on one process."""
    with system(lab, name) as started:
        plan = Audience(started.ports[0], sessions, seconds, USER, PASSWORD, started.watch())
        with audience(lab, plan) as (process, opened_s):
            printed = process.finish(seconds + OPEN_S)
        started.processes[0].alive()
    measured = Sample.from_json(json.loads(printed))
    measured.figures["opened_s"] = opened_s
    return measured


def fanout(lab: Lab, rounds: int, seconds: float) -> Result:
    """One event to 1, 100, 1,000 and 5,000 sessions: PUT -> the last one has it."""
    sizes = [size for size in SIZES if size <= connections(max(SIZES))]
    result = Result(
        "fanout",
        "PUT → every session of one process has the event, one event at a time",
        [
            Goal("p50_ms", f"{ACKGATE} ({size:,})", f"{FLOOR} ({size:,})", False, 2.0)
            for size in sizes
        ],
        ["p50_ms", "p99_ms", "deliveries_per_s", "delivery_cpu_us"],
    )
    systems = {
        f"{name} ({size:,})": partial(heard, lab, name, size, seconds)
        for size in sizes
        for name in (FLOOR, ACKGATE)
    }
    return interleave(result, systems, rounds)


def sitting(lab: Lab, name: str, sessions: int) -> Sample:
    """One round: memory of a process before and after ``sessions`` sessions came to listen."""
    with system(lab, name) as started:
        process, port = started.processes[0], started.ports[0]
        pid = listener(port, family(process.pid))
        before = memory_mb(pid)["Rss"]
        with audience(lab, Audience(port, sessions, 0, USER, PASSWORD)) as (_, opened_s):
            time.sleep(SETTLE_S)
            after = memory_mb(pid)["Rss"]
    return Sample({"session_kb": (after - before) * 1000 / sessions, "opened_s": opened_s})


def idle(lab: Lab, rounds: int, _seconds: float) -> Result:
    """Memory of an idle session that listens to events."""
    sessions = connections(IDLE_SESSIONS)
    result = Result(
        "idle",
        f"{sessions:,} sessions that listen to events and get none, on one process",
        [Goal("session_kb", ACKGATE, STRAIGHTFORWARD, False, 1.0)],
        ["session_kb", "opened_s"],
    )
    sizes = {FLOOR: sessions, STRAIGHTFORWARD: min(sessions, POOLED), ACKGATE: sessions}
    result.notes.append(f"{STRAIGHTFORWARD}, which takes a store connection each, had {POOLED}.")
    systems = {name: partial(sitting, lab, name, size) for name, size in sizes.items()}
    return interleave(result, systems, rounds)


def declared(lab: Lab, labels: int, load: Load) -> Sample:
    """One round of acks one at a time while ``LABELLED`` sessions own ``labels`` labels each."""
    opened: list[float] = []

    def crowd(stack: ExitStack, port: int) -> None:
        plan = Audience(port, LABELLED, 0, USER, PASSWORD, labels=labels, listens=False)
        opened.append(stack.enter_context(audience(lab, plan))[1])

    measured = sample(lab, ACKGATE, load, beside=crowd)
    measured.figures["opened_s"] = opened[0]
    return measured


def labels(lab: Lab, rounds: int, seconds: float) -> Result:
    """10,000 declared labels: what claiming costs, and what an ack costs beside them."""
    connections(1)
    many, none = f"{LABELLED * LABELS:,} labels", "no labels"
    load = Load(1, seconds, 0.8, with_subscriber=True)
    result = Result(
        "labels",
        f"{LABELLED:,} sessions with {LABELS} labels each on the subscriber's process; PUT with a "
        "WebSocket ack of another session, one at a time",
        [
            Goal("p50_ms", many, none, False, 1.25),
            Goal("opened_s", many, none, False, 2.0),
        ],
        ["opened_s", "p50_ms", "p99_ms", "server_cpu_us"],
    )
    systems = {
        none: partial(declared, lab, 0, load),
        many: partial(declared, lab, LABELS, load),
    }
    return interleave(result, systems, rounds)
