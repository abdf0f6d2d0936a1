"""The stream of all things that a search finds, page by page (spec websocket-... 3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import orjson
import structlog

from acks.errors import GatewayError, error
from acks.search_options import invalid
from app.api.sse import CHUNK, Wire, comment, event
from app.search.service import Page, Search, SearchRequest

log = structlog.get_logger(__name__)

HEARTBEAT_S = 1.0
"""Longest silence of a stream, s (spec websocket-... 3)."""


class SearchStream:
    """Sends what ``request`` finds, each thing as an event with its id, then ends.

    ``request`` is an error if it could not be read; that is the only event then. ``after`` is the
    id of the last thing that was received, "" for none. One page is in memory at a time, and the
    next is fetched when the client has taken it, unless the process is ``draining()``.
    """

    def __init__(
        self,
        search: Search,
        request: SearchRequest | GatewayError,
        after: str,
        draining: Callable[[], bool],
    ) -> None:
        self._search = search
        self._request = request
        self._after = after
        self._draining = draining

    async def run(self, wire: Wire, correlation_id: str) -> None:
        """Send everything, unless the client leaves; no task outlives this call."""
        writer = asyncio.create_task(self._write(wire, correlation_id), name="search-stream")
        gone = asyncio.create_task(wire.client_gone(), name="search-stream-client")
        try:
            await asyncio.wait((writer, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (writer, gone):
                task.cancel()
            for result in await asyncio.gather(writer, gone, return_exceptions=True):
                if isinstance(result, Exception) and not isinstance(result, OSError):
                    log.error("search.stream_failed", error=repr(result))

    async def _write(self, wire: Wire, correlation_id: str) -> None:
        try:
            await wire.begin(correlation_id, comment(""))
            try:
                await self._send_pages(wire)
            except GatewayError as problem:
                await wire.end(event(orjson.dumps(problem.to_json())))
                return
            except TimeoutError:
                raise
            except Exception:
                log.exception("search.stream_failed", correlation_id=correlation_id)
                failed = error("gateway:internalerror")
                await wire.end(event(orjson.dumps(failed.to_json())))
                return
            await wire.end()
        except TimeoutError:
            await wire.abort()  # the client does not read

    async def _send_pages(self, wire: Wire) -> None:
        request: SearchRequest | None = await self._first()
        while request is not None:
            if self._draining():  # to end without a word would mean that this is all
                raise error("gateway:service.unavailable", reason="It is shutting down.")
            page = await self._fetched(wire, request)
            chunk, size = [], 0
            for thing_id, item in zip(page.ids, page.items, strict=True):
                frame = event(orjson.dumps(item), mark=thing_id)
                chunk.append(frame)
                size += len(frame)
                if size >= CHUNK:
                    await wire.write(b"".join(chunk))
                    chunk, size = [], 0
            if chunk:
                await wire.write(b"".join(chunk))
            request = page.following

    async def _first(self) -> SearchRequest:
        """Where the stream begins; raises GatewayError."""
        request = self._request
        if isinstance(request, GatewayError):
            raise request
        if request.options.cursor is not None or request.options.offset is not None:
            raise invalid("A stream takes no option 'cursor' or 'limit': it has no pages.")
        if not self._after:
            return request
        return request.from_key(await self._search.key_of(request, self._after))

    async def _fetched(self, wire: Wire, request: SearchRequest) -> Page:
        """The page, with signs of life while it takes its time."""
        fetching = asyncio.create_task(self._search.page(request), name="search-stream-page")
        try:
            while True:
                done, _ = await asyncio.wait((fetching,), timeout=HEARTBEAT_S)
                if done:
                    return fetching.result()
                await wire.write(comment(""))
        finally:
            fetching.cancel()
