"""One client of a connection, with a store and a gateway, and a broker in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from app.connection_client import Client, Means, Plan
from app.node import Node
from app.settings import Settings
from app.store.connections import ConnectionStore
from app.store.redis_client import Redis
from tests.connections.memory import PACE, Broker, connection, source
from tests.servers import RedisServer, wait_for


@pytest.fixture
async def node(shared: RedisServer, prefix: str) -> AsyncIterator[Node]:
    made = Node(Settings(prefix=prefix, connections=False, search_index="off"), shared.url)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def test_who_drains_takes_no_message_even_if_it_was_just_claimed(
    node: Node, redis: Redis, prefix: str
) -> None:
    """The gateway refuses commands by then, and MQTT acks what was refused."""

    class Draining(ConnectionStore):
        async def claim(
            self, connection_id: str, client: int, node: str, ttl_ms: int, clients: int = 0
        ) -> int:
            generation = await super().claim(connection_id, client, node, ttl_ms, clients)
            await one.drain(0.0)
            return generation

    broker = Broker()
    document = connection(sources=(source(),), kind="mqtt")
    means = Means(Draining(redis, prefix), node._desk, broker, PACE, 60.0, 1_000_000)
    one = Client(means, document.id, 0, lambda: 0)
    one.want(Plan(document, {}))
    await wait_for(lambda: one.over or one.is_open)
    if not one.over:
        broker.driver.deliver(b"no message, which is settled at once")
    assert broker.settlements == []
    one.stop(0.0)
    assert await one.finished(5.0)
