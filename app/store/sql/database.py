"""What the search index needs of an SQL database, and how one is opened.

The two databases differ in how they are reached (app/store/sql/sqlite.py, postgres.py) and in a
few expressions (:class:`~app.store.sql.dialect.Dialect`). Everything else is the same SQL for both,
with ``?`` for a parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

from app.store.sql.dialect import Dialect

_POSTGRES = ("postgresql://", "postgres://")
NEEDS_POSTGRES = "an index in PostgreSQL needs the extra postgres (pip install 'ackgate[postgres]')"

T = TypeVar("T")
Row = tuple[Any, ...]
Params = Sequence[Any]
"""Parameters: int, float, str, bytes or None; a list of int or of str for ``Dialect.among``."""
Questions = Generator[tuple[str, Params], list[Row], T]
"""Queries one behind the other: yields each, is sent its rows, and returns what comes of them."""


class IndexUnavailable(Exception):
    """The database cannot be reached, is damaged, or is not ours. The text names no password."""


class IndexBusy(Exception):
    """The database did not answer within the deadline; what was asked has been stopped."""


class IndexOff(Exception):
    """There is no search index: the setting ``search_index`` is ``off``."""


class BadRow(Exception):
    """The database refuses a value; to try again as it is would be in vain."""


class NotOwner(Exception):
    """A guard of a transaction found nothing: somebody else owns the shard now."""


class Write(NamedTuple):
    """One statement of a transaction.

    ``many``: ``params`` is a sequence of rows, and the statement is run for each; it returns none.
    ``types``, with ``many``, for an INSERT that has ``{rows}`` where VALUES would stand: the types
    of a row's values. Where that is quicker the rows are inserted all at once, so no two of them
    may be for the same row of the database.
    ``guard``: the statement has RETURNING, and without a row the whole transaction is rolled back.
    """

    sql: str
    params: Sequence[Any] = ()
    many: bool = False
    guard: bool = False
    types: Sequence[str] = ()


class Database(Protocol):
    """An open database. Everything is for one event loop; nothing blocks it."""

    dialect: Dialect

    async def read(self, sql: str, params: Params = (), timeout: float | None = None) -> list[Row]:
        """Run one query, outside of a transaction; it is stopped after ``timeout`` seconds.

        Without a timeout the one of :func:`open_index` counts. Waiting for a free connection
        counts too. Raises IndexUnavailable, IndexBusy, BadRow.
        """

    async def ask(self, questions: Callable[[], Questions[T]], timeout: float | None = None) -> T:
        """Run queries that depend on one another, all within ``timeout`` seconds.

        Sooner done than with a :meth:`read` for each, as they share a connection. They may run on
        another thread, or be begun anew, so they must change nothing. Raises as :meth:`read`, and
        what ``questions`` raise.
        """

    async def write(
        self, statements: Sequence[Write | tuple[str, Params]], timeout: float | None = None
    ) -> list[list[Row]]:
        """Run statements in one transaction, all or nothing; a pair is a Write without options.

        Returns for each the rows of its RETURNING. Raises NotOwner if a guard found nothing,
        IndexUnavailable, IndexBusy, BadRow.
        """

    async def close(self) -> None:
        """Stop what is running and close the connections. Idempotent."""


async def open_index(
    index: str,
    data_dir: Path,
    *,
    readers: int = 4,
    timeout: float = 10.0,
) -> Database:
    """Open the index that the setting ``search_index`` names, and bring its schema up to date.

    ``index`` is ``sqlite`` (``search.sqlite`` in ``data_dir``), ``sqlite:/path`` or
    ``postgresql://...``; ``readers`` queries run at a time, each ``timeout`` seconds at most if it
    names no deadline of its own. Raises IndexOff for ``off``, and IndexUnavailable.
    """
    if index == "off":
        raise IndexOff("there is no search index: search_index is off")
    if index.startswith(_POSTGRES):
        from app.store.sql.postgres import open_postgres

        return await open_postgres(index, readers=readers, timeout=timeout)
    from app.store.sql.sqlite import open_sqlite

    return await open_sqlite(sqlite_file(index, data_dir), readers=readers, timeout=timeout)


def check_index(index: str) -> None:
    """Raises ValueError if ``index`` names no index, or one whose library is not installed.

    The text holds no password.
    """
    if index in ("sqlite", "off") or (index.startswith("sqlite:") and len(index) > len("sqlite:")):
        return
    if index.startswith(_POSTGRES):
        try:
            parts = urlsplit(index)
            named = parts.hostname or parts.query
            _ = parts.port  # raises for what is no port
        except ValueError:
            named = None
        if named:
            if find_spec("asyncpg") is None:
                raise ValueError(NEEDS_POSTGRES)
            return
    raise ValueError("sqlite, sqlite:/path, postgresql://user:password@host:port/database or off")


def sqlite_file(index: str, data_dir: Path) -> Path:
    """The file of the SQLite index that ``index`` names."""
    named = index.removeprefix("sqlite").removeprefix(":")
    return Path(named).expanduser() if named else data_dir / "search.sqlite"
