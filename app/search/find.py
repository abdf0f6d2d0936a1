"""Finds things in the index: ids and places in the order, no contents (spec websocket-... 6.4).

A search is a few queries: what the requester may read and where the named properties are; how many
things its conditions find, as far as an index tells that quickly; then the things. If one condition
finds few, these are tried and sorted. If not, things are walked through in the order of the sort,
until the page is full.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
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
from app.search.statements import Statements, Values
from app.search.visibility import Classes, Sight
from app.store.sql.database import Database, IndexBusy, Questions, Row, T

NEAR = 250
"""Up to there is counted first. If a condition finds fewer, that is it: to count more of the others
would take longer than to try these.
"""
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


class _Known(NamedTuple):
    """What is known of the index called ``name``: ``sight`` is by its classes up to ``last``."""

    name: str
    sight: Sight
    last: int


class _Unknown(NamedTuple):
    """The index is called ``name`` and has classes up to ``last``: they are not known yet."""

    name: str
    last: int


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
        after = None if query.after is None else values_of(query.sort, query.after)
        named = [key.property for key in query.sort]
        hits = partial(self._hits, query, after)
        return await self._search(query, named, hits, timeout_s) or []

    async def count(self, query: Query, timeout_s: float) -> int:
        """How many things there are, whatever ``sort``, ``after``, ``offset`` and ``limit``.

        Raises as :meth:`find`.
        """
        return await self._search(query, (), partial(self._count, query), timeout_s) or 0

    async def _search(
        self,
        query: Query,
        sorted_by: Sequence[str],
        search: Callable[[Compiler], Questions[T]],
        timeout_s: float,
    ) -> T | None:
        """What ``search`` finds; None if the requester may read nothing."""
        until = time.monotonic() + timeout_s
        subjects = [head_of(subject) for subject in query.subjects]
        own = text_among(self._database.dialect, "subject", subjects) if subjects else FALSE
        head = self._head(query, own, sorted_by)
        now_ms = int(query.now.timestamp() * 1000)
        known = _Known(self._name, *self._classes.known(query.subjects, now_ms))
        while True:
            questions = partial(self._questions, query, head, known, search)
            found = await self._database.ask(questions, _left(until))
            if not isinstance(found, _Unknown):
                return found
            classes = await self._classes_of(found.name)
            left = _left(until)
            sight = await classes.sight(query.subjects, own, found.last, now_ms, left)
            # What has come since is for the next search.
            known = _Known(found.name, sight, sys.maxsize)

    def _head(self, query: Query, own: Sql, sorted_by: Sequence[str]) -> Sql:
        """What is asked first: the index's name and its newest class, and the paths."""
        names = [leaf.property for leaf in leaves(query.predicate)] if query.predicate else []
        # One query for both: the columns of one are the other's.
        return in_line(
            [
                Sql(
                    f"SELECT coalesce(max(class), 0) AS num, {_NAME} AS path, 0 AS depth,"
                    f" '' AS feature, '' AS wild FROM class_subject WHERE {own.text}",
                    own.params,
                ),
                *paths_query(self._database.dialect, (*names, *sorted_by)),
            ],
            " UNION ALL ",
        )

    async def _classes_of(self, name: str) -> Classes:
        """The classes of the index, which is called so now."""
        if name != self._name:  # it was made anew: numbers stand for other classes
            if self._name and self._check is not None:
                await self._check()
            self._name, self._classes = name, Classes(self._database)
        return self._classes

    def _questions(
        self,
        query: Query,
        head: Sql,
        known: _Known,
        search: Callable[[Compiler], Questions[T]],
    ) -> Questions[T | _Unknown | None]:
        last, name = 0, ""
        paths: dict[int, PathRow] = {}
        for row in (yield head):
            if row[2]:
                paths[row[0]] = PathRow(*row)
            else:
                last, name = row[:2]
        if name != known.name or last > known.last:
            return _Unknown(name, last)
        if not known.sight.all:
            return None
        properties = Properties(known.sight, paths.values())
        return (yield from search(Compiler(self._database.dialect, properties, query.now)))

    def _hits(self, query: Query, after: Values | None, compiler: Compiler) -> Questions[list[Hit]]:
        search = Statements(compiler, query.predicate, query.namespaces, query.sort)
        start, arrays = yield from self._start(compiler, search)
        hits: list[Hit] = []
        for part in search.parts(start, after, walk=not query.offset, arrays=arrays):
            if len(hits) == query.limit:
                break
            if part.empty is not None and (yield part.empty)[0][0]:
                continue
            rows = yield part.page(query.limit - len(hits), query.offset)
            hits += [Hit(row[0], keys_of(search.levels, row[1:])) for row in rows]
        return hits

    def _count(self, query: Query, compiler: Compiler) -> Questions[int]:
        search = Statements(compiler, query.predicate, query.namespaces)
        start, _ = yield from self._start(compiler, search, walk=False)
        ((number,),) = yield search.counted(start)
        return int(number)

    def _start(
        self, compiler: Compiler, search: Statements, walk: bool = True
    ) -> Questions[tuple[Start | None, bool]]:
        """What the search begins with, None to ``walk`` in the order of the sort.

        And whether the property that it is sorted by has arrays.
        """
        found = search.starts()
        most = self._some if search.several else self._few
        sight = compiler.properties.sight
        if sight.readable >= most:
            found.pop()  # all that may be read is too much
        near = min(NEAR, most) if len(found) > 1 else most
        start, row = yield from self._fewest(search, found, near, sampled=near == most)
        if start is None and near < most:
            start, row = yield from self._fewest(search, found, most, sampled=True)
        arrays = bool(row[-1])
        if start is not None:
            return start, arrays
        sight.readable = max(sight.readable, most)
        for sampled, fits in zip(found, row[len(found) : -1], strict=True):
            # What looks at all values does so once; a walk would for every thing.
            if sampled.sample is not None and fits * RARE < SAMPLE:
                return sampled, arrays
        if not walk:
            exact = [start for start in found if start.instead is not None]
            return min(exact, key=_is_long, default=None), arrays
        return None, arrays

    def _fewest(
        self, search: Statements, found: Sequence[Start], limit: int, *, sampled: bool
    ) -> Questions[tuple[Start | None, Row]]:
        """The start that finds the fewest, if it finds fewer than ``limit``; what was found out."""
        (row,) = yield search.probe(found, limit, sampled=sampled)
        sizes = ((size, at) for at, size in enumerate(row[: len(found)]))
        size, at = min(sizes, default=(limit, 0))
        return (found[at] if size < limit else None), row


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise IndexBusy("the search took longer than it may")
    return left


def check_keys(sort: Sequence[SortKey], keys: Sequence[Key]) -> None:
    """Raises ValueError unless ``keys`` can be those of a hit of a search with this ``sort``."""
    values_of(sort, keys)


def _is_long(start: Start) -> bool:
    return start.sample is not None
