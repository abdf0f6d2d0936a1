"""What the index does where something is missing: entries, things, owners, answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from acks.document import Twin
from acks.journal import journal_key, policy_key, shard_of, twin_key
from app.search.batches import before
from app.search.reads import last_entry
from app.store.record import encode
from app.store.sql.database import IndexBusy, Params, Row, Write
from tests.servers import wait_for
from tests.store.test_search_indexer import POLICY, SHARDS, Scene, built, scene

__all__ = ["scene"]

BATCH = "UPDATE shard SET bookmark = COALESCE"


def other_shard(name: str, kind: str) -> str:
    """An id of another shard than that of ``name``."""
    shard = shard_of(name, SHARDS)
    return next(one for n in range(99) if shard_of(one := f"a:{kind}{n}", SHARDS) != shard)


def record(name: str, revision: int, policy: str, **attributes: Any) -> bytes:
    created = "2026-01-01T00:00:00.000Z"
    document = {"thingId": name, "policyId": policy, "attributes": attributes}
    twin = Twin("t" * 20, revision, policy, created, created, None)
    return encode(twin, orjson.dumps(document))


async def readers(scene: Scene, policy: str) -> list[str]:
    """Whom the index lets read the things of a policy."""
    rows = await scene.database.read(
        "SELECT subject FROM class_subject JOIN policy ON policy.class = class_subject.class "
        "WHERE policy_id = ? ORDER BY subject",
        (policy,),
    )
    return [subject for (subject,) in rows]


def policy_for(*subjects: str, revision: int) -> bytes:
    document: dict[str, Any] = orjson.loads(orjson.dumps(POLICY))
    document["entries"]["owner"]["subjects"] = {name: {"type": "t"} for name in subjects}
    return orjson.dumps({**document, "_revision": revision})


async def test_a_thing_is_never_newer_in_the_index_than_who_may_read_it(scene: Scene) -> None:
    # The policy is of another shard, which is behind: its owner sleeps.
    policy = other_shard("a:x", "policy")
    shard = shard_of(policy, SHARDS)
    key = policy_key(scene.prefix, shard, policy)
    await scene.redis.call("SET", key, policy_for("nginx:ditto", "nginx:user2", revision=1))
    async with scene.indexer() as indexer:
        await built(indexer)
        await scene.change("a:x", 1, record=record("a:x", 1, policy, secret="old"))
        await scene.until(lambda found: found == {"a:x": 1})
        assert await readers(scene, policy) == ["nginx:ditto", "nginx:user2"]
        await scene.database.write(
            [
                (
                    "UPDATE shard SET owner = 'sleeps', fence = fence + 1, "
                    "lease_until = 9000000000000 WHERE shard = ?",
                    (shard,),
                )
            ]
        )
        await scene.redis.call("SET", key, policy_for("nginx:ditto", revision=2))
        await scene.change("a:x", 2, record=record("a:x", 2, policy, secret="new"))
        await scene.until(lambda found: found == {"a:x": 2})
        assert await readers(scene, policy) == ["nginx:ditto"]


class Unwritten:
    """A database that takes no batch."""

    def __init__(self, scene: Scene) -> None:
        self.dialect = scene.database.dialect
        self.ask = scene.database.ask
        self._database = scene.database

    async def read(self, sql: str, params: Params = (), timeout: float | None = None) -> list[Row]:
        return await self._database.read(sql, params, timeout)

    async def write(
        self, statements: Sequence[Write | tuple[str, Params]], timeout: float | None = None
    ) -> list[list[Row]]:
        if statements[0][0].startswith(BATCH):
            raise IndexBusy("no batch is written")
        return await self._database.write(statements, timeout)

    async def close(self) -> None:
        pass


async def test_an_entry_before_the_bookmark_of_an_unfinished_index_is_indexed_and_then_told(
    scene: Scene,
) -> None:
    async with scene.indexer() as indexer:
        await built(indexer)
    await scene.change("a:x", 1, asked="x")
    # The first owner has begun at the end, and has died before it had built the index.
    shard = shard_of("a:x", SHARDS)
    end = await last_entry(scene.redis, journal_key(scene.prefix, shard))
    await scene.database.write(
        [
            (
                "UPDATE shard SET bookmark = ?, rebuild_wanted = rebuild_done + 1 WHERE shard = ?",
                (end.decode(), shard),
            )
        ]
    )
    whole, scene.database = scene.database, Unwritten(scene)  # type: ignore[assignment]
    async with scene.indexer("two"):
        await wait_for(lambda: "x" in scene.statuses)
        assert scene.statuses == {"x": [500]}
    scene.database = whole
    async with scene.indexer("three"):
        await wait_for(lambda: len(scene.statuses["x"]) > 1)
        assert await scene.indexed() == {"a:x": 1}


async def lose(scene: Scene, name: str, *, connection: int | None = None) -> None:
    """The store loses its newest entry, of a thing, and goes on; a ``connection`` breaks."""
    shard = shard_of(name, SHARDS)
    key = journal_key(scene.prefix, shard)
    newest = await last_entry(scene.redis, key)
    later = next(one for n in range(99) if shard_of(one := f"a:later{n}", SHARDS) == shard)
    await scene.redis.call("MULTI")  # so that nobody sees it happen
    if connection is not None:
        await scene.redis.call("CLIENT", "KILL", "ID", connection)
    await scene.redis.call("XDEL", key, newest)
    await scene.redis.call("DEL", twin_key(scene.prefix, shard, name))
    await scene.change(later, 1)
    await scene.redis.call("EXEC")


KEPT = next(
    one for n in range(99) if shard_of(one := f"a:kept{n}", SHARDS) == shard_of("a:x", SHARDS)
)


async def two_things(scene: Scene) -> None:
    for name in (KEPT, "a:x"):
        await scene.change(name, 1, asked=name)
        await wait_for(lambda: name in scene.statuses)  # noqa: B023 - called at once


async def test_a_store_that_lost_entries_and_went_on_is_noticed_when_it_is_back(
    scene: Scene,
) -> None:
    async with scene.indexer() as indexer:
        await built(indexer)
        await two_things(scene)
        listed = await scene.redis.call("CLIENT", "LIST")
        assert isinstance(listed, bytes)
        clients = [
            dict(part.partition("=")[::2] for part in line.split())
            for line in listed.decode().splitlines()
        ]
        [reader] = [one["id"] for one in clients if one["name"] == "test-index-journal"]
        # As after a power loss: what is written next has a later id than what was lost.
        await lose(scene, "a:x", connection=int(reader))
        await scene.until(lambda found: "a:x" not in found)
        assert KEPT in await scene.indexed()


async def test_a_store_that_lost_entries_and_went_on_is_noticed_by_the_next_owner(
    scene: Scene,
) -> None:
    async with scene.indexer() as indexer:
        await built(indexer)
        await two_things(scene)
    await lose(scene, "a:x")
    async with scene.indexer("two"):
        await scene.until(lambda found: "a:x" not in found)
        assert KEPT in await scene.indexed()


async def test_a_bookmark_in_the_middle_is_no_gap(scene: Scene) -> None:
    async with scene.indexer() as indexer:
        await built(indexer)
        await two_things(scene)
    # Batches end before the oldest entry that waits, so not always with an entry.
    for shard in range(SHARDS):
        end = await last_entry(scene.redis, journal_key(scene.prefix, shard))
        if end != b"0-0":
            middle = before(end).decode()
            await scene.database.write(
                [("UPDATE shard SET bookmark = ? WHERE shard = ?", (middle, shard))]
            )
    async with scene.indexer("two") as indexer:
        await scene.change("a:y", 1, asked="y")
        await wait_for(lambda: "y" in scene.statuses)
        assert indexer.says()["counts"].get("rebuilds", 0) == 0
        assert indexer.says()["rebuilding"] == 0


@pytest.mark.parametrize("revision", [3, 4])
async def test_who_waits_for_a_revision_that_the_store_lost_is_told_that_it_failed(
    scene: Scene, revision: int
) -> None:
    async with scene.indexer() as indexer:
        await built(indexer)
        await scene.change("a:x", 4, asked="x", record=record("a:x", revision, "a:x"))
        await wait_for(lambda: "x" in scene.statuses)
    assert scene.statuses == {"x": [500 if revision < 4 else 204]}


async def test_what_nobody_uses_any_more_goes_by_itself(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.search.indexer.SWEEP_S", 0.05)
    async with scene.indexer() as indexer:
        await built(indexer)
        await scene.change("a:x", 1, asked="one", record=record("a:x", 1, "a:x", old=1))
        await wait_for(lambda: "one" in scene.statuses)
        await scene.change("a:x", 2, asked="two", record=record("a:x", 2, "a:x", new=1))
        await wait_for(lambda: "two" in scene.statuses)
        async with asyncio.timeout(10):
            while await scene.database.read(  # noqa: ASYNC110 - a remote fact
                "SELECT path FROM path"
            ) != [("attributes/new",)]:
                await asyncio.sleep(0.01)
