"""Queries that depend on one another, and rows inserted at once: the same on each database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from acks.search_terms import storable
from app.store.sql.database import BadRow, Database, IndexBusy, Questions, Write, open_index
from tests.store.test_search_index import SLOW

ADD = "INSERT INTO indexer (id, alive_until) {rows}"
TYPES = ("text", "bigint")


def counted(upto: int) -> Questions[list[int]]:
    """Each query asks for one more than the one before has found."""
    found = [0]
    while found[-1] < upto:
        ((number,),) = yield "SELECT CAST(? AS bigint) + 1", (found[-1],)
        found.append(number)
    return found


async def test_each_query_may_depend_on_the_one_before(database: Database) -> None:
    assert await database.ask(lambda: counted(5)) == [0, 1, 2, 3, 4, 5]
    assert await database.ask(lambda: counted(0)) == [0]


async def test_lists_are_parameters_of_queries_that_depend_on_one_another(
    database: Database,
) -> None:
    await database.write([("INSERT INTO shard (shard) VALUES (1), (2), (3)", ())])
    among = database.dialect.among("shard")

    def questions() -> Questions[int]:
        rows = yield "SELECT shard FROM shard WHERE shard > 1 ORDER BY shard", ()
        nums = [num for (num,) in rows]
        ((count,),) = yield f"SELECT count(*) FROM shard WHERE {among}", (nums,)
        return int(count)

    assert await database.ask(questions) == 2


async def test_what_goes_wrong_between_queries_is_raised(database: Database) -> None:
    def questions() -> Questions[None]:
        yield "SELECT 1", ()
        raise LookupError("of the caller")

    for _ in range(6):  # more often than there are connections
        with pytest.raises(LookupError, match="of the caller"):
            await database.ask(questions)
    assert await database.ask(lambda: counted(1)) == [0, 1]


async def test_all_queries_have_one_deadline(index: str, tmp_path: Path) -> None:
    database = await open_index(index, tmp_path, readers=1)

    def questions() -> Questions[None]:
        while True:
            yield "SELECT 1", ()

    def slow() -> Questions[None]:
        yield "SELECT 1", ()
        yield SLOW, ()

    try:
        for endless in (questions, slow):
            with pytest.raises(IndexBusy):
                await database.ask(endless, timeout=0.2)
            assert await database.ask(lambda: counted(1)) == [0, 1]
    finally:
        await database.close()


async def test_rows_are_inserted_as_they_are(database: Database) -> None:
    texts = ["", "ä", "\U0001f600", "'; DROP TABLE term; --", storable("a\x00b"), "{rows}", "$1?"]
    rows = [(text, at - 2**62) for at, text in enumerate(texts)]
    assert await database.write([Write(ADD, rows, many=True, types=TYPES)]) == [[]]
    assert sorted(await database.read("SELECT id, alive_until FROM indexer")) == sorted(rows)
    assert await database.write([Write(ADD, [], many=True, types=TYPES)]) == [[]]
    again = [(text, 7) for text in texts[1:]]
    change = f"{ADD} ON CONFLICT (id) DO UPDATE SET alive_until = excluded.alive_until + 1"
    await database.write([Write(change, again, many=True, types=TYPES)])
    found = await database.read("SELECT DISTINCT alive_until FROM indexer WHERE id <> ''")
    assert found == [(8,)]


async def test_numbers_and_missing_texts_are_inserted_as_they_are(database: Database) -> None:
    numbers = [0, 2**63 - 1, -(2**63), 0.1, -2.5e-7, 1e300, 2.0**53, 2**53 + 1]
    types = ("bigint", "bigint", "integer", "smallint", "numeric", "text", "text")
    rows: list[tuple[Any, ...]] = [
        (1, 1, at, 2, number, "", None if at % 2 else "x") for at, number in enumerate(numbers)
    ]
    await database.write([Write("INSERT INTO term {rows}", rows, many=True, types=types)])
    found = await database.read("SELECT * FROM term ORDER BY ord")
    assert found == rows
    assert [type(row[4]) for row in found if row[4] == 2**53 + 1] == [int]


@pytest.mark.parametrize("refused", [None, 2**70, object()])
async def test_of_such_rows_all_are_written_or_none(database: Database, refused: Any) -> None:
    with pytest.raises(BadRow):
        await database.write([Write(ADD, [("a", 1), ("b", refused)], many=True, types=TYPES)])
    assert await database.read("SELECT count(*) FROM indexer") == [(0,)]
