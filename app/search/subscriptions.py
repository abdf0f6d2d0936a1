"""Searches of one WebSocket session: pages as they are requested (spec websocket-... 6.4).

A subscription searches for a page only while pages are owed and the client takes what it gets. So
it holds a position and no results, and a client that requests everything at once is still sent
page after page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

import orjson
import structlog

from acks.envelopes import Envelope
from acks.errors import GatewayError, error
from acks.frame_head import FrameHead
from acks.search_options import invalid
from acks.search_protocol import (
    Cancel,
    Demand,
    Request,
    SearchCommand,
    Subscribe,
    answer_headers,
    complete,
    created,
    failed,
    next_page,
)
from app.search.service import Page, SearchRequest, search_request
from app.session import Session

log = structlog.get_logger(__name__)

IDLE = 60.0
"""How long a subscription waits for a request, and a page for a client that does not read, s."""
MOST = 20
"""Subscriptions of one session that may be open."""
AT_ONCE = 2
"""Searches of one session that run at a time, so that it leaves the index to others, too."""
_REMEMBERED = 100
"""Subscriptions that are over but still known, so that a late request is told so."""


class Pages(Protocol):
    """Where things are found: :class:`app.search.service.Search`."""

    async def page(self, request: SearchRequest) -> Page:
        """The page that ``request`` asks for, in time; raises GatewayError."""


@dataclass(slots=True, eq=False)
class _Subscription:
    """One search: ``following`` is its next page, ``headers`` those of its last command."""

    id: str
    headers: Mapping[str, str]
    following: SearchRequest | None = None
    demand: Demand = field(default_factory=Demand)
    task: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None


class Subscriptions:
    """The searches of ``session``; ``search`` is None where there is none.

    ``room()`` waits until the client takes more. ``idle`` is in seconds.
    """

    def __init__(
        self,
        search: Pages | None,
        session: Session,
        room: Callable[[], Awaitable[object]],
        *,
        idle: float = IDLE,
    ) -> None:
        self._search = search
        self._session = session
        self._room = room
        self._idle = idle
        self._numbers = count()
        self._known: dict[str, _Subscription] = {}  # by id; also some that are over
        self._open = 0
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, command: SearchCommand, head: FrameHead, timeout_ms: int) -> None:
        """Carry out a command; what is wrong with it is told as ``failed``.

        ``head`` are its headers; ``timeout_ms`` is what each page of a new search may take.
        """
        match command:
            case Subscribe():
                self._subscribe(command, head, timeout_ms)
            case Request(subscription_id, pages):
                self._request(subscription_id, pages, answer_headers(head))
            case Cancel(subscription_id):
                self._cancel(subscription_id, answer_headers(head))

    async def close(self) -> None:
        """The session has ended: nothing is sent any more."""
        for subscription in self._known.values():
            subscription.demand.end()
            self._still(subscription)
        self._known.clear()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- commands

    def _subscribe(self, asked: Subscribe, head: FrameHead, timeout_ms: int) -> None:
        subscription = _Subscription(str(next(self._numbers)), answer_headers(head))
        self._known[subscription.id] = subscription
        self._open += 1
        self._send(created(subscription.id, subscription.headers))
        try:
            if self._search is None:
                raise error("gateway:service.unavailable", reason="There is no search here.")
            if self._open > MOST:
                message = f"This session has {MOST} open searches; it may not have more."
                reason = "Cancel one, or wait for its end."
                raise error("too.many.requests", message=message, description=reason)
            subscription.following = self._read(asked, head, timeout_ms)
        except GatewayError as problem:
            self._fail(subscription, problem)
        else:
            self._await_request(subscription)

    def _read(self, asked: Subscribe, head: FrameHead, timeout_ms: int) -> SearchRequest:
        request = search_request(
            self._session.subjects,
            timeout_ms,
            filters=() if asked.filter is None else (asked.filter,),
            options=asked.options or "",
            fields=asked.fields,
            namespaces=asked.namespaces,
            condition=head.known.get("condition"),
            correlation_id=head.correlation_id,
        )
        for name, given in (("cursor", request.options.cursor), ("limit", request.options.offset)):
            if given is not None:
                raise invalid(f"The option '{name}' is not for subscriptions: they have pages.")
        return request

    def _request(self, subscription_id: str, pages: int, headers: Mapping[str, str]) -> None:
        subscription = self._known.get(subscription_id)
        if subscription is None:
            self._send_unknown(subscription_id, headers)
            return
        subscription.headers = headers
        try:
            if not subscription.demand.add(pages):
                return
        except GatewayError as problem:
            if subscription.demand.over:
                self._send(failed(subscription_id, problem, headers))
            else:
                self._fail(subscription, problem)
            return
        if subscription.task is None:
            self._stop_timer(subscription)
            task = asyncio.create_task(self._deliver(subscription), name="search-subscription")
            subscription.task = task
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _cancel(self, subscription_id: str, headers: Mapping[str, str]) -> None:
        subscription = self._known.get(subscription_id)
        if subscription is None:
            self._send_unknown(subscription_id, headers)
        else:
            subscription.demand.asked = True  # what comes after this has not crossed the end
            self._end(subscription)

    def _send_unknown(self, subscription_id: str, headers: Mapping[str, str]) -> None:
        code = "thing-search:subscription.not.found"
        problem = error(code, subscription_id=subscription_id[:64])
        self._send(failed(subscription_id, problem, headers))

    # --- pages

    async def _deliver(self, subscription: _Subscription) -> None:
        """Send pages until no more are owed or none is left."""
        try:
            while subscription.demand.owed and subscription.following is not None:
                # At most AT_ONCE pages more than the client takes, however many are owed.
                async with self._turns:
                    await self._wait_for_room(subscription)
                    assert self._search is not None
                    page = await self._search.page(subscription.following)
                self._send_page(subscription, page)
        except GatewayError as problem:
            self._fail(subscription, problem)
        except Exception:
            log.exception("search.subscription_failed", session=self._session.id)
            self._fail(subscription, error("gateway:internalerror"))
        finally:
            subscription.task = None
        if not subscription.demand.over:
            self._await_request(subscription)

    async def _wait_for_room(self, subscription: _Subscription) -> None:
        try:
            async with asyncio.timeout(self._idle):
                await self._room()
        except TimeoutError:
            raise _timed_out(subscription) from None

    def _send_page(self, subscription: _Subscription, page: Page) -> None:
        """Send a page; an empty one is none, and is not one of those that were requested.

        Raises ``request.toolarge`` for one that is more than the session may have waiting.
        """
        if page.items:
            frame = orjson.dumps(next_page(subscription.id, page.items, subscription.headers))
            limit = self._session.limit
            if len(frame) > limit:
                message = f"The page has more than {limit:,} bytes."
                reason = "Ask for smaller pages (the option 'size'), or for fewer fields."
                raise error("request.toolarge", message=message, description=reason, limit=limit)
            self._session.put(frame)
            subscription.demand.sent()
        subscription.following = page.following
        if page.following is None and self._end(subscription):
            self._send(complete(subscription.id, subscription.headers))

    def _send(self, envelope: Envelope) -> None:
        self._session.put(orjson.dumps(envelope))

    # --- ends

    def _await_request(self, subscription: _Subscription) -> None:
        def expire() -> None:
            self._fail(subscription, _timed_out(subscription))

        loop = asyncio.get_running_loop()
        subscription.timer = loop.call_later(self._idle, expire)

    def _fail(self, subscription: _Subscription, problem: GatewayError) -> None:
        if self._end(subscription):
            self._send(failed(subscription.id, problem, subscription.headers))

    def _end(self, subscription: _Subscription) -> bool:
        """Nothing follows any more; False if it was over before."""
        if not subscription.demand.end():
            return False
        self._open -= 1
        subscription.following = None
        self._still(subscription)
        # To the end: those that are over stand in the order in which they ended.
        del self._known[subscription.id]
        self._known[subscription.id] = subscription
        if len(self._known) - self._open > _REMEMBERED:
            oldest = next(one for one in self._known.values() if one.demand.over)
            del self._known[oldest.id]
        return True

    def _still(self, subscription: _Subscription) -> None:
        self._stop_timer(subscription)
        task = subscription.task
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    def _stop_timer(self, subscription: _Subscription) -> None:
        if subscription.timer is not None:
            subscription.timer.cancel()
            subscription.timer = None


def _timed_out(subscription: _Subscription) -> GatewayError:
    return error("thing-search:subscription.timeout", subscription_id=subscription.id)
