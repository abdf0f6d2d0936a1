"""Gateway: the one path of every signal. submit · session · acknowledge (design, section 1)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from uuid import uuid4

import structlog

from acks.aggregator import Aggregator, Outcome
from acks.errors import GatewayError, error
from acks.journal import ASYNC
from acks.labels import TWIN_PERSISTED
from acks.live import INVALID_RESPONSE, LiveResponse, awaited
from acks.pending import Pending
from acks.search_acks import INDEXED, ack_of, concerns
from acks.signals import Acknowledgement, Command, Live, Query, Response
from app.accepting import Accepting
from app.crew import RELAYED
from app.enrichment import Enrichment
from app.entrance import Entrance
from app.groups import CONTROL, Groups
from app.live import LiveChannel
from app.outcomes import Outcomes
from app.queries import OnResponse, answer_query, submit_query
from app.session import Session
from app.sessions import Sessions
from app.store.ackbus import AckBus
from app.store.instant import now_ms
from app.store.journal import JournalTail
from app.store.labels import LabelRegistry
from app.store.policies import PolicyStore
from app.store.requests import RequestStore
from app.store.twins import TwinStore

log = structlog.get_logger(__name__)

OnOutcome = Callable[[Outcome], None]

ENFORCEMENT_MS = 3_000
"""How long a command that wants no answer is watched for an error (spec 2.6), ms."""
DISMISS_S = 2.0
"""How long sessions get to read what is left, and why they are closed, s."""
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
        self.outcomes: Outcomes | None = None
        self.index: Callable[[], str | None] = str  # the index that is searched here, by its name
        self.on_relayed: Callable[[Acknowledgement], None] = self._stray  # for a connection here
        self._max_pending = max_pending
        self._max_sessions = max_sessions
        self._outbox_bytes = outbox_bytes
        self._pending: Pending[OnOutcome] = Pending()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._tokens = count(1)  # of requests for search-persisted
        self.sessions = Sessions(self.send, self.owns_labels)

    def connect(
        self,
        twins: TwinStore,
        bus: AckBus,
        tail: JournalTail,
        registry: LabelRegistry,
        requests: RequestStore,
        live: LiveChannel,
        policies: PolicyStore,
        groups: Groups,
    ) -> None:
        """Give the gateway its store adapters."""
        self.groups = groups
        self.sessions.on_shared = groups.members.shared
        twins.on_written = live.on_written = groups.written
        self.policies = policies
        self.accepting = Accepting(requests)
        self.twins = twins
        self.live = live
        self._bus = bus
        self.entrance = Entrance(
            self.sessions,
            registry,
            tail,
            groups.members,
            max_sessions=self._max_sessions,
            outbox_bytes=self._outbox_bytes,
        )
        self._registry = registry
        self.sessions.enrich_from(Enrichment(twins, policies))

    @property
    def open_requests(self) -> int:
        """Requests that wait for their outcome, or whose own processing is not over."""
        return len(self._pending) + self.accepting.open

    # --- submit

    def submit(
        self,
        command: Command,
        on_outcome: OnOutcome,
        on_processed: Callable[[], None] | None = None,
    ) -> None:
        """Carry out a command; ``on_outcome`` gets its outcome, at the latest at its timeout.

        It is called from the event loop, possibly before this returns, and must not raise.
        ``on_processed`` is called when the change itself is done or has failed.

        Raises ``gateway:service.unavailable`` while draining or full, and
        ``acknowledgement:request.duplicate.correlation-id``.
        """
        options = command.options
        labels = options.requested_acks
        watched_ms = options.timeout_ms if labels or options.response_required else ENFORCEMENT_MS
        key: object = command.correlation_id
        if not self._open(key, command, labels, watched_ms, on_outcome):
            if options.custom_acks or options.search_persisted:
                raise error(
                    "acknowledgement:request.duplicate.correlation-id",
                    correlation_id=command.correlation_id,
                )
            key = object()  # Nobody outside will name it: only our own response is awaited.
            self._open(key, command, labels, watched_ms, on_outcome)
        until = now_ms() + watched_ms if labels else 0
        if self.groups.known and options.custom_acks:
            command = self.groups.assign(command, until)
        if options.search_persisted:
            command = self._expect_indexing(key, command)
        self.twins.submit(command, until, self._on_done(key, on_processed))

    def submit_live(
        self,
        live: Live,
        on_outcome: OnOutcome,
        on_processed: Callable[[], None] | None = None,
    ) -> None:
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
        until = now_ms() + watched_ms if labels else 0
        if self.groups.known and live.options.custom_acks:
            live = self.groups.assign(live, until)
        self.live.submit(live, until, self._on_done(key, on_processed))

    def _on_done(
        self, key: object, on_processed: Callable[[], None] | None
    ) -> Callable[[Response | GatewayError], None]:
        if on_processed is None:
            return lambda result: self._processed(key, result)

        def processed(result: Response | GatewayError) -> None:
            on_processed()
            self._processed(key, result)

        return processed

    def await_acks(self, live: Live, on_outcome: OnOutcome) -> None:
        """Wait for the acks of something that the caller publishes himself.

        Raises ``gateway:service.unavailable`` as :meth:`submit`.
        """
        options = live.options
        acks, timeout_ms = options.requested_acks, options.timeout_ms
        self._open(live.correlation_id, live, acks, timeout_ms, on_outcome)

    def abandon(self, correlation_id: str) -> None:
        """Wait for these acks no longer; there is no outcome. Idempotent."""
        self._pending.discard(correlation_id)
        self.groups.failed(correlation_id)
        if self.outcomes is not None:
            self.outcomes.abandoned(correlation_id)

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
        if self.outcomes is not None and signal.options.custom_acks:
            self.outcomes.opened(key)
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
        if options.custom_acks:
            chosen = self.groups.assign_async(signal, now_ms() + watched_ms)
            signal = signal._replace(assigned=chosen)
        try:
            if isinstance(signal, Command):
                if options.search_persisted:
                    signal = signal._replace(search=next(self._tokens))
                await self.accepting.accept(signal, watched_ms, location, self.twins.submit)
            else:
                await self.accepting.accept(signal, watched_ms, location, self.live.submit)
        except BaseException:
            self.groups.refused(signal)
            raise

    def _expect_indexing(self, key: object, command: Command) -> Command:
        """Have the change of an open request say that it asks for ``search-persisted``."""
        token = next(self._tokens)
        self._pending.mark(key, token)
        if self.outcomes is not None and not command.options.custom_acks:
            self.outcomes.opened(key)
        return command._replace(search=token)

    def _refusal(self) -> GatewayError:
        self.counters.refused += 1
        reason = "It is shutting down." if self.draining else "Too many requests are waiting."
        return error("gateway:service.unavailable", reason=reason)

    def _processed(self, key: object, result: Response | GatewayError) -> None:
        if isinstance(result, Response):
            self._finish(self._pending.respond(key, result), key, TWIN_PERSISTED)
        else:
            self._finish(self._pending.fail(key, result))
            self.groups.failed(key)
            if self.outcomes is not None:
                self.outcomes.abandoned(key)

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

    def submit_query(self, query: Query, on_response: OnResponse) -> None:
        """Answer a query as :meth:`query`, without a task; for fields without ``_policy``.

        ``on_response`` gets the response or the error, once, at the latest at its timeout.
        """
        submit_query(self.twins.read, query, on_response)

    # --- acknowledge

    def acknowledge(self, session: Session, ack: Acknowledgement) -> None:
        """Take an ack of a subscriber, already checked by the protocol; strays are ignored."""
        self.forward(session.forward(ack) if self.owns_labels() else None)

    def answer(self, session: Session, response: LiveResponse) -> None:
        """Take a subscriber's response to a live signal; strays are ignored."""
        self.forward(session.answer(response))

    def forward(self, routed: tuple[str, Acknowledgement] | None) -> bool:
        """Send an ack to the node that waits for it; False for None, which is one too many."""
        if routed is None:
            self.counters.acks_ignored += 1
            return False
        self.send(*routed)
        return True

    def send(self, node: str, ack: Acknowledgement) -> None:
        """Take an ack or a control record to a node; ASYNC is the record of its request."""
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
            settled = self._pending.receive(ack.correlation_id, ack)
            self._finish(settled, ack.correlation_id, ack.label)
            if self.groups.assignments.open:
                self.groups.acknowledged(ack.correlation_id, ack.label)
        elif ack.label == INDEXED:
            self._indexed(ack)
        elif ack.label == INVALID_RESPONSE:
            self._pending.refuse(ack.correlation_id, ack.payload)
        elif ack.label in CONTROL:
            self.groups.control(ack)
        elif ack.label == RELAYED:
            self.on_relayed(ack)
        else:
            self.counters.acks_ignored += 1

    def _indexed(self, notice: Acknowledgement) -> None:
        """Take an indexer's notice; not for an earlier request with the same correlation-id."""
        marked = self._pending.is_marked(notice.correlation_id, notice.payload)
        if marked and concerns(notice, self.index()):
            self.receive(ack_of(notice))
        else:
            self.counters.acks_ignored += 1

    def _stray(self, _: Acknowledgement) -> None:
        self.counters.acks_ignored += 1

    def owed(self, correlation_id: str, labels: Iterable[str]) -> list[str]:
        """Those of ``labels`` that a request of this node still waits for."""
        return [one for one in labels if self._pending.is_outstanding(correlation_id, one)]

    def owns_labels(self) -> bool:
        """Whether the declared labels of this process are surely still its own."""
        return self._registry.valid()

    # --- time

    def _finish(
        self, settled: tuple[OnOutcome, Outcome] | None, key: object = None, label: str = ""
    ) -> None:
        """Give an outcome to whom it belongs; or note that ``label`` came, if it is not final."""
        if settled is None:
            if label and self.outcomes is not None:
                self.outcomes.arrived(key, label)
            return
        on_outcome, outcome = settled
        if outcome.acks and self.outcomes is not None:
            self.outcomes.finished(outcome)
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

        What is left gets a 503. Sessions stay until :meth:`dismiss`.
        """
        self.draining = self.entrance.closed = True
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

    async def dismiss(self, timeout: float = DISMISS_S) -> None:
        """Close every session with a code that invites to reconnect, and wait until it has left."""
        for session in self.sessions.all():
            session.close(1012, "The gateway restarts; you may reconnect.")
        end = asyncio.get_running_loop().time() + timeout
        while len(self.sessions) and asyncio.get_running_loop().time() < end:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def _outcome(submit: Callable[[OnOutcome], None]) -> Outcome:
    """Submit something with a callback of our own, and wait for its outcome."""
    waiter: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def done(outcome: Outcome) -> None:
        if not waiter.done():
            waiter.set_result(outcome)

    submit(done)
    return await waiter
