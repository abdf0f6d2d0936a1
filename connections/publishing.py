"""Publications on their way: sent by whichever driver is open, bounded, in order, always told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial

import structlog

from acks.errors import GatewayError, error
from connections.driver import Driver, Publication, Published

log = structlog.get_logger(__name__)

_SLACK_S = 1.0
"""How much longer than a driver should take it is waited for it."""
_JSON = {"content-type": "application/json"}
OnPublished = Callable[[Published], None]
"""Told once what became of a publication; called on the event loop, must not raise."""


def not_sent(reason: str, status: int = 503) -> Published:
    """What is told of a publication that the broker has not taken (spec websocket-... 4.5)."""
    return failed(error("connectivity:message.sending.failed", status=status, reason=reason))


def failed(problem: GatewayError) -> Published:
    """The JSON of an error of the catalogue; its status stands by itself (spec 4.5)."""
    payload = problem.to_json()
    return Published(payload.pop("status"), payload, _JSON)


def broken(problem: BaseException) -> Published:
    """What is told of an exception that is none of the catalogue (spec 4.5)."""
    cause = problem.__cause__
    text = str(problem)
    if cause is not None:
        caused = f"Caused by <{type(cause).__name__}>."
        text = f"{text} - {caused}" if text else caused
    payload = {
        "message": f"Encountered <{type(problem).__name__}>.",
        "description": text or "Unknown error.",
    }
    return Published(500, payload, _JSON)


def in_words(result: Published) -> str:
    """The status of a publication, and its payload as JSON, for the log of a connection."""
    if result.payload is None:
        return str(result.status)
    return f"{result.status}, {json.dumps(result.payload, ensure_ascii=False, default=str)}"


class Publisher:
    """Sends for all targets and reply targets of one client.

    At most ``limit`` publications are under way. Of these the last quarter is kept for replies and
    dead letters, which cannot wait: :meth:`room` is for who can. A publication is given to the
    driver in the order of :meth:`send`.
    """

    def __init__(self, limit: int, deadline_s: float, on_lost: Callable[[str], None]) -> None:
        self._limit = limit
        self._shared = max(1, limit - limit // 4)
        self._deadline_s = deadline_s
        self._on_lost = on_lost
        self._driver: Driver | None = None
        self._tasks: dict[asyncio.Task[None], Driver] = {}
        self._free = asyncio.Event()

    @property
    def open(self) -> bool:
        """Whether a broker takes publications now."""
        return self._driver is not None

    @property
    def busy(self) -> int:
        """Publications under way."""
        return len(self._tasks)

    def opened(self, driver: Driver) -> None:
        """Send by this driver from now on."""
        self._driver = driver

    def lost(self) -> None:
        """There is no driver any more; what it has not confirmed yet is still waited for."""
        self._driver = None

    async def room(self) -> None:
        """Wait until a target may send one more."""
        while len(self._tasks) >= self._shared:
            self._free.clear()
            await self._free.wait()

    def send(
        self, publication: Publication, on_published: OnPublished, *, ours: bool = False
    ) -> None:
        """Send; never raises. Without a driver, or over the limit, it is told at once: 503.

        ``ours``: if the broker refuses it that is the connection's failure (spec 4.5). It is not
        for what goes where the sender of a message wants to have it.
        """
        driver = self._driver
        if driver is None:
            on_published(not_sent("The connection is not open."))
        elif len(self._tasks) >= self._limit:
            on_published(not_sent("Too many messages wait to be sent."))
        else:
            work = self._publish(driver, publication, on_published, ours)
            task = asyncio.create_task(work, name="publication")
            self._tasks[task] = driver
            task.add_done_callback(partial(self._done, on_published))

    async def _publish(
        self, driver: Driver, publication: Publication, on_published: OnPublished, ours: bool
    ) -> None:
        try:
            async with asyncio.timeout(self._deadline_s + _SLACK_S):
                published = await driver.publish(publication, self._deadline_s)
        except TimeoutError:
            published = Published(408, {"message": "No confirmation arrived."}, _JSON)
        except Exception as problem:
            log.exception("connection.publish_failed")
            published = broken(problem)
        if published.lost and ours and driver is self._driver:
            self._on_lost("The broker refused a publication.")
        on_published(published)

    def _done(self, on_published: OnPublished, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if task.cancelled():
            on_published(not_sent("The connection was closed meanwhile."))
        if len(self._tasks) < self._shared:
            self._free.set()

    def cut(self) -> None:
        """Give up all that is under way."""
        for task in self._tasks:
            task.cancel()

    async def finish(self, grace_s: float, driver: Driver | None = None) -> None:
        """Wait for what is under way (of this driver), and give it up after ``grace_s``: 503."""
        tasks = [task for task, by in self._tasks.items() if driver is None or by is driver]
        if tasks and grace_s > 0:
            await asyncio.wait(tasks, timeout=grace_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
