"""Between the event loop and the threads that librdkafka is used from."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from connections.driver import OpenError

library_log = logging.getLogger("librdkafka")
"""Where librdkafka's own messages go instead of the standard error; handed out while it polls."""

T = TypeVar("T")


class Inbox(Generic[T]):
    """What the event loop leaves for a thread."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._filled = threading.Event()

    def put(self, item: T) -> None:
        """Leave something; any thread."""
        self._items.append(item)
        self._filled.set()

    def wake(self) -> None:
        """End a wait."""
        self._filled.set()

    def wait(self, seconds: float) -> bool:
        """Whether there was something, or a wake, within the time."""
        found = self._filled.wait(seconds)
        self._filled.clear()
        return found

    def take(self) -> list[T]:
        """All that was left, in order."""
        return [self._items.popleft() for _ in range(len(self._items))]


class Loop:
    """The event loop, told from a thread. ``opened`` and ``ended`` say how far the thread is."""

    def __init__(self, stopping: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = stopping
        self.opened: asyncio.Future[None] = self._loop.create_future()
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def post(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function on the loop, soon."""
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop is closed: nobody wants to know any more
            self._stopping.set()

    def tell_open(self, problem: OpenError | None = None) -> None:
        """The broker has answered, or the opening has failed."""
        self.post(_settle, self.opened, problem)

    def tell_end(self) -> None:
        """The thread ends."""
        self.post(_settle, self.ended, None)


def _settle(future: asyncio.Future[None], problem: OpenError | None) -> None:
    if future.done():
        return
    if problem is None:
        future.set_result(None)
    else:
        future.set_exception(problem)
