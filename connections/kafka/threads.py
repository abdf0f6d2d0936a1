"""Between the event loop and the threads that librdkafka is used from."""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import structlog
from confluent_kafka import KafkaException

from connections.driver import OnLost, OpenError
from connections.kafka.reach import error_of

log = structlog.get_logger(__name__)
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


class Worker(ABC):
    """A client of librdkafka and its thread. Methods are called on the event loop.

    ``opened`` is done when the broker has answered, or holds an OpenError; ``ended`` is done when
    the thread has ended. ``on_lost`` is told on the loop, once, that an open client is of no use.
    """

    def __init__(self, name: str, on_lost: OnLost) -> None:
        self._on_lost = on_lost
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._lost = False  # the thread's
        self._loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = self._loop.create_future()
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def start(self) -> None:
        """Begin; what comes of it is told by ``opened``. To be called once."""
        self._thread.start()

    def _stop(self) -> None:
        """Have the thread end; one that was never started has ended already."""
        self._stopping.set()
        if self._thread.ident is None:
            self._post(_done, self.ended)

    # --- the thread

    @abstractmethod
    def _work(self) -> None:
        """Reach the broker, call :meth:`_tell_open`, and work until it is lost or is to stop.

        Whatever it raises is told: as the reason why it cannot be opened, or is lost.
        """

    @abstractmethod
    def _clean_up(self) -> None:
        """Leave the broker; after a loss without a word about what was settled."""

    def _run(self) -> None:
        try:
            self._work()
        except OpenError as problem:
            self._fail(problem)
        except KafkaException as problem:
            self._fail(OpenError("temporary", error_of(problem).str()))
        except Exception as problem:
            log.exception("kafka.defect", thread=self._thread.name)
            self._fail(OpenError("temporary", f"Encountered <{type(problem).__name__}>."))
        finally:
            try:
                self._clean_up()
            finally:
                self._post(_done, self.ended)

    def _tell_open(self) -> None:
        """The broker has answered."""
        self._post(_done, self.opened)

    def _lose(self, reason: str) -> None:
        """The broker is gone."""
        self._fail(OpenError("temporary", reason))

    def _fail(self, problem: OpenError) -> None:
        if not self._lost:
            self._lost = True
            self._post(self._failed, problem)

    def _post(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function on the event loop, soon."""
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop is closed: nobody wants to know any more
            self._stopping.set()

    def _failed(self, problem: OpenError) -> None:
        """On the event loop."""
        if self.opened.done():
            self._on_lost(str(problem))
        else:
            self.opened.set_exception(problem)


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
