"""RabbitMQ for the driver of AMQP 1.0; the other side speaks AMQP 0.9.1."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import proton
from typing_extensions import override

from connections.amqp10.driver import Amqp10Driver
from tests.brokers.amqp_peer import RabbitPeer, names
from tests.brokers.peers import EVERYTHING
from tests.brokers.rabbitmq import RabbitServer

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


class Amqp10Peer(RabbitPeer):
    """An address is /amq/queue/NAME: a queue that is there. The other side uses the name."""

    kind = "amqp-10"
    factory = Amqp10Driver
    can = EVERYTHING if proton.SSL.present() else EVERYTHING - {"tls"}  # as the library was built
    invalid = "/exchange/there-is-none/key"

    @override
    def queue_of(self, address: str) -> str:
        return address.removeprefix("/amq/queue/")

    @override
    def table(self, headers: Mapping[str, Any]) -> dict[str, Any]:
        return {PROPERTIES: section(dict(headers))} if headers else {}

    @override
    def headers(self, table: Mapping[str, Any]) -> dict[str, str]:
        return unpacked(table.get(PROPERTIES))

    @override
    async def queue(self, name: str, **arguments: Any) -> str:
        queue = f"one-{next(names)}-{name}"
        channel = await self.channel()
        await channel.queue_declare(queue, durable=True, arguments=arguments)
        return f"/amq/queue/{queue}"


async def amqp10_peer(rabbit: RabbitServer) -> AsyncIterator[Amqp10Peer]:
    """For a fixture."""
    async with Amqp10Peer(rabbit) as one:
        yield one
