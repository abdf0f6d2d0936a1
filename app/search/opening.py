"""The gateway's own connection to the search index: opened in the background, again and again.

A gateway starts and works without its index; only searches are refused meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from app.search.find import Finder
from app.store.sql.database import Database, IndexOff, IndexUnavailable

log = structlog.get_logger(__name__)

FIRST_DELAY, LAST_DELAY = 0.2, 5.0
"""Pause before it is tried again: the first and the longest, s."""


class IndexReader:
    """Finds things, as soon as the index is open.

    ``open_`` opens it, and raises IndexOff if there is none, or IndexUnavailable. Closing it is
    the business of whoever gives ``open_``. ``check`` is called when the index has been made anew,
    and raises IndexUnavailable if it is not ours any more.
    """

    def __init__(
        self,
        open_: Callable[[], Awaitable[Database]],
        check: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._open = open_
        self._check = check
        self._tried = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._finder: Finder | None = None
        self._problem: IndexOff | IndexUnavailable = IndexUnavailable("It has not been opened yet.")

    def start(self) -> None:
        """Open the index in the background, until :meth:`close`."""
        self._task = asyncio.create_task(self._opening(), name="search-index-opening")

    async def finder(self) -> Finder:
        """The open index; waits for the first attempt to open it.

        Raises IndexOff, and IndexUnavailable while it cannot be opened.
        """
        if self._finder is None:
            if self._task is not None:
                await self._tried.wait()
            if self._finder is None:
                raise self._problem
        return self._finder

    async def close(self) -> None:
        """Find nothing any more. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self._finder = None

    async def _opening(self) -> None:
        delay = FIRST_DELAY
        while self._finder is None:
            try:
                self._finder = Finder(await self._open(), check=self._check)
                log.info("search.index_open")
            except IndexOff as off:
                self._problem = off
                return
            except IndexUnavailable as problem:
                if delay == FIRST_DELAY:
                    log.warning("search.index_unavailable", error=str(problem))
                self._problem = problem
            except Exception as problem:
                log.exception("search.index_not_opened")
                self._problem = IndexUnavailable(repr(problem))
            finally:
                self._tried.set()
            if self._finder is None:
                await asyncio.sleep(delay)
                delay = min(2 * delay, LAST_DELAY)
