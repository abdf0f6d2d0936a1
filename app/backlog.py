"""A session's signals that cannot go out at once: in order, bounded, handled by one task."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import structlog

log = structlog.get_logger(__name__)

AHEAD = 32
"""Jobs that are begun together, so that what they read is read at once."""
GROUP = 16
"""Jobs between two turns of the event loop, at most."""
OVERHEAD = 1_000
"""What a waiting job takes beside its entry, bytes, about."""


class Job(NamedTuple):
    """One signal: ``size`` is what it takes, bytes; ``begin`` starts what takes time.

    ``finish`` is awaited afterwards, one job at a time; ``give_up`` is called instead if there
    will be no more.
    """

    size: int
    begin: Callable[[], None]
    finish: Callable[[], Awaitable[None]]
    give_up: Callable[[], None]


class Backlog:
    """Jobs of one session in their order. It ends when none is left; ``on_idle`` is called then.

    ``limit`` bounds what waits, bytes.
    """

    def __init__(self, limit: int, on_idle: Callable[[], None], name: str) -> None:
        self._limit = limit
        self._on_idle = on_idle
        self._name = name
        self._jobs: deque[Job] = deque()
        self._size = 0
        self._closed = False
        self._task: asyncio.Task[None] | None = None

    def push(self, job: Job) -> bool:
        """Append a job; False if there is no room for it."""
        if self._size + job.size + OVERHEAD > self._limit:
            return False
        self._jobs.append(job)
        self._size += job.size + OVERHEAD
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=self._name)
        return True

    def close(self) -> None:
        """End it; what has not been finished is given up."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        # Here, for a task that is cancelled before its first step never comes to its own end.
        while self._jobs:
            self._jobs.popleft().give_up()

    def _begin(self, job: Job) -> None:
        try:
            job.begin()
        except Exception:
            # What it was to bring is missing then, and ``finish`` has to make do without.
            log.exception("backlog.job_not_begun", backlog=self._name)

    async def _run(self) -> None:
        begun = done = 0
        while self._jobs:
            if not begun:
                begun = min(AHEAD, len(self._jobs))
                for number in range(begun):
                    self._begin(self._jobs[number])
            job = self._jobs[0]
            try:
                await job.finish()
            except Exception:
                log.exception("backlog.job_failed", backlog=self._name)
            done += 1
            if done % GROUP == 0:
                await asyncio.sleep(0)
            if self._closed:
                return
            # Only now: if the backlog is closed meanwhile, it has to be given up.
            self._jobs.popleft()
            self._size -= job.size + OVERHEAD
            begun -= 1
        self._on_idle()
