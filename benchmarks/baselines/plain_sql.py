"""The straightforward table of devices: a column with an index for whatever is asked for.

It knows the names and types of all properties beforehand, has no policies and one table.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import asyncpg

from benchmarks.search_bodies import PAGE, Question

Row = tuple[str, str, str, float, bool, str]
_TABLE = (
    "CREATE TABLE device (thing_id {text} PRIMARY KEY, serial {text} NOT NULL, "
    "site {text} NOT NULL, level double precision NOT NULL, active boolean NOT NULL, "
    "document text NOT NULL)"
)
_INDEXES = ("serial", "site, level", "level")
_INSERT = (
    "INSERT INTO device VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (thing_id) DO UPDATE SET "
    "serial = excluded.serial, site = excluded.site, level = excluded.level, "
    "active = excluded.active, document = excluded.document"
)


def row_of(thing_id: str, document: dict[str, Any]) -> Row:
    """The row of a device."""
    found = document["attributes"]
    return (
        thing_id,
        found["serial"],
        found["site"],
        float(found["level"]),
        bool(found["on"]),
        json.dumps(document),
    )


class Table(Protocol):
    """The table in a database."""

    async def put(self, rows: Sequence[Row]) -> None:
        """Insert or replace rows, in one transaction."""

    async def ask(self, sql: str, values: Sequence[Any]) -> list[tuple[str, ...]]:
        """The rows of a query."""

    async def close(self) -> None:
        """Close the connection."""


class SqliteTable:
    """In a file of its own, in WAL mode as the gateway's."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = NORMAL")
        self._database.execute("PRAGMA case_sensitive_like = ON")
        self._database.execute(_TABLE.format(text="TEXT"))
        for number, columns in enumerate(_INDEXES):
            self._database.execute(f"CREATE INDEX device_{number} ON device ({columns})")

    async def put(self, rows: Sequence[Row]) -> None:
        """Insert or replace rows, in one transaction."""
        self._database.execute("BEGIN IMMEDIATE")
        self._database.executemany(_INSERT, rows)
        self._database.execute("COMMIT")

    async def ask(self, sql: str, values: Sequence[Any]) -> list[tuple[str, ...]]:
        """The rows of a query."""
        return self._database.execute(sql, values).fetchall()

    async def close(self) -> None:
        """Close the file."""
        self._database.close()


def _numbered(sql: str) -> str:
    parts = sql.split("?")
    return "".join(f"{part}${at}" for at, part in enumerate(parts[:-1], 1)) + parts[-1]


class PostgresTable:
    """In the database behind ``connection``."""

    def __init__(self, connection: asyncpg.Connection[Any]) -> None:
        self._connection = connection

    @classmethod
    async def open(cls, url: str) -> PostgresTable:
        """Connect and make the table."""
        connection = await asyncpg.connect(url)
        await connection.execute(_TABLE.format(text='text COLLATE "C"'))
        for columns in _INDEXES:
            await connection.execute(f"CREATE INDEX ON device ({columns})")
        return cls(connection)

    async def put(self, rows: Sequence[Row]) -> None:
        """Insert or replace rows, in one transaction."""
        async with self._connection.transaction():
            await self._connection.executemany(_numbered(_INSERT), rows)

    async def ask(self, sql: str, values: Sequence[Any]) -> list[tuple[str, ...]]:
        """The rows of a query."""
        return [tuple(row) for row in await self._connection.fetch(_numbered(sql), *values)]

    async def close(self) -> None:
        """Disconnect."""
        await self._connection.close()


async def fill(table: Table, rows: Iterable[Row], batch: int = 500) -> None:
    """Put all rows, ``batch`` in a transaction."""
    waiting: list[Row] = []
    for row in rows:
        waiting.append(row)
        if len(waiting) == batch:
            await table.put(waiting)
            waiting = []
    await table.put(waiting)


async def answer(table: Table, question: Question, each: Callable[[], None]) -> int:
    """Read all pages of a question, ``each`` after each of them; the number of rows."""
    found = 0
    sql = f"SELECT thing_id, document FROM device WHERE {question.where}"
    if not question.option:
        rows = await table.ask(f"{sql} ORDER BY thing_id LIMIT {PAGE}", question.values)
        each()
        return len(rows)
    sql = sql.replace("thing_id, document", "thing_id, document, level")
    after: tuple[Any, ...] = ()
    for _ in range(question.pages):
        where = " AND (level < ? OR (level = ? AND thing_id > ?))" if after else ""
        order = f" ORDER BY level DESC, thing_id LIMIT {PAGE}"
        rows = await table.ask(sql + where + order, (*question.values, *after))
        each()
        found += len(rows)
        if len(rows) < PAGE:
            break
        thing_id, level = rows[-1][0], rows[-1][2]
        after = (level, level, thing_id)
    return found
