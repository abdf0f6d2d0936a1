"""What nobody refers to any more goes from the index, under the eyes of those who write into it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from acks.search_terms import terms_of
from app.store.sql import index_writer, sweeping
from app.store.sql.database import Database, IndexBusy, Params, Row, Write
from app.store.sql.index_writer import IndexWriter, PolicyChange, Status
from tests.store.test_search_index_writer import (
    class_of,
    gone,
    grants,
    indexed_terms,
    shard,
    thing,
)


class Interrupted:
    """A database with which something happens before a write that begins with some words."""

    def __init__(self, database: Database, words: str, happens: Callable[[], Awaitable[Any]]):
        self.dialect = database.dialect
        self.ask = database.ask
        self._database = database
        self._words = words
        self._happens: Callable[[], Awaitable[Any]] | None = happens

    async def read(self, sql: str, params: Params = (), timeout: float | None = None) -> list[Row]:
        return await self._database.read(sql, params, timeout)

    async def write(
        self, statements: Sequence[Write | tuple[str, Params]], timeout: float | None = None
    ) -> list[list[Row]]:
        happens = self._happens
        if happens is not None and statements[0][0].startswith(self._words):
            self._happens = None
            await happens()
        return await self._database.write(statements, timeout)

    async def close(self) -> None:
        pass


@pytest.fixture
async def writer(database: Database) -> IndexWriter:
    for number in range(3):
        await shard(database, number)
    return IndexWriter(database)


async def names(database: Database, table: str, column: str) -> list[Any]:
    rows = await database.read(f"SELECT {column} FROM {table} ORDER BY {column}")
    return [value for (value,) in rows]


async def test_paths_classes_and_policies_of_nobody_are_removed(
    database: Database, writer: IndexWriter
) -> None:
    policies = [grants("t:p", "s:x"), grants("t:q", "s:y"), PolicyChange("t:gone", None, own=True)]
    changes = [
        thing("t:a", 1, {"attributes": {"a": 1, "b": 1}}),
        thing("t:b", 1, policy="t:unknown"),
    ]
    await writer.apply(0, 1, None, changes, policies)
    # Every change of a policy makes a class, as when the subjects of its users expire.
    await writer.apply(0, 1, None, [], [grants("t:q", "s:z", revision=2)])
    await writer.apply(0, 1, None, [thing("t:a", 2, {"attributes": {"a": 1}})])
    assert await writer.sweep()
    assert await names(database, "path", "path") == ["attributes/a"]
    assert await names(database, "policy", "policy_id") == ["t:p", "t:q", "t:unknown"]
    assert await names(database, "class_subject", "subject") == ["s:x", "s:z"]
    assert await names(database, "class", "num") == sorted(
        [await class_of(database, "t:p"), await class_of(database, "t:q")]
    )


async def test_a_round_is_made_of_bounded_pieces(
    database: Database, writer: IndexWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "LOOK", 10)
    fields = {"attributes": {f"a{number:02}": 1 for number in range(35)}}
    await writer.apply(0, 1, None, [thing("t:a", 1, fields)])
    await writer.apply(0, 1, None, [thing("t:a", 2, {"attributes": {"a07": 1, "a31": 1}})])
    left = []
    while not await writer.sweep():
        left.append(len(await names(database, "path", "num")))
    assert left == [26, 16, 6]
    assert await names(database, "path", "path") == ["attributes/a07", "attributes/a31"]
    [(sweeps,)] = await database.read("SELECT sweeps FROM shard WHERE shard = 2")
    assert await writer.sweep()
    assert await database.read("SELECT DISTINCT sweeps FROM shard") == [(sweeps,)]


async def test_who_remembers_a_path_that_was_removed_looks_again(
    database: Database, writer: IndexWriter
) -> None:
    fields = {"attributes": {"a": 1, "o": {"b": [1]}}}
    await writer.apply(0, 1, None, [thing("t:a", 1, fields)])
    await writer.apply(0, 1, None, [gone("t:a", 2)])
    assert await IndexWriter(database).sweep()
    assert await names(database, "path", "path") == []
    for number in range(3):
        made = await writer.apply(number, 1, None, [thing(f"t:b{number}", 1, fields)])
        assert made[f"t:b{number}"].status is Status.WRITTEN
        assert await indexed_terms(database, f"t:b{number}") == terms_of(fields)


@pytest.mark.parametrize("words", ["INSERT INTO path", "UPDATE shard"])
async def test_a_sweep_between_looking_up_and_writing_is_noticed(
    database: Database, writer: IndexWriter, words: str
) -> None:
    fields = {"attributes": {"a": 1, "b": 1}}
    await writer.apply(0, 1, None, [thing("t:a", 1, fields)])
    await writer.apply(0, 1, None, [gone("t:a", 2)])
    other = IndexWriter(database)
    late = IndexWriter(Interrupted(database, words, other.sweep))
    await late.apply(0, 1, "5-0", [thing("t:a", 3, fields)])
    assert await indexed_terms(database, "t:a") == terms_of(fields)
    assert await database.read("SELECT bookmark FROM shard WHERE shard = 0") == [("5-0",)]


async def test_a_policy_whose_class_was_removed_gets_it_again(
    database: Database, writer: IndexWriter
) -> None:
    await writer.apply(0, 1, None, [thing("t:a", 1)], [grants("t:p", "s:x")])
    first = await class_of(database, "t:p")
    await writer.apply(0, 1, None, [], [grants("t:p", "s:y", revision=2)])
    late = IndexWriter(Interrupted(database, "UPDATE shard", IndexWriter(database).sweep))
    await late.apply(0, 1, None, [], [grants("t:p", "s:x", revision=3)])
    again = await class_of(database, "t:p")
    assert again > first  # no number is used twice: readers remember what they stand for
    await writer.sweep()
    assert await database.read("SELECT subject, class FROM class_subject") == [("s:x", again)]


async def test_a_batch_that_was_written_after_it_was_given_up_is_no_refusal(
    database: Database, writer: IndexWriter
) -> None:
    changes = [thing("t:a", 1), thing("t:b", 1)]

    async def first() -> None:
        await IndexWriter(database).apply(0, 1, None, changes)

    late = IndexWriter(Interrupted(database, "UPDATE shard", first))
    with pytest.raises(IndexBusy):
        await late.apply(0, 1, "5-0", changes)
    again = await late.apply(0, 1, "5-0", changes)
    assert {result.status for result in again.values()} == {Status.UNCHANGED}


async def test_sweeps_and_writers_get_along(database: Database) -> None:
    for number in range(3):
        await shard(database, number)

    def fields(at: int) -> dict[str, Any]:
        return {"attributes": {f"a{at}": 1, f"b{at % 3}": at}}

    async def write(number: int) -> None:
        writer = IndexWriter(database)
        for at in range(1, 25):
            policy = grants(f"t:p{number}", f"s:{at % 4}", revision=at)
            changed = thing(f"t:{number}", at, fields(at), policy=f"t:p{number}")
            await writer.apply(number, 1, None, [changed], [policy])

    async def sweep() -> None:
        sweeper = IndexWriter(database)
        while True:
            await sweeper.sweep()

    sweeps = asyncio.create_task(sweep())
    await asyncio.gather(*(write(number) for number in range(3)))
    sweeps.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sweeps
    for number in range(3):
        assert await indexed_terms(database, f"t:{number}") == terms_of(fields(24))
        [(subject,)] = await database.read(
            "SELECT subject FROM class_subject JOIN policy ON policy.class = class_subject.class "
            "WHERE policy_id = ?",
            (f"t:p{number}",),
        )
        assert subject == "s:0"


async def test_large_things_are_written_in_pieces(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shard(database)
    monkeypatch.setattr(index_writer, "MANY", 50)
    fields = {"attributes": {f"a{at}": at for at in range(30)}}
    bookmarks = []

    async def look() -> None:
        rows = await database.read(
            "SELECT bookmark, (SELECT count(*) FROM thing), "
            "(SELECT count(*) FROM policy WHERE class IS NOT NULL) FROM shard"
        )
        bookmarks.append(rows[0])

    class Watched(Interrupted):
        async def write(
            self, statements: Sequence[Write | tuple[str, Params]], timeout: float | None = None
        ) -> list[list[Row]]:
            found = await super().write(statements, timeout)
            if statements[0][0].startswith("UPDATE shard"):
                await look()
            return found

    writer = IndexWriter(Watched(database, "nothing", look))
    changes = [thing(f"t:{at}", 1, fields) for at in range(3)]
    results = await writer.apply(0, 1, "7-0", changes, [grants("t:p", "s:x")])
    assert {result.status for result in results.values()} == {Status.WRITTEN}
    assert bookmarks == [("", 1, 1), ("", 2, 1), ("7-0", 3, 1)]
    bookmarks.clear()
    again = await writer.apply(0, 1, "8-0", [gone(f"t:{at}", 2) for at in range(3)])
    assert {result.status for result in again.values()} == {Status.WRITTEN}
    assert bookmarks == [("7-0", 2, 1), ("7-0", 1, 1), ("8-0", 0, 1)]
    assert await database.read("SELECT count(*) FROM term") == [(0,)]
