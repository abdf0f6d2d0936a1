"""The process that keeps the search index: a child of the gateway, restarted whenever it ends.

It gets its orders as one line of JSON on its standard input, which stays open: it ends when that is
closed, so also when the gateway is killed. On its standard output it says how it is, a line of
JSON every second. Its log goes where the gateway's goes.
"""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson
import structlog

log = structlog.get_logger(__name__)

FIRST_DELAY, LAST_DELAY, STEADY = 0.1, 5.0, 10.0
"""Pause before a restart: the first and the longest, and after which time it is short again, s."""
STOP_S = 3.0
"""How long it may take to end in peace, s."""
MODULE = "app.search.child"
_MAX_LINE = 256 * 1024


class Orders(NamedTuple):
    """What the child has to know. ``database`` and ``redis_url`` may hold passwords: not for logs.

    ``indexer`` is its name among all indexers: it stays the same over restarts, so that a new
    child has at once what the one before it had. Times are in s.
    """

    indexer: str
    worker: str
    redis_url: str
    prefix: str
    shards: int
    database: str
    data_dir: str
    interval: float
    store_timeout: float
    index_timeout: float
    link: str
    log_level: str
    log_format: str

    def line(self) -> bytes:
        """The orders as a line of JSON."""
        return orjson.dumps(self._asdict()) + b"\n"

    @classmethod
    def read(cls, line: bytes) -> Orders:
        """Read the line back. Raises ValueError or TypeError if it is none of ours."""
        return cls(**orjson.loads(line))


class IndexerProcess:
    """Keeps the child alive from :meth:`start` to :meth:`close`."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._child: Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._said: dict[str, Any] = {}
        self.restarts = 0

    @property
    def said(self) -> Mapping[str, Any]:
        """What the running child has said last (app/search/indexer.py); empty if there is none."""
        return self._said

    @property
    def pid(self) -> int | None:
        """Process id of the child."""
        return None if self._child is None else self._child.pid

    def start(self) -> None:
        """Start the child, unless there is to be no index, and keep it.

        Whether and when it can work is its own business.
        """
        if self._orders.database == "off":
            return
        self._task = asyncio.create_task(self._keep(), name="search-indexer")

    async def close(self) -> None:
        """End the child, which gives back what it holds. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _keep(self) -> None:
        loop, delay = asyncio.get_running_loop(), FIRST_DELAY
        while True:
            born = loop.time()
            try:
                status = await self._run()
            except Exception:
                status, delay = -1, LAST_DELAY
                log.exception("search.indexer_not_kept")
            if loop.time() - born > STEADY:
                delay = FIRST_DELAY
            self.restarts += 1
            log.warning("search.indexer_ended", status=status, restart_in_s=delay)
            await asyncio.sleep(delay)
            delay = min(delay * 2, LAST_DELAY)

    async def _run(self) -> int:
        """One life of the child; its exit status. Raises OSError if it cannot be started."""
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", MODULE,
            stdin=PIPE,
            stdout=PIPE,
            limit=_MAX_LINE,
            env=_environment(),
            start_new_session=True,  # Ctrl-C is for the gateway, which drains first
        )  # fmt: skip
        self._child = child
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(self._orders.line())
            async for line in child.stdout:
                self._hear(line)
            return await child.wait()
        finally:
            self._child, self._said = None, {}
            await _end(child)

    def _hear(self, line: bytes) -> None:
        try:
            self._said = orjson.loads(line)
        except ValueError:
            log.warning("search.indexer_unreadable", line=line[:200].decode("utf-8", "replace"))


def _environment() -> dict[str, str]:
    """Have the child import what we have imported, and not what lies in the working directory."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


async def _end(child: Process) -> None:
    """End the child: close its input, after :data:`STOP_S` kill it."""
    assert child.stdin is not None
    child.stdin.close()
    if child.returncode is not None:
        return
    try:
        async with asyncio.timeout(STOP_S):
            await child.wait()
    except TimeoutError:
        log.warning("search.indexer_killed", pid=child.pid)
        child.kill()
        await child.wait()
