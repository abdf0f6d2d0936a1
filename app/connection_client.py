"""One client of a connection in this process: run while its lease is ours, else waited for.

Client 0 has the connection's targets too, and with them its labels.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from acks.errors import GatewayError
from app.api.protocol_commands import Desk
from app.connection_gate import ConnectionGate
from app.connection_lease import Lease
from app.crew import Crew, origin_of
from app.store.connections import ConnectionStore
from app.store.instant import instant, now_ms
from app.store.redis_client import StoreError, StoreUnavailable
from connections.driver import DriverFactory
from connections.model import Connection
from connections.supervisor import Pace, State, Supervisor

log = structlog.get_logger(__name__)

CLAIM_S = 1.0
"""Pause before the lease of a client that somebody else runs is tried again, s."""
SPREAD_S = 0.1
"""How much later a process tries for each client that it runs already, s; so others get some."""
SHARE_S = 5.0
"""For how long a process leaves a client to others that have fewer of the same connection, s."""
STAYS_S = 600.0
"""For how long a client that was left to others, and was not taken, is not left again, s."""
LABELS_S = 1.0
"""Pause between two looks whether the labels are ours, s."""
REPORT_S = 2.0
"""Pause between two reports, s; one with news comes earlier."""
NEWS_S = 0.2
"""Shortest time between two reports, s."""
GRACE_S = 5.0
"""How long a client that is stopped may take to settle what is pending, s."""
FAULT_S = 5.0
"""Pause after a fault of ours, s."""
_TAKEN = "The label '{}' belongs to somebody else; it is asked for again and again."
LOGS_MS = 24 * 3_600_000
"""How long ``enableConnectionLogs`` holds (spec websocket-... 4.6), ms."""


@dataclass(frozen=True, slots=True)
class Means:
    """What the clients of a process share. ``lease`` is in s, ``outbox_bytes`` for each target."""

    store: ConnectionStore
    desk: Desk
    factory: DriverFactory
    pace: Pace
    lease: float
    outbox_bytes: int

    @property
    def node(self) -> str:
        """The name of this process."""
        return self.desk.gateway.node


@dataclass(frozen=True, slots=True)
class Plan:
    """What a client is to be: its connection, when it was told which commands, how often stored."""

    connection: Connection
    commands: dict[str, int]
    revision: int = 1

    def runs_as(self, other: Plan | None) -> bool:
        """Whether both run in the same way."""
        return other is not None and _essence(self.connection) == _essence(other.connection)


def _essence(connection: Connection) -> Connection:
    """A connection without what says nothing about how it runs."""
    return replace(connection, name=None, tags=(), open=True)


def _now() -> float:
    return asyncio.get_running_loop().time()


class Client:
    """Client ``number`` of a connection, for as long as this process may run it."""

    def __init__(
        self, means: Means, connection_id: str, number: int, running: Callable[[], int]
    ) -> None:
        self.number = number
        self.claims = 0
        self.supervisor: Supervisor | None = None
        self.crew: Crew | None = None
        self.ended: Counter[tuple[str, str, bool]] = Counter()  # counts of earlier supervisors
        self.dropped = 0  # signals for which targets had no room, of earlier crews
        self._means = means
        self._id = connection_id
        self._running = running
        self._lease = Lease(means.store, connection_id, number, means.node, means.lease, self._lost)
        self._wanted: Plan | None = None
        self._grace = GRACE_S
        self._draining = False
        self._crowded_since: float | None = None
        self._left = float("-inf")  # when it was given up because others have fewer
        self._leaving = False
        self._wake = asyncio.Event()
        self._news = asyncio.Event()
        self._taken: str | None = None  # a label that somebody else has
        self._owner: str | None = None  # who runs client 0
        self._task: asyncio.Task[None] | None = None

    # --- from outside

    @property
    def held(self) -> bool:
        """Whether this process runs it."""
        return self._lease.held

    @property
    def over(self) -> bool:
        """Whether it has ended, after nobody wanted it any more."""
        return self._task is None or self._task.done()

    def want(self, plan: Plan) -> None:
        """Run as the plan says, from now on."""
        self._wanted, self._grace = plan, GRACE_S
        if self.over:
            name = f"connection-client-{self._id}-{self.number}"
            self._task = asyncio.create_task(self._run(), name=name)
        self._wake.set()

    def stop(self, grace: float = GRACE_S) -> None:
        """Come to an end; what is pending may take ``grace`` s."""
        self._wanted, self._grace = None, grace
        self._wake.set()

    async def drain(self, timeout: float) -> None:
        """Consume no more, settle what is pending; targets go on. It is not claimed any more."""
        self._draining = True
        self._wake.set()
        if self.supervisor is not None:
            await self.supervisor.drain(timeout)

    async def finished(self, timeout: float) -> bool:
        """Wait until it has ended after :meth:`stop`; if it does not in time it is made to."""
        if self._task is None:
            return True
        await asyncio.wait((self._task,), timeout=timeout)
        if self._task.done():
            return True
        self._task.cancel()
        await asyncio.wait((self._task,), timeout=timeout)
        return False

    # --- its life

    def _lost(self) -> None:
        if self.supervisor is not None:
            self.supervisor.cut()
            # What has not been written yet others may have written long ago, and more since.
            self._means.desk.gateway.twins.withdraw(origin_of(self._id))
        self._wake.set()

    def _ours(self) -> bool:
        """Whether it is surely ours; what is not stops in this moment, not when it is its turn.

        A process that was paused may handle what its sockets have before the timer of the lease.
        """
        if self._lease.valid():
            return True
        self._lease.lose()
        return False

    def _turned(self) -> None:
        """The status has changed."""
        self._news.set()
        if self.crew is not None:
            self.crew.announce(self.is_open, instant(now_ms()))

    async def _run(self) -> None:
        pause = self.number * SPREAD_S  # one after the other
        while True:
            plan = self._wanted
            if plan is None or (self._draining and not self._lease.held):
                await self._lease.release()
                if self._wanted is None or self._draining:
                    return
                continue
            try:
                if self._lease.held or await self._claimed(pause):
                    await self._serve(plan)
                if self._leaving:
                    self._leaving = False
                    await self._lease.release()
                pause = CLAIM_S
            except (StoreUnavailable, StoreError) as problem:
                log.debug("connection.not_run", connection=self._id, error=str(problem))
                await self._step_back(CLAIM_S)
            except GatewayError as problem:
                log.warning("connection.not_run", connection=self._id, error=problem.message)
                await self._step_back(CLAIM_S)
            except Exception:
                log.exception("connection.client_failed", connection=self._id, client=self.number)
                await self._step_back(FAULT_S)

    async def _step_back(self, seconds: float) -> None:
        """Let others have what cannot be run here, for so long at least."""
        await self._lease.release()
        await self._pause(seconds)

    async def _claimed(self, pause: float) -> bool:
        """Try for the lease after a pause."""
        await self._pause(pause * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
        await self._pause(self._running() * SPREAD_S)
        if self._wanted is None:
            return False
        clients = 0 if self._patient_enough() else self._wanted.connection.clients
        if not await self._lease.claim(clients):
            if not self._lease.crowded:
                self._crowded_since = None
            elif self._crowded_since is None:
                self._crowded_since = _now()
            return False
        self._crowded_since = None
        self.claims += 1
        log.info("connection.claimed", connection=self._id, client=self.number)
        return True

    def _patient_enough(self) -> bool:
        """Whether others with fewer clients of the connection had time enough to take it."""
        return self._crowded_since is not None and _now() > self._crowded_since + SHARE_S

    async def _pause(self, seconds: float) -> None:
        """Wait, but not longer than until there is something to do."""
        self._wake.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass  # the ordinary case

    async def _serve(self, plan: Plan) -> None:
        """Run the client until it is to be another one, or somebody else's."""
        means, connection = self._means, plan.connection
        entrance = means.desk.gateway.entrance
        crew = None
        if self.number == 0:
            crew = Crew(connection, outbox_bytes=means.outbox_bytes)
            await entrance.open_crew(crew)
        gate = ConnectionGate(
            means.desk, self._id, crew, elsewhere=lambda: self._owner, runs=self._ours
        )
        feeds = {} if crew is None else {n: s for n, s in crew.sessions.items() if n >= 0}
        supervisor = Supervisor(
            connection, self.number, means.node, means.factory, gate, feeds, means.pace,
            self._turned,
        )  # fmt: skip
        self.supervisor, self.crew = supervisor, crew
        helpers = [asyncio.create_task(self._tell(), name="connection-reports")]
        if crew is not None and crew.labels:
            helpers.append(asyncio.create_task(self._declare(crew), name="connection-labels"))
        supervisor.start()
        try:
            if self._draining:  # since it was claimed: the gateway refuses commands now
                await supervisor.drain(0.0)
            await self._until_other(plan, supervisor)
            await self._close(supervisor)
        finally:
            self.supervisor = self.crew = None
            for task in helpers:
                task.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            await supervisor.abandon()
            self.ended.update(supervisor.totals)
            await gate.close()
            if crew is not None:
                self.dropped += sum(session.dropped for session in crew.sessions.values())
                await entrance.close_crew(crew)

    async def _until_other(self, plan: Plan, supervisor: Supervisor) -> None:
        # What was said before is about earlier clients, but for the one that holds for a day.
        seen = {
            name: when
            for name, when in plan.commands.items()
            if name != "enableConnectionLogs" or when < now_ms() - LOGS_MS
        }
        revision = plan.revision
        while self._lease.valid() and not self._leaving:
            wanted = self._wanted
            if wanted is None or not wanted.runs_as(plan):
                return
            if wanted.revision != revision:
                revision = wanted.revision
                if supervisor.state is State.LOST:
                    return  # who opens it, or stores it again, wants it to be tried now
            for name, when in wanted.commands.items():
                if seen.get(name) != when:
                    seen[name] = when
                    supervisor.command(name)
                    self._news.set()
            self._wake.clear()
            if self._wanted is wanted and self._lease.held:
                await self._wake.wait()

    async def _close(self, supervisor: Supervisor) -> None:
        """Close in peace while the lease lasts, and say so."""
        if self.crew is not None:
            self.crew.announce(False, instant(now_ms()))
        closing = asyncio.create_task(supervisor.close(self._grace), name="connection-close")
        try:
            while self._lease.valid() and not closing.done():
                self._wake.clear()
                waking = asyncio.create_task(self._wake.wait(), name="connection-wake")
                try:
                    await asyncio.wait((closing, waking), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    waking.cancel()
            if not closing.done():
                await supervisor.abandon()
            await closing
        finally:
            closing.cancel()
        if self._lease.valid():
            await self._report(supervisor)

    # --- beside it

    async def _declare(self, crew: Crew) -> None:
        """Claim the crew's labels, again and again if they are somebody else's."""
        entrance = self._means.desk.gateway.entrance
        while True:
            try:
                taken = await entrance.claim_crew(crew)
            except (StoreUnavailable, StoreError) as problem:
                log.debug("connection.labels_not_claimed", error=str(problem))
                taken = self._taken
            except Exception:
                log.exception("connection.labels_not_claimed", connection=self._id)
                taken = self._taken
            if taken != self._taken:
                if taken is not None:
                    log.warning("connection.label_taken", connection=self._id, label=taken)
                self._taken = taken
                self._news.set()
            await asyncio.sleep(LABELS_S)

    async def _tell(self) -> None:
        """Report, with news soon, and learn who has the targets if that is not us."""
        while True:
            supervisor = self.supervisor
            if supervisor is None:
                return
            try:
                if not await self._report(supervisor):
                    self._lease.lose()
                    return
                if self.number:
                    self._owner = (await self._means.store.owners(self._id)).get(0)
                if not self._leaving and await self._too_many():
                    log.info("connection.left", connection=self._id, client=self.number)
                    self._leaving, self._left = True, _now()
                    self._wake.set()
            except (StoreUnavailable, StoreError) as problem:
                log.debug("connection.not_reported", connection=self._id, error=str(problem))
            except Exception:
                log.exception("connection.not_reported", connection=self._id, client=self.number)
            await asyncio.sleep(NEWS_S)
            try:
                async with asyncio.timeout(REPORT_S):
                    await self._news.wait()
            except TimeoutError:
                pass  # the ordinary case
            self._news.clear()

    async def _too_many(self) -> bool:
        """Whether it is to be left to a process that has fewer clients of the connection.

        It may not be taken there, for whatever reason; so this is not tried all the time.
        """
        plan = self._wanted
        if plan is None or plan.connection.clients < 2 or _now() < self._left + STAYS_S:
            return False
        clients = plan.connection.clients
        return await self._means.store.surplus(self._id, self.number, self._means.node, clients)

    async def _report(self, supervisor: Supervisor) -> bool:
        report = supervisor.report()
        if self._taken is not None:
            for entry in report["status"]["clientStatus"]:
                details = entry.get("statusDetails", "")
                entry["statusDetails"] = f"{details} {_TAKEN.format(self._taken)}".strip()
        ttl_ms = int(3 * REPORT_S * 1000)
        return await self._means.store.report(
            self._id, self.number, self._means.node, report, ttl_ms
        )

    @property
    def is_open(self) -> bool:
        """Whether it is connected with its broker."""
        return self.supervisor is not None and self.supervisor.state is State.OPEN
