"""A stream of what is found, while its gateway comes to an end."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.api.search_stream import SearchStream
from app.api.sse import Wire
from app.search.opening import IndexReader
from app.search.service import Page, Search, SearchRequest, search_request
from app.store.sql.database import open_index
from tests.app.test_search_service import Unread


class Pages(Search):
    """Finds one thing on each of three pages."""

    def __init__(self, index: IndexReader) -> None:
        super().__init__(index, Unread(), 1_000)
        self.fetched = 0

    async def page(self, request: SearchRequest) -> Page:
        self.fetched += 1
        following = replace(request, after=()) if self.fetched < 3 else None
        return Page(({"n": self.fetched},), (f"a:{self.fetched}",), following)


async def told(place: Path, pages: int) -> list[str]:
    """What a client is told if the gateway drains after some pages."""
    search = Pages(IndexReader(lambda: open_index("off", place)))
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message)

    request = search_request(("nginx:ditto",), 1_000)
    stream = SearchStream(search, request, "", lambda: search.fetched >= pages)
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "http_version": "1.1"}
    await stream.run(Wire(scope, receive, send), "c")
    text = b"".join(one.get("body", b"") for one in sent).decode()
    return [part for part in text.split("\n\n") if "data:" in part]


@pytest.mark.parametrize("pages", [1, 2])
async def test_a_stream_that_has_to_end_says_that_there_is_more(tmp_path: Path, pages: int) -> None:
    *things, last = await told(tmp_path, pages)
    assert things == [f'id: a:{n}\ndata: {{"n":{n}}}' for n in range(1, pages + 1)]
    assert last.startswith('data: {"status":503,"error":"gateway:service.unavailable"')


async def test_a_stream_that_is_at_its_end_just_ends(tmp_path: Path) -> None:
    assert await told(tmp_path, 3) == [f'id: a:{n}\ndata: {{"n":{n}}}' for n in (1, 2, 3)]
