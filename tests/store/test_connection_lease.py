"""The lease of a client: one owner at a time, and the old one has stopped before the new one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from app.connection_lease import Lease
from app.store.connections import ConnectionStore
from app.store.redis_client import Redis, RedisAddress
from tests.servers import RedisServer, wait_for

SHORT, LONG = 0.4, 60.0  # s


class Clock:
    """The real clock, which a test can set forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return asyncio.get_running_loop().time() + self.ahead


class Holder:
    """A process that wants the client."""

    def __init__(self, store: ConnectionStore, node: str, ttl: float) -> None:
        self.clock = Clock()
        self.lost = 0
        self.lease = Lease(store, "c", 0, node, ttl, self._lost, self.clock)

    def _lost(self) -> None:
        self.lost += 1
        assert not self.lease.valid()


Make = Callable[[str, float], Holder]


@pytest.fixture
def make(redis: Redis, prefix: str) -> Make:
    store = ConnectionStore(redis, prefix)
    return lambda node, ttl: Holder(store, node, ttl)


async def test_there_is_one_owner_until_he_gives_it_back(make: Make) -> None:
    one, two = make("a", LONG), make("b", LONG)
    assert await one.lease.claim()
    assert one.lease.valid()
    assert not await two.lease.claim()
    assert not two.lease.held
    await one.lease.release()
    await one.lease.release()
    assert not one.lease.valid()
    assert await two.lease.claim()
    assert (one.lost, two.lost) == (0, 0)
    await two.lease.release()


async def test_it_is_kept_for_longer_than_its_time(make: Make) -> None:
    one, two = make("a", SHORT), make("b", SHORT)
    assert await one.lease.claim()
    end = asyncio.get_running_loop().time() + 3 * SHORT
    while asyncio.get_running_loop().time() < end:
        assert not await two.lease.claim()
        await asyncio.sleep(SHORT / 10)
    assert one.lost == 0
    await one.lease.release()


async def test_who_cannot_renew_stops_before_anybody_else_has_it(
    own: RedisServer, prefix: str
) -> None:
    mine, theirs = (Redis(RedisAddress.parse(own.url), name=name) for name in "ab")
    await mine.start()
    await theirs.start()
    one = Holder(ConnectionStore(mine, prefix), "a", SHORT)
    two = Holder(ConnectionStore(theirs, prefix), "b", SHORT)
    assert await one.lease.claim()
    await mine.close()  # nothing that it does reaches the store any more
    while not await two.lease.claim():  # noqa: ASYNC110 - the store's clock tells nobody
        await asyncio.sleep(0.002)
    assert one.lost == 1
    assert not one.lease.held
    await two.lease.release()
    await theirs.close()


async def test_its_own_clock_ends_it_whatever_the_store_says(make: Make) -> None:
    one = make("a", LONG)
    assert await one.lease.claim()
    one.clock.ahead = 0.7 * LONG
    assert one.lease.valid()
    one.clock.ahead = 0.8 * LONG
    assert not one.lease.valid()
    await one.lease.release()


async def test_a_claim_whose_answer_comes_too_late_is_none(redis: Redis, prefix: str) -> None:
    clock = Clock()

    class Slow(ConnectionStore):
        async def claim(
            self, connection_id: str, client: int, node: str, ttl_ms: int, clients: int = 0
        ) -> int:
            generation = await super().claim(connection_id, client, node, ttl_ms, clients)
            clock.ahead += LONG
            return generation

    lease = Lease(Slow(redis, prefix), "c", 0, "a", LONG, lambda: None, clock)
    assert not await lease.claim()
    assert not lease.held
    assert await ConnectionStore(redis, prefix).owners("c") == {}, "nobody has to wait for it"


async def test_who_was_taken_over_is_told_by_the_next_renewal(
    make: Make, redis: Redis, prefix: str
) -> None:
    one = make("a", 1.5)
    assert await one.lease.claim()
    # The same name again: a claim of an earlier life of the process comes late.
    assert await ConnectionStore(redis, prefix).claim("c", 0, "a", 60_000)
    await wait_for(lambda: one.lost == 1)
    assert not one.lease.held
    one.lease.lose()
    assert one.lost == 1
