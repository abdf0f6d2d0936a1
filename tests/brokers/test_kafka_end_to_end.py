"""Kafka through real gateway processes: what fails on the way is neither lost nor stuck."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from typing_extensions import override

from tests.brokers.end_to_end import DEADLINE, EndToEnd, KilledGateway, Scene
from tests.brokers.examples import Example
from tests.brokers.kafka import KafkaPeer, kafka_peer
from tests.brokers.scenes import DITTO, has, modify, until
from tests.gateways import Gateway, Json

PARTITIONS = 3

peer = pytest.fixture(scope="module")(kafka_peer)


@dataclass
class KafkaScene(Scene):
    """Its addresses are topics; what is rejected is committed, and kept nowhere else."""

    peer: KafkaPeer
    confirmed: ClassVar[int] = 204

    @override
    async def prepare(self) -> None:
        self.commands = self.peer.make("commands", partitions=PARTITIONS)
        self.events, self.replies, self.dead = map(self.peer.make, ("events", "replies", "dead"))

    @override
    def place(self) -> Json:
        server = f"127.0.0.1:{self.peer.server.port}"
        return {
            "name": "kafka",
            "connectionType": "kafka",
            "uri": f"tcp://{server}",
            "specificConfig": {"bootstrapServers": server, "sessionTimeout": "2s"},
        }

    @override
    def plain(self) -> Json:
        return {**super().plain(), "qos": 1}

    @override
    def target(self) -> Json:
        return {**super().target(), "address": f"{self.events}/{{{{ thing:id }}}}"}

    @override
    async def send(
        self, payload: bytes, lane: int = 0, headers: Json | None = None, **more: Any
    ) -> None:
        pairs = {"content-type": DITTO, **(headers or {})}
        more["partition"] = lane % PARTITIONS
        await asyncio.to_thread(self.peer.produce, self.commands, payload, pairs, **more)

    @override
    async def receive(self, address: str) -> bytes:
        message = await asyncio.to_thread(self.peer.receive_message, address)
        return message.value() or b""

    @override
    async def count(self, address: str) -> int:
        offsets = await asyncio.to_thread(self.peer.offsets, address)
        return sum(high for high, _ in offsets)

    @override
    async def unsettled(self) -> int:
        offsets = await asyncio.to_thread(self.peer.offsets, self.commands, self.connection)
        return sum(high - done for high, done in offsets)

    @override
    async def nothing_unsettled(self) -> None:
        async def look() -> bool:
            return await self.unsettled() == 0

        await until(look, "everything is committed", DEADLINE)

    @override
    async def put(self, thing_id: str, value: Any, name: str = "out") -> tuple[int, Json]:
        await self.operator.is_live(self.connection)  # the reader may be back before the writer
        return await super().put(thing_id, value, name)


@pytest.fixture
async def scene(gateway: Gateway, peer: KafkaPeer) -> AsyncIterator[KafkaScene]:
    async with KafkaScene.at(gateway, peer) as one:
        yield one


class TestKafka(EndToEnd, KilledGateway):
    """What every connection to a broker has to do."""


async def test_a_command_is_carried_out_answered_and_committed(scene: KafkaScene) -> None:
    await scene.open()
    thing_id = await scene.make(known=True)
    await scene.send(modify(thing_id, "/attributes/a", 1), headers={"correlation-id": "c-1"})
    message = await asyncio.to_thread(scene.peer.receive_message, scene.replies)
    assert dict(message.headers() or [])["correlation-id"] == b"c-1"
    body = json.loads(message.value() or b"")
    assert (body["status"], body["path"]) == (201, "/attributes/a")
    await has(scene.client, thing_id, "a", 1)
    await scene.settled()


async def test_a_request_waits_until_the_broker_has_stored_its_event(scene: KafkaScene) -> None:
    await scene.open()
    thing_id = await scene.make(known=True)
    status, ack = await scene.put(thing_id, 1)
    assert (status, ack["status"]) == (200, 204)
    message = await asyncio.to_thread(scene.peer.receive_message, scene.events)
    assert message.key() == thing_id.encode()
    event = json.loads(message.value() or b"")
    assert (event["path"], event["value"]) == ("/attributes/out", 1)


async def test_a_request_is_told_what_the_broker_did_not_store(scene: KafkaScene) -> None:
    await scene.open(targets=[{**scene.target(), "address": f"{scene.events}#9"}])
    status, ack = await scene.put(await scene.make(known=True), 1)
    assert (status, ack["status"]) == (424, 400)
    assert ack["payload"]["error"] == "connectivity:message.sending.failed"


async def test_the_example_of_the_documentation(peer: KafkaPeer, gateway: Gateway) -> None:
    server = f"127.0.0.1:{peer.server.port}"
    example = Example("kafka.md", server)
    example.document["uri"] = f"tcp://{server}"
    example.document["specificConfig"]["bootstrapServers"] = server
    for topic in ("commands", "replies", "events", "failed"):
        peer.server.topic(topic)  # the simulated cluster cannot be asked to make them
    assert "NewTopic" in example.declare
    assert (await example.works(gateway))["status"] == 204
