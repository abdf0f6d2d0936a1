"""RabbitMQ, and somebody else who talks to it by AMQP 0.9.1."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

import aiormq
from aiormq.abc import AbstractChannel, ChannelFrame, DeliveredMessage
from pamqp.body import ContentBody
from pamqp.commands import Basic
from pamqp.header import ContentHeader
from typing_extensions import override

from connections.amqp.driver import AmqpDriver
from connections.driver import DriverFactory
from connections.model import Uri
from tests.brokers.authority import Authority
from tests.brokers.peers import DEADLINE, Kind, Peer, Received, Tls
from tests.brokers.rabbitmq import USERS, RabbitServer
from tests.brokers.scenes import until

names = itertools.count()


class RabbitPeer(Peer):
    """A node. An address names a queue, and an exchange and a routing key that lead there."""

    kind: Kind = "amqp-091"
    factory: DriverFactory = AmqpDriver
    invalid = "no-such-exchange/key"
    tls: Tls

    def __init__(self, server: RabbitServer) -> None:
        self.server = server
        self.uri = Uri("amqp", "localhost", server.port, "", "ackgate", USERS["ackgate"])
        self.refused = replace(self.uri, password="wr0ng-secret")
        secure = replace(self.uri, scheme="amqps", port=server.tls_port)
        self.tls = Tls(secure, server.authority.pem, Authority().pem)
        self._wire: aiormq.Connection | None = None
        self._channel: AbstractChannel | None = None

    @override
    async def close(self) -> None:
        if self._wire is not None:
            await self._wire.close()
            self._wire = None

    async def channel(self) -> AbstractChannel:
        """A channel of the other side; a new one after trouble."""
        if self._channel is None or self._channel.is_closed:
            if self._wire is None or self._wire.is_closed:
                self._wire = await aiormq.connect(self.server.url())
            self._channel = await self._wire.channel()
        return self._channel

    # What the subclass for AMQP 1.0 sees in another way.

    def queue_of(self, address: str) -> str:
        """The name of the queue that an address leads to."""
        return address

    def table(self, headers: Mapping[str, Any]) -> dict[str, Any]:
        """Headers of a message as its header table."""
        return dict(headers)

    def headers(self, table: Mapping[str, Any]) -> dict[str, str]:
        """The headers that :meth:`table` has packed, or the driver."""
        return {name: str(value) for name, value in table.items()}

    async def queue(self, name: str, **arguments: Any) -> str:
        """An exchange of its own, and a queue that is named as their address."""
        exchange = f"x{next(names)}"
        address = f"{exchange}/{name}"
        channel = await self.channel()
        await channel.exchange_declare(exchange, exchange_type="direct", durable=True)
        await channel.queue_declare(address, durable=True, arguments=arguments)
        await channel.queue_bind(address, exchange, name)
        return address

    # The rest is the same for both.

    @override
    async def address(self, name: str) -> str:
        return await self.queue(name)

    @override
    async def with_letters(self, name: str) -> tuple[str, str]:
        letters = await self.queue("letters")
        dead = {
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": self.queue_of(letters),
        }
        return await self.queue(name, **dead), letters

    @override
    async def send(
        self,
        address: str,
        payload: bytes,
        headers: Mapping[str, Any] | None = None,
        content_type: str | None = None,
        **properties: Any,
    ) -> None:
        given = Basic.Properties(
            content_type=content_type,
            headers=self.table(headers or {}),
            delivery_mode=2,
            **properties,
        )
        channel = await self.channel()
        await channel.basic_publish(payload, routing_key=self.queue_of(address), properties=given)

    async def send_nameless(self, address: str, payload: bytes) -> None:
        """As :meth:`send`, without the message id that the library gives."""
        channel = await self.channel()
        frames: list[Any] = [
            Basic.Publish(routing_key=self.queue_of(address)),
            ContentHeader(body_size=len(payload), properties=Basic.Properties(delivery_mode=2)),
            ContentBody(payload),
        ]
        plain: Any = await channel.connection.channel(publisher_confirms=False)
        await plain.write_queue.put(ChannelFrame.marshall(plain.number, frames))
        await plain.close()

    @override
    async def receive(self, address: str) -> Received:
        message = await self.message(address)
        properties = message.header.properties
        headers = self.headers(properties.headers or {})
        return Received(message.body, headers, properties.content_type or None)

    async def message(self, address: str) -> DeliveredMessage:
        """The next message of a queue as it is; AssertionError at DEADLINE."""
        found: list[DeliveredMessage] = []

        async def look() -> bool:
            channel = await self.channel()
            message = await channel.basic_get(self.queue_of(address), no_ack=True)
            if isinstance(message.delivery, Basic.GetOk):
                found.append(message)
            return bool(found)

        await until(look, f"a message in {address}", DEADLINE)
        return found[0]

    @override
    async def unsettled(self, address: str) -> int:
        channel = await self.channel()
        declared = await channel.queue_declare(self.queue_of(address), passive=True)
        assert declared.message_count is not None
        return declared.message_count

    @override
    async def restart(self) -> None:
        await self.close()
        await asyncio.to_thread(self.server.halt)
        self.server.start()


async def rabbit_peer(rabbit: RabbitServer) -> AsyncIterator[RabbitPeer]:
    """For a fixture."""
    async with RabbitPeer(rabbit) as one:
        yield one
