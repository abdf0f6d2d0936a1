"""A driver and a gateway in memory: for what depends on the order of things only.

What drivers do with brokers is proved against the brokers (tests/brokers), what the gateway does
against the gateway (tests/service).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import orjson

from acks.envelopes import Envelope
from acks.settlement import Settlement
from acks.signals import Acknowledgement
from connections.driver import (
    Delivery,
    Limits,
    OnDelivery,
    OnLost,
    OnStatus,
    OpenError,
    Publication,
    Published,
)
from connections.model import Connection, Source, Target, Uri
from connections.ports import Answer, OnAnswer, Sender
from connections.supervisor import Pace, Supervisor
from tests.servers import wait_for

PACE = Pace(
    open_s=5.0,
    first_delay_s=0.02,
    last_delay_s=0.1,
    first_redelivery_s=0.01,
    last_redelivery_s=0.05,
    limits=Limits(in_flight=10, publishing=8),
)


class MemoryDriver:
    """What is given in by :meth:`deliver`; ``settled`` is what it was told, in order."""

    settles_redelivery: ClassVar[bool] = True

    def __init__(self, broker: Broker, generation: int, limits: Limits) -> None:
        self.broker = broker
        self.generation = generation
        self.limits = limits
        self.settled: list[tuple[str, Settlement]] = []
        self.closed = asyncio.Event()
        self.stale = 0
        self.withheld = 0

    async def open(self, on_delivery: OnDelivery, on_lost: OnLost, on_status: OnStatus) -> None:
        self.on_delivery, self.on_lost, self.on_status = on_delivery, on_lost, on_status
        if self.broker.refuses is not None:
            raise self.broker.refuses
        await self.broker.opens.wait()

    def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        self.broker.settlements.append((delivery.identity, settlement))
        self.settled.append((delivery.identity, settlement))

    async def publish(self, publication: Publication, deadline_s: float) -> Published:
        self.broker.given.append(publication)
        await self.broker.confirms.wait()
        self.broker.published.append(publication)
        return self.broker.result(publication)

    async def close(self, grace_s: float) -> None:
        self.closed.set()

    def deliver(self, envelope: Any, identity: str = "1", **more: Any) -> Delivery:
        payload = envelope if isinstance(envelope, bytes) else orjson.dumps(envelope)
        given = {"source": 0, "address": "in", "headers": {}, "content_type": None, **more}
        delivery = Delivery(
            payload=payload, identity=identity, token=None, generation=self.generation, **given
        )
        self.on_delivery(delivery)
        return delivery


class Broker:
    """Makes drivers; what they publish and settle ends here."""

    def __init__(self) -> None:
        self.drivers: list[MemoryDriver] = []
        self.refuses: Exception | None = None
        self.opens = asyncio.Event()
        self.opens.set()
        self.confirms = asyncio.Event()
        self.confirms.set()
        self.given: list[Publication] = []
        self.published: list[Publication] = []
        self.settlements: list[tuple[str, Settlement]] = []
        self.results: dict[str, Published] = {}

    def result(self, publication: Publication) -> Published:
        return self.results.get(publication.address, Published(200))

    def __call__(
        self, connection: Connection, client: int, generation: int, limits: Limits
    ) -> MemoryDriver:
        driver = MemoryDriver(self, generation, limits)
        self.drivers.append(driver)
        return driver

    @property
    def driver(self) -> MemoryDriver:
        return self.drivers[-1]

    def to(self, address: str) -> list[Any]:
        return [orjson.loads(one.payload) for one in self.published if one.address == address]


@dataclass
class Asked:
    """A command the gateway has not answered yet."""

    envelope: Envelope
    sender: Sender
    answer: OnAnswer


@dataclass
class MemoryGate:
    """Keeps what is submitted; ``at_once`` answers it before submit returns."""

    waits: bool = True
    at_once: Answer | None = None
    fails: Exception | None = None
    asked: list[Asked] = field(default_factory=list)
    acks: list[tuple[int, Acknowledgement]] = field(default_factory=list)

    def submit(self, envelope: Envelope, sender: Sender, on_answer: OnAnswer) -> bool:
        if self.fails is not None:
            raise self.fails
        self.asked.append(Asked(envelope, sender, on_answer))
        if self.at_once is not None:
            on_answer(self.at_once)
        return self.waits

    def acknowledge(self, target: int, ack: Acknowledgement) -> bool:
        self.acks.append((target, ack))
        return True


class Frames:
    """The session of a target."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[list[bytes]] = asyncio.Queue()
        self.on_filtered: Callable[[], None] | None = None

    def put(self, *envelopes: Envelope) -> None:
        self._queue.put_nowait([orjson.dumps(envelope) for envelope in envelopes])

    def end(self) -> None:
        self._queue.put_nowait([])

    async def frames(self) -> list[bytes]:
        return await self._queue.get()


def source(**more: Any) -> Source:
    given: dict[str, Any] = {"index": 0, "addresses": ("in",), "subjects": ("some:subject",)}
    return Source(**given | more)


def target(**more: Any) -> Target:
    given: dict[str, Any] = {
        "index": 0,
        "address": "out",
        "topics": (),
        "subjects": ("some:subject",),
    }
    return Target(**given | more)


def connection(
    *, sources: tuple[Source, ...] = (), targets: tuple[Target, ...] = (), **more: Any
) -> Connection:
    given: dict[str, Any] = {"id": "memory", "kind": "amqp-091", "open": True}
    uri = Uri("amqp", "localhost", 5672)
    return Connection(uri=uri, sources=sources, targets=targets, **given | more)


@dataclass
class Rig:
    """A supervisor between a broker and a gateway, both in memory."""

    supervisor: Supervisor
    broker: Broker
    gate: MemoryGate
    feeds: Mapping[int, Frames]

    @property
    def driver(self) -> MemoryDriver:
        return self.broker.driver

    @property
    def settlements(self) -> list[tuple[str, Settlement]]:
        return self.broker.settlements

    def counted(self, direction: str, kind: str, ok: bool = True) -> int:
        return self.supervisor.totals.get((direction, kind, ok), 0)

    async def opened(self, times: int = 1) -> None:
        await wait_for(
            lambda: len(self.broker.drivers) >= times and self.supervisor.state.value == "open"
        )


def rig(
    document: Connection, pace: Pace = PACE, gate: MemoryGate | None = None, **more: Any
) -> Rig:
    broker = Broker()
    gate = gate or MemoryGate()
    feeds = {one.index: Frames() for one in document.targets}
    supervisor = Supervisor(document, 0, "node", broker, gate, feeds, pace, **more)
    return Rig(supervisor, broker, gate, feeds)


def modify(correlation_id: str = "c", **headers: Any) -> Envelope:
    return {
        "topic": "ns/thing/things/twin/commands/modify",
        "headers": {"correlation-id": correlation_id, **headers},
        "path": "/attributes/a",
        "value": 1,
    }


def modified(correlation_id: str = "c", thing: str = "thing", **headers: Any) -> Envelope:
    return {
        "topic": f"ns/{thing}/things/twin/events/modified",
        "headers": {"correlation-id": correlation_id, "response-required": False, **headers},
        "path": "/attributes/a",
        "value": 1,
        "revision": 2,
    }


def response(status: int = 204, correlation_id: str = "c") -> Answer:
    envelope = {
        "topic": "ns/thing/things/twin/commands/modify",
        "headers": {"correlation-id": correlation_id, "response-required": False},
        "path": "/attributes/a",
        "status": status,
    }
    return Answer(envelope, (status,))


numbers = itertools.count(1)
UNREACHABLE = OpenError("temporary", "Nobody listens.")
