"""Benchmarks of requests: ``persisted``, ``merge``, ``get``, ``ack1``, ``ack64``, ``ack256``."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from benchmarks.baselines.jetstream import Job
from benchmarks.bodies import LARGE_BYTES, USUAL_BYTES
from benchmarks.measure import Goal, Result, Sample, interleave
from benchmarks.processes import START_S, Lab, nats_binary, nats_server, nats_syncs, python, running
from benchmarks.systems import ACKGATE, BARE, RELAXED, STRAIGHTFORWARD, Load, sample

NATS = "nats"
WARMUP_S = 0.8
IN_FLIGHT = 64
NO_INDEX = "ackgate, no index"
"""The gateway without its search index, which otherwise is kept beside it on the same core."""


def _beside_both(lab: Lab, rounds: int, name: str, title: str, load: Load, times: float) -> Result:
    """The gateway against both apps; ``times`` is the goal against the straightforward one.

    Where things change, the gateway without a search index is measured, too, for information.
    """
    result = Result(
        name,
        title,
        [
            Goal("requests_per_s", ACKGATE, STRAIGHTFORWARD, True, times),
            Goal("p99_ms", ACKGATE, STRAIGHTFORWARD, False, 1.0),
            Goal("requests_per_s", ACKGATE, BARE, True, 0.5),
        ],
        ["requests_per_s", "p50_ms", "p99_ms", "server_cpu_us"],
    )
    names = (STRAIGHTFORWARD, BARE, ACKGATE)
    systems = {name: partial(sample, lab, name, load) for name in names}
    if load.variant != "get":
        without = replace(load, settings={"ACKGATE_SEARCH_INDEX": "off"})
        systems[NO_INDEX] = partial(sample, lab, ACKGATE, without)
    return interleave(result, systems, rounds)


def persisted(lab: Lab, rounds: int, seconds: float) -> Result:
    """PUT with ``twin-persisted`` alone, 64 connections, one server process."""
    title = f"PUT with twin-persisted, fsync always, {IN_FLIGHT} connections, one server process"
    return _beside_both(lab, rounds, "persisted", title, Load(IN_FLIGHT, seconds, WARMUP_S), 4.0)


def merge(lab: Lab, rounds: int, seconds: float) -> Result:
    """A merge patch that changes one property of a large thing, 64 connections.

    Two things a connection: all of them fit into the gateway's cache, as few as change at a time.
    """
    title = (
        f"PATCH of one property of a {LARGE_BYTES // 1000} kB thing, fsync always, {IN_FLIGHT} "
        "connections, one server process"
    )
    load = Load(IN_FLIGHT, seconds, WARMUP_S, variant="merge", things=2 * IN_FLIGHT)
    return _beside_both(lab, rounds, "merge", title, load, 3.0)


def get(lab: Lab, rounds: int, seconds: float) -> Result:
    """GET of things of usual size, 64 connections."""
    title = f"GET of a {USUAL_BYTES // 1000} kB thing, {IN_FLIGHT} connections, one server process"
    load = Load(IN_FLIGHT, seconds, WARMUP_S, variant="get")
    return _beside_both(lab, rounds, "get", title, load, 4.0)


def attributes(lab: Lab, rounds: int, seconds: float) -> Result:
    """The same on one attribute of a thing; only the gateway, for information."""
    result = Result(
        "attributes",
        f"PUT of one attribute with twin-persisted, {IN_FLIGHT} connections, one server process",
        [],
        ["requests_per_s", "p50_ms", "p99_ms", "server_cpu_us"],
    )
    things = Load(IN_FLIGHT, seconds, WARMUP_S)
    one = Load(IN_FLIGHT, seconds, WARMUP_S, variant="attributes")
    systems = {
        f"{ACKGATE} (things)": partial(sample, lab, ACKGATE, things),
        f"{ACKGATE} (attribute)": partial(sample, lab, ACKGATE, one),
    }
    return interleave(result, systems, rounds)


def jetstream(lab: Lab, in_flight: int, seconds: float) -> Sample:
    """One round of NATS: server and requester (the load) on one core, the responder on the other.

    Of the placements tried on two cores this is the one NATS does best with.
    """
    log = lab.folder / "jetstream.log"
    module = "benchmarks.baselines.jetstream"
    with nats_server(lab) as server:
        answering = python("-m", module, "responder", server.url)
        with running(answering, core=lab.server_core, log=log, output=True) as responder:
            responder.read_line()
            watch = {"server": [responder.pid], "store": [server.pid]}
            job = Job(server.url, in_flight, WARMUP_S, seconds, watch)
            asking = python("-m", module, "requester", job.to_json())
            with running(asking, core=lab.load_core, log=log, output=True) as requester:
                printed = requester.finish(WARMUP_S + seconds + START_S)
            responder.alive()
    return Sample.from_json(json.loads(printed))


def _acks(result: Result, lab: Lab, rounds: int, load: Load) -> Result:
    systems: dict[str, Callable[[], Sample]] = {
        name: partial(sample, lab, name, load) for name in (STRAIGHTFORWARD, ACKGATE)
    }
    if nats_binary() is None:
        result.notes.append("nats-server is not installed: no NATS figures.")
    else:
        systems[NATS] = partial(jetstream, lab, load.connections, load.seconds)
        if not nats_syncs():
            result.notes.append(
                "This nats-server has no `sync_interval` (it came with 2.10): its stream is not "
                f"fsynced before the answer, ours is. `{RELAXED}` is the gateway without that "
                "wait, for comparison; it counts for no goal."
            )
            systems[RELAXED] = partial(sample, lab, RELAXED, load)
    return interleave(result, systems, rounds)


def _acks_in_flight(
    lab: Lab, rounds: int, seconds: float, in_flight: int, goals: list[Goal]
) -> Result:
    many = "one at a time" if in_flight == 1 else f"{in_flight} in flight"
    result = Result(
        f"ack{in_flight}",
        f"PUT with a WebSocket ack, subscriber on another process, {many}",
        goals,
        ["requests_per_s", "p50_ms", "p99_ms", "server_cpu_us"],
    )
    return _acks(result, lab, rounds, Load(in_flight, seconds, WARMUP_S, with_subscriber=True))


def ack64(lab: Lab, rounds: int, seconds: float) -> Result:
    """PUT that waits for a subscriber's ack, subscriber on another process, 64 in flight."""
    goals = [
        Goal("requests_per_s", ACKGATE, STRAIGHTFORWARD, True, 5.0),
        Goal("p99_ms", ACKGATE, STRAIGHTFORWARD, False, 0.25),
        Goal("requests_per_s", ACKGATE, NATS, True, 0.5),
    ]
    return _acks_in_flight(lab, rounds, seconds, IN_FLIGHT, goals)


def ack1(lab: Lab, rounds: int, seconds: float) -> Result:
    """The same, one request at a time."""
    goals = [Goal("p50_ms", ACKGATE, STRAIGHTFORWARD, False, 0.6)]
    return _acks_in_flight(lab, rounds, seconds, 1, goals)


def ack256(lab: Lab, rounds: int, seconds: float) -> Result:
    """The same, 256 in flight."""
    goals = [
        Goal("requests_per_s", ACKGATE, STRAIGHTFORWARD, True, 5.0),
        Goal("p99_ms", ACKGATE, STRAIGHTFORWARD, False, 0.25),
    ]
    return _acks_in_flight(lab, rounds, seconds, 256, goals)
