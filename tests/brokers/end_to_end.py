"""What every connection to a broker has to do, from one end to the other: the same tests for each.

A broker's test module gives its :class:`Scene` by the fixture ``scene``, and inherits the tests::

    class TestAmqp(EndToEnd, KilledGateway): ...
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import httpx

from tests.brokers.peers import Peer
from tests.brokers.scenes import SUBJECT, Operator, has, modify, new_thing, until
from tests.connected import gateway_of
from tests.gateways import Gateway, Json, Subscriber, http, new_label, running, thing
from tests.servers import RedisServer

DEADLINE = 60.0
CORRELATION = {"correlation-id": "{{header:correlation-id}}"}


@dataclass
class Scene(ABC):
    """A gateway, a broker with addresses of the test's own, and a connection between them."""

    gateway: Gateway
    peer: Peer
    operator: Operator
    client: httpx.AsyncClient
    commands: str = ""  # what is consumed
    events: str = ""  # where events go
    replies: str = ""
    rejected: str = ""  # what is kept of discarded messages; empty if nothing is
    dead: str = ""  # what has failed too often
    connection: str = ""
    confirmed: ClassVar[int] = 200  # the status of the ack for what the broker has

    @classmethod
    @asynccontextmanager
    async def at(cls, gateway: Gateway, peer: Peer) -> AsyncIterator[Self]:
        """With its addresses, without a connection; if one was opened, it is deleted."""
        async with Operator(gateway) as operator, http(gateway) as client:
            one = cls(gateway, peer, operator, client)
            await one.prepare()
            try:
                yield one
            finally:
                if one.connection:
                    with suppress(httpx.TransportError):  # a test may have ended the gateway
                        await operator.client.delete(f"/api/2/connections/{one.connection}")

    def elsewhere(self, gateway: Gateway) -> AbstractAsyncContextManager[Self]:
        """The same at another gateway, with addresses of its own."""
        return type(self).at(gateway, self.peer)

    @property
    def label(self) -> str:
        """The label that the connection's target issues."""
        return f"{self.connection}:out"

    @abstractmethod
    async def prepare(self) -> None:
        """Make the addresses."""

    @abstractmethod
    def place(self) -> Json:
        """Of the connection's document: what says where the broker is."""

    @abstractmethod
    async def send(self, payload: bytes, lane: int = 0) -> None:
        """Send a command; those of a lane keep their order, if the broker has such lanes."""

    @abstractmethod
    async def receive(self, address: str) -> bytes:
        """The next message of an address."""

    @abstractmethod
    async def count(self, address: str) -> int:
        """How many messages an address has."""

    @abstractmethod
    async def unsettled(self) -> int:
        """How many commands the broker would give to the next client."""

    @abstractmethod
    async def nothing_unsettled(self) -> None:
        """The broker has nothing for the next client. This may close the connection."""

    def plain(self) -> Json:
        """A source that does nothing but consume."""
        return {"addresses": [self.commands], "authorizationContext": [SUBJECT]}

    def source(self) -> Json:
        """A source whose commands are answered."""
        reply_target = {
            "enabled": True,
            "address": self.replies,
            "headerMapping": CORRELATION,
            "expectedResponseTypes": ["response", "error", "nack"],
        }
        return {**self.plain(), "headerMapping": CORRELATION, "replyTarget": reply_target}

    def target(self) -> Json:
        """A target for changes of ``/attributes/out``."""
        return {
            "address": self.events,
            "topics": ["_/_/things/twin/events?filter=like(resource:path,'/attributes/out*')"],
            "authorizationContext": [SUBJECT],
            "issuedAcknowledgementLabel": "{{connection:id}}:out",
        }

    def document(self, **changes: Any) -> Json:
        limits = {"maxRedeliveries": "3", "deadLetterAddress": self.dead}
        place = self.place()
        return {
            "connectionStatus": "open",
            **place,
            "sources": [self.source()],
            "targets": [self.target()],
            "specificConfig": {**place.get("specificConfig", {}), **limits},
            **changes,
        }

    async def open(self, **changes: Any) -> None:
        self.connection = await self.operator.create(self.document(**changes))

    async def make(self, **attributes: Any) -> str:
        """A thing of the connection's subject."""
        return await new_thing(self.client, **attributes)

    async def put(self, thing_id: str, value: Any, name: str = "out") -> tuple[int, Json]:
        """Set an attribute and wait for the target: the answer's status, and the target's ack."""
        acks = {"requested-acks": f'["twin-persisted","{self.label}"]'}
        path = thing(thing_id, f"/attributes/{name}")
        answer = await self.client.put(path, json=value, headers=acks)
        return answer.status_code, answer.json()[self.label]

    async def many(self, things: Sequence[str], first: int, end: int) -> None:
        """Send commands with these numbers."""
        for number in range(first, end):
            command = modify(things[number % len(things)], f"/attributes/n{number}", number)
            await self.send(command, number)

    async def all_there(self, things: Sequence[str], count: int) -> None:
        """Wait until the first ``count`` commands of :meth:`many` are carried out."""
        for number in range(count):
            await has(self.client, things[number % len(things)], f"n{number}", number)

    async def acknowledged(self) -> int:
        """How many consumed messages were settled positively, as the metrics say."""
        metrics = await self.operator.view(self.connection, "metrics")
        inbound = metrics["connectionMetrics"]["inbound"]
        return int(inbound.get("acknowledged", {}).get("success", {}).get("PT1H", 0))

    async def kept(self, rejected: int, dead: int) -> bool:
        """Whether so many messages are where those go that are given up."""
        wanted = {self.rejected: rejected, self.dead: dead}
        wanted.pop("", None)
        return {address: await self.count(address) for address in wanted} == wanted

    async def settled(self, *, rejected: int = 0, dead: int = 0) -> None:
        """The broker has nothing but what was given up."""
        await self.nothing_unsettled()
        assert await self.kept(rejected, dead)


class Outcomes:
    """Messages of several kinds, and the owner of a label who answers as their kind says."""

    KINDS: ClassVar[dict[str, int]] = {
        "plain": 40,
        "good": 20,
        "bad": 5,
        "later": 5,
        "never": 2,
        "garbage": 5,
        "missing": 5,
        "condition": 5,
    }

    def __init__(self, things: Sequence[str]) -> None:
        self.label = new_label()
        self.tries: Counter[str] = Counter()
        self._chance = random.Random(6)
        self._things = things
        weights = list(self.KINDS.values())
        self.kinds = self._chance.choices(list(self.KINDS), weights, k=1000)

    def message(self, number: int) -> bytes:
        """One of them."""
        kind = self.kinds[number]
        headers: Json = {}
        thing_id = self._chance.choice(self._things)
        if kind == "garbage":
            return f"garbage {number}".encode()
        if kind == "missing":
            thing_id = "org.example:missing"
        if kind == "condition":
            headers["condition"] = "exists(attributes/nothing)"
        if kind in ("good", "bad", "later", "never"):
            headers["requested-acks"] = ["twin-persisted", self.label]
        return modify(thing_id, f"/attributes/n{number}", f"{kind} {number}", headers)

    def answer(self, event: Json, label: str) -> Json:
        """The ack for an event; what comes ``later`` succeeds the third time."""
        kind, _, number = str(event["value"]).partition(" ")
        self.tries[number] += 1
        late = kind == "later" and self.tries[number] > 2
        return {"status": {"bad": 400, "later": 200 if late else 503, "never": 503}.get(kind, 200)}

    def tries_of(self, kind: str) -> set[int]:
        """How often messages of a kind have come."""
        return {self.tries[str(at)] for at, each in enumerate(self.kinds) if each == kind}


class EndToEnd:
    """What fails on the way is neither lost nor stuck."""

    async def test_a_poisonous_message_does_not_block(self, scene: Scene) -> None:
        await scene.open()
        thing_id, label = await scene.make(known=True), new_label()
        acks = {"requested-acks": ["twin-persisted", label]}
        poison = modify(thing_id, "/attributes/poison", 1, acks)
        wrong = [b"{this is no JSON", modify("org.example:not-there", "/attributes/a", 1)]
        good = [modify(thing_id, f"/attributes/n{number}", number) for number in range(20)]

        def fails(_: Json, __: str) -> Json:
            return {"status": 503, "value": None}

        async with Subscriber.open(scene.gateway, label, ack=fails):
            for payload in (poison, *wrong, *good):
                await scene.send(payload)
            await scene.all_there([thing_id], len(good))
            await until(partial(scene.kept, 1, 1), "what is given up", DEADLINE)
        await scene.settled(rejected=1, dead=1)
        assert await scene.receive(scene.dead) == poison
        if scene.rejected:
            assert await scene.receive(scene.rejected) == wrong[-1]

    async def test_a_broker_that_restarts_loses_no_message(self, scene: Scene) -> None:
        await scene.open()
        things = [await scene.make(known=True) for _ in range(4)]
        await scene.many(things, 0, 200)
        await scene.peer.restart()
        await scene.many(things, 200, 300)
        await scene.all_there(things, 300)
        status, ack = await scene.put(things[0], 1)
        assert (status, ack["status"]) == (200, scene.confirmed)
        await scene.settled()

    async def test_a_store_that_is_killed_loses_no_message(
        self, scene: Scene, store: RedisServer
    ) -> None:
        await scene.open()
        things = [await scene.make(known=True) for _ in range(4)]
        await scene.many(things, 0, 100)
        store.kill9()
        await scene.many(things, 100, 150)
        store.start()
        await scene.all_there(things, 150)
        await scene.settled()

    async def test_a_thousand_random_outcomes_leave_nothing_unsettled(self, scene: Scene) -> None:
        await scene.open(sources=[{**scene.source(), "consumerCount": 2, "replyTarget": None}])
        outcomes = Outcomes([await scene.make(known=True) for _ in range(20)])
        sent = Counter(outcomes.kinds)
        rejected, dead = sent["bad"] + sent["missing"], sent["never"]

        async def done() -> bool:
            return await scene.acknowledged() == sent.total() - rejected and await scene.kept(
                rejected, dead
            )

        async with Subscriber.open(scene.gateway, outcomes.label, ack=outcomes.answer):
            for number in range(sent.total()):
                await scene.send(outcomes.message(number), number)
            await until(done, lambda: f"{sent}: {len(outcomes.tries)} acked", 1.5 * DEADLINE)
        await scene.settled(rejected=rejected, dead=dead)
        assert outcomes.tries_of("good") == outcomes.tries_of("bad") == {1}
        assert outcomes.tries_of("later") == {3}
        assert outcomes.tries_of("never") == {4}


class KilledGateway:
    """The gateway is killed together with the session that has the label."""

    async def test_a_gateway_that_is_killed_before_it_settles(
        self, scene: Scene, store: RedisServer, tmp_path: Path
    ) -> None:
        one, label = gateway_of(tmp_path, store, "killed"), new_label()
        with running(one):
            async with scene.elsewhere(one) as own:
                await own.open(sources=[own.plain()], targets=[])
                acks = {"requested-acks": ["twin-persisted", label], "timeout": "5s"}
                command = modify(await own.make(), "/attributes/a", 1, acks)
                async with Subscriber.open(one, label) as silent:
                    await own.send(command)
                    await silent.event()  # consumed and carried out, and not settled
                    one.kill9()

                async def back() -> bool:
                    return await own.unsettled() == 1

                await until(back, "the broker has it for the next client", DEADLINE)
                await one.start_async()
                await _settles_later(own, label)


async def _settles_later(scene: Scene, label: str) -> None:
    """Somebody else has the label, and the message comes once more and is settled."""

    async def free() -> bool:
        """Whether the dead process does not hold the label any more."""
        found = await scene.operator.client.get("/api/2/acks/labels", params={"label": label})
        return bool(found.json()["labels"] == [])

    async def settled() -> bool:
        return await scene.acknowledged() == 1

    await until(free, f"{label} is free", DEADLINE)
    async with Subscriber.open(scene.gateway, label, ack=lambda *_: {"status": 200}) as helpful:
        await helpful.event(deadline=DEADLINE)
        await scene.operator.is_live(scene.connection)
        await until(settled, "the message is settled", DEADLINE)
    await scene.settled()
