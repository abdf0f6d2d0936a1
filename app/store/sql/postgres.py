"""The search index in PostgreSQL, for several machines; the library asyncpg is an extra."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from decimal import Decimal
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any

import structlog

from app.store.sql.database import (
    NEEDS_POSTGRES,
    BadRow,
    IndexBusy,
    IndexUnavailable,
    NotOwner,
    Params,
    Questions,
    Row,
    T,
    Write,
)
from app.store.sql.dialect import POSTGRESQL, Dialect
from app.store.sql.schema import FIND_VERSION, meta_table, upgrade

if TYPE_CHECKING:
    import asyncpg

log = structlog.get_logger(__name__)

CANCEL_S = 1.0
"""How long a query that is given up may take to end before its connection is closed, s."""
CLOSING_S = 5.0
"""Longest wait for what is running when the connections are closed, s."""
_LOCK = 0x61636B67  # of the schema; any number that no one else uses in this database
_EXACT = 2**53
_INT64 = 2**63
_PASSWORD = re.compile(r"(//[^:/@]*:)[^@]*@|(password=)[^&\s]*")
_SESSION = {
    "application_name": "ackgate",
    "jit": "off",
    # Plans depend on how many things have a value.
    "plan_cache_mode": "force_custom_plan",
    # What a frozen process has locked is free again some time.
    "idle_in_transaction_session_timeout": "60000",
    "client_min_messages": "warning",
}


async def open_postgres(url: str, *, readers: int, timeout: float) -> PostgresDatabase:
    """Open the index in the database at ``url``; raises IndexUnavailable."""
    try:
        import asyncpg
    except ImportError:
        raise IndexUnavailable(NEEDS_POSTGRES) from None
    del asyncpg
    database = PostgresDatabase(url, connections=readers, timeout=timeout)
    try:
        await database.start()
    except BaseException:
        await database.close()
        raise
    return database


class PostgresDatabase:
    """See :class:`app.store.sql.database.Database`."""

    dialect: Dialect = POSTGRESQL

    def __init__(self, url: str, *, connections: int, timeout: float) -> None:
        self._url = url
        self._connections = connections
        self._timeout = timeout
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None
        self._used: dict[asyncio.Task[Any] | None, Any] = {}  # connections by who uses them
        self._given_up: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        """Connect and bring the schema up to date; raises IndexUnavailable."""
        import asyncpg

        async def connect() -> None:
            self._pool = await asyncpg.create_pool(
                self._url,
                min_size=1,
                max_size=self._connections,
                server_settings=_SESSION,
                timeout=self._timeout,
                reset=_unchanged,
            )

        try:
            await self._guarded(connect, self._timeout)
            await self._use(self._migrate, self._timeout)
        except (IndexBusy, BadRow) as problem:
            raise IndexUnavailable(str(problem)) from problem
        except (ValueError, asyncpg.PostgresError) as problem:
            raise IndexUnavailable(_told(problem)) from None

    async def read(self, sql: str, params: Params = (), timeout: float | None = None) -> list[Row]:
        """See :class:`~app.store.sql.database.Database`."""

        async def query(connection: Any) -> list[Row]:
            return await _fetched(connection, sql, params)

        return await self._use(query, timeout)

    async def ask(self, questions: Callable[[], Questions[T]], timeout: float | None = None) -> T:
        """See :class:`~app.store.sql.database.Database`."""

        async def asked(connection: Any) -> T:
            running = questions()
            try:
                question = next(running)
                while True:
                    question = running.send(await _fetched(connection, *question))
            except StopIteration as end:
                answer: T = end.value
                return answer

        return await self._use(asked, timeout)

    async def write(
        self, statements: Sequence[Write | tuple[str, Params]], timeout: float | None = None
    ) -> list[list[Row]]:
        """See :class:`~app.store.sql.database.Database`."""

        async def transaction(connection: Any) -> list[list[Row]]:
            async with connection.transaction():
                return [
                    await _run(connection, one if isinstance(one, Write) else Write(*one))
                    for one in statements
                ]

        return await self._use(transaction, timeout)

    async def close(self) -> None:
        """See :class:`~app.store.sql.database.Database`."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        for task in self._given_up:
            self._cut(task)
        try:
            async with asyncio.timeout(CLOSING_S):
                await pool.close()
        except TimeoutError:
            pool.terminate()

    # --- one thing at a time

    async def _use(self, work: Callable[[Any], Awaitable[T]], timeout: float | None) -> T:
        import asyncpg

        async def connected() -> T:
            if self._pool is None:
                raise IndexUnavailable("the search index has been closed")
            task = asyncio.current_task()
            while True:  # until the deadline: two transactions that met do not meet for ever
                try:
                    async with self._pool.acquire() as connection:
                        self._used[task] = connection
                        return await work(connection)
                except (asyncpg.DeadlockDetectedError, asyncpg.SerializationError) as problem:
                    log.info("search.transaction_again", error=str(problem))
                finally:
                    self._used.pop(task, None)

        return await self._guarded(connected, self._timeout if timeout is None else timeout)

    async def _guarded(self, work: Callable[[], Coroutine[Any, Any, T]], seconds: float) -> T:
        """Do ``work`` within its deadline, and translate what goes wrong."""
        import asyncpg

        try:
            return await self._in_time(work(), seconds)
        except (TimeoutError, asyncpg.QueryCanceledError):
            raise IndexBusy(f"the search index did not answer within {seconds:g} s") from None
        except (
            asyncpg.DataError,
            asyncpg.IntegrityConstraintViolationError,
            asyncpg.ProgramLimitExceededError,
        ) as problem:
            raise BadRow(_told(problem)) from problem
        except (OSError, asyncpg.InterfaceError, asyncpg.PostgresError) as problem:
            # Not chained: an error about the URL may show it.
            raise IndexUnavailable(f"the search index: {_told(problem)}") from None

    async def _in_time(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """Do ``work``; raises TimeoutError, and leaves it to itself, if it takes too long.

        It cannot be waited for: the library lets go of a connection only when the server has taken
        the cancellation, and a server that is frozen or cut off never does.
        """
        task = asyncio.create_task(work, name="search-sql")
        try:
            if not (await asyncio.wait((task,), timeout=seconds))[0]:
                raise TimeoutError
            return task.result()
        finally:
            if not task.done():
                self._give_up(task)

    def _give_up(self, task: asyncio.Task[Any]) -> None:
        """Cancel a task, and close its connection if that does not help."""
        task.cancel()
        timer = asyncio.get_running_loop().call_later(CANCEL_S, self._cut, task)

        def ended(_: object) -> None:
            timer.cancel()
            self._given_up.discard(task)
            if not task.cancelled():
                task.exception()  # seen

        self._given_up.add(task)
        task.add_done_callback(ended)

    def _cut(self, task: asyncio.Task[Any]) -> None:
        import asyncpg

        connection = self._used.get(task)
        if connection is not None:
            log.warning("search.connection_cut", reason="the database did not take a cancellation")
            try:
                connection.terminate()
            except asyncpg.InterfaceError:
                return  # it has been given back

    async def _migrate(self, connection: Any) -> None:
        if await connection.fetchval("SHOW server_encoding") != "UTF8":
            raise IndexUnavailable("the search index needs a database with the encoding UTF8")
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
            await connection.execute(meta_table(POSTGRESQL))
            found = await connection.fetch(FIND_VERSION)
            for statement in upgrade(POSTGRESQL, found, "PostgreSQL"):
                await connection.execute(statement)


async def _unchanged(_connection: Any) -> None:
    """What is done to a connection between its uses: nothing, as none of them changes its session.

    The library's own way asks the server each time.
    """


async def _fetched(connection: Any, sql: str, params: Params) -> list[Row]:
    found = await connection.fetch(_numbered(sql), *map(_bound, params))
    return [_row(record) for record in found]


async def _run(connection: Any, write: Write) -> list[Row]:
    if write.many and not write.params:
        return []
    if write.types:
        # One statement and one plan: run for each row it would be planned for each.
        lists = ", ".join(f"${at}::{kind}[]" for at, kind in enumerate(write.types, 1))
        sql = write.sql.replace("{rows}", f"SELECT * FROM unnest({lists})")
        columns = zip(*write.params, strict=True)
        await connection.execute(sql, *[list(map(_bound, column)) for column in columns])
        return []
    if write.many:
        rows = [list(map(_bound, row)) for row in write.params]
        await connection.executemany(_numbered(write.sql), rows)
        return []
    found = await _fetched(connection, write.sql, write.params)
    if write.guard and not found:
        raise NotOwner("the shard has another owner")
    return found


@lru_cache(maxsize=1024)
def _numbered(sql: str) -> str:
    """``?``, ``?`` as ``$1``, ``$2``."""
    numbers = count(1)
    return re.sub(r"\?", lambda _: f"${next(numbers)}", sql)


def _bound(value: Any) -> Any:
    """A parameter; a float as the decimal number that it is written as (0.1 is a tenth).

    Large ones are exactly what they are, so that they compare with integers as in SQLite.
    """
    if type(value) is not float:
        return value
    return Decimal(repr(value)) if abs(value) < _EXACT else Decimal(value)


def _row(record: Any) -> Row:
    return tuple([_plain(value) if type(value) is Decimal else value for value in record])


def _plain(value: Decimal) -> int | float:
    whole = value == value.to_integral_value()
    return int(value) if whole and abs(value) < _INT64 else float(value)


def _told(problem: BaseException) -> str:
    """What an error says, without a password."""
    text = str(problem) or type(problem).__name__
    return _PASSWORD.sub(lambda found: f"{found[1] or found[2]}***{'@' if found[1] else ''}", text)
