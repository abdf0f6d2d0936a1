"""Targets: signals of their sessions are published, and what the broker says is the issued ack.

While the broker is away a signal waits a little if nobody waits for the target's ack; otherwise
that ack is 503 at once. What has waited too long, or is too much, is dropped, counted and logged.
Sources: spec websocket-... 4.5; design, flow 4.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Protocol

import orjson
import structlog

from acks.envelopes import Envelope
from acks.signals import Acknowledgement
from connections.driver import Published
from connections.issued import explicit_ack, issued_ack, refused_ack, wants, weak_ack
from connections.ledger import Ledger
from connections.model import Connection, Target
from connections.pauses import until
from connections.placeholders.lookups import Scope
from connections.ports import Gate
from connections.publishing import Publisher, broken, in_words, not_sent
from connections.replies import is_error
from connections.sending import LazyHeaders, Route, facts_of

log = structlog.get_logger(__name__)

HELD_BYTES = 8 * 1024 * 1024
"""Bytes of the signals of one target that wait while the broker is away."""


class Feed(Protocol):
    """The signals of one target: its session in the gateway.

    ``on_filtered`` is called for each signal that did not fit the target's filter.
    """

    on_filtered: Callable[[], None] | None

    async def frames(self) -> list[bytes]:
        """Wait for Ditto Protocol messages (JSON) and take them; none: there will be no more."""


class Lane:
    """One target: its signals in their order.

    ``most_held`` and ``hold_s`` bound what waits while the broker is away.
    """

    def __init__(
        self,
        connection: Connection,
        target: Target,
        gate: Gate,
        ledger: Ledger,
        publisher: Publisher,
        hold_s: float,
        most_held: int,
    ) -> None:
        self._connection = connection
        self._target = target
        self._gate = gate
        self._ledger = ledger
        self._publisher = publisher
        self._hold_s = hold_s
        self._most_held = most_held
        self._row = ledger.row("outbound", target.address)
        self.idle = True  # nothing of its feed is in hand
        self._route: Route | None = None
        self._held: deque[tuple[float, bytes]] = deque()  # until when (loop time), frame
        self._held_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def read(self) -> None:
        """Read the texts of the target. Raises PlaceholderError, GatewayError."""
        target = self._target
        self._route = Route(
            self._connection, target.address, target.header_mapping, target.mappers, target.qos
        )

    async def pump(self, feed: Feed) -> None:
        """Publish what the feed gives until it ends; in the end without waiting for room."""
        feed.on_filtered = self._filtered
        while True:
            self.idle = True
            frames = deque(await feed.frames())
            if not frames:
                return
            self.idle = False
            try:
                while frames:
                    await self._publisher.room()
                    self.take(frames.popleft())
            finally:
                while frames:
                    self.take(frames.popleft())
                self.idle = True

    def take(self, frame: bytes) -> None:
        """Publish a signal, or let it wait. Never raises; nothing overtakes what waits."""
        now = time.time()
        self._row.count("dispatched", now)
        try:
            envelope = orjson.loads(frame)
            wanted = wants(self._target.issued, envelope)
            if is_error(envelope):
                self._fail(now, "dropped", "The session has ended with an error.", envelope)
            elif self._publisher.open:
                self._publish(envelope, wanted, now)
            elif wanted:
                self._fail(now, "published", "The broker is away.", envelope)
                self._issue(envelope, not_sent("The connection is not open."))
            else:
                self._hold(frame)
        except Exception:
            # A frame is the gateway's own: this is a defect, but the next frame may be better.
            self._row.count("dropped", now, ok=False)
            if self._ledger.alarming(now):
                log.exception("connection.signal_failed", connection=self._connection.id)

    def _filtered(self) -> None:
        self._row.count("filtered", time.time())

    # --- publishing

    def _publish(self, envelope: Envelope, wanted: bool, now: float) -> None:
        assert self._route is not None  # the driver was opened after it was read
        moment = datetime.fromtimestamp(now, UTC)
        scope = Scope(self._connection.id, moment, LazyHeaders(envelope), envelope)
        try:
            address = self._route.where(scope)
            if address is None:
                text = "The address of the target cannot be resolved."
                self._fail(now, "dropped", text, envelope)  # and there is no ack (4.5)
                return
            publications, problems = self._route.publications(envelope, scope, address)
        except Exception as defect:
            if wanted:
                self._issue(envelope, broken(defect))
            raise
        for problem in problems:
            text = f"{problem.message} {problem.description or ''}"
            self._fail(now, "mapped", text, envelope)
        label, connection_id = self._target.issued, self._connection.id
        if not publications:
            if not problems:
                self._row.count("dropped", now)
            if wanted and label is not None:
                self._acknowledge(
                    refused_ack(label, envelope, problems[0], connection_id)
                    if problems
                    else weak_ack(label, envelope, connection_id)
                )
            return
        sent = _Sent(self, envelope, wanted, len(publications))
        for publication in publications:
            self._row.count("mapped", now)
            self._publisher.send(publication, sent.one, ours=True)

    def published(self, envelope: Envelope, wanted: bool, result: Published) -> None:
        """All that was sent for a signal is done; ``result`` is the worst of it."""
        now = time.time()
        if 200 <= result.status < 300:
            self._row.count("published", now)
            if self._ledger.verbose(now):
                self._log(now, "published", True, "The signal was published.", envelope)
        else:
            text = f"The signal was not published: {in_words(result)}"
            self._fail(now, "published", text, envelope)
        if wanted:
            self._issue(envelope, result)
        elif self._target.issued is None and result.body is not None:
            ack = explicit_ack(envelope, result, self._connection.id)
            if ack is not None:
                self._acknowledge(ack)

    def _issue(self, envelope: Envelope, result: Published) -> None:
        assert self._target.issued is not None
        self._acknowledge(issued_ack(self._target.issued, envelope, result, self._connection.id))

    def _acknowledge(self, ack: Acknowledgement) -> None:
        self._row.count("acknowledged", time.time(), ack.success)
        self._gate.acknowledge(self._target.index, ack)

    # --- while the broker is away

    def _hold(self, frame: bytes) -> None:
        loop = asyncio.get_running_loop()
        self._held.append((loop.time() + self._hold_s, frame))
        self._held_bytes += len(frame)
        while len(self._held) > self._most_held or self._held_bytes > HELD_BYTES:
            self._drop("Too many signals wait for the broker.")
        if self._timer is None and self._held:
            self._timer = loop.call_at(self._held[0][0], self._expire)

    def _drop(self, why: str) -> None:
        _, frame = self._held.popleft()
        self._held_bytes -= len(frame)
        envelope = orjson.loads(frame)
        self._fail(time.time(), "dropped", why, envelope)

    def _expire(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self._held and self._held[0][0] <= now:
            self._drop(f"The broker has been away for more than {self._hold_s:g} s.")
        if self._held:
            self._timer = loop.call_at(self._held[0][0], self._expire)

    def opened(self) -> None:
        """Send what waits, before anything that comes later."""
        self._no_timer()
        held, self._held, self._held_bytes = self._held, deque(), 0
        for _, frame in held:
            now = time.time()
            try:
                self._publish(orjson.loads(frame), False, now)
            except Exception:
                self._row.count("dropped", now, ok=False)
                if self._ledger.alarming(now):
                    log.exception("connection.signal_failed", connection=self._connection.id)

    def close(self) -> None:
        """Drop what waits."""
        self._no_timer()
        while self._held:
            self._drop("The connection is closed.")

    def _no_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- the log

    def _fail(self, now: float, kind: str, text: str, envelope: Envelope) -> None:
        self._row.count(kind, now, ok=False)
        self._log(now, kind, False, text, envelope)

    def _log(self, now: float, kind: str, ok: bool, text: str, envelope: Envelope) -> None:
        self._ledger.log(
            now, "target", kind, ok, text, address=self._target.address, **facts_of(envelope)
        )


class _Sent:
    """The publications of one signal, and the worst that became of them."""

    __slots__ = ("_envelope", "_lane", "_left", "_wanted", "_worst")

    def __init__(self, lane: Lane, envelope: Envelope, wanted: bool, count: int) -> None:
        self._lane = lane
        self._envelope = envelope
        self._wanted = wanted
        self._left = count
        self._worst: Published | None = None

    def one(self, result: Published) -> None:
        """One of them is done."""
        self._left -= 1
        if self._worst is None or result.status > self._worst.status:
            self._worst = result
        if self._left:
            return
        try:
            self._lane.published(self._envelope, self._wanted, self._worst)
        except Exception:
            log.exception("connection.ack_failed")


class Outbound:
    """The targets of one client, each with its feed."""

    def __init__(
        self,
        connection: Connection,
        gate: Gate,
        ledger: Ledger,
        publisher: Publisher,
        hold_s: float,
        publishing: int,
    ) -> None:
        # What has waited goes out at once, so together it has to be in the driver's bounds.
        most_held = max(1, publishing // 2 // max(1, len(connection.targets)))
        self._publisher = publisher
        self._lanes = {
            target.index: Lane(connection, target, gate, ledger, publisher, hold_s, most_held)
            for target in connection.targets
        }
        self._pumps: dict[int, asyncio.Task[None]] = {}
        self._ended: set[asyncio.Task[None]] = set()

    def read(self) -> None:
        """Read the texts of the targets. Raises PlaceholderError, GatewayError."""
        for lane in self._lanes.values():
            lane.read()

    def attach(self, target: int, feed: Feed) -> None:
        """Publish what this feed gives from now on; KeyError for no target of ours."""
        lane = self._lanes[target]
        earlier = self._pumps.pop(target, None)
        if earlier is not None:
            self._ended.add(earlier)
            earlier.add_done_callback(self._ended.discard)
            earlier.cancel()
        task = asyncio.create_task(lane.pump(feed), name="connection-target")
        task.add_done_callback(partial(self._over, target))
        self._pumps[target] = task

    def _over(self, target: int, task: asyncio.Task[None]) -> None:
        if self._pumps.get(target) is task:
            del self._pumps[target]
        if not task.cancelled() and task.exception() is not None:
            log.error("connection.feed_failed", target=target, exc_info=task.exception())

    def opened(self) -> None:
        """There is a driver: send what waits."""
        for lane in self._lanes.values():
            lane.opened()

    async def close(self, grace_s: float) -> None:
        """Send what there is, take no more signals, drop what waits: in ``grace_s``."""
        loop = asyncio.get_running_loop()
        end = loop.time() + grace_s
        await until(self._idle, grace_s)
        tasks = [*self._pumps.values(), *self._ended]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for lane in self._lanes.values():
            lane.close()
        await self._publisher.finish(end - loop.time())

    def _idle(self) -> bool:
        return all(lane.idle for lane in self._lanes.values())
