"""Benchmark ``pending``: many requests that wait for an ack nobody gives, in one process."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from functools import partial

from benchmarks.expiry import Crowd
from benchmarks.measure import Goal, Result, Sample, interleave
from benchmarks.processes import START_S, Lab, family, python, redis_server, running, wait_until
from benchmarks.start import listener
from benchmarks.systems import (
    ACKGATE,
    PASSWORD,
    STRAIGHTFORWARD,
    USER,
    answers_well,
    nodes,
    server_environment,
)

INSIDE = "{} (in process)"
OTHER_FILES = 1_000
"""Files a process needs beside the connections of its clients, at most."""
LONGEST_S = 1_200.0
SETTINGS = {"ACKGATE_MAX_TIMEOUT": "1h"}
"""So that the slowest system can open all requests before the first one expires."""


def connections(wanted: int) -> int:
    """How many clients one process can have here, ``wanted`` at most.

    Raises the soft limit of open files to the hard one, for this process and its children.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return wanted if most == resource.RLIM_INFINITY else max(1, min(wanted, most - OTHER_FILES))


def over_http(lab: Lab, system: str, requests: int) -> Sample:
    """One round over HTTP: a connection for each request."""
    log = lab.folder / f"crowd-{system}.log"
    with nodes(lab, system, 1, SETTINGS) as started:
        process, port = started.processes[0], started.ports[0]
        wait_until("a good answer", lambda: answers_well(port, "twin-persisted"), process, START_S)
        crowd = Crowd(
            url=started.store.url,
            requests=requests,
            watch=started.watch(),
            pid=listener(port, family(process.pid)),
            host="127.0.0.1",
            port=port,
            user=USER,
            password=PASSWORD,
        )
        command = python("-m", "benchmarks.crowd", crowd.to_json())
        with running(command, core=lab.load_core, log=log, output=True) as clients:
            printed = clients.finish(LONGEST_S)
        process.alive()
    return Sample.from_json(json.loads(printed))


def in_process(lab: Lab, system: str, requests: int) -> Sample:
    """One round without HTTP."""
    log = lab.folder / f"waiting-{system}.log"
    with redis_server(lab) as store:
        watch = {"store": [store.pid]}
        crowd = Crowd(store.url, requests, watch, user=USER, password=PASSWORD)
        command = python("-m", "benchmarks.waiting", system, crowd.to_json())
        environment = server_environment(store)
        with running(
            command, core=lab.server_core, log=log, env=environment, output=True
        ) as process:
            printed = process.finish(LONGEST_S)
    return Sample.from_json(json.loads(printed))


def pending(lab: Lab, rounds: int, _seconds: float) -> Result:
    """Open requests over HTTP, as many as this machine lets one process have, and all inside."""
    clients = connections(lab.waiting)
    result = Result(
        "pending",
        "PUTs that wait for an ack nobody gives, in one process; all expire at one moment",
        [
            Goal("request_kb", ACKGATE, STRAIGHTFORWARD, False, 0.5),
            Goal("expired_s", ACKGATE, STRAIGHTFORWARD, False, 1.0),
            Goal("request_kb", INSIDE.format(ACKGATE), INSIDE.format(STRAIGHTFORWARD), False, 0.5),
            Goal("expired_s", INSIDE.format(ACKGATE), INSIDE.format(STRAIGHTFORWARD), False, 1.0),
        ],
        ["requests", "open_s", "request_kb", "expired_s"],
    )
    result.notes.append(
        "Timeouts are set so that all requests expire at one moment, once all are open. Resident "
        "memory is that of the waiting process, over HTTP with the requests' connections."
    )
    if clients < lab.waiting:
        result.notes.append(
            f"A process may open {clients + OTHER_FILES:,} files here (hard limit), and a request "
            f"that waits over HTTP/1.1 has its connection to itself: {clients:,} wait over HTTP, "
            f"{lab.waiting:,} in a process without HTTP."
        )
    systems: dict[str, Callable[[], Sample]] = {}
    for name in (STRAIGHTFORWARD, ACKGATE):
        systems[name] = partial(over_http, lab, name, clients)
        systems[INSIDE.format(name)] = partial(in_process, lab, name, lab.waiting)
    return interleave(result, systems, rounds)
