"""Gateway: the one path of every signal. submit · session · acknowledge (design, section 1)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from uuid import uuid4

import structlog

from acks.aggregator import Aggregator, Outcome
from acks.errors import GatewayError, error
from acks.journal import ASYNC, EVENT
from acks.live import INVALID_RESPONSE, LiveResponse, awaited
from acks.pending import Pending
from acks.signals import Acknowledgement, Command, Live, Query, Response
from app.accepting import Accepting
from app.live import LiveChannel
from app.queries import answer_query
from app.session import Session, Subscription
from app.sessions import Sessions
from app.store.ackbus import AckBus
from app.store.journal import JournalTail
from app.store.labels import LabelRegistry
from app.store.policies import PolicyStore
from app.store.redis_client import StoreUnavailable
from app.store.requests import RequestStore
from app.store.twins import TwinStore

log = structlog.get_logger(__name__)

OnOutcome = Callable[[Outcome], None]

ENFORCEMENT_MS = 3_000
"""How long a command that wants no answer is watched for an error (spec 2.6), ms."""
CLAIM_AGAIN = (0.02, 0.08, 0.2)
"""Pauses before a taken label is tried once more, s."""
SLICE = 500
"""Requests that expire in one go; the rest follow in the next turn of the loop."""


@dataclass(slots=True)
class Counters:
    """What the gateway counts; read by the metrics."""

    submitted: int = 0
    refused: int = 0
    expired: int = 0
    acks_accepted: int = 0
    acks_ignored: int = 0


class Gateway:
    """Submits commands, owns sessions, routes acknowledgements. One per process."""

    def __init__(
        self, node: str, *, max_pending: int, max_sessions: int, outbox_bytes: int
    ) -> None:
        self.node = node
        self.counters = Counters()
        self.draining = False
        self._max_pending = max_pending
        self._max_sessions = max_sessions
        self._outbox_bytes = outbox_bytes
        self._pending: Pending[OnOutcome] = Pending()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self.sessions = Sessions(self._send_ack, self._owns_labels)

    def connect(
        self,
        twins: TwinStore,
        bus: AckBus,
        tail: JournalTail,
        registry: LabelRegistry,
        requests: RequestStore,
        live: LiveChannel,
        policies: PolicyStore,
    ) -> None:
        """Give the gateway its store adapters."""
        self.policies = policies
        self.accepting = Accepting(requests)
        self.twins = twins
        self.live = live
        self._bus = bus
        self._tail = tail
        self._registry = registry

    @property
    def open_requests(self) -> int:
        """Requests that wait for their outcome, or whose own processing is not over."""
        return len(self._pending) + self.accepting.open

    # --- submit

    def submit(self, command: Command, on_outcome: OnOutcome) -> None:
        """Carry out a command; ``on_outcome`` gets its outcome, at the latest at its timeout.

        It is called from the event loop, possibly before this returns, and must not raise.

        Raises ``gateway:service.unavailable`` while draining or full, and
        ``acknowledgement:request.duplicate.correlation-id``.
        """
        options = command.options
        labels = options.requested_acks
        watched_ms = options.timeout_ms if labels or options.response_required else ENFORCEMENT_MS
        key: object = command.correlation_id
        if not self._open(key, command, labels, watched_ms, on_outcome):
            if options.custom_acks:
                raise error(
                    "acknowledgement:request.duplicate.correlation-id",
                    correlation_id=command.correlation_id,
                )
            key = object()  # Nobody outside will name it: only our own response is awaited.
            self._open(key, command, labels, watched_ms, on_outcome)
        until = time.time_ns() // 1_000_000 + watched_ms if labels else 0
        self.twins.submit(command, until, lambda result: self._processed(key, result))

    def submit_live(self, live: Live, on_outcome: OnOutcome) -> None:
        """Deliver a message or live command, as :meth:`submit` carries out a command.

        Raises ``gateway:service.unavailable`` while draining or full. A correlation-id that is open
        gets a suffix (spec 3).
        """
        labels = awaited(live.options)
        watched_ms = live.options.timeout_ms if labels else ENFORCEMENT_MS
        key = live.correlation_id
        if not self._open(key, live, labels, watched_ms, on_outcome):
            key = f"{key}_{uuid4()}"
            live = live._replace(correlation_id=key)
            self._open(key, live, labels, watched_ms, on_outcome)
        until = time.time_ns() // 1_000_000 + watched_ms if labels else 0
        self.live.submit(live, until, lambda result: self._processed(key, result))

    def _open(
        self,
        key: object,
        signal: Command | Live,
        labels: tuple[str, ...],
        watched_ms: int,
        on_outcome: OnOutcome,
    ) -> bool:
        """Open the aggregator of a signal; False if the key is open. Raises as :meth:`submit`."""
        if self.draining or len(self._pending) >= self._max_pending:
            raise self._refusal()
        loop = self._loop
        if loop is None:
            # Asking for it every time is a system call in CPython 3.11.
            self._loop = loop = asyncio.get_running_loop()
        aggregator = Aggregator(
            signal.thing_id,
            signal.correlation_id,
            labels,
            watched_ms,
            signal.options.response_required,
        )
        deadline = loop.time() + watched_ms / 1000
        if not self._pending.open(key, aggregator, deadline, on_outcome):
            return False
        self.counters.submitted += 1
        if self._timer is None or deadline < self._timer_at:
            self._arm(loop)
        return True

    async def ask(self, command: Command) -> Outcome:
        """Carry out a command and wait for its outcome; raises as :meth:`submit`."""
        return await _outcome(lambda done: self.submit(command, done))

    async def ask_live(self, live: Live) -> Outcome:
        """Deliver a live signal and wait for its outcome; raises as :meth:`submit_live`."""
        return await _outcome(lambda done: self.submit_live(live, done))

    async def accept(self, signal: Command | Live, location: str = "") -> None:
        """Take a request whose sender does not wait: it is carried out after this has returned.

        ``location`` is the address of what it may create. Its outcome is in
        ``accepting.requests``. Raises ``gateway:service.unavailable`` as :meth:`submit`, and
        ``acknowledgement:request.duplicate.correlation-id``.
        """
        if self.draining or len(self._pending) + self.accepting.open >= self._max_pending:
            raise self._refusal()
        options = signal.options
        waits = options.requested_acks or options.response_required
        watched_ms = options.timeout_ms if waits else ENFORCEMENT_MS
        if isinstance(signal, Command):
            await self.accepting.accept(signal, watched_ms, location, self.twins.submit)
        else:
            await self.accepting.accept(signal, watched_ms, location, self.live.submit)

    def _refusal(self) -> GatewayError:
        self.counters.refused += 1
        reason = "It is shutting down." if self.draining else "Too many requests are waiting."
        return error("gateway:service.unavailable", reason=reason)

    def _processed(self, key: object, result: Response | GatewayError) -> None:
        if isinstance(result, Response):
            self._finish(self._pending.respond(key, result))
        else:
            self._finish(self._pending.fail(key, result))

    async def query(self, query: Query) -> Response:
        """Answer a query on a twin, at the latest at its timeout.

        Raises what :func:`app.queries.answer_query` does, and ``command.timeout``.
        """
        try:
            async with asyncio.timeout(query.timeout_ms / 1000):
                twin, text, policy = await self.twins.get(query.thing_id)
                document = None
                if query.fields is not None and "_policy" in query.fields.tree:
                    document = await self.policies.readable(twin.policy_id, query.subjects)
        except TimeoutError:
            raise error("command.timeout", timeout_ms=query.timeout_ms) from None
        return answer_query(query, twin, text, policy, document)

    # --- acknowledge

    def acknowledge(self, session: Session, ack: Acknowledgement) -> None:
        """Take an ack of a subscriber, already checked by the protocol; strays are ignored."""
        routed = session.forward(ack) if self._owns_labels() else None
        if routed is None:
            self.counters.acks_ignored += 1
        else:
            self._send_ack(*routed)

    def answer(self, session: Session, response: LiveResponse) -> None:
        """Take a subscriber's response to a live signal; strays are ignored."""
        routed = session.answer(response)
        if routed is None:
            self.counters.acks_ignored += 1
        else:
            self._send_ack(*routed)

    def _send_ack(self, node: str, ack: Acknowledgement) -> None:
        if node == self.node:
            self.receive(ack)
        elif node == ASYNC:
            self.accepting.record(ack)
        else:
            self._bus.send(node, ack)

    def receive(self, ack: Acknowledgement) -> None:
        """Take an ack for a request of this node, from here or from another node."""
        if self._pending.is_outstanding(ack.correlation_id, ack.label):
            self.counters.acks_accepted += 1
            self._finish(self._pending.receive(ack.correlation_id, ack))
        elif ack.label == INVALID_RESPONSE:
            self._pending.refuse(ack.correlation_id, ack.payload)
        else:
            self.counters.acks_ignored += 1

    def _owns_labels(self) -> bool:
        return self._registry.valid()

    # --- sessions

    async def open_session(self, subjects: tuple[str, ...], labels: Iterable[str]) -> Session:
        """Open a session that owns ``labels``.

        Raises ``acknowledgement:label.not.unique``, ``gateway:service.unavailable``.
        """
        if self.draining or len(self.sessions) >= self._max_sessions:
            raise error("gateway:service.unavailable", reason="It takes no more sessions.")
        session = Session(subjects, labels, outbox_bytes=self._outbox_bytes)
        if session.declared:
            try:
                taken = await self._claim(session)
            except StoreUnavailable as problem:
                raise error("gateway:service.unavailable", reason=str(problem)) from problem
            if taken is not None:
                raise error("acknowledgement:label.not.unique")
            # Known before anything is awaited, so that the loss of a label finds it.
            self.sessions.add(session)
            try:
                await self._acquire_tail()
            except BaseException:
                self.sessions.remove(session)
                await self._registry.release(session.id)
                raise
        else:
            self.sessions.add(session)
        return session

    async def _claim(self, session: Session) -> str | None:
        """Claim a session's labels, with patience; the first taken label, or None.

        A client that reconnects at once finds them taken until its old session has been taken
        down, here or on another node.
        """
        for wait in CLAIM_AGAIN:
            taken = await self._registry.claim(session.id, session.declared)
            if taken is None:
                return None
            await asyncio.sleep(wait)
        return await self._registry.claim(session.id, session.declared)

    async def subscribe(
        self, session: Session, subscription: Subscription, kind: str = EVENT
    ) -> None:
        """Deliver signals of ``kind`` (acks/journal.py) to ``session``.

        Returns when every later one will be delivered.
        """
        if not session.wants and not session.declared:
            await self._acquire_tail()
        self.sessions.subscribe(session, subscription, kind)

    async def unsubscribe(self, session: Session, kind: str = EVENT) -> None:
        """Stop delivering signals of ``kind`` to ``session``."""
        listened = bool(session.wants)
        self.sessions.unsubscribe(session, kind)
        if listened and not session.wants and not session.declared:
            await self._tail.release()

    async def close_session(self, session: Session) -> None:
        """End a session: its labels are free at once."""
        listened = bool(session.wants or session.declared)
        self.sessions.remove(session)
        if session.declared:
            await self._registry.release(session.id)
        if listened:
            await self._tail.release()

    async def _acquire_tail(self) -> None:
        try:
            await self._tail.acquire()
        except StoreUnavailable as problem:
            raise error("gateway:service.unavailable", reason=str(problem)) from problem

    def label_lost(self, session_id: str, label: str) -> None:
        """The lease of a session's label could not be kept: the session is told and closed."""
        session = self.sessions.get(session_id)
        if session is not None:
            log.warning("labels.lost", session=session_id, label=label)
            session.lost()

    # --- time

    def _finish(self, settled: tuple[OnOutcome, Outcome] | None) -> None:
        if settled is None:
            return
        on_outcome, outcome = settled
        try:
            on_outcome(outcome)
        except Exception:
            # One caller's answer that cannot be sent must not keep the others from theirs.
            log.exception("outcome.not_delivered", status=outcome.status)

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self._pending.next_deadline()
        if deadline is not None:
            self._timer_at = deadline
            self._timer = loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        finished = self._pending.expire(loop.time(), SLICE)
        self.counters.expired += len(finished)
        self._timer = None
        for settled in finished:
            self._finish(settled)
        if len(finished) == SLICE:
            self._timer_at = 0.0
            self._timer = loop.call_later(0.001, self._expire)
        else:
            self._arm(loop)

    # --- the end

    async def drain(self, timeout: float) -> None:
        """Refuse new work, let what is open finish for at most ``timeout`` seconds, end the rest.

        What is left gets a 503; then every session is closed with a code that invites to reconnect.
        """
        self.draining = True
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        while self.open_requests and loop.time() < end:  # noqa: ASYNC110 - rare, and bounded
            await asyncio.sleep(0.02)
        for key in self._pending.open_keys():
            problem = error("gateway:service.unavailable", reason="It is shutting down.")
            self._finish(self._pending.fail(key, problem))
        await self.accepting.close()
        if self._timer is not None:
            self._timer.cancel()
        for session in self.sessions.all():
            session.close(1012, "The gateway restarts; you may reconnect.")
        while len(self.sessions) and loop.time() < end + 2.0:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.02)


async def _outcome(submit: Callable[[OnOutcome], None]) -> Outcome:
    """Submit something with a callback of our own, and wait for its outcome."""
    waiter: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def done(outcome: Outcome) -> None:
        if not waiter.done():
            waiter.set_result(outcome)

    submit(done)
    return await waiter
