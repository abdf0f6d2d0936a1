"""The search index on each of its databases: the same contract, against the real thing."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from acks.search_terms import head_of, storable
from acks.wildcards import like
from app.store.sql.database import (
    BadRow,
    Database,
    IndexBusy,
    IndexOff,
    IndexUnavailable,
    NotOwner,
    Write,
    check_index,
    open_index,
    sqlite_file,
)
from app.store.sql.index_writer import IndexWriter
from app.store.sql.schema import VERSION, steps
from tests.postgres import PostgresServer

SLOW = """WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500000000)
SELECT count(*) FROM n"""


async def test_it_is_made_and_found_again(index: str, tmp_path: Path) -> None:
    first = await open_index(index, tmp_path)
    await first.write([("INSERT INTO shard (shard, bookmark) VALUES (?, ?)", (3, "1-1"))])
    await first.close()
    second = await open_index(index, tmp_path)
    assert await second.read("SELECT shard, fence, bookmark FROM shard") == [(3, 0, "1-1")]
    assert await second.read("SELECT value FROM meta WHERE key = 'version'") == [(str(VERSION),)]
    await second.close()


async def test_many_may_make_it_at_once(index: str, tmp_path: Path) -> None:
    opened = await asyncio.gather(*(open_index(index, tmp_path, readers=1) for _ in range(4)))
    for database in opened:
        assert await database.read("SELECT count(*) FROM counter") == [(2,)]
        await database.close()


async def test_an_index_of_a_later_release_is_refused(index: str, tmp_path: Path) -> None:
    database = await open_index(index, tmp_path)
    await database.write([("UPDATE meta SET value = '99' WHERE key = 'version'", ())])
    await database.close()
    with pytest.raises(IndexUnavailable, match="version 99"):
        await open_index(index, tmp_path)


async def test_values_come_back_as_they_were(database: Database) -> None:
    numbers = [
        0,
        -1,
        2**63 - 1,
        -(2**63),
        0.1,
        -2.5e-7,
        1e300,
        5e-324,
        2.0**53,
        12345678901234567.0,
    ]
    texts = ["", "ä", "\U0001f600", "'; DROP TABLE term; --", storable("a\x00b"), "%_[]*?\\"]
    rows: list[tuple[Any, ...]] = [
        (1, 1, at, 2, number, "", None) for at, number in enumerate(numbers)
    ]
    rows += [(2, 1, at, 3, 0, head_of(text), text) for at, text in enumerate(texts)]
    await database.write(
        [Write(f"INSERT INTO term VALUES ({', '.join('?' * 7)})", rows, many=True)]
    )
    found = await database.read("SELECT number FROM term WHERE thing = 1 ORDER BY ord")
    assert [number for (number,) in found] == numbers
    assert [
        text
        for (text,) in await database.read("SELECT text FROM term WHERE thing = 2 ORDER BY ord")
    ] == texts
    for at, number in enumerate(numbers):
        sql = "SELECT ord FROM term WHERE path = ? AND kind = ? AND number = ?"
        assert await database.read(sql, (1, 2, number)) == [(at,)]


async def test_integers_are_exact_beside_floats(database: Database) -> None:
    big = 2**53 + 1
    await put_numbers(database, [big, float(2**53), 2**53 + 2])
    sql = "SELECT ord FROM term WHERE path = 1 AND kind = 2 AND number = ?"
    assert await database.read(sql, (big,)) == [(0,)]
    assert await database.read(sql, (2**53,)) == [(1,)]
    assert await database.read(sql, (float(2**53 + 2),)) == [(2,)]
    above = "SELECT ord FROM term WHERE path = 1 AND kind = 2 AND number > ? ORDER BY number"
    assert await database.read(above, (float(2**53),)) == [(0,), (2,)]


async def put_numbers(database: Database, numbers: list[Any]) -> None:
    rows = [(1, 1, at, 2, number, "", None) for at, number in enumerate(numbers)]
    await database.write(
        [Write(f"INSERT INTO term VALUES ({', '.join('?' * 7)})", rows, many=True)]
    )


async def put_texts(database: Database, texts: list[str]) -> None:
    rows = [(1, 1, at, 3, 0, head_of(text), None) for at, text in enumerate(texts)]
    await database.write(
        [Write(f"INSERT INTO term VALUES ({', '.join('?' * 7)})", rows, many=True)]
    )


async def test_texts_are_in_the_order_of_their_code_points(database: Database) -> None:
    texts = [
        "",
        "\x00",
        "\x01",
        " ",
        "A",
        "Z",
        "a",
        "a b",
        "ab",
        "z",
        "ß",
        "ä",
        "\uffee",
        "\U0001f600",
    ]
    await put_texts(database, texts)
    found = await database.read("SELECT ord FROM term WHERE path = 1 AND kind = 3 ORDER BY head")
    ordered = sorted(range(len(texts)), key=lambda at: texts[at])
    assert [at for (at,) in found] == ordered


PATTERNS = [
    "*",
    "",
    "a*",
    "*a",
    "*a*",
    "a?c",
    "A*C",
    "*[*",
    "a[bc]",
    "%",
    "_",
    "\\*",
    "a**c",
    "*b*b*c*",
    "?",
    "*Ä",
]
TEXTS = [
    "",
    "a",
    "abc",
    "ABC",
    "aBc",
    "a[bc]",
    "%",
    "_",
    "x",
    "\\x",
    "abbbc",
    "ä",
    "Ä",
    "a\nc",
    "*",
    "?",
]


@pytest.mark.parametrize("ignore_case", [False, True])
async def test_patterns_fit_as_everywhere_else(database: Database, ignore_case: bool) -> None:
    await put_texts(database, TEXTS)
    for pattern in PATTERNS:
        condition, param = database.dialect.like("head", pattern, ignore_case=ignore_case)
        found = await database.read(
            f"SELECT ord FROM term WHERE {condition} ORDER BY ord", (param,)
        )
        expected = [at for at, text in enumerate(TEXTS) if like(text, pattern, ignore_case)]
        assert [at for (at,) in found] == expected, pattern


@pytest.mark.parametrize(
    "pattern", ["*a*a*a*a*a*a*b", "*a*b", "?" * 5000 + "*b", "\U0001f600*[" * 3_000]
)
async def test_no_pattern_takes_for_ever(database: Database, pattern: str) -> None:
    await put_texts(database, ["x"])
    await database.write([("UPDATE term SET text = ?", ("a" * 20_000,))])
    for ignore_case in (False, True):
        condition, param = database.dialect.like("text", pattern, ignore_case=ignore_case)
        found = await database.read(f"SELECT count(*) FROM term WHERE {condition}", (param,), 5.0)
        assert found == [(0,)]


async def test_lists_are_parameters_of_any_length(database: Database) -> None:
    await put_numbers(database, list(range(10)))
    among = database.dialect.among("ord")
    found = await database.read(
        f"SELECT count(*) FROM term WHERE {among}", (list(range(5, 90_000)),)
    )
    assert found == [(5,)]
    assert await database.read(f"SELECT count(*) FROM term WHERE {among}", ([],)) == [(0,)]
    await put_path(database, ["x", "'\"", "ä", "\\"])
    sql = f"SELECT count(*) FROM path WHERE {database.dialect.among('path', 'text')}"
    assert await database.read(sql, (["'\"", "ä", "\\", "other"],)) == [(3,)]


async def put_path(database: Database, paths: list[str]) -> None:
    rows = [(path, 1, "", "") for path in paths]
    sql = "INSERT INTO path (path, depth, feature, wild) VALUES (?, ?, ?, ?)"
    await database.write([Write(sql, rows, many=True)])


async def test_a_transaction_is_all_or_nothing(database: Database) -> None:
    add = "INSERT INTO indexer (id) VALUES (?)"
    with pytest.raises(BadRow):
        await database.write([(add, ("a",)), (add, ("b",)), (add, ("a",))])
    with pytest.raises(NotOwner):
        await database.write(
            [
                (add, ("a",)),
                Write("UPDATE shard SET fence = 1 WHERE shard = 1 RETURNING fence", guard=True),
            ]
        )
    assert await database.read("SELECT count(*) FROM indexer") == [(0,)]
    returned = await database.write([(add + " RETURNING id, alive_until", ("a",)), (add, ("b",))])
    assert returned == [[("a", 0)], []]


@pytest.mark.parametrize(
    ("sql", "params"),
    [
        ("INSERT INTO indexer (id) VALUES (?)", (None,)),
        ("INSERT INTO indexer VALUES ('a', ?)", (2**70,)),
        ("INSERT INTO indexer VALUES ('a', ?)", (object(),)),
    ],
)
async def test_a_refused_value_is_known_as_one(
    database: Database, sql: str, params: tuple[Any, ...]
) -> None:
    with pytest.raises(BadRow):
        await database.write([(sql, params)])
    assert await database.read("SELECT count(*) FROM indexer") == [(0,)]


async def test_a_slow_query_is_stopped_and_holds_up_nobody(index: str, tmp_path: Path) -> None:
    async with opened(index, tmp_path, readers=1) as database:
        with pytest.raises(IndexBusy):
            await database.read(SLOW, timeout=0.1)
        # Its only connection is free again: the query runs no more.
        assert await database.read("SELECT 1") == [(1,)]


async def test_who_waits_too_long_for_a_connection_is_told(index: str, tmp_path: Path) -> None:
    async with opened(index, tmp_path, readers=1) as database:
        slow = asyncio.create_task(database.read(SLOW, timeout=60))
        await asyncio.sleep(0)
        with pytest.raises(IndexBusy):
            await database.read("SELECT 1", timeout=0.05)
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        assert await database.read("SELECT 1") == [(1,)]


async def test_a_slow_write_is_stopped_and_undone(index: str, tmp_path: Path) -> None:
    async with opened(index, tmp_path, readers=2) as database:
        with pytest.raises(IndexBusy):
            await database.write([("INSERT INTO indexer (id) VALUES ('a')", ()), (SLOW, ())], 0.2)
        assert await database.read("SELECT count(*) FROM indexer") == [(0,)]
        await database.write([("INSERT INTO indexer (id) VALUES ('a')", ())])


async def test_readers_do_not_wait_for_a_writer(index: str, tmp_path: Path) -> None:
    async with opened(index, tmp_path, readers=2) as database:
        busy = [("INSERT INTO indexer (id) VALUES ('a')", ()), (SLOW, ())]
        writing = asyncio.create_task(database.write(busy, timeout=60))
        await asyncio.sleep(0)
        assert await database.read("SELECT count(*) FROM indexer") == [(0,)]
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing


async def test_whenever_a_write_is_given_up_the_next_one_gets_through(
    index: str, tmp_path: Path
) -> None:
    """A database may forget to stop if nothing runs at the very moment."""
    short = [("UPDATE counter SET next = next + 1", ())] * 20
    async with opened(index, tmp_path, readers=1) as database:
        for turn in range(40):
            given_up = asyncio.create_task(database.write([*short, (SLOW, ())], timeout=60))
            await asyncio.sleep(turn * 0.0001)
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
            await database.write(short, timeout=10)
        assert await database.read("SELECT next FROM counter WHERE name = 'thing'") == [(801,)]


async def test_a_closed_index_says_so(index: str, tmp_path: Path) -> None:
    database = await open_index(index, tmp_path)
    await database.close()
    await database.close()
    with pytest.raises(IndexUnavailable):
        await database.read("SELECT 1")
    with pytest.raises(IndexUnavailable):
        await database.write([("DELETE FROM indexer", ())])


async def test_the_clock_is_that_of_the_database(database: Database) -> None:
    now = f"SELECT {database.dialect.now_ms}"
    [(first,)] = await database.read(now)
    assert isinstance(first, int)
    assert first > 1_700_000_000_000
    [(later,)] = await database.read(now)
    assert first <= later < first + 60_000


@asynccontextmanager
async def opened(index: str, data_dir: Path, readers: int = 2) -> AsyncIterator[Database]:
    database = await open_index(index, data_dir, readers=readers)
    try:
        yield database
    finally:
        await database.close()


# --- settings


async def test_off_is_no_index(tmp_path: Path) -> None:
    with pytest.raises(IndexOff):
        await open_index("off", tmp_path)


def test_where_the_file_is(tmp_path: Path) -> None:
    assert sqlite_file("sqlite", tmp_path) == tmp_path / "search.sqlite"
    assert sqlite_file("sqlite:/elsewhere/x.db", tmp_path) == Path("/elsewhere/x.db")


@pytest.mark.parametrize("index", ["sqlite", "off", "sqlite:/x", "postgresql://u:p@h:1/d"])
def test_names_of_an_index(index: str) -> None:
    check_index(index)


@pytest.mark.parametrize(
    "index", ["", "sqlite:", "mysql://u:geheim@h/d", "postgresql://u:geheim@h:x/d"]
)
def test_what_names_no_index_is_not_shown(index: str) -> None:
    with pytest.raises(ValueError, match="postgresql://user:password@host") as refused:
        check_index(index)
    assert "geheim" not in str(refused.value)


async def test_without_the_library_of_postgresql_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(IndexUnavailable, match=r"ackgate\[postgres\]"):
        await open_index("postgresql://u:p@127.0.0.1:1/d", tmp_path)


# --- SQLite


async def test_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    async with opened("sqlite", tmp_path / "new", 1) as database:
        await database.write([("INSERT INTO indexer (id) VALUES ('a')", ())])
        files = sorted((tmp_path / "new").iterdir())
        assert [file.name for file in files] == [
            f"search.sqlite{end}" for end in ("", "-shm", "-wal")
        ]
        assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["search.sqlite"]


async def test_a_damaged_file_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "search.sqlite").write_bytes(b"no database " * 1000)
    with pytest.raises(IndexUnavailable, match=r"search\.sqlite.*remove the file"):
        await open_index("sqlite", tmp_path)


async def test_a_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(IndexUnavailable, match="cannot be opened"):
        await open_index(f"sqlite:{tmp_path}/file/x.sqlite", tmp_path)


async def test_two_processes_may_write(tmp_path: Path) -> None:
    async with opened("sqlite", tmp_path, 1) as one, opened("sqlite", tmp_path, 1) as other:
        adds = [
            database.write([("INSERT INTO indexer (id) VALUES (?)", (f"{name}{number}",))])
            for number in range(50)
            for name, database in (("a", one), ("b", other))
        ]
        await asyncio.gather(*adds)
        assert await one.read("SELECT count(*) FROM indexer") == [(100,)]


async def test_the_lock_of_another_process_is_waited_for_until_the_deadline(tmp_path: Path) -> None:
    add = "INSERT INTO indexer (id) VALUES (?)"
    async with opened("sqlite", tmp_path) as one, opened("sqlite", tmp_path) as other:
        holding = asyncio.create_task(one.write([(add, ("a",)), (SLOW, ())], timeout=60))

        async def until_it_is_held() -> None:
            while True:
                await other.write([(add + " ON CONFLICT DO NOTHING", ("b",))], timeout=0.3)

        with pytest.raises(IndexBusy):
            await until_it_is_held()
        waiting = asyncio.create_task(other.write([(add, ("c",))], timeout=30))
        await asyncio.sleep(0)
        holding.cancel()
        await waiting
        assert ("c",) in await one.read("SELECT id FROM indexer")


async def test_the_log_stays_small_under_readers_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.store.sql.sqlite.LOG_BYTES", 2**20)
    monkeypatch.setattr("app.store.sql.sqlite.LOG_EVERY", 10)
    numbers = "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n LIMIT 20000)"
    async with opened("sqlite", tmp_path, 3) as database:
        await database.write([("CREATE TABLE big AS SELECT 1 AS number, 'x' AS text", ())])
        writing = True

        async def read(pause: float) -> None:
            await asyncio.sleep(pause)  # so that there is always somebody
            while writing:
                await database.read(f"{numbers} SELECT count(*), count(number) FROM n, big")

        readers = [asyncio.create_task(read(number / 100)) for number in range(3)]
        for _ in range(400):
            await database.write([("UPDATE big SET text = hex(randomblob(10000))", ())])
        writing = False
        await asyncio.gather(*readers)
        # 400 times 5 pages and more: some 9 MiB.
        assert (tmp_path / "search.sqlite-wal").stat().st_size < 4 * 2**20


# --- PostgreSQL


@pytest.fixture
def own_postgres(postgres: PostgresServer) -> Iterator[PostgresServer]:
    yield postgres
    if not postgres.running:
        postgres.start()


async def test_a_password_is_never_shown(postgres: PostgresServer, tmp_path: Path) -> None:
    wrong = "streng-geheim-0815"
    urls = [
        postgres.url("postgres", wrong),
        f"postgresql://ackgate:{wrong}@127.0.0.1:1/x",
        f"postgresql://ackgate:{wrong}@no.such.host.invalid/x",
        f"postgresql://ackgate:{wrong}@127.0.0.1:{postgres.port}/nosuch",
        f"postgresql://ackgate:{wrong}@127.0.0.1:{postgres.port}/x?sslmode={wrong}",
        f"postgresql://127.0.0.1:{postgres.port}/x?user=ackgate&password={wrong}&sslmode=no",
    ]
    for url in urls:
        with pytest.raises(IndexUnavailable) as refused:
            await open_index(url, tmp_path, timeout=5)
        shown: BaseException | None = refused.value
        while shown is not None:
            assert wrong not in str(shown)
            shown = shown.__cause__


async def test_a_server_that_goes_and_comes_back(
    own_postgres: PostgresServer, tmp_path: Path
) -> None:
    async with opened(own_postgres.database(), tmp_path, 2) as database:
        assert await database.read("SELECT 1") == [(1,)]
        own_postgres.stop()
        with pytest.raises(IndexUnavailable):
            await database.read("SELECT 1")
        own_postgres.start()
        assert await database.read("SELECT 1") == [(1,)]


async def test_a_server_that_takes_no_cancellation_is_not_waited_for(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    async with opened(postgres.database(), tmp_path, 1) as database:
        for asked in (
            lambda: database.read("SELECT 1", timeout=0.2),
            lambda: database.write([("SELECT 1", ())], timeout=0.2),
        ):
            ((backend,),) = await database.read("SELECT pg_backend_pid()")
            os.kill(backend, signal.SIGSTOP)  # as one that is behind a cut network
            try:
                async with asyncio.timeout(20):
                    with pytest.raises(IndexBusy):
                        await asked()
                    # On another connection.
                    assert await database.read("SELECT 2") == [(2,)]
            finally:
                os.kill(backend, signal.SIGCONT)
        ((backend,),) = await database.read("SELECT pg_backend_pid()")
        os.kill(backend, signal.SIGSTOP)
        try:
            async with asyncio.timeout(20):
                with pytest.raises(IndexBusy):
                    await database.read("SELECT 1", timeout=0.2)
                await database.close()
        finally:
            os.kill(backend, signal.SIGCONT)


async def test_transactions_that_wait_for_each_other_are_tried_again(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    async with opened(postgres.database(), tmp_path, 4) as database:
        await database.write([("INSERT INTO indexer (id) VALUES ('a'), ('b')", ())])
        touch = "UPDATE indexer SET alive_until = alive_until + 1 WHERE id = ?"
        orders = [("a", "b"), ("b", "a")] * 20
        await asyncio.gather(
            *(
                database.write([(touch, (one,)), ("SELECT pg_sleep(0.001)", ()), (touch, (other,))])
                for one, other in orders
            )
        )
        assert await database.read("SELECT sum(alive_until) FROM indexer") == [(80,)]


async def test_a_database_with_another_encoding_is_refused(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    postgres.sql(
        "CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0", "postgres"
    )
    with pytest.raises(IndexUnavailable, match="UTF8"):
        await open_index(postgres.url("latin"), tmp_path)


async def test_indexes_serve_the_lookups(database: Database) -> None:
    """The one index over values answers equality, ranges and order without sorting."""
    plan = "EXPLAIN QUERY PLAN " if database.dialect.name == "sqlite" else "EXPLAIN "
    texts = "path = 1 AND kind = 3 AND number = 0"
    sql = f"SELECT thing FROM term WHERE {texts} AND head > ? ORDER BY head"
    off: list[Any] = (
        []
        if database.dialect.name == "sqlite"
        else [("SET LOCAL enable_seqscan = off", ()), ("SET LOCAL enable_bitmapscan = off", ())]
    )
    rows = (await database.write([*off, (plan + sql, ("a",))]))[-1]
    text = " ".join(str(row) for row in rows)
    assert "term_value" in text
    assert "sort" not in text.lower()
    assert "TEMP B-TREE" not in text


def test_every_step_of_the_schema_is_for_both() -> None:
    from app.store.sql.dialect import POSTGRESQL, SQLITE

    assert [len(step) for step in steps(SQLITE, 0)] == [len(step) for step in steps(POSTGRESQL, 0)]
    assert steps(SQLITE, VERSION) == []


async def test_who_opened_an_empty_index_heeds_what_was_analysed_since(tmp_path: Path) -> None:
    """SQLite reads its statistics with the schema, so this has to be read anew everywhere."""
    first = await open_index("sqlite", tmp_path)
    other = await open_index("sqlite", tmp_path)
    try:
        await first.write([Write("ANALYZE")])  # makes the tables of the statistics
        before = await other.read("PRAGMA schema_version")
        await IndexWriter(first).analyze()
        assert await other.read("PRAGMA schema_version") != before
    finally:
        await first.close()
        await other.close()
