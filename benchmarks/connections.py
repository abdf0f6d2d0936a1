"""Benchmarks ``mqtt`` and ``amqp``: messages settled after ``twin-persisted``."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiormq

from benchmarks.measure import Result, RunError, Sample, interleave
from benchmarks.processes import START_S, Lab, Process, free_port, python, running, wait_until
from benchmarks.settled_load import Plan
from benchmarks.systems import ACKGATE, PASSWORD, USER, Nodes, nodes
from tests.brokers.mosquitto import PASSWORD as MQTT_PASSWORD
from tests.brokers.mosquitto import USER as MQTT_USER
from tests.brokers.mosquitto import Mosquitto, binary
from tests.brokers.rabbitmq import USERS, RabbitServer, missing

PLAIN = "plain consumer"
WARMUP_S = 0.8
IN_FLIGHT = 64
OPERATOR = "operator"
ADDRESS = "bench-commands"
_KINDS = {"mqtt": "mqtt", "amqp": "amqp-091"}


@dataclass(frozen=True)
class Broker:
    """A running broker, and who may use it."""

    kind: str
    port: int
    user: str
    password: str


@contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """What is started meanwhile stays on that core."""
    before = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def mosquitto(lab: Lab) -> Iterator[Broker]:
    """A Mosquitto that lets as many messages be under way as the gateway takes."""
    with tempfile.TemporaryDirectory(dir=lab.folder, prefix="mosquitto-") as place:
        broker = Mosquitto(Path(place), "max_inflight_messages 1000")
        try:
            with on_core(lab.load_core):
                broker.start()
            yield Broker("mqtt", broker.port, MQTT_USER, MQTT_PASSWORD)
        finally:
            broker.stop()


@contextmanager
def rabbit(lab: Lab) -> Iterator[Broker]:
    """A RabbitMQ with the queue."""
    with tempfile.TemporaryDirectory(dir=lab.folder, prefix="rabbit-") as place:
        broker = RabbitServer(Path(place))
        try:
            with on_core(lab.load_core):
                broker.start()
            found = Broker("amqp", broker.port, "ackgate", USERS["ackgate"])
            asyncio.run(_declare(found))
            yield found
        finally:
            broker.stop()


async def _declare(broker: Broker) -> None:
    url = f"amqp://{broker.user}:{quote(broker.password)}@127.0.0.1:{broker.port}/"
    connection = await aiormq.connect(url)
    channel = await connection.channel()
    await channel.queue_declare(ADDRESS, durable=True)
    await connection.close()


def _ask(port: int, user: str, method: str, path: str, body: Any = None) -> Any:
    """One request with good credentials; its JSON. Raises RunError."""
    credentials = base64.b64encode(f"{user}:{PASSWORD}".encode()).decode()
    headers = {"Authorization": f"Basic {credentials}", "Content-Type": "application/json"}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read().decode()
    finally:
        connection.close()
    if answer.status not in (200, 201):
        raise RunError(f"{method} {path}: {answer.status} {text}")
    return json.loads(text)


def document(broker: Broker, port: int) -> dict[str, Any]:
    """The connection, which reaches the broker by the port of the load."""
    scheme = "tcp" if broker.kind == "mqtt" else "amqp"
    source: dict[str, Any] = {
        "addresses": [ADDRESS],
        "authorizationContext": [f"nginx:{USER}"],
        "replyTarget": {"enabled": False},
    }
    if broker.kind == "mqtt":
        source["qos"] = 1
    return {
        "connectionType": _KINDS[broker.kind],
        "connectionStatus": "open",
        "uri": f"{scheme}://{broker.user}:{quote(broker.password)}@127.0.0.1:{port}",
        "sources": [source],
    }


@dataclass(frozen=True)
class Loaded:
    """A running load."""

    process: Process
    longest_s: float

    def sample(self) -> Sample:
        """What it has measured, at its end."""
        return Sample.from_json(json.loads(self.process.finish(self.longest_s)))


@contextmanager
def load(
    lab: Lab, broker: Broker, port: int, seconds: float, watch: dict[str, list[int]]
) -> Iterator[Loaded]:
    """The load, as soon as a consumer can connect through it at ``port``."""
    plan = Plan(
        broker.kind,
        broker.port,
        port,
        ADDRESS,
        broker.user,
        broker.password,
        IN_FLIGHT,
        WARMUP_S,
        seconds,
        watch,
    )
    command = python("-m", "benchmarks.settled_load", plan.to_json())
    log = lab.folder / "settled-load.log"
    with running(command, core=lab.load_core, log=log, output=True) as process:
        process.read_line()
        yield Loaded(process, WARMUP_S + seconds + 2 * START_S)


def through_gateway(lab: Lab, broker: Broker, seconds: float) -> Sample:
    """One round of the gateway: a message is settled when its thing is stored."""
    settings = {"ACKGATE_OPERATORS": f"{OPERATOR}:{PASSWORD}"}
    with ExitStack() as stack:
        started: Nodes = stack.enter_context(nodes(lab, ACKGATE, 1, settings))
        port = started.ports[0]
        way = free_port()
        loaded = stack.enter_context(load(lab, broker, way, seconds, started.watch()))
        wanted = document(broker, way)
        made = _ask(port, OPERATOR, "POST", "/api/2/connections", wanted)
        status = f"/api/2/connections/{made['id']}/status"

        def is_open() -> bool:
            return bool(_ask(port, OPERATOR, "GET", status)["liveStatus"] == "open")

        wait_until("the connection", is_open, started.processes[0], START_S)
        sample = loaded.sample()
        metrics = _ask(port, OPERATOR, "GET", f"/api/2/connections/{made['id']}/metrics")
        if metrics["containsFailures"]:
            raise RunError(f"not all were persisted: {json.dumps(metrics)[:1000]}")
        _ask(port, USER, "GET", "/api/2/things/bench:thing-0")
    return sample


def plain(lab: Lab, broker: Broker, seconds: float) -> Sample:
    """One round of the library alone: a message is settled when it is there."""
    way = free_port()
    arguments = (broker.kind, str(way), ADDRESS, broker.user, broker.password)
    command = python("-m", "benchmarks.baselines.consumers", *arguments)
    log = lab.folder / "consumer.log"
    with (
        running(command, core=lab.server_core, log=log) as consumer,
        load(lab, broker, way, seconds, {"server": [consumer.pid]}) as loaded,
    ):
        sample = loaded.sample()
        consumer.alive()
    return sample


def _beside(lab: Lab, rounds: int, seconds: float, name: str, what: str) -> Result:
    result = Result(
        name,
        f"{what} settled after twin-persisted, fsync always, {IN_FLIGHT} under way",
        [],
        ["requests_per_s", "p50_ms", "p99_ms", "server_cpu_us"],
        notes=[
            f"`{PLAIN}` takes the same messages with the same library and settles them at once: "
            "it stores nothing. Times are from the broker's sending of a message to its ack."
        ],
    )
    absent = missing() if name == "amqp" else None
    if name == "mqtt" and binary("mosquitto") is None:
        absent = "mosquitto is not installed"
    if absent is not None:
        result.notes.append(f"{absent}: no figures.")
        return result

    def fresh(run: Any) -> Sample:
        with mosquitto(lab) if name == "mqtt" else rabbit(lab) as broker:
            found: Sample = run(lab, broker, seconds)
            return found

    return interleave(
        result, {ACKGATE: partial(fresh, through_gateway), PLAIN: partial(fresh, plain)}, rounds
    )


def mqtt(lab: Lab, rounds: int, seconds: float) -> Result:
    """MQTT with QoS 1: PUBACK after the twin is stored."""
    return _beside(lab, rounds, seconds, "mqtt", "MQTT messages (QoS 1)")


def amqp(lab: Lab, rounds: int, seconds: float) -> Result:
    """AMQP 0.9.1: basic.ack after the twin is stored."""
    return _beside(lab, rounds, seconds, "amqp", "AMQP 0.9.1 messages")
