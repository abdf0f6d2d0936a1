"""The indexer's acks on their way to nodes and into records, over a store that may go away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from acks.accepted import Accepted, accept
from acks.headers import Setter, http_options
from acks.journal import ASYNC
from acks.search_acks import INDEXED, Asked, Indexing, concerns
from acks.signals import Acknowledgement, Command
from app.links import Links
from app.search.acks import SearchAcks
from app.store.ackbus import AckBus
from app.store.redis_client import Redis, RedisAddress
from app.store.requests import RequestStore
from tests.servers import RedisServer, wait_for

SHARDS = 4
THING = "org.example:t"
ASKED = Asked(THING, 3, "c", "waiting", 1, 42)


@asynccontextmanager
async def connected(server: RedisServer) -> AsyncIterator[Redis]:
    client = Redis(RedisAddress.parse(server.url), name="test")
    await client.start()
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def acks_of(
    redis: Redis, server: RedisServer, prefix: str, link: str = "auto"
) -> AsyncIterator[SearchAcks]:
    address = RedisAddress.parse(server.url)
    acks = SearchAcks(redis, address, prefix=prefix, shards=SHARDS, node="indexer", link=link)
    await acks.start()
    try:
        yield acks
    finally:
        await acks.close()


@asynccontextmanager
async def node_of(
    redis: Redis, server: RedisServer, prefix: str, link: str = "auto"
) -> AsyncIterator[tuple[AckBus, list[Acknowledgement]]]:
    """The bus of the node that waits, and what it has got."""
    address, got = RedisAddress.parse(server.url), list[Acknowledgement]()
    links = Links(redis, prefix=prefix, node="waiting", listen=link)
    bus = AckBus(redis, address, links, prefix=prefix, node="waiting", on_ack=got.append)
    await bus.start(5.0)
    await links.start()
    try:
        yield bus, got
    finally:
        await bus.close()
        await links.close()


async def test_notices_come_in_their_order_whatever_carries_them(
    redis: Redis, shared: RedisServer, prefix: str
) -> None:
    async with (
        node_of(redis, shared, prefix) as (_, got),
        acks_of(redis, shared, prefix) as acks,
    ):
        for number in range(200):
            acks.issue([(ASKED._replace(token=number), Indexing.WRITTEN)])
            await wait_for(partial(got.__getitem__, slice(number, None)), 10, "a notice")
        assert [notice.payload for notice in got] == list(range(200))
        assert {(one.label, one.thing_id, one.correlation_id, one.status) for one in got} == {
            (INDEXED, THING, "c", 204)
        }
        assert len(acks._links) == 1, "in the end there was a link"
        assert acks.issued == {Indexing.WRITTEN: 200}


async def test_nobody_can_call_the_indexer(redis: Redis, shared: RedisServer, prefix: str) -> None:
    async with acks_of(redis, shared, prefix):
        keys = await redis.call("KEYS", f"{prefix}:link:*")
        assert keys == []


async def test_without_links(redis: Redis, shared: RedisServer, prefix: str) -> None:
    async with (
        node_of(redis, shared, prefix, "off") as (_, got),
        acks_of(redis, shared, prefix, "off") as acks,
    ):
        every = list(Indexing)
        acks.issue([(ASKED, indexing) for indexing in every])
        await wait_for(lambda: len(got) == len(every), 10, "notices")
        assert [notice.status for notice in got] == [indexing.value for indexing in every]


async def test_notices_name_their_index(redis: Redis, shared: RedisServer, prefix: str) -> None:
    address = RedisAddress.parse(shared.url)
    acks = SearchAcks(redis, address, prefix=prefix, shards=SHARDS, node="indexer", index="mine")
    async with node_of(redis, shared, prefix) as (_, got):
        acks.issue([(ASKED, Indexing.WRITTEN)])
        await acks.close()
        await wait_for(lambda: len(got) == 1, 10, "the notice")
    assert concerns(got[0], "mine")
    assert not concerns(got[0], "other")


async def test_closing_sends_what_is_left(redis: Redis, shared: RedisServer, prefix: str) -> None:
    async with node_of(redis, shared, prefix) as (_, got):
        async with acks_of(redis, shared, prefix) as acks:
            acks.issue([(ASKED, Indexing.FAILED)])
        await acks.close()
        await wait_for(lambda: len(got) == 1, 10, "the notice")


# --- records


def request(timeout_ms: int = 30_000) -> Accepted:
    options = http_options(Setter.TWIN_MODIFY, "search-persisted", None, "30")
    command = Command(THING, (), {}, "c", options, ("nginx:me",))
    return accept(command, timeout_ms=timeout_ms, keep_ms=60_000)


async def recorded(store: RequestStore) -> list[int]:
    """The statuses of the acks in the record."""
    found = await store.find("c")
    assert found is not None
    return [ack.status for ack in found[0].acks()]


async def test_the_ack_of_an_accepted_request_waits_for_the_store(
    own: RedisServer, prefix: str
) -> None:
    async with connected(own) as redis, acks_of(redis, own, prefix) as acks:
        store = RequestStore(redis, prefix=prefix, shards=SHARDS, keep_ms=60_000)
        deadline = await store.create(request())
        own.kill9()
        await wait_for(lambda: not redis.connected, 10, "the loss")
        acks.issue([(ASKED._replace(origin=ASYNC, deadline=deadline), Indexing.UNCHANGED)])
        await wait_for(lambda: len(acks._again) == 1, 10, "a second try")
        own.start()
        await wait_for(lambda: redis.connected, 10, "the store")
        async with asyncio.timeout(10):
            while await recorded(store) != [200]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert (acks.lost, len(acks._again)) == (0, 0)


async def test_what_waits_for_the_store_is_bounded_and_given_up_at_the_end(
    own: RedisServer, prefix: str
) -> None:
    async with connected(own) as redis, acks_of(redis, own, prefix) as acks:
        own.kill9()
        await wait_for(lambda: not redis.connected, 10, "the loss")
        asked = ASKED._replace(origin=ASYNC)
        acks.issue([(asked, Indexing.WRITTEN)] * 10_050)
        await wait_for(lambda: acks.lost == 50, 10, "the bound")
        assert len(acks._again) == 10_000
        await acks.close()
        assert acks.lost == 10_050


async def test_an_ack_is_for_the_record_of_its_own_deadline(
    redis: Redis, shared: RedisServer, prefix: str
) -> None:
    """A correlation-id may come again once its record is gone."""
    async with acks_of(redis, shared, prefix) as acks:
        store = RequestStore(redis, prefix=prefix, shards=SHARDS, keep_ms=60_000)
        deadline = await store.create(request())
        asked = ASKED._replace(origin=ASYNC, deadline=deadline)
        acks.issue([
            (asked._replace(deadline=deadline - 40_000), Indexing.WRITTEN),
            (asked._replace(correlation_id="unknown"), Indexing.WRITTEN),
            (asked, Indexing.FAILED),
            (asked, Indexing.WRITTEN),
        ])  # fmt: skip
        await redis.call("PING")  # answered after them
        assert await recorded(store) == [500]
