"""One client of one connection: opened, kept open, drained, closed, and told about.

``CLOSED -> OPENING -> OPEN -> LOST -> OPENING -> …``, and ``CLOSING -> CLOSED`` from everywhere.
Every open makes a new driver of a new generation; what belongs to an older one settles nothing.
Sources: spec websocket-... 4.1 (timing), 4.6 (status); design, flows 3 and 7.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from acks.errors import GatewayError
from connections.driver import Cause, Delivery, Driver, DriverFactory, Limits, OpenError
from connections.inbound import Inbound
from connections.ledger import Ledger
from connections.model import Connection
from connections.outbound import Feed, Outbound
from connections.pauses import doubling, until
from connections.placeholders.templates import PlaceholderError
from connections.ports import Gate
from connections.probing import LOST_GRACE_S, SLACK_S, close_driver, probe
from connections.publishing import Publisher
from connections.settling import Opening, Settling
from connections.status import State, Status

__all__ = ["Feed", "Pace", "State", "Supervisor", "probe"]

JsonObject = dict[str, Any]
log = structlog.get_logger(__name__)

_COMMANDS = "connectivity.commands:"


@dataclass(frozen=True, slots=True)
class Pace:
    """How long things may take, in seconds, and how much may wait.

    The defaults are those of production; a test scales the reopening down.
    """

    open_s: float = 50.0  # for opening a driver
    first_delay_s: float = 5.0  # before it is opened again, doubling
    last_delay_s: float = 3600.0
    collect_s: float = 100.0  # for all answers to one message (spec 4.4)
    publish_s: float = 60.0  # for the broker's confirmation (spec 4.5)
    first_redelivery_s: float = 0.1  # before a message is given back, doubling
    last_redelivery_s: float = 10.0
    hold_s: float = 10.0  # for which signals wait while the broker is away
    limits: Limits = field(default_factory=Limits)


class Supervisor:
    """Runs client number ``client`` of a connection in the process ``node``.

    ``feeds`` are the sessions of its targets by the targets' index. ``on_change`` is told, on the
    event loop, when the status has changed, so that a new report is worth writing.
    Nothing here raises but for a caller's own mistake; every task ends with :meth:`close`.
    """

    def __init__(
        self,
        connection: Connection,
        client: int,
        node: str,
        factory: DriverFactory,
        gate: Gate,
        feeds: Mapping[int, Feed],
        pace: Pace,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        self._connection = connection
        self._client = client
        self._node = node
        self._factory = factory
        self._pace = pace
        self._ledger = Ledger()
        self._status = Status(connection, f"{node}/{client}", self._ledger, on_change)
        self._publisher = Publisher(pace.limits.publishing, pace.publish_s, self._broken)
        self._settling = Settling(
            connection,
            self._ledger,
            self._publisher,
            pace.first_redelivery_s,
            pace.last_redelivery_s,
            self._broken,
        )
        self._inbound = Inbound(
            connection,
            gate,
            self._ledger,
            self._settling,
            self._publisher,
            pace.collect_s,
            pace.limits.in_flight,
        )
        self._outbound = Outbound(
            connection, gate, self._ledger, self._publisher, pace.hold_s, pace.limits.publishing
        )
        self._feeds = dict(feeds)
        self._generation = 0
        self._opening: Opening | None = None
        self._lost: asyncio.Future[str] | None = None
        self._task: asyncio.Task[None] | None = None
        self._closers: set[asyncio.Task[None]] = set()
        self._read = False
        self._ending: asyncio.Task[None] | None = None
        self._close_grace_s = LOST_GRACE_S
        self._abandoned = asyncio.Event()
        self._deadlines: set[asyncio.Timeout] = set()  # of drivers that are being closed

    @property
    def state(self) -> State:
        """Where it stands."""
        return self._status.state

    @property
    def pending(self) -> int:
        """Consumed messages that are not settled yet, those that wait to be given back too."""
        return 0 if self._opening is None else len(self._opening.held)

    @property
    def unsettled(self) -> int:
        """Messages that the broker has given and does not know to be done, as far as is known."""
        opening = self._opening
        if opening is None or not opening.alive:
            return 0
        return len(opening.held) + self._inbound.waiting(opening) + opening.driver.withheld

    @property
    def totals(self) -> Mapping[tuple[str, str, bool], int]:
        """Counts since the start by (direction, type, success), e.g. (inbound, consumed, True)."""
        return self._ledger.totals()

    def start(self) -> None:
        """Begin to open it; returns at once. To be called once, on the event loop."""
        for target, feed in self._feeds.items():
            self._outbound.attach(target, feed)
        name = f"connection-{self._connection.id}-{self._client}"
        self._task = asyncio.create_task(self._run(), name=name)

    def attach(self, target: int, feed: Feed) -> None:
        """Read this feed for a target from now on, e.g. after its last one has ended."""
        self._feeds[target] = feed
        if self._task is not None and self._ending is None:
            self._outbound.attach(target, feed)

    # --- ending

    async def drain(self, grace_s: float) -> None:
        """Take no more messages, and settle those that are pending as they are answered.

        Returns when nothing is pending, at the latest after ``grace_s``. Targets go on.
        """
        self._settling.draining = True
        if self._opening is not None:
            self._opening.forget()
        self._inbound.drained()
        await until(self._settled, grace_s)

    def _settled(self) -> bool:
        """Whether nothing is to be settled any more, nor to be published as an answer."""
        return not self.pending and not (self._publisher.open and self._inbound.busy)

    async def close(self, grace_s: float) -> None:
        """:meth:`drain`, send what is being sent, disconnect: within ``grace_s`` (and a second).

        What is not settled by then comes again to the next client. Idempotent.
        """
        if self._ending is None:
            self._ending = asyncio.create_task(self._close(grace_s), name="connection-close")
        await asyncio.shield(self._ending)

    def cut(self) -> None:
        """Settle, take and send nothing from here on; :meth:`abandon` is to follow. Idempotent."""
        self._settling.draining = True
        if self._opening is not None:
            self._opening.end()
            self._inbound.ended(self._opening)
        self._publisher.lost()
        self._publisher.cut()

    async def abandon(self) -> None:
        """Close at once and settle nothing any more: somebody else runs this client now.

        A close that is under way loses what is left of its grace.
        """
        self.cut()
        self._abandoned.set()
        soon = asyncio.get_running_loop().time() + SLACK_S
        for deadline in self._deadlines:
            deadline.reschedule(min(deadline.when() or soon, soon))
        await self.close(0.0)

    async def _close(self, grace_s: float) -> None:
        """Wait in good order, unless it is abandoned meanwhile, and end everything."""
        end = asyncio.get_running_loop().time() + grace_s
        if self.state is not State.CLOSED:
            self._status.turn(State.CLOSING, "The connection is being closed.")
        orderly = asyncio.create_task(self._finish(grace_s), name="connection-finish")
        abandoned = asyncio.create_task(self._abandoned.wait(), name="connection-abandoned")
        await asyncio.wait((orderly, abandoned), return_when=asyncio.FIRST_COMPLETED)
        orderly.cancel()
        abandoned.cancel()
        for result in await asyncio.gather(orderly, abandoned, return_exceptions=True):
            if isinstance(result, Exception):
                log.error("connection.defect", connection=self._connection.id, exc_info=result)
        await self._outbound.close(0.0)
        left = end - asyncio.get_running_loop().time()
        self._close_grace_s = 0.0 if self._abandoned.is_set() else max(0.0, left)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._closers:
            await asyncio.gather(*self._closers, return_exceptions=True)
        self._inbound.close()
        self._status.turn(State.CLOSED, "The connection is closed.")

    async def _finish(self, grace_s: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + grace_s
        await self.drain(grace_s)
        await self._outbound.close(max(0.0, end - loop.time()))

    # --- running

    async def _run(self) -> None:
        failures = 0
        while True:
            began = time.monotonic()
            try:
                opened = await self._serve()
            except Exception:
                log.exception("connection.defect", connection=self._connection.id)
                self._failed("temporary", "An internal error has occurred.")
                opened = False
            lasted = time.monotonic() - began
            failures = 0 if opened and lasted >= self._pace.first_delay_s else failures + 1
            if not self._connection.failover or self._ending is not None:
                return  # the targets go on saying that it is not open
            await asyncio.sleep(self._delay(failures))

    def _delay(self, failures: int) -> float:
        """Seconds until the next opening: never the same for all clients of a broker."""
        first = self._pace.first_delay_s
        if failures == 0:
            return random.uniform(0.0, first / 5)  # noqa: S311 - spreads load, hides nothing
        longest = doubling(first, self._pace.last_delay_s, failures)
        return longest * random.uniform(0.75, 1.0)  # noqa: S311 - as above

    async def _serve(self) -> bool:
        """Open a driver and use it until it is lost; whether it was open."""
        self._generation += 1
        self._status.turn(State.OPENING, "The connection is being opened.")
        self._lost = asyncio.get_running_loop().create_future()
        opening = None
        opened = False
        try:
            self._read_texts()
            driver = self._factory(
                self._connection, self._client, self._generation, self._pace.limits
            )
            opening = self._opening = Opening(driver, self._generation)
            async with asyncio.timeout(self._pace.open_s):
                await self._open(opening)
            opened = True
            self._opened(opening)
            self._failed("temporary", await self._lost)
        except OpenError as problem:
            self._failed(problem.cause, str(problem))
        except TimeoutError:
            self._failed("temporary", f"No connection within {self._pace.open_s:g} s.")
        finally:
            if opening is not None:
                await self._end(opening)
        return opened

    def _read_texts(self) -> None:
        """Raises OpenError for texts that cannot be read; a checked document has none."""
        if self._read:
            return
        try:
            self._inbound.read()
            self._outbound.read()
        except (PlaceholderError, GatewayError) as problem:
            raise OpenError("misconfigured", str(problem)) from None
        self._read = True

    async def _open(self, opening: Opening) -> None:
        lost = self._lost
        assert lost is not None

        def on_delivery(delivery: Delivery) -> None:
            self._inbound.take(opening, delivery)

        def on_lost(reason: str) -> None:
            opening.end()
            self._inbound.ended(opening)
            if self._opening is opening:
                self._publisher.lost()
            if not lost.done():
                lost.set_result(reason)

        def on_status(kind: str, address: str, well: bool, details: str) -> None:
            if opening.alive:
                self._status.addressed(kind, address, well, details)

        await opening.driver.open(on_delivery, on_lost, on_status)

    def _opened(self, opening: Opening) -> None:
        if not opening.alive:
            return
        self._status.turn(State.OPEN, "The connection is open.")
        self._publisher.opened(opening.driver)
        self._outbound.opened()

    def _broken(self, reason: str) -> None:
        """Take the present driver down; a new one is opened after a while."""
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(reason)

    def _failed(self, cause: Cause, reason: str) -> None:
        self._status.failed(cause, reason)

    async def _end(self, opening: Opening) -> None:
        """Have done with a driver, in a task of its own that nobody cancels."""
        self._publisher.lost()
        opening.end()
        self._inbound.ended(opening)
        if self._ending is None:
            self._close_grace_s = LOST_GRACE_S
        work = self._end_driver(opening.driver, self._close_grace_s)
        closer = asyncio.create_task(work, name="connection-end")
        self._closers.add(closer)
        closer.add_done_callback(self._closers.discard)
        await asyncio.shield(closer)

    async def _end_driver(self, driver: Driver, grace_s: float) -> None:
        await self._publisher.finish(0.0, driver)
        await close_driver(driver, grace_s, self._deadlines)

    # --- what it says

    def command(self, name: str) -> bool:
        """Carry out ``resetConnectionMetrics``, ``enableConnectionLogs``, ``resetConnectionLogs``.

        The prefix ``connectivity.commands:`` may lead. False: there is no such command.
        """
        match name.removeprefix(_COMMANDS):
            case "resetConnectionMetrics":
                self._ledger.reset()
            case "enableConnectionLogs":
                self._ledger.enable(time.time())
            case "resetConnectionLogs":
                self._ledger.forget_log()
            case _:
                return False
        return True

    def report(self) -> JsonObject:
        """Its part of the answers of 4.6, of JSON values only.

        ``client``, ``node``, ``state``;
        ``status``: ``liveStatus`` (open, closed, failed, misconfigured, unknown),
        ``recoveryStatus`` (ongoing, succeeded, unknown), ``connectedSince`` (ISO 8601 or None) and
        the lists ``clientStatus`` (one entry, with
        :attr:`unsettled`), ``sourceStatus``, ``targetStatus`` (per address);
        ``metrics``: ``containsFailures``, ``connectionMetrics`` {inbound, outbound},
        ``sourceMetrics`` and ``targetMetrics`` {addressMetrics: {address: …}}, each
        ``type -> success|failure -> {PT1M, PT1H, PT24H, lastMessageAt}``: add them up;
        ``logs``: entries, oldest first; ``enabledSince``, ``enabledUntil`` (ISO 8601 or None).
        It is to be asked for every few seconds, so that the windows of the metrics are exact.
        """
        now = time.time()
        return {
            "client": self._client,
            "node": self._node,
            "state": self.state.value,
            "status": self._status.to_json(self.unsettled),
            "metrics": self._ledger.metrics(now),
            **self._ledger.logs(now),
        }
