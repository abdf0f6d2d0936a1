"""RabbitMQ for the driver of AMQP 1.0; the other side speaks AMQP 0.9.1."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import aiormq
import proton
from aiormq.abc import AbstractChannel, DeliveredMessage
from pamqp.commands import Basic
from typing_extensions import override

from connections.amqp10.driver import Amqp10Driver
from connections.model import Connection, Uri
from tests.brokers.authority import Authority
from tests.brokers.contract import (
    DEADLINE,
    Peer,
    Received,
    Tls,
    connection_of,
)
from tests.brokers.rabbitmq import USERS, RabbitServer

names = itertools.count()
PROPERTIES = "x-amqp-1.0-app-properties"
"""Where RabbitMQ 3.10 keeps the application properties of AMQP 1.0 for clients of 0.9.1."""


def section(properties: dict[str, Any]) -> bytes:
    """Application properties as they travel."""
    data = proton.Data()
    data.put_described()
    data.enter()
    data.put_ulong(0x74)
    data.put_object(properties)
    data.exit()
    raw: bytes = data.encode()
    return raw


def unpacked(raw: Any) -> dict[str, str]:
    """What :func:`section` has packed."""
    if raw is None:
        return {}
    data = proton.Data()
    data.decode(raw.encode("latin-1") if isinstance(raw, str) else bytes(raw))
    data.next()
    return dict(data.get_object().value)


class Amqp10Peer(Peer):
    """An address is /amq/queue/NAME: a queue that is there. The other side uses the name."""

    can = frozenset(
        {
            "headers",
            "content-type",
            "redeliver",
            "confirm",
            "invalid address",
            "credentials",
            *(("tls",) if proton.SSL.present() else ()),  # if OpenSSL was there when it was built
            "restart",
            "bounded",
        }
    )
    factory = Amqp10Driver
    invalid = "/exchange/there-is-none/key"

    def __init__(self, server: RabbitServer) -> None:
        self.server = server
        self.uri = Uri("amqp", "localhost", server.port, "", "ackgate", USERS["ackgate"])
        self.refused = replace(self.uri, password="wr0ng-secret")
        secure = replace(self.uri, scheme="amqps", port=server.tls_port)
        self.tls = Tls(secure, server.authority.pem, Authority().pem)
        self._wire: aiormq.Connection | None = None
        self._channel: AbstractChannel | None = None

    @override
    def connection(
        self,
        sources: Sequence[str] = (),
        targets: Sequence[str] = (),
        *,
        uri: Uri | None = None,
        ca: str | None = None,
        **specific: str,
    ) -> Connection:
        return connection_of("amqp-10", uri or self.uri, sources, targets, ca=ca, specific=specific)

    async def channel(self) -> AbstractChannel:
        """A channel of the other side; a new one after trouble."""
        if self._channel is None or self._channel.is_closed:
            if self._wire is None or self._wire.is_closed:
                self._wire = await aiormq.connect(self.server.url())
            self._channel = await self._wire.channel()
        return self._channel

    @override
    async def address(self, name: str) -> str:
        return await self.queue(name)

    async def queue(self, name: str, **arguments: Any) -> str:
        queue = f"one-{next(names)}-{name}"
        channel = await self.channel()
        await channel.queue_declare(queue, durable=True, arguments=arguments)
        return f"/amq/queue/{queue}"

    @override
    async def send(
        self,
        address: str,
        payload: bytes,
        headers: Mapping[str, Any] | None = None,
        content_type: str | None = None,
        **properties: Any,
    ) -> None:
        table: dict[str, Any] = {PROPERTIES: section(dict(headers))} if headers else {}
        given = Basic.Properties(
            content_type=content_type, headers=table, delivery_mode=2, **properties
        )
        channel = await self.channel()
        await channel.basic_publish(payload, routing_key=queue_of(address), properties=given)

    @override
    async def receive(self, address: str) -> Received:
        message = await self.message(address)
        properties = message.header.properties
        headers = unpacked((properties.headers or {}).get(PROPERTIES))
        return Received(message.body, headers, properties.content_type or None)

    async def message(self, address: str) -> DeliveredMessage:
        """The next message of a queue as it is; AssertionError at DEADLINE."""
        channel = await self.channel()
        found: list[DeliveredMessage] = []

        async def look() -> None:
            while not found:
                message = await channel.basic_get(queue_of(address), no_ack=True)
                if isinstance(message.delivery, Basic.GetOk):
                    found.append(message)

        await asyncio.wait_for(look(), DEADLINE)
        return found[0]

    @override
    async def unsettled(self, address: str) -> int:
        channel = await self.channel()
        declared = await channel.queue_declare(queue_of(address), passive=True)
        assert declared.message_count is not None
        return declared.message_count

    @override
    async def restart(self) -> None:
        await self.close()
        await asyncio.to_thread(self.server.halt)
        self.server.start()

    async def close(self) -> None:
        """Say goodbye to the broker."""
        if self._wire is not None:
            await self._wire.close()
            self._wire = None


def queue_of(address: str) -> str:
    """The name that the other side uses."""
    return address.removeprefix("/amq/queue/")
