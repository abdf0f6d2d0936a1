"""The search index in an SQLite file: one thread writes, a few read, none holds up the event loop.

With the write-ahead log readers never wait for the writer. Several processes may share the file:
their writers wait for each other.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import orjson
import structlog

from app.store.sql.database import (
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
from app.store.sql.dialect import SQLITE, Dialect
from app.store.sql.schema import FIND_VERSION, meta_table, upgrade

log = structlog.get_logger(__name__)

CACHE_KIB = 48 * 1024
"""Memory for pages per connection, KiB."""
YOUNG, ANALYZE_EVERY = 16, 2_000
"""Transactions after which SQLite looks again at how much there is of what: after every doubling
from the first number on, and whenever there were as many as the second says."""
LOG_EVERY, LOG_BYTES = 50, 128 * 2**20
"""Transactions between looks at the write-ahead log, and the size from which it is begun anew."""
_LOG_WAIT_MS = 1_000  # for readers of the log
_CHECKPOINT_PAGES = 4_000
_LOG_BYTES = 64 * 2**20
_OLDEST = (3, 38, 0)  # RETURNING, and JSON functions everywhere
_ANALYZED_ROWS = 400
_PATIENCE_S = 0.1  # wait of SQLite itself for a lock, in which it hears of nothing
_STEPS = 1_000_000  # of its machine, some 10 ms, between looks at whether to go on
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_INTERRUPT)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_BAD = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError)


async def open_sqlite(file: Path, *, readers: int, timeout: float) -> SqliteDatabase:
    """Open or create the index in ``file``; raises IndexUnavailable."""
    database = SqliteDatabase(file, readers=readers, timeout=timeout)
    try:
        await database.start()
    except BaseException:
        await database.close()
        raise
    return database


class _Stopped(Exception):
    """What was asked for has been given up, or its time is over."""


class _Lane:
    """A connection with a thread of its own: one thing at a time."""

    def __init__(self, name: str) -> None:
        self.pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self.connection: sqlite3.Connection | None = None
        self.interrupted = False

    def interrupt(self) -> None:
        """Stop what is running, and what would run next of the same work."""
        self.interrupted = True
        if self.connection is not None:
            self.connection.interrupt()

    def run(self, sql: str, params: Params = ()) -> list[Row]:
        """Run a statement; waits for other processes' writers. Raises _Stopped."""
        assert self.connection is not None
        while True:
            # SQLite forgets an interruption that finds no statement running.
            if self.interrupted:
                raise _Stopped
            try:
                return self.connection.execute(sql, params).fetchall()
            except sqlite3.OperationalError as problem:
                if problem.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    raise
                if self.connection.in_transaction:
                    raise

    def run_many(self, sql: str, rows: Sequence[Params]) -> None:
        """Run a statement for each of the rows. Raises _Stopped."""
        assert self.connection is not None
        if self.interrupted:
            raise _Stopped
        self.connection.executemany(sql, rows)


class SqliteDatabase:
    """See :class:`app.store.sql.database.Database`."""

    dialect: Dialect = SQLITE

    def __init__(self, file: Path, *, readers: int, timeout: float) -> None:
        self.file = file
        self._timeout = timeout
        self._writer = _Lane("search-write")
        self._lanes = [self._writer, *(_Lane("search-read") for _ in range(readers))]
        self._idle: asyncio.LifoQueue[_Lane] = asyncio.LifoQueue()
        self._writing: asyncio.Queue[_Lane] = asyncio.Queue()
        self._writes = 0
        self._closed = False

    async def start(self) -> None:
        """Open the connections and bring the schema up to date; raises IndexUnavailable."""
        try:
            await self._call(self._writer, self._open_writer, self._timeout)
        except IndexBusy as busy:
            raise IndexUnavailable(f"{self.file}: {busy}") from busy
        self._writing.put_nowait(self._writer)
        for lane in self._lanes[1:]:
            await self._call(lane, lambda lane=lane: self._open_reader(lane), self._timeout)  # type: ignore[misc]  # mypy has no types for defaults of a lambda
            self._idle.put_nowait(lane)

    async def read(self, sql: str, params: Params = (), timeout: float | None = None) -> list[Row]:
        """See :class:`~app.store.sql.database.Database`."""

        def query(lane: _Lane) -> list[Row]:
            return lane.run(sql, _bound(params))

        return await self._use(self._idle, query, timeout)

    async def ask(self, questions: Callable[[], Questions[T]], timeout: float | None = None) -> T:
        """See :class:`~app.store.sql.database.Database`."""
        return await self._use(self._idle, lambda lane: _answer(lane, questions()), timeout)

    async def write(
        self, statements: Sequence[Write | tuple[str, Params]], timeout: float | None = None
    ) -> list[list[Row]]:
        """See :class:`~app.store.sql.database.Database`."""

        def transaction(lane: _Lane) -> list[list[Row]]:
            rows = _transaction(lane, statements)
            self._writes += 1
            if _is_due(self._writes):
                _analyze(lane)
            if self._writes % LOG_EVERY == 0 and self._log_bytes() > LOG_BYTES:
                _restart_log(lane)
            return rows

        return await self._use(self._writing, transaction, timeout)

    def _log_bytes(self) -> int:
        try:
            return os.stat(f"{self.file}-wal").st_size
        except OSError:
            return 0

    async def close(self) -> None:
        """See :class:`~app.store.sql.database.Database`."""
        if self._closed:
            return
        self._closed = True
        for lane in self._lanes:
            lane.interrupt()
        for lane in reversed(self._lanes):  # the writer last: it puts the log into the file
            if lane.connection is not None:
                await asyncio.get_running_loop().run_in_executor(lane.pool, self._close, lane)
            lane.pool.shutdown(wait=False)

    def _close(self, lane: _Lane) -> None:
        assert lane.connection is not None
        try:
            # Any statement ends the state of being interrupted, in which the log would stay.
            lane.connection.execute("SELECT 1")
        finally:
            lane.connection.close()

    # --- one thing at a time

    async def _use(
        self, lanes: asyncio.Queue[_Lane], work: Callable[[_Lane], T], timeout: float | None
    ) -> T:
        loop = asyncio.get_running_loop()
        seconds = self._timeout if timeout is None else timeout
        until = loop.time() + seconds
        if self._closed:
            raise IndexUnavailable("the search index has been closed")
        try:
            # Not wait_for: before Python 3.12 it may forget that it has been cancelled.
            async with asyncio.timeout(seconds):
                lane = await lanes.get()
        except TimeoutError:
            raise IndexBusy(
                f"no connection to the search index was free within {seconds:g} s"
            ) from None
        return await self._call(lane, lambda: work(lane), until - loop.time(), lanes, seconds)

    async def _call(
        self,
        lane: _Lane,
        work: Callable[[], T],
        left: float,
        back: asyncio.Queue[_Lane] | None = None,
        seconds: float | None = None,
    ) -> T:
        """Do ``work`` on the lane's thread; it goes ``back`` when that is over, even if we left."""
        loop = asyncio.get_running_loop()
        lane.interrupted = False
        timer = loop.call_later(max(left, 0.0), lane.interrupt)
        done = loop.run_in_executor(lane.pool, work)

        def finished(future: asyncio.Future[T]) -> None:
            timer.cancel()
            if not future.cancelled():
                future.exception()  # seen, if nobody waits any more
            if back is not None:
                back.put_nowait(lane)

        done.add_done_callback(finished)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            lane.interrupt()
            raise
        except _Stopped:
            raise self._late(left if seconds is None else seconds) from None
        except sqlite3.Error as problem:
            raise self._problem(problem, left if seconds is None else seconds) from problem
        except OverflowError as problem:
            raise BadRow(str(problem)) from problem

    def _problem(self, problem: sqlite3.Error, seconds: float) -> Exception:
        if isinstance(problem, _BAD):
            return BadRow(str(problem))
        code = getattr(problem, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code == sqlite3.SQLITE_TOOBIG or "binding parameter" in str(problem):
            return BadRow(str(problem))
        if code in _BUSY:
            return self._late(seconds)
        hint = ""
        if code in _DAMAGED:
            hint = ". Stop the gateway and remove the file: the index is then made anew"
        return IndexUnavailable(f"{self.file}: {problem}{hint}")

    def _late(self, seconds: float) -> Exception:
        if self._closed:
            return IndexUnavailable("the search index has been closed")
        return IndexBusy(f"the search index did not answer within {seconds:g} s")

    # --- opening, on the threads

    def _connect(self, lane: _Lane) -> None:
        lane.connection = sqlite3.connect(
            self.file,
            timeout=_PATIENCE_S,
            isolation_level=None,
            check_same_thread=False,  # close and interrupt come from elsewhere
            cached_statements=256,
        )
        lane.connection.set_progress_handler(lambda: lane.interrupted, _STEPS)
        lane.run("PRAGMA temp_store = MEMORY")
        lane.run(f"PRAGMA cache_size = -{CACHE_KIB}")

    def _open_writer(self) -> None:
        if sqlite3.sqlite_version_info < _OLDEST:
            raise IndexUnavailable(
                f"the search index needs SQLite {'.'.join(map(str, _OLDEST))} or later, here is "
                f"{sqlite3.sqlite_version}; search_index can name a PostgreSQL database instead"
            )
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            # Its log gets the rights of the file. What things say is not for everybody here.
            os.close(os.open(self.file, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as problem:
            reason = problem.strerror or problem
            raise IndexUnavailable(f"{self.file} cannot be opened: {reason}") from problem
        lane = self._writer
        self._connect(lane)
        lane.run("PRAGMA journal_mode = WAL")
        # A power loss may take the last transactions, with their bookmarks: they are made again.
        lane.run("PRAGMA synchronous = NORMAL")
        lane.run(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        lane.run(f"PRAGMA journal_size_limit = {_LOG_BYTES}")
        lane.run(f"PRAGMA analysis_limit = {_ANALYZED_ROWS}")
        self._migrate(lane)

    def _open_reader(self, lane: _Lane) -> None:
        self._connect(lane)
        lane.run("PRAGMA query_only = ON")

    def _migrate(self, lane: _Lane) -> None:
        lane.run("BEGIN IMMEDIATE")
        try:
            lane.run(meta_table(SQLITE))
            found = lane.run(FIND_VERSION)
            for statement in upgrade(SQLITE, found, str(self.file)):
                lane.run(statement)
            lane.run("COMMIT")
        except BaseException:
            _roll_back(lane)
            raise


def _is_due(writes: int) -> bool:
    """Whether to look again at what there is: often while an index is young, it grows fast then."""
    doubled = writes >= YOUNG and writes.bit_count() == 1
    return doubled or writes % ANALYZE_EVERY == 0


def _analyze(lane: _Lane) -> None:
    try:
        for statement in SQLITE.analyze:  # quick: analysis_limit
            lane.run(statement)
    except (sqlite3.Error, _Stopped) as problem:
        # What was written before it is written.
        log.info("search.not_analyzed", error=str(problem))


def _restart_log(lane: _Lane) -> None:
    """Begin the log anew: SQLite does not do it by itself while there is always somebody reading.

    Waits for those who read now, not for those who come; if they take too long, another time.
    """
    try:
        lane.run(f"PRAGMA busy_timeout = {_LOG_WAIT_MS}")
        lane.run("PRAGMA wal_checkpoint(RESTART)")
    except (sqlite3.Error, _Stopped) as problem:
        log.info("search.log_not_restarted", error=str(problem))
    finally:
        assert lane.connection is not None
        lane.connection.execute(f"PRAGMA busy_timeout = {int(_PATIENCE_S * 1000)}")


def _transaction(lane: _Lane, statements: Sequence[Write | tuple[str, Params]]) -> list[list[Row]]:
    lane.run("BEGIN IMMEDIATE")
    try:
        found: list[list[Row]] = []
        for statement in statements:
            write = statement if isinstance(statement, Write) else Write(*statement)
            if write.many:
                values = ", ".join("?" * len(write.types))
                lane.run_many(write.sql.replace("{rows}", f"VALUES ({values})"), write.params)
                found.append([])
                continue
            rows = lane.run(write.sql, _bound(write.params))
            if write.guard and not rows:
                raise NotOwner("the shard has another owner")
            found.append(rows)
        lane.run("COMMIT")
        return found
    except BaseException:
        _roll_back(lane)
        raise


def _answer(lane: _Lane, questions: Questions[T]) -> T:
    try:
        sql, params = next(questions)
        while True:
            sql, params = questions.send(lane.run(sql, _bound(params)))
    except StopIteration as end:
        answer: T = end.value
        return answer


def _roll_back(lane: _Lane) -> None:
    assert lane.connection is not None
    if lane.connection.in_transaction:
        lane.connection.execute("ROLLBACK")


def _bound(params: Params) -> Params:
    """The parameters, lists among them as JSON text: ``Dialect.among`` reads it."""
    if not any(isinstance(value, (list, tuple)) for value in params):
        return params
    return [
        orjson.dumps(value).decode() if isinstance(value, (list, tuple)) else value
        for value in params
    ]
