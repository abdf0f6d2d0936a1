"""``search-persisted`` with several gateways: true everywhere, whatever becomes of any process."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.callers import Caller, topic_of
from tests.gateways import Gateway, http, new_id, running, thing
from tests.indexing import kill_indexer
from tests.postgres import PostgresServer, postgres_here
from tests.servers import RedisServer, redis_server, wait_for
from tests.streams import put_async, reached

SEARCH = "search-persisted"
ONLY = {"requested-acks": SEARCH, "timeout": "30s"}


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with postgres_here() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def index(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """What ``search_index`` says: one new index for all gateways of a test."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'search.sqlite'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.database()


@pytest.fixture
def two(store: RedisServer, index: str, tmp_path: Path) -> Iterator[tuple[Gateway, Gateway]]:
    """A pair of which the test may hurt everything."""
    one, other = (
        Gateway(tmp_path, redis_url=store.url, prefix=tmp_path.name, search_index=index)
        for _ in range(2)
    )
    with running(one, other):
        yield one, other


async def count(client: httpx.AsyncClient, filter_: str) -> int:
    """How much a search finds now."""
    answer = await client.get("/api/2/search/things/count", params={"filter": filter_})
    assert answer.status_code == 200, answer.text
    return int(answer.text)


def of(thing_id: str, number: int) -> str:
    """A filter for a thing whose attribute is this number."""
    return f'and(eq(thingId,"{thing_id}"),eq(attributes/n,{number}))'


class Writers:
    """They change things at some gateways, and search at all of them what is acknowledged."""

    def __init__(self, gateways: Sequence[Gateway]) -> None:
        self._gateways = gateways
        self.acked = 0
        self.others: Counter[int] = Counter()  # answers that are no success, by status
        self._stop = asyncio.Event()

    @asynccontextmanager
    async def at_work(self, *gateways: Gateway, each: int = 5) -> AsyncIterator[None]:
        """While this lasts, ``each`` of them write at each of ``gateways``."""
        tasks = [asyncio.create_task(self._write(one)) for one in gateways for _ in range(each)]
        try:
            yield
        finally:
            self._stop.set()
            await asyncio.gather(*tasks)

    async def more(self, number: int, deadline: float = 60.0) -> None:
        """Wait for so many acks more."""
        wanted = self.acked + number
        await wait_for(lambda: self.acked >= wanted, deadline, f"{number} acks, {self.others}")

    async def _write(self, gateway: Gateway) -> None:
        name, number = new_id(), 0
        searching = [http(one) for one in self._gateways]
        async with http(gateway, timeout=60.0) as own:
            try:
                while not self._stop.is_set():
                    number += 1
                    body = {"attributes": {"n": number}}
                    answer = await own.put(thing(name), json=body, params=ONLY)
                    if answer.status_code not in (200, 204):
                        self.others[answer.status_code] += 1
                        continue
                    self.acked += 1
                    found = await asyncio.gather(
                        *(count(client, of(name, number)) for client in searching)
                    )
                    assert found == [1] * len(searching)
            finally:
                for client in searching:
                    await client.aclose()


async def test_wherever_it_is_indexed(two: tuple[Gateway, Gateway]) -> None:
    """Each shard is indexed by one of the two; whose request it is does not matter."""
    a, b = two
    async with http(a) as at_a, http(b) as at_b, Caller.open(b) as caller:
        for number in range(20):
            name = new_id()  # in any shard
            body = {"attributes": {"n": number}}
            answer = await at_a.put(thing(name), json=body, params=ONLY)
            assert answer.status_code in (200, 204), answer.text
            assert await count(at_b, of(name, number)) == 1
            asking = {"requested-acks": [SEARCH]}
            answered = await caller.ask(
                topic_of(name, "modify"), "/attributes/n", value=-number - 1, headers=asking
            )
            assert answered["status"] == 204, answered
            assert await count(at_a, of(name, -number - 1)) == 1
            path = await put_async(at_a, name, "/attributes/n", json=99, requested_acks=SEARCH)
            assert (await reached(at_b, path, state="done"))["outcome"]["status"] == 204
            assert await count(at_b, of(name, 99)) == 1


async def test_indexers_are_killed_again_and_again(two: tuple[Gateway, Gateway]) -> None:
    writers = Writers(two)
    async with writers.at_work(*two):
        await writers.more(100)
        for number in range(6):
            await wait_for(lambda at=two[number % 2]: kill_indexer(at), 30, "an indexer")  # type: ignore[misc]
            await writers.more(50)
        await writers.more(200)
    assert not writers.others, "whoever takes a shard tells those who waited"


async def test_a_gateway_is_killed_with_its_indexer(two: tuple[Gateway, Gateway]) -> None:
    """Its shards are taken over when their leases are over; requests elsewhere wait for that."""
    a, b = two
    writers = Writers([a])
    async with writers.at_work(a):
        await writers.more(100)
        b.kill9()
        await writers.more(300)
        await b.start_async()
        await writers.more(300)
    assert not writers.others


async def test_an_indexer_that_stood_still_too_long_says_nothing_wrong(
    two: tuple[Gateway, Gateway],
) -> None:
    """It had read things and was about to commit, for all we know; its shards are others' now."""
    a, b = two
    writers = Writers(two)
    async with writers.at_work(*two):
        await writers.more(100)
        for one in (a, b):
            pid = one.indexer_pid()
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(6.0)  # longer than a lease: this is the event, no waiting
            finally:
                os.kill(pid, signal.SIGCONT)
            await writers.more(200)
    assert set(writers.others) <= {408, 500}, "none of them is an ack"


async def test_the_store_goes_away_and_comes_back(
    index: str, tmp_path: Path, own_store: RedisServer
) -> None:
    one, other = (Gateway(tmp_path, redis_url=own_store.url, search_index=index) for _ in range(2))
    writers = Writers([one, other])
    with running(one, other):
        async with writers.at_work(one, other):
            await writers.more(100)
            own_store.kill9()
            await wait_for(lambda: one.health() == 503, 10, "the loss")
            own_store.start()
            await writers.more(300)
    # 408: the notice was on its way over pub/sub. 503: the store was away. 500: it was away for so
    # long that the indexer has given up for those who wait.
    assert set(writers.others) <= {408, 500, 503}


@pytest.fixture
def own_store() -> Iterator[RedisServer]:
    """A store that the test may kill."""
    with redis_server() as server:
        yield server


async def test_gateways_with_an_index_each(store: RedisServer, tmp_path: Path) -> None:
    """What is in the index of another gateway is not found here."""
    a, b = (
        Gateway(
            tmp_path,
            redis_url=store.url,
            prefix=tmp_path.name,
            search_index=f"sqlite:{tmp_path / name}.sqlite",
        )
        for name in "ab"
    )
    with running(a, b):
        async with http(a) as at_a, http(b) as at_b:
            for number in range(1, 21):
                for client in (at_a, at_b):
                    name = new_id()
                    body = {"attributes": {"n": number}}
                    answer = await client.put(thing(name), json=body, params=ONLY)
                    assert answer.status_code in (200, 204), answer.text
                    assert await count(client, of(name, number)) == 1
            pid = b.indexer_pid()
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            try:
                soon = {**ONLY, "timeout": "1s"}
                name, other = new_id(), new_id()
                body = {"attributes": {"n": 0}}
                late = asyncio.create_task(at_b.put(thing(name), json=body, params=soon))
                assert (await at_a.put(thing(other), json=body, params=ONLY)).status_code == 204
                assert (await late).status_code == 408
                assert await count(at_a, of(name, 0)) == 1, "it has long been there"
                assert await count(at_b, of(name, 0)) == 0
            finally:
                os.kill(pid, signal.SIGCONT)
