"""One entry for one session: does it get it, in what form, and if not, why not.

Sessions whose signals go out as they are never come here (app/sessions.py): this is for filters,
extra fields, events of which only a part may be read, and sessions with a form of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from typing import Any

import orjson
import structlog

from acks.envelopes import REDELIVERED, Envelope, event_envelope, live_envelope
from acks.errors import GatewayError, error
from acks.headers import visible_acks
from acks.interest import extra_of, fits
from acks.journal import ANNOUNCEMENT, EVENT, MESSAGE, EntryMeta
from acks.labels import LIVE_RESPONSE
from acks.policy_protocol import announcement_envelope
from acks.resources import ABSENT
from acks.signals import JsonObject
from app.backlog import Backlog, Job
from app.enrichment import Enrichment, Reading, Snapshot
from app.entry import Entry, Part
from app.session import Delivery, Session, Subscription
from app.store.instant import now_ms

log = structlog.get_logger(__name__)

HEAVY = 4_000
"""Bytes of a value times comparisons of a filter; more is not done in one go with others."""
HEAVY_TWIN = 32_000
"""Bytes of a value that is written for some sessions only, or of a twin; as above."""


class Verdict(Enum):
    """What became of an entry that was offered to a session."""

    DELIVERED = "delivered"
    OWN = "own"  # the session has caused it
    UNAUTHORIZED = "unauthorized"
    UNSUBSCRIBED = "unsubscribed"  # to the kind, or to the namespace
    FILTERED = "filtered"
    HIDDEN = "hidden"  # nothing is left of what it may read
    FAILED = "failed"  # an error was sent in its place
    CLOSED = "closed"  # the session ends


OnVerdict = Callable[[Verdict], None]


class Offers:
    """Offers entries to sessions, and keeps each session's order. ``enrichment`` reads twins."""

    def __init__(self) -> None:
        self.enrichment: Enrichment | None = None
        self.delivered = 0
        self.turn = asyncio.Lock()  # of heavy work: one piece in each turn of the event loop

    def offer(
        self, session: Session, entry: Entry, on_verdict: OnVerdict, redelivered: bool = False
    ) -> None:
        """Give a session an entry that it is authorised for, after all it was offered before.

        ``on_verdict`` is called once, now or later; it must not raise.
        """
        offer = _Offer(self, session, entry, on_verdict, redelivered)
        if session.backlog is None:
            verdict = offer.at_once()
            if verdict is not None:
                on_verdict(verdict)
                return
            name = f"backlog-{session.id}"
            session.backlog = Backlog(session.limit, partial(_idle, session), name)
            session.look()
        if session.closing is None:
            job = Job(entry.size, offer.begin, offer.finish, offer.give_up)
            if session.backlog.push(job):
                return
            session.overflow()
        on_verdict(Verdict.CLOSED)


def _idle(session: Session) -> None:
    session.backlog = None
    session.look()


class _Offer:
    """One entry for one session."""

    __slots__ = (
        "_begun", "_enrichment", "_entry", "_offers", "_on_verdict", "_reading", "_redelivered",
        "_session",
    )  # fmt: skip

    def __init__(
        self,
        offers: Offers,
        session: Session,
        entry: Entry,
        on_verdict: OnVerdict,
        redelivered: bool,
    ) -> None:
        self._offers = offers
        self._session = session
        self._entry = entry
        self._on_verdict: OnVerdict | None = on_verdict
        self._redelivered = redelivered
        self._enrichment = offers.enrichment
        self._reading: Reading | None = None
        self._begun: Subscription | None = None

    def refusal(self) -> Verdict | None:
        """Why the session does not get it whatever it says, None if it may."""
        if self._session.closing is not None:
            return Verdict.CLOSED
        meta = self._entry.meta
        wanted = self._session.wants.get(meta.kind)
        if wanted is None or not wanted.covers(meta.thing_id):
            return Verdict.UNSUBSCRIBED
        return None

    @property
    def _wanted(self) -> Subscription:
        return self._session.wants[self._entry.meta.kind]

    def at_once(self) -> Verdict | None:
        """Deliver it, or not; None if it takes a backlog.

        That is if it has to be enriched, or is too much to do at once. Whatever goes wrong is no
        concern of the sessions that are offered it after this one.
        """
        try:
            verdict = self.refusal()
            if verdict is None and not (self._is_heavy(None) or self._is_enriched()):
                verdict = self.decide()
        except Exception:
            log.exception("offer.failed", entry=self._entry.id.decode())
            verdict = self._failed(error("gateway:internalerror"))
        return verdict

    def _is_heavy(self, twin: Snapshot | None) -> bool:
        wanted, size = self._wanted, 0 if twin is None else twin.size
        own_form = bool(self._entry.meta.rules) or self._session.render is not None
        if size > HEAVY_TWIN or (own_form and self._entry.size > HEAVY_TWIN):
            return True
        return not wanted.early and wanted.weight * (self._entry.size + size) > HEAVY

    def _is_enriched(self) -> bool:
        """Whether the twin has to be read; not if nothing would be done with it."""
        meta, wanted = self._entry.meta, self._wanted
        if wanted.extra_fields is None or self._enrichment is None or meta.kind == ANNOUNCEMENT:
            return False
        if meta.kind == EVENT and meta.action == "deleted" and meta.path == "/":
            return False
        part = self._entry.part(self._session.subjects)
        return part is not None and (not wanted.early or self._fits(wanted, part, None))

    # --- in a backlog

    def begin(self) -> None:
        """Have the twin read if it is needed."""
        if self.refusal() is not None:
            return
        self._begun = self._reading = None
        if self._is_enriched():
            assert self._enrichment is not None
            self._reading = self._enrichment.begin(self._entry.meta.thing_id)
        self._begun = self._wanted

    async def finish(self) -> None:
        """Deliver it, or not, and say what has become of it."""
        try:
            verdict = await self._finished()
        except GatewayError as problem:
            verdict = self._failed(problem)
        except Exception:
            log.exception("offer.failed", entry=self._entry.id.decode())
            verdict = self._failed(error("gateway:internalerror"))
        self._tell(verdict)

    def give_up(self) -> None:
        """The session has ended."""
        self._tell(Verdict.CLOSED)

    def _tell(self, verdict: Verdict) -> None:
        told, self._on_verdict = self._on_verdict, None
        if told is not None:
            told(verdict)

    async def _finished(self) -> Verdict:
        while True:
            twin, policy = await self._enriched()
            verdict = self.refusal()
            if verdict is not None:
                return verdict
            if self._wanted is self._begun:
                if not self._is_heavy(twin):
                    return self.decide(twin, policy)
                verdict = await self._slowly_decided(twin, policy)
                if verdict is not None:
                    return verdict
            # Whoever has subscribed anew gets what that says.
            self.begin()

    async def _slowly_decided(
        self, twin: Snapshot | None, policy: JsonObject | None
    ) -> Verdict | None:
        """As :meth:`decide`; None if the subscription is another one by then."""
        async with self._offers.turn:
            verdict = self.refusal()
            if verdict is not None:
                return verdict
            wanted, part = self._wanted, self._entry.part(self._session.subjects)
            if part is None:
                return Verdict.HIDDEN
            extra = self._extra(part, twin, policy)
            # In a thread, so that the event loop goes on: this may take a tenth of a second.
            fit = await asyncio.to_thread(self._fits, wanted, part, extra)
            verdict = self.refusal()
            if verdict is None and self._wanted is wanted is self._begun:
                verdict = self._sent(part, extra) if fit else self._filtered()
                await asyncio.sleep(0)
        return verdict

    async def _enriched(self) -> tuple[Snapshot | None, JsonObject | None]:
        """The twin, and as much of its policy as the session may read, as far as they are wanted.

        Raises ``signal.enrichment.failed``.
        """
        if self._reading is None or self._enrichment is None or self._begun is None:
            return None, None
        meta, selector = self._entry.meta, self._begun.extra_fields
        twin = await self._enrichment.twin(meta.thing_id, meta.revision, self._reading)
        if twin is None or selector is None or "_policy" not in selector.tree:
            return twin, None
        subjects = self._session.subjects
        return twin, await self._enrichment.policy(meta.thing_id, twin.policy_id, subjects)

    def _failed(self, problem: GatewayError) -> Verdict:
        self._session.failed(self._entry.meta, problem)
        return Verdict.FAILED

    # --- at last

    def decide(self, twin: Snapshot | None = None, policy: JsonObject | None = None) -> Verdict:
        """Deliver it if the session may and wants to see it, enriched from the ``twin`` if any."""
        part = self._entry.part(self._session.subjects)
        if part is None:
            return Verdict.HIDDEN
        extra = self._extra(part, twin, policy)
        fit = self._fits(self._wanted, part, extra)
        return self._sent(part, extra) if fit else self._filtered()

    def _filtered(self) -> Verdict:
        self._session.filtered()
        return Verdict.FILTERED

    def _fits(self, wanted: Subscription, part: Part, extra: JsonObject | None) -> bool:
        meta = self._entry.meta
        if wanted.filter is None or meta.kind == ANNOUNCEMENT:
            return True
        # The payload of a message is no part of a thing.
        value = ABSENT if wanted.early or meta.kind == MESSAGE else part.parsed()
        now = datetime.now(UTC)
        return fits(wanted.filter, meta, value, extra, now, of_target=wanted.of_target)

    def _extra(
        self, part: Part, twin: Snapshot | None, policy: JsonObject | None
    ) -> JsonObject | None:
        selector = self._wanted.extra_fields
        seen = None if twin is None else twin.seen_by(self._session.subjects)
        if selector is None or twin is None or seen is None:
            return None
        special = twin.special if policy is None else {**twin.special, "_policy": policy}
        return extra_of(selector, self._entry.meta, part.parsed, seen, special)

    def _sent(self, part: Part, extra: JsonObject | None) -> Verdict:
        frame = self._frame(part, extra)
        if frame is None:
            return Verdict.FILTERED
        if not self._session.put(frame):
            return Verdict.CLOSED
        self._offers.delivered += 1
        return Verdict.DELIVERED

    def _frame(self, part: Part, extra: JsonObject | None) -> bytes | None:
        entry, session = self._entry, self._session
        meta, raw = entry.meta, part.raw
        value = None if raw is None else orjson.Fragment(raw)
        if session.render is not None:
            return session.render(
                Delivery(entry.shard, entry.id, meta, entry.headers, value, extra, part.parsed)
            )
        visible = visible_acks(meta.requested_acks, session.declared)
        shown, delivered = awaited_of(session, meta, visible)
        key = (delivered, shown, id(part))
        if extra is None and not self._redelivered and key in entry.frames:
            return entry.frames[key]
        envelope = rendered(meta, entry.headers, value, shown, delivered, extra, self._redelivered)
        frame = orjson.dumps(envelope)
        if extra is None and not self._redelivered:
            entry.frames[key] = frame
        return frame


def awaited_of(
    session: Session, meta: EntryMeta, shown: tuple[str, ...] | None
) -> tuple[tuple[str, ...] | None, str]:
    """What a session sees as ``requested-acks``, and the correlation-id it gets the signal with.

    ``shown`` are those of its labels that are asked for; from then on their acks are awaited, and
    a response if one is wanted (spec 5.3).
    """
    if meta.answered:
        delivered = session.expect(meta, (*(shown or ()), LIVE_RESPONSE), now_ms())
        return shown or None, delivered  # live-response is asked for, but is not to be seen
    return shown, session.expect(meta, shown, now_ms()) if shown else meta.correlation_id


def rendered(
    meta: EntryMeta,
    headers: Mapping[str, Any],
    value: Any,
    shown: tuple[str, ...] | None,
    delivered: str,
    extra: JsonObject | None = None,
    redelivered: bool = False,
) -> Envelope:
    """An entry of any kind as an envelope; for the arguments see :func:`event_envelope`."""
    if meta.kind == EVENT:
        return event_envelope(meta, headers, value, shown, delivered, extra, redelivered)
    if meta.kind != ANNOUNCEMENT:
        return live_envelope(meta, headers, value, shown, delivered, extra, redelivered)
    if redelivered:
        headers = {**headers, REDELIVERED: True}
    return announcement_envelope(meta, headers, value, shown, delivered)
