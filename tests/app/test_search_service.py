"""The search and its index: opened late, never, or again; too little time; too many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from acks.errors import GatewayError
from acks.signals import Query, Response
from app.queries import OnResponse
from app.search.opening import IndexReader
from app.search.service import MOST, Page, Search, search_request
from app.store.sql.database import Database, IndexOff, IndexUnavailable, open_index
from tests.servers import wait_for

SUBJECTS = ("nginx:ditto",)


class Unread:
    """No thing is found that could be read."""

    async def query(self, query: Query) -> Response:
        raise AssertionError(query)

    def submit_query(self, query: Query, on_response: OnResponse) -> None:
        raise AssertionError(query, on_response)


def search_by(open_: Callable[[], Awaitable[Database]]) -> tuple[Search, IndexReader]:
    index = IndexReader(open_)
    return Search(index, Unread(), 1_000), index


async def refusal(search: Search, timeout_ms: int = 1_000) -> tuple[int, str, str | None]:
    with pytest.raises(GatewayError) as problem:
        await search.count(search_request(SUBJECTS, timeout_ms))
    return problem.value.status, problem.value.code, problem.value.description


async def test_an_index_that_is_opened_late(tmp_path: Path) -> None:
    attempts: list[Database] = []

    async def opened() -> Database:
        failing = opened_after.pop(0)
        if failing is not None:
            raise failing
        attempts.append(await open_index("sqlite", tmp_path))
        return attempts[0]

    opened_after: list[Exception | None] = [IndexUnavailable("secret"), ValueError("secret"), None]
    search, index = search_by(opened)
    index.start()
    try:
        status, code, description = await refusal(search)
        assert (status, code) == (503, "gateway:service.unavailable")
        assert "secret" not in str(description)
        await wait_for(lambda: bool(attempts), 10, "the index")
        assert await search.count(search_request(SUBJECTS, 1_000)) == 0
        assert await search.page(search_request(SUBJECTS, 1_000)) == Page((), ())
        assert (search.answered, search.failed) == (2, 1)
    finally:
        await index.close()
        for database in attempts:
            await database.close()
    assert (await refusal(search))[0] == 503


async def test_no_index_at_all() -> None:
    async def opened() -> Database:
        raise IndexOff

    search, index = search_by(opened)
    index.start()
    status, code, description = await refusal(search)
    assert (status, code) == (503, "gateway:service.unavailable")
    assert "search_index" in str(description)
    await index.close()
    await index.close()


async def test_an_index_that_is_away_is_not_logged_for_each_search() -> None:
    async def opened() -> Database:
        raise IndexUnavailable("connection refused")

    search, index = search_by(opened)
    index.start()
    with capture_logs() as logged:
        for _ in range(50):
            assert (await refusal(search))[0] == 503
    await index.close()
    told = [one for one in logged if one["event"] == "search.index_unavailable"]
    # By the search, and by what opens the index at each of its attempts.
    assert 1 <= len(told) < 10
    assert {one["error"] for one in told} == {"connection refused"}


async def test_searches_wait_for_the_index_no_longer_than_they_may() -> None:
    never = asyncio.Event()

    async def opened() -> Database:
        await never.wait()
        raise IndexOff

    search, index = search_by(opened)
    index.start()
    assert (await refusal(search, 20))[:2] == (504, "gateway:query.time.exceeded")
    waiting = [
        asyncio.create_task(search.count(search_request(SUBJECTS, 60_000))) for _ in range(MOST)
    ]
    await asyncio.sleep(0)
    assert (await refusal(search))[:2] == (429, "too.many.requests")
    # Its own limit holds for those, too, and then there is room.
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert {one.status for one in results if isinstance(one, GatewayError)} == {504}
    assert len(results) == MOST
    assert (await refusal(search, 20))[:2] == (504, "gateway:query.time.exceeded")
    await index.close()
