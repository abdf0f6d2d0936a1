"""Who finds what while policies come, change and expire: the search remembers who may read what."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import orjson
import pytest

from app.search import visibility
from app.search.find import Finder, Query
from app.search.index import GatewayIndex
from app.search.leases import want_rebuild
from app.store.sql.database import Database, IndexUnavailable, Params, Row
from app.store.sql.index_writer import Change, IndexWriter, PolicyChange
from tests.store.test_search_index_writer import shard, thing

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
async def writer(database: Database) -> IndexWriter:
    await shard(database)
    return IndexWriter(database)


def policy(name: str, revision: int, **expiries: str) -> PolicyChange:
    """Lets subjects read everything, until then if that is not ''."""
    subjects: dict[str, Any] = {
        f"s:{subject}": {"type": "t", "expiry": until} if until else {"type": "t"}
        for subject, until in expiries.items()
    }
    resources = {"thing:/": {"grant": ["READ"], "revoke": []}}
    entries = {"one": {"subjects": subjects, "resources": resources}}
    return PolicyChange(name, orjson.dumps({"entries": entries, "_revision": revision}), own=True)


async def found(
    finder: Finder, subjects: Sequence[str] = ("s:me",), now: datetime = NOW
) -> list[str]:
    hits = await finder.find(Query(tuple(subjects), now, limit=100), 10)
    return [hit.thing_id for hit in hits]


async def test_many_policies_are_learnt_in_pieces_and_kept_up_to_date(
    database: Database, writer: IndexWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visibility, "_PAGE", 5)
    monkeypatch.setattr(visibility, "_BATCH", 2)
    finder = Finder(database)
    names = [f"t:{at:02}" for at in range(23)]
    # Each is a class of its own, as others are named beside us.
    policies = [policy(name, 1, me="", **{f"x{at}": ""}) for at, name in enumerate(names)]
    things = [thing(name, 1, policy=name) for name in names]
    await writer.apply(0, 1, None, things[:20], policies[:20])
    for result in await asyncio.gather(*(found(finder) for _ in range(5))):
        assert result == names[:20]
    await writer.apply(0, 1, None, things[20:], policies[20:])
    assert await found(finder) == names
    await writer.apply(0, 1, None, [], [policy("t:03", 2, other=""), policy("t:05", 2, me="")])
    assert await writer.sweep()
    assert await found(finder) == [name for name in names if name != "t:03"]
    assert await found(finder, ("s:other",)) == ["t:03"]
    assert await found(finder, ("s:other", "s:me")) == names
    assert await found(finder, ("s:x7", "s:me", "s:x9")) == [n for n in names if n != "t:03"]
    assert await found(finder, ("s:nobody",)) == []


async def test_subjects_that_expire_find_nothing_from_then_on(
    database: Database, writer: IndexWriter
) -> None:
    finder = Finder(database)
    policies = [
        policy("t:a", 1, me="2026-01-01T00:01:00Z"),
        policy("t:b", 1, me="2026-01-01T00:02:00Z"),
        policy("t:c", 1, me=""),
    ]
    things = [thing(f"t:{name}", 1, policy=f"t:{name}") for name in "abc"]
    await writer.apply(0, 1, None, things, policies)
    seen = {
        seconds: [name[2:] for name in await found(finder, now=NOW + timedelta(seconds=seconds))]
        for seconds in (0, 59, 60, 119, 120, 500, 30)
    }
    both, one = ["b", "c"], ["c"]
    everything = ["a", "b", "c"]
    assert seen == {
        0: everything, 59: everything, 60: both, 119: both, 120: one, 500: one, 30: everything,
    }  # fmt: skip


async def test_an_index_that_was_made_anew_has_other_classes(
    database: Database, writer: IndexWriter
) -> None:
    await database.write([("INSERT INTO meta VALUES ('index', 'first')", ())])
    finder = Finder(database)
    await writer.apply(0, 1, None, [thing("t:a", 1)], [policy("t:p", 1, me="")])
    assert await found(finder) == ["t:a"]
    # The numbers begin again, and stand for something else.
    tables = ("thing", "term", "path", "policy", "class_subject", "class")
    await database.write([(f"DELETE FROM {table}", ()) for table in tables])
    await database.write(
        [
            ("UPDATE counter SET next = 1", ()),
            ("UPDATE meta SET value = 'second' WHERE key = 'index'", ()),
        ]
    )
    anew = IndexWriter(database)
    await anew.apply(0, 1, None, [thing("t:b", 1)], [policy("t:p", 1, other="")])
    await anew.apply(0, 1, None, [thing("t:c", 1, policy="t:q")], [policy("t:q", 1, me="")])
    assert await found(finder) == ["t:c"]
    assert await found(finder, ("s:other",)) == ["t:b"]


async def test_all_who_search_an_index_that_was_made_anew_learn_of_it(
    database: Database, writer: IndexWriter
) -> None:
    async def check() -> None:
        await asyncio.sleep(0)

    await database.write([("INSERT INTO meta VALUES ('index', 'first')", ())])
    finder = Finder(database, check=check)
    await writer.apply(0, 1, None, [thing("t:a", 1)], [policy("t:p", 1, me="")])
    assert await found(finder) == ["t:a"]
    await database.write([("UPDATE meta SET value = 'second' WHERE key = 'index'", ())])
    for result in await asyncio.gather(*(found(finder) for _ in range(12))):
        assert result == ["t:a"]


async def test_policies_that_keep_coming_hold_up_no_search(
    database: Database, writer: IndexWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    await writer.apply(0, 1, None, [thing("t:a", 1)], [policy("t:p", 1, me="")])
    read, numbers = database.read, count()

    async def coming(sql: str, params: Params = (), timeout: float | None = None) -> list[Row]:
        rows = await read(sql, params, timeout)
        if sql.startswith("SELECT num, rules FROM class "):
            new = f"t:n{next(numbers)}"
            await writer.apply(0, 1, None, [], [policy(new, 1, me="", **{new: ""})])
        return rows

    monkeypatch.setattr(database, "read", coming)
    assert await found(Finder(database)) == ["t:a"]
    assert next(numbers) > 0


async def test_an_index_that_others_have_taken_over_tells_nothing(
    index: str, tmp_path: Path
) -> None:
    async def ours() -> str:
        return "ours"

    async def theirs() -> str:
        return "theirs"

    gateway = GatewayIndex(index, tmp_path, ours, timeout=10)
    other = GatewayIndex(index, tmp_path, theirs, timeout=10)
    try:
        database = await gateway.opened()
        await shard(database)
        finder = Finder(database, check=gateway.check)
        await IndexWriter(database).apply(0, 1, None, [thing("t:a", 1)], [policy("t:p", 1, me="")])
        assert await found(finder) == ["t:a"]
        with pytest.raises(IndexUnavailable):
            await other.opened()
        await want_rebuild(await other.unchecked(), "theirs", 1)
        for _ in range(2):
            with pytest.raises(IndexUnavailable):
                await found(finder)
        assert gateway.name is None
        # They see nothing of what was ours, be the subjects called the same.
        assert await found(Finder(await other.opened(), check=other.check)) == []
        await want_rebuild(database, "ours", 1)
        assert await found(finder) == []
        await IndexWriter(database).apply(0, 3, None, [], [policy("t:p", 1, me="")])
        assert await found(finder) == ["t:a"]
        assert gateway.name
    finally:
        await gateway.close()
        await other.close()


async def test_who_could_read_many_things_still_finds_the_few_that_are_left(
    database: Database, writer: IndexWriter
) -> None:
    """How many they were is remembered, to choose the shortest way to them; not which."""
    finder = Finder(database, few=3, some=3)
    names = [f"t:{at:02}" for at in range(9)]
    await writer.apply(0, 1, None, [thing(name, 1) for name in names], [policy("t:p", 1, me="")])
    others = [thing(f"t:z{at}", 1, policy="t:q") for at in range(9)]
    await writer.apply(0, 1, None, others, [policy("t:q", 1, other="")])
    query = Query(("s:me",), NOW, limit=100)
    assert await found(finder) == names
    assert await finder.count(query, 10) == len(names)
    await writer.apply(0, 1, None, [Change(name, None) for name in names[2:]])
    assert await found(finder) == names[:2]
    assert await finder.count(query, 10) == 2
    added = Change("t:zz", thing("t:zz", 1).record)
    await writer.apply(0, 1, None, [added])
    assert await found(finder) == [*names[:2], "t:zz"]
