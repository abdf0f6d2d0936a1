"""Searching things: the index finds their ids, the store says what they are now."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol

import structlog

from acks.errors import GatewayError, error
from acks.preconditions import Preconditions
from acks.rql import Comparison
from acks.search_options import invalid
from acks.search_request import Key, SearchRequest, cursor_of, search_request
from acks.search_terms import TEXT
from acks.signals import Query, Response
from app.queries import OnResponse
from app.search.find import Finder, Hit, check_keys
from app.search.find import Query as IndexQuery
from app.search.opening import IndexReader
from app.store.sql.database import BadRow, IndexBusy, IndexOff, IndexUnavailable

__all__ = ["Page", "Search", "SearchRequest", "search_request"]

log = structlog.get_logger(__name__)

MOST = 256
"""Searches of a process that may be under way: each waits for the index, or holds a page."""
_GONE = (403, 404, 412)
"""What reading a thing is refused with that has gone, been closed, or no longer fits."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page of what was found; ``ids`` are the ids of its ``items``, in the same order.

    An item is what reading the thing gives: a JSON object, maybe as :class:`orjson.Fragment`.
    ``following`` asks for the next page, None if this is the last one; ``cursor`` is its cursor.
    ``next_offset`` stands in for the two where pages are counted (the option ``limit``).
    An item may be missing: a thing that has gone since it was indexed, or may no longer be read.
    """

    items: tuple[Any, ...]
    ids: tuple[str, ...]
    following: SearchRequest | None = None
    cursor: str | None = None
    next_offset: int | None = None


class Twins(Protocol):
    """Reads things as GET does: :class:`app.gateway.Gateway`."""

    async def query(self, query: Query) -> Response:
        """Raises GatewayError."""

    def submit_query(self, query: Query, on_response: OnResponse) -> None:
        """The same without a task, for fields without ``_policy``."""


class Search:
    """Answers searches by ``index``, each in ``longest_ms`` at most.

    ``answered`` and ``failed`` count.
    """

    def __init__(self, index: IndexReader, twins: Twins, longest_ms: int) -> None:
        self.longest_ms = longest_ms
        self._index = index
        self._twins = twins
        self._open = 0
        self._told = ""  # why there is no index, as it stands in the log
        self.answered = 0
        self.failed = 0

    async def page(self, request: SearchRequest) -> Page:
        """The page that ``request`` asks for, at the latest at its timeout.

        Raises ``gateway:query.time.exceeded``, ``gateway:service.unavailable``,
        ``too.many.requests``, ``thing-search:search.option.invalid`` for a cursor that does not fit
        its sort.
        """
        if request.after is not None:
            try:
                check_keys(request.options.sort, request.after)
            except ValueError:
                raise invalid("The option 'cursor' is not valid.") from None
        async with self._answering(request) as finder:
            size = request.options.size
            # One more than wanted tells whether there is a next page.
            hits = await finder.find(_index_query(request, size + 1), self._timeout_s(request))
            found = await self._things(request, hits[:size])
        more = len(hits) > size
        ids, items = tuple(id_ for id_, _ in found), tuple(item for _, item in found)
        if request.options.offset is not None:
            following = request.options.offset + size if more else None
            return Page(items, ids, next_offset=following)
        if not more:
            return Page(items, ids)
        next_ = request.from_key(tuple(hits[size - 1].keys))
        return Page(items, ids, next_, cursor_of(next_))

    async def count(self, request: SearchRequest) -> int:
        """How many things fit ``request``, whatever its options and fields.

        Raises as :meth:`page`.
        """
        async with self._answering(request) as finder:
            return await finder.count(_index_query(request, 0), self._timeout_s(request))

    async def key_of(self, request: SearchRequest, thing_id: str) -> tuple[Key, ...]:
        """Where ``thing_id`` stands in the order of ``request``, as its ``after``.

        Raises as :meth:`page`, and ``things:thing.notfound`` if that takes the index and it does
        not know the thing, or not for this requester.
        """
        if len(request.options.sort) == 1:
            return ([TEXT, thing_id],)  # sorted by ids alone
        only = replace(
            request,
            predicate=Comparison("eq", "thingId", (thing_id,)),
            namespaces=frozenset(),
            after=None,
        )
        async with self._answering(request) as finder:
            hits = await finder.find(_index_query(only, 1), self._timeout_s(request))
        if not hits:
            raise error("things:thing.notfound", thing_id=thing_id)
        return tuple(hits[0].keys)

    @asynccontextmanager
    async def _answering(self, request: SearchRequest) -> AsyncIterator[Finder]:
        """The index, with its errors as those of the catalogue, until the request's timeout."""
        if self._open >= MOST:
            raise error("too.many.requests")
        self._open += 1
        timeout_s = self._timeout_s(request)
        try:
            async with asyncio.timeout(timeout_s):
                yield await self._index.finder()
        except (TimeoutError, IndexBusy):
            self.failed += 1
            late = f"{int(timeout_s * 1000):,}"
            raise error("gateway:query.time.exceeded", timeout_ms=late) from None
        except BadRow:
            if request.after is None:
                raise
            raise invalid("The option 'cursor' is not valid.") from None
        except IndexOff:
            reason = "The search is switched off (setting search_index)."
            raise error("gateway:service.unavailable", reason=reason) from None
        except IndexUnavailable as problem:
            self.failed += 1
            if self._told != str(problem):
                self._told = str(problem)
                log.warning("search.index_unavailable", error=self._told)
            reason = "The search index cannot be reached."
            raise error("gateway:service.unavailable", reason=reason) from None
        finally:
            self._open -= 1
        self._told = ""
        self.answered += 1

    def _timeout_s(self, request: SearchRequest) -> float:
        return min(request.timeout_ms, self.longest_ms) / 1000

    async def _things(self, request: SearchRequest, hits: list[Hit]) -> list[tuple[str, Any]]:
        """The things as they are now, with their ids; without those that may not be shown."""
        checks = None
        if request.condition is not None:
            checks = Preconditions(condition=request.condition)
        queries = [
            Query(
                hit.thing_id,
                (),
                request.correlation_id,
                request.timeout_ms,
                request.subjects,
                request.fields,
                checks,
            )
            for hit in hits
        ]
        found = []
        for query, result in zip(queries, await self._answers(queries), strict=True):
            if isinstance(result, Response):
                found.append((query.thing_id, result.payload))
            elif result.status not in _GONE:
                raise result
        return found

    async def _answers(self, queries: list[Query]) -> list[Response | GatewayError]:
        if queries and queries[0].fields is not None and "_policy" in queries[0].fields.tree:
            return await asyncio.gather(*map(self._answer, queries))
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        results: dict[int, Response | GatewayError] = {}

        def answered(at: int, result: Response | GatewayError) -> None:
            results[at] = result
            if len(results) == len(queries) and not done.done():
                done.set_result(None)

        # Without a task for each: a page may be of 200 things.
        for at, query in enumerate(queries):
            self._twins.submit_query(query, partial(answered, at))
        if queries:
            await done
        return [results[at] for at in range(len(queries))]

    async def _answer(self, query: Query) -> Response | GatewayError:
        try:
            return await self._twins.query(query)
        except GatewayError as problem:
            return problem


def _index_query(request: SearchRequest, limit: int) -> IndexQuery:
    return IndexQuery(
        predicate=request.predicate,
        sort=request.options.sort,
        namespaces=request.namespaces,
        subjects=request.subjects,
        now=datetime.now(UTC),
        after=request.after,
        offset=request.options.offset or 0,
        limit=limit,
    )
