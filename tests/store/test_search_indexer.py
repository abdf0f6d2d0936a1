"""The indexer on real stores and databases: what it writes, what it acknowledges, and when."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from acks.document import Twin
from acks.journal import (
    EntryMeta,
    ack_channel,
    journal_key,
    policy_key,
    shard_of,
    twin_key,
)
from acks.search_acks import INDEXED
from app.search.acks import SearchAcks
from app.search.indexer import Indexer
from app.search.leases import Leases
from app.search.reading import Reader
from app.search.shards import QUICK, Means
from app.store.record import encode
from app.store.redis_client import Redis, RedisAddress, Subscriber
from app.store.sql.database import Database, IndexBusy, Params, Row, Write
from app.store.sql.index_writer import IndexWriter
from tests.servers import RedisServer, wait_for

SHARDS = 2
NODE = "waits"
POLICY = {
    "entries": {
        "owner": {
            "subjects": {"nginx:ditto": {"type": "t"}},
            "resources": {"thing:/": {"grant": ["READ"], "revoke": []}},
        }
    }
}


class Failing:
    """A real database of which writes fail as long as ``broken`` is set."""

    def __init__(self, database: Database) -> None:
        self.dialect = database.dialect
        self.broken = False
        self.refused = 0
        self.ask = database.ask
        self._database = database

    async def read(self, sql: str, params: Params = (), timeout: float | None = None) -> list[Row]:
        return await self._database.read(sql, params, timeout)

    async def write(
        self, statements: Sequence[Write | tuple[str, Params]], timeout: float | None = None
    ) -> list[list[Row]]:
        if self.broken:
            self.refused += 1
            raise IndexBusy("it is broken")
        return await self._database.write(statements, timeout)

    async def close(self) -> None:
        await self._database.close()


class Scene:
    """A store with a journal, an index, and somebody who waits for acks."""

    def __init__(self, store: RedisServer, redis: Redis, database: Database, prefix: str) -> None:
        self.database = Failing(database)
        self.redis = redis
        self.prefix = prefix
        self.statuses: dict[str, list[int]] = {}  # by correlation-id
        self._address = RedisAddress.parse(store.url)
        self._listener = Subscriber(
            self._address, [ack_channel(prefix, NODE)], self._heard, name="test-node"
        )

    async def start(self) -> None:
        await self._listener.start()

    async def close(self) -> None:
        await self._listener.close()

    def _heard(self, _channel: bytes, payload: bytes) -> None:
        for correlation_id, label, _thing, status, *_ in orjson.loads(payload):
            assert label == INDEXED
            self.statuses.setdefault(correlation_id, []).append(status)

    @asynccontextmanager
    async def indexer(self, name: str = "one") -> AsyncIterator[Indexer]:
        """One that works until the end of the block."""
        redis = Redis(self._address, name="test-index")
        reader = Reader(redis, self._address, name="test-index-journal")
        acks = SearchAcks(
            redis, self._address, prefix=self.prefix, shards=SHARDS, node=name, link="off"
        )
        await redis.start()
        await reader.start(5)
        await acks.start()
        leases = Leases(self.database, name, SHARDS)
        await leases.prepare("data")
        writer = IndexWriter(self.database)
        means = Means(redis, self.database, writer, acks, self.prefix, SHARDS, 0.05)
        indexer = Indexer(means, leases, reader)
        task = asyncio.create_task(indexer.run())
        try:
            yield indexer
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await indexer.close()
            await acks.close()
            await reader.close()
            await redis.close()

    async def change(
        self, name: str, revision: int, *, asked: str = "", record: bytes | None = None
    ) -> None:
        """Write a twin and its journal entry; ``asked`` waits for it, by a correlation-id."""
        shard = shard_of(name, SHARDS)
        if record is None:
            document = {"thingId": name, "policyId": name, "attributes": {"n": revision}}
            created = f"2026-01-01T00:00:0{revision}.000Z"
            twin = Twin("t" * 20, revision, name, created[:19] + ".000Z", created, None)
            twin = twin._replace(created="2026-01-01T00:00:00.000Z")
            record = encode(twin, orjson.dumps(document))
        deadline = time.time_ns() // 1_000_000 + 60_000
        meta = EntryMeta(
            name, "created" if revision == 1 else "modified", "/", revision, "t", asked or "c",
            (), NODE, deadline, (),
        ).to_json()  # fmt: skip
        if asked:
            meta["i"] = 1
        await self.redis.call("SET", policy_key(self.prefix, shard, name), orjson.dumps(POLICY))
        await self.redis.call("SET", twin_key(self.prefix, shard, name), record)
        await self.redis.call(
            "XADD", journal_key(self.prefix, shard), "*", "m", orjson.dumps(meta), "h", "{}"
        )

    async def indexed(self) -> dict[str, int]:
        """Revisions of the things in the index."""
        rows = await self.database.read("SELECT thing_id, revision FROM thing")
        return {name: revision for name, revision in rows}  # noqa: C416 - for its types

    async def bookmarks(self) -> list[str]:
        rows = await self.database.read("SELECT bookmark FROM shard ORDER BY shard")
        return [bookmark for (bookmark,) in rows]

    async def until(self, condition: Callable[[dict[str, int]], bool]) -> None:
        """Wait until that holds for :meth:`indexed`."""
        async with asyncio.timeout(20):
            while not condition(await self.indexed()):  # noqa: ASYNC110 - a remote fact
                await asyncio.sleep(0.01)


@pytest.fixture
async def scene(
    shared: RedisServer, redis: Redis, database: Database, prefix: str
) -> AsyncIterator[Scene]:
    one = Scene(shared, redis, database, prefix)
    await one.start()
    yield one
    await one.close()


async def built(indexer: Indexer) -> None:
    """All shards are ours and built."""
    await wait_for(
        lambda: (
            len(indexer.says()["lag"]) == SHARDS
            and indexer.says()["counts"].get("rebuilds") == SHARDS
        )
    )


async def test_who_waits_is_told_when_it_is_in_the_index(scene: Scene) -> None:
    async with scene.indexer() as indexer:
        await built(indexer)
        await scene.change("a:x", 1, asked="first")
        await wait_for(lambda: "first" in scene.statuses)
        assert await scene.indexed() == {"a:x": 1}
        await scene.change("a:x", 2)
        await scene.change("a:x", 3, asked="third")
        await wait_for(lambda: "third" in scene.statuses)
        assert await scene.indexed() == {"a:x": 3}
    assert scene.statuses == {"first": [204], "third": [204]}


async def test_what_nobody_waits_for_is_indexed_after_the_interval(scene: Scene) -> None:
    async with scene.indexer() as indexer:
        await built(indexer)
        for number in range(1, 6):
            await scene.change("a:x", number)
        await scene.until(lambda found: found == {"a:x": 5})
        assert indexer.says()["problem"] == ""


async def test_at_a_fresh_index_nobody_is_told_before_the_commit(scene: Scene) -> None:
    names = [f"a:x{n}" for n in range(20)]
    for name in names:
        await scene.change(name, 1, asked=name)
    async with scene.indexer():
        for name in names:
            await wait_for(lambda: name in scene.statuses)  # noqa: B023 - called at once
            assert name in await scene.indexed()
    assert {status for told in scene.statuses.values() for status in told} <= {200, 204}


async def test_who_waited_when_the_last_owner_died_is_told_by_the_next(scene: Scene) -> None:
    async with scene.indexer() as indexer:
        await built(indexer)
        await scene.change("a:x", 1, asked="told")
        await wait_for(lambda: "told" in scene.statuses)
        bookmarks = await scene.bookmarks()
    # It has committed, and may have died before it said so.
    async with scene.indexer("two"):
        await wait_for(lambda: len(scene.statuses["told"]) == 2)
    assert scene.statuses["told"] == [204, 200]
    assert max(await scene.bookmarks()) == max(bookmarks)


async def test_entries_that_the_store_lost_and_replaced_mean_a_rebuild(scene: Scene) -> None:
    async with scene.indexer() as indexer:
        await built(indexer)
        for name in ("a:stays", "a:goes"):
            await scene.change(name, 1, asked=name)
        await wait_for(lambda: len(scene.statuses) == 2)
    shard = shard_of("a:goes", SHARDS)
    key = journal_key(scene.prefix, shard)
    page: Any = await scene.redis.call("XREVRANGE", key, "+", "-", "COUNT", 1)
    await scene.redis.call("XDEL", key, page[0][0])
    await scene.redis.call("DEL", twin_key(scene.prefix, shard, "a:goes"))
    other = next(name for n in range(99) if shard_of(name := f"a:x{n}", SHARDS) == shard)
    await scene.change(other, 1)  # later than what was lost
    async with scene.indexer("two"):
        await scene.until(lambda found: found.keys() == {"a:stays", other})


async def test_while_the_index_cannot_be_written_who_waits_is_told_so_and_nothing_is_lost(
    scene: Scene,
) -> None:
    async with scene.indexer() as indexer:
        await built(indexer)
        bookmarks = await scene.bookmarks()
        scene.database.broken = True
        await scene.change("a:x", 1, asked="bad")
        await wait_for(lambda: "bad" in scene.statuses)
        assert scene.database.refused >= QUICK
        assert await scene.indexed() == {}
        await wait_for(lambda: indexer.says()["problem"] != "")
        assert max(indexer.says()["lag"].values()) > 0
        assert max(await scene.bookmarks()) == max(bookmarks)
        scene.database.broken = False
        await scene.until(lambda found: found == {"a:x": 1})
        await wait_for(lambda: indexer.says()["problem"] == "")
    assert scene.statuses == {"bad": [500]}


async def test_an_end_while_the_index_cannot_be_written_loses_nothing(scene: Scene) -> None:
    async with scene.indexer() as indexer:
        await built(indexer)
        scene.database.broken = True
        await scene.change("a:x", 1, asked="bad")
        await wait_for(lambda: "bad" in scene.statuses)
    scene.database.broken = False
    await scene.database.write([("UPDATE shard SET owner = ''", ())])
    async with scene.indexer("two"):
        await scene.until(lambda found: found == {"a:x": 1})


async def test_a_thing_that_cannot_be_written_does_not_hold_up_the_others(scene: Scene) -> None:
    shard = shard_of("a:good", SHARDS)
    bad = next(name for n in range(99) if shard_of(name := f"a:bad{n}", SHARDS) == shard)
    async with scene.indexer() as indexer:
        await built(indexer)
        await scene.change(bad, 1, asked="bad", record=b"no record")
        await scene.change("a:good", 1, asked="good")
        await wait_for(lambda: {"bad", "good"} <= scene.statuses.keys())
        assert indexer.says()["counts"]["failed"] == 1
    assert scene.statuses == {"bad": [500], "good": [204]}


async def test_an_owner_that_was_only_slow_writes_nothing_more(scene: Scene) -> None:
    async with scene.indexer() as slow:
        await built(slow)
        async with scene.indexer("two") as next_one:
            # It overslept its lease, and does not know that yet.
            await scene.database.write([("UPDATE shard SET owner = 'two', fence = fence + 1", ())])
            await scene.change("a:x", 1, asked="x")
            await wait_for(lambda: len(next_one.says()["lag"]) > 0)
            await wait_for(lambda: "x" in scene.statuses)
            assert await scene.indexed() == {"a:x": 1}
            assert slow.says()["counts"].get("written", 0) + next_one.says()["counts"][
                "written"
            ] == 1  # fmt: skip


async def test_things_that_are_gone_are_removed_by_a_rebuild(scene: Scene) -> None:
    async with scene.indexer() as indexer:
        await built(indexer)
        for name in ("a:stays", "a:goes"):
            await scene.change(name, 1, asked=name)
        await wait_for(lambda: len(scene.statuses) == 2)
        await scene.redis.call("DEL", twin_key(scene.prefix, shard_of("a:goes", SHARDS), "a:goes"))
        await scene.database.write([("UPDATE shard SET rebuild_wanted = rebuild_done + 1", ())])
        await scene.until(lambda found: found == {"a:stays": 1})


async def test_more_than_fits_is_read_later(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.search.batches.MAX_PENDING", 2)
    names = [f"a:x{n}" for n in range(30)]
    async with scene.indexer() as indexer:
        await built(indexer)
        scene.database.broken = True
        for name in names:
            await scene.change(name, 1)
        await wait_for(lambda: scene.database.refused >= QUICK)
        scene.database.broken = False
        await scene.until(lambda found: len(found) == len(names))


async def test_entries_that_cannot_be_read_are_skipped(scene: Scene) -> None:
    async with scene.indexer() as indexer:
        await built(indexer)
        key = journal_key(scene.prefix, shard_of("a:x", SHARDS))
        for text in ("[]", "nonsense", "{}"):
            await scene.redis.call("XADD", key, "*", "m", text, "h", "{}")
        await scene.change("a:x", 1, asked="x")
        await wait_for(lambda: "x" in scene.statuses)
        found: dict[str, Any] = indexer.says()
        assert found["counts"]["skipped"] == 3
