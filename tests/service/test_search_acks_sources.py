"""``search-persisted`` asked for by sources of connections; the test is the indexer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from acks.search_acks import Indexing
from tests.connected import (
    Broker,
    connected,
    gateway_of,
    modify,
    mqtt_broker,
    peer_process,
    source,
)
from tests.gateways import Gateway, http, new_id, running, thing
from tests.indexing import Indexer
from tests.servers import RedisServer, wait_for

SEARCH = "search-persisted"
PREFIX = "search-sources"
FROM_SCRATCH = {"response-required": False}


@pytest.fixture(scope="module")
def gateway(store: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway without an indexer."""
    one = gateway_of(tmp_path_factory.mktemp(PREFIX), store, PREFIX, search_index="off")
    with running(one):
        yield one


@pytest.fixture
async def indexer(gateway: Gateway, store: RedisServer) -> AsyncIterator[Indexer]:
    async with Indexer.of(store, PREFIX) as indexer:
        yield indexer


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with http(gateway) as client:
        yield client


peer = pytest.fixture(scope="module")(peer_process)
broker = pytest.fixture(mqtt_broker)


def indexed_source(*addresses: str, **fields: Any) -> dict[str, Any]:
    """A source whose messages are settled when their changes can be found."""
    return source(*addresses, acknowledgementRequests={"includes": [SEARCH]}, **fields)


async def test_a_source_settles_a_message_when_its_change_is_indexed(
    gateway: Gateway, broker: Broker, client: httpx.AsyncClient, indexer: Indexer
) -> None:
    """Until then it is redelivered, for its change may never be found."""
    name = new_id()
    assert (await client.put(thing(name), json={"attributes": {"n": 0}})).status_code == 201
    take, reply = [await broker.peer.address(one) for one in ("in", "reply")]
    told = {"address": reply, "expectedResponseTypes": ["response", "error", "nack"]}
    sources = [indexed_source(take, replyTarget=told)]
    again = {"reconnectForRedelivery": "true", "reconnectForRedeliveryDelay": "1s"}
    async with connected(gateway, broker, sources, specificConfig=again):
        await broker.send(take, modify(name, 1, correlation_id=name))
        await indexer.answer(name, Indexing.FAILED)
        answer = await broker.receive(reply)
        assert answer["value"] == {SEARCH: {"status": 500, "headers": FROM_SCRATCH}}
        asked = await indexer.answer(name, Indexing.WRITTEN, 2)
        assert asked.revision == 3, "the message came again"
        answer = await broker.receive(reply)
        assert answer["value"] == {SEARCH: {"status": 204, "headers": FROM_SCRATCH}}


@pytest.mark.parametrize("indexed", [True, False])
async def test_what_is_not_indexed_is_not_settled(
    store: RedisServer, broker: Broker, place: Path, indexed: bool
) -> None:
    name, prefix = new_id(), place.name
    one = gateway_of(place, store, prefix, drain_timeout="2s", search_index="off")
    take = await broker.peer.address("in")
    specific = {"clientId": broker.peer.client_id, "reconnectForRedelivery": "true"}
    with running(one):
        async with (
            http(one) as client,
            Indexer.of(store, prefix) as indexer,
            connected(one, broker, [indexed_source(take)], specificConfig=specific),
        ):
            await client.put(thing(name), json={"attributes": {"n": 0}})
            await broker.send(take, modify(name, 1))
            await indexer.asked(name)
            one.terminate()
            await wait_for(lambda: one.events("gateway.draining"), 10, "drain")
            if indexed:
                await indexer.answer(name, Indexing.WRITTEN)
            assert await one.ended() == 0
    assert await broker.peer.unsettled(take) == (0 if indexed else 1)
