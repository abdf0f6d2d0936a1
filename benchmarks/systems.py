"""The HTTP systems side by side: how each is started, and one sample of a load on it."""

from __future__ import annotations

import base64
import http.client
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.load import DRAIN_S, PREPARE_S, Plan
from benchmarks.measure import RunError, Sample
from benchmarks.processes import (
    START_S,
    Lab,
    Process,
    Store,
    family,
    free_port,
    http_status,
    python,
    redis_server,
    running,
    wait_until,
)

USER, PASSWORD, LABEL = "bench", "correct-horse-battery", "bench:ack"
GOOD = ["200", "201", "204"]
ACKGATE, STRAIGHTFORWARD, BARE = "ackgate", "straightforward", "bare"
RELAXED = "ackgate-everysec"
"""The gateway on a store that fsyncs once a second: as durable as a broker that never waits."""


@dataclass(frozen=True)
class Nodes:
    """Running server processes of one system, all on one store."""

    processes: list[Process]
    ports: list[int]
    store: Store

    def watch(self) -> dict[str, list[int]]:
        """Process ids by role, for ``Meter``."""
        servers = [pid for process in self.processes for pid in family(process.pid)]
        return {"server": servers, "store": [self.store.pid]}


def gateway() -> str:
    """The gateway's command beside this interpreter. Raises RunError."""
    path = Path(sys.executable).with_name("ackgate")
    if not path.exists():
        raise RunError("the command ackgate is not installed beside this Python")
    return str(path)


def server_environment(store: Store) -> dict[str, str]:
    """What a process of any baseline app needs to know."""
    return {"BENCH_REDIS_URL": store.url, "BENCH_USER": USER, "BENCH_PASSWORD": PASSWORD}


def command(system: str, port: int, store: Store) -> tuple[list[str], dict[str, str]]:
    """Command and environment of one server process of ``system``."""
    if system in (ACKGATE, RELAXED):
        arguments = ["serve", "--host", "127.0.0.1", "--port", str(port), "--redis-url", store.url]
        environment = {"ACKGATE_USERS": f"{USER}:{PASSWORD}"}
        if system == RELAXED:
            environment["ACKGATE_DURABILITY"] = "everysec"
        return [gateway(), *arguments], environment
    uvicorn = f"-m uvicorn benchmarks.baselines.{system}:app --host 127.0.0.1 --port {port}"
    tuned = "--loop uvloop --http httptools --no-access-log --log-level warning"
    return python(*uvicorn.split(), *tuned.split()), server_environment(store)


@contextmanager
def nodes(
    lab: Lab, system: str, count: int, settings: Mapping[str, str] | None = None
) -> Iterator[Nodes]:
    """``count`` server processes of ``system`` on one fresh store, ready for requests.

    ``settings`` are further environment variables of theirs.
    """
    with ExitStack() as stack:
        appendfsync = "everysec" if system == RELAXED else "always"
        store = stack.enter_context(redis_server(lab, appendfsync))
        # The search index is as new as the store.
        place = stack.enter_context(tempfile.TemporaryDirectory(dir=lab.folder))
        processes, ports = [], []
        for _ in range(count):
            port = free_port()
            arguments, environment = command(system, port, store)
            environment |= {"ACKGATE_DATA_DIR": f"{place}/data"} | dict(settings or {})
            log = lab.folder / f"{system}.log"
            child = running(arguments, core=lab.server_core, log=log, env=environment)
            processes.append(stack.enter_context(child))
            ports.append(port)
        for process, port in zip(processes, ports, strict=True):

            def ready(port: int = port) -> bool:
                return http_status(port, "/health/ready") == 200

            wait_until(f"{system} on port {port}", ready, process, START_S)
        yield Nodes(processes, ports, store)


@contextmanager
def subscriber(lab: Lab, port: int) -> Iterator[Process]:
    """The WebSocket subscriber that declares ``LABEL``, once events flow to it."""
    log = lab.folder / "subscriber.log"
    environment = {"BENCH_USER": USER, "BENCH_PASSWORD": PASSWORD}
    arguments = python("-m", "benchmarks.subscriber", "127.0.0.1", str(port), LABEL)
    with running(arguments, core=lab.load_core, log=log, env=environment, output=True) as process:
        process.read_line()
        yield process


def answers_well(port: int, acks: str) -> bool:
    """Does one probing request get a good answer within 2 s?"""
    credentials = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    headers = {
        "Authorization": f"Basic {credentials}",
        "requested-acks": acks,
        "timeout": "1s",
        "Content-Type": "application/json",
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("PUT", "/api/2/things/bench:probe", '{"attributes":{}}', headers)
        return str(connection.getresponse().status) in GOOD
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


Beside = Callable[[ExitStack, int], None]
"""Starts something beside a load, on the server process at a port; the stack stops it."""


@dataclass(frozen=True)
class Load:
    """One load on one system. Times in s."""

    connections: int
    seconds: float
    warmup: float
    with_subscriber: bool = False
    variant: str = "things"
    things: int = 1000
    acks: str = "twin-persisted"
    settings: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the server."""


def sample(lab: Lab, system: str, load: Load, beside: Beside | None = None) -> Sample:
    """Start the system on a fresh store, load it, stop it. Raises RunError.

    With a subscriber there are two server processes: requests go to the first, the subscriber is
    connected to the second. ``beside`` is called with its port, before the load begins.
    """
    acks = f"{load.acks},{LABEL}" if load.with_subscriber else load.acks
    with ExitStack() as stack:
        started = stack.enter_context(
            nodes(lab, system, 2 if load.with_subscriber else 1, load.settings)
        )
        listening = None
        if load.with_subscriber:
            listening = stack.enter_context(subscriber(lab, started.ports[1]))
        if beside is not None:
            beside(stack, started.ports[-1])
        port = started.ports[0]
        wait_until("a good answer", lambda: answers_well(port, acks), started.processes[0], START_S)
        watch = started.watch() | ({"subscriber": [listening.pid]} if listening else {})
        plan = Plan(
            host="127.0.0.1",
            port=port,
            connections=load.connections,
            warmup=load.warmup,
            seconds=load.seconds,
            acks=acks,
            user=USER,
            password=PASSWORD,
            good=GOOD,
            watch=watch,
            variant=load.variant,
            things=load.things,
        )
        arguments = python("-m", "benchmarks.load", plan.to_json())
        log = lab.folder / "load.log"
        generator = running(arguments, core=lab.load_core, log=log, output=True)
        process = stack.enter_context(generator)
        printed = process.finish(load.warmup + load.seconds + PREPARE_S + DRAIN_S + START_S)
        for server in started.processes:
            server.alive()
        if listening:
            listening.alive()
    return Sample.from_json(json.loads(printed))
