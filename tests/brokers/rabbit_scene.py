"""A gateway with a connection to RabbitMQ, by either protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from tests.brokers.amqp_peer import RabbitPeer
from tests.brokers.end_to_end import Scene
from tests.brokers.scenes import DITTO
from tests.gateways import Gateway, Json


@dataclass
class RabbitScene(Scene):
    """Its addresses are queues."""

    peer: RabbitPeer

    @override
    async def prepare(self) -> None:
        self.commands, self.rejected = await self.peer.with_letters("commands")
        self.events = await self.peer.queue("events")
        self.replies = await self.peer.queue("replies")
        self.dead = await self.peer.queue("dead")

    @override
    def place(self) -> Json:
        return {
            "name": "rabbit",
            "connectionType": self.peer.kind,
            "uri": self.peer.server.url(),
        }

    @override
    async def send(
        self, payload: bytes, lane: int = 0, headers: Json | None = None, **properties: Any
    ) -> None:
        await self.peer.send(self.commands, payload, headers, DITTO, **properties)

    @override
    async def receive(self, address: str) -> bytes:
        return (await self.peer.receive(address)).payload

    @override
    async def count(self, address: str) -> int:
        return await self.peer.unsettled(address)

    @override
    async def unsettled(self) -> int:
        return await self.peer.unsettled(self.commands)

    @override
    async def nothing_unsettled(self) -> None:
        await self.operator.close(self.connection)
        assert await self.unsettled() == 0


async def rabbit_scene(gateway: Gateway, peer: RabbitPeer) -> AsyncIterator[RabbitScene]:
    """For a fixture."""
    async with RabbitScene.at(gateway, peer) as one:
        yield one
