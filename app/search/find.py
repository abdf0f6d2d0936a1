"""Finds things in the index: ids and places in the order, no contents (spec websocket-... 6.4).

A search is a few queries: what the requester may read and where the named properties are; how many
things its conditions find, as far as an index tells that quickly; then the things. If one condition
finds few, these are tried and sorted. If not, things are walked through in the order of the sort,
until the page is full.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from acks.rql import Predicate, leaves
from acks.search_options import BY_ID, SortKey
from acks.search_terms import head_of
from app.search.compile import Compiler
from app.search.covers import SAMPLE, Start
from app.search.literals import text_among
from app.search.ordering import Key, keys_of, values_of
from app.search.properties import PathRow, Properties, paths_query
from app.search.sql import FALSE, Sql, in_line
from app.search.statements import Statements
from app.search.visibility import Classes
from app.store.sql.database import Database, IndexBusy, Row

FEW = 2_000
"""Things that are sorted rather than walked to, if one condition alone finds that many."""
SOME = 5_000
"""The same with several conditions: all of them may hold for none, and a walk would be a long one.
"""
RARE = 200
"""If fewer than one of so many values fit a pattern, all of them are looked at."""


_NAME = "coalesce((SELECT value FROM meta WHERE key = 'index'), '')"


class Hit(NamedTuple):
    """A thing that was found; ``keys`` are its values of the sort, JSON, one for each sort key."""

    thing_id: str
    keys: list[Key]


@dataclass(frozen=True, slots=True)
class Query:
    """What is looked for; ``predicate`` None is everything, ``namespaces`` empty is all.

    Only things of which a requester with ``subjects`` may read anything are found, by what they
    may read of it. ``sort`` ends with the thing's id. ``after`` are the keys of the hit behind
    which to begin. ``now`` is an aware datetime: for ``time:now``, and for subjects that expire.
    """

    subjects: tuple[str, ...]
    now: datetime
    predicate: Predicate | None = None
    namespaces: Collection[str] = ()
    sort: tuple[SortKey, ...] = (BY_ID,)
    after: Sequence[Key] | None = None
    offset: int = 0
    limit: int = 25


class Finder:
    """Finds things in one database. Remembers who may read what, for a bounded number of rules.

    ``check`` is called when the index has been made anew; it raises what a search is to raise then.
    """

    def __init__(
        self,
        database: Database,
        *,
        few: int = FEW,
        some: int = SOME,
        check: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._check = check
        self._database = database
        self._few = few
        self._some = some
        self._classes = Classes(database)
        self._name = ""

    async def find(self, query: Query, timeout_s: float) -> list[Hit]:
        """The first ``limit`` things in the order of the sort.

        Raises IndexUnavailable, IndexBusy (it took longer than ``timeout_s``), GatewayError
        ``rql.expression.invalid`` for a pattern that is too long, ValueError for ``after`` of
        another search.
        """
        until = time.monotonic() + timeout_s
        after = None if query.after is None else values_of(query.sort, query.after)
        named = [key.property for key in query.sort]
        compiler = await self._compiler(query, named, until)
        if compiler is None:
            return []
        search = Statements(compiler, query.predicate, query.namespaces, query.sort)
        start, arrays = await self._start(search, until)
        hits: list[Hit] = []
        for part in search.parts(start, after, walk=not query.offset, arrays=arrays):
            if len(hits) == query.limit:
                break
            if part.empty is not None and (await self._read(part.empty, until))[0][0]:
                continue
            rows = await self._read(part.page(query.limit - len(hits), query.offset), until)
            hits += [Hit(row[0], keys_of(search.levels, row[1:])) for row in rows]
        return hits

    async def count(self, query: Query, timeout_s: float) -> int:
        """How many things there are, whatever ``sort``, ``after``, ``offset`` and ``limit``.

        Raises as :meth:`find`.
        """
        until = time.monotonic() + timeout_s
        compiler = await self._compiler(query, [], until)
        if compiler is None:
            return 0
        search = Statements(compiler, query.predicate, query.namespaces)
        start, _ = await self._start(search, until, walk=False)
        rows = await self._read(search.counted(start), until)
        return int(rows[0][0])

    async def _compiler(
        self, query: Query, sorted_by: Sequence[str], until: float
    ) -> Compiler | None:
        """What makes the SQL of ``query``; None if the requester may read nothing."""
        dialect = self._database.dialect
        names = [leaf.property for leaf in leaves(query.predicate)] if query.predicate else []
        subjects = [head_of(subject) for subject in query.subjects]
        own = text_among(dialect, "subject", subjects) if subjects else FALSE
        # One query for both: the columns of one are the other's.
        asked = in_line(
            [
                Sql(
                    f"SELECT coalesce(max(class), 0) AS num, {_NAME} AS path, 0 AS depth,"
                    f" '' AS feature, '' AS wild FROM class_subject WHERE {own.text}",
                    own.params,
                ),
                *paths_query(dialect, (*names, *sorted_by)),
            ],
            " UNION ALL ",
        )
        last, name = 0, ""
        paths: dict[int, PathRow] = {}
        for row in await self._read(asked, until):
            if row[2]:
                paths[row[0]] = PathRow(*row)
            else:
                last, name = row[:2]
        now_ms = int(query.now.timestamp() * 1000)
        if name != self._name:  # it was made anew: numbers stand for other classes
            if self._name and self._check is not None:
                await self._check()
            self._name, self._classes = name, Classes(self._database)
        sight = await self._classes.sight(query.subjects, own, last, now_ms, self._left(until))
        if not sight.all:
            return None
        return Compiler(dialect, Properties(sight, paths.values()), query.now)

    async def _start(
        self, search: Statements, until: float, walk: bool = True
    ) -> tuple[Start | None, bool]:
        """What the search begins with, None to ``walk`` in the order of the sort.

        And whether the property that it is sorted by has arrays.
        """
        found = search.starts()
        limit = self._some if search.several else self._few
        row = (await self._read(search.probe(found, limit), until))[0]
        sizes, samples, arrays = row[: len(found)], row[len(found) : -1], bool(row[-1])
        size, at = min((size, at) for at, size in enumerate(sizes))
        if size < limit:
            return found[at], arrays
        for start, fits in zip(found, samples, strict=True):
            # What looks at all values does so once; a walk would for every thing.
            if start.sample is not None and fits * RARE < SAMPLE:
                return start, arrays
        if not walk:
            exact = [start for start in found if start.instead is not None]
            return min(exact, key=_is_long, default=None), arrays
        return None, arrays

    async def _read(self, statement: Sql, until: float) -> list[Row]:
        return await self._database.read(statement.text, statement.params, self._left(until))

    def _left(self, until: float) -> float:
        left = until - time.monotonic()
        if left <= 0:
            raise IndexBusy("the search took longer than it may")
        return left


def check_keys(sort: Sequence[SortKey], keys: Sequence[Key]) -> None:
    """Raises ValueError unless ``keys`` can be those of a hit of a search with this ``sort``."""
    values_of(sort, keys)


def _is_long(start: Start) -> bool:
    return start.sample is not None
