"""All sessions of a process, and who of them gets which entry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import orjson
import structlog

from acks.envelopes import event_envelope
from acks.errors import GatewayError
from acks.headers import visible_acks
from acks.journal import EVENT, EntryMeta
from acks.signals import Acknowledgement
from app.crew import WEAK as CREW_WEAK
from app.crew import Crew, failed_ack
from app.enrichment import Enrichment
from app.entry import Entry, headers_of
from app.offers import Offers, OnVerdict, Verdict, awaited_of, rendered
from app.session import Session, Subscription
from app.weak_acks import WEAK, weak_headers

log = structlog.get_logger(__name__)


SendAck = Callable[[str, Acknowledgement], None]
OnShared = Callable[[str, list[str], EntryMeta, int, bytes, list[Any]], None]
"""Gets (group, its labels that are requested, meta, shard, entry id, fields of the entry)."""


class Sessions:
    """All sessions of this process; routes journal entries to them.

    ``send_ack(node, ack)`` is called for weak acks; ``owns()`` says whether our labels are surely
    still ours: without that no ack may be issued.
    """

    def __init__(self, send_ack: SendAck, owns: Callable[[], bool]) -> None:
        self._send_ack = send_ack
        self._owns = owns
        self._sessions: dict[str, Session] = {}
        self._listening: dict[tuple[str, str], dict[str, Session]] = {}  # by kind and subject
        self._owner: dict[str, Session] = {}
        # By label and group: sessions here that declare the label in the group. The store may yet
        # refuse one of them, so one label may seem to be in two groups.
        self._grouped: dict[str, dict[str, dict[str, Session]]] = {}
        self._members: dict[str, dict[str, Session]] = {}  # by group
        self._crews: dict[str, Crew] = {}  # by the origin of their connection's signals
        self._crewed: dict[str, Crew] = {}  # by label
        self.on_shared: OnShared | None = None  # decides who of a group gets a signal
        self._offers = Offers()
        self._direct = 0  # signals delivered without an offer
        self.weak: Counter[Verdict] = Counter()  # weak acks by what became of the signal

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def delivered(self) -> int:
        """Signals put into outboxes."""
        return self._direct + self._offers.delivered

    @property
    def enrichments_failed(self) -> int:
        """Twins that could not be read for extra fields."""
        enrichment = self._offers.enrichment
        return 0 if enrichment is None else enrichment.failed

    def enrich_from(self, enrichment: Enrichment) -> None:
        """Say where twins for extra fields come from."""
        self._offers.enrichment = enrichment

    def all(self) -> list[Session]:
        """Every session, as of now."""
        return list(self._sessions.values())

    def add(self, session: Session) -> None:
        """Take in a session whose labels have been claimed.

        A member of a group is taken in before that, too.
        """
        self._sessions[session.id] = session
        if session.group:
            self._members.setdefault(session.group, {})[session.id] = session
            for label in session.declared:
                groups = self._grouped.setdefault(label, {})
                groups.setdefault(session.group, {})[session.id] = session
            return
        for label in session.declared:
            self._owner[label] = session

    def remove(self, session: Session) -> None:
        """Forget a session; idempotent."""
        for kind in list(session.wants):
            self.unsubscribe(session, kind)
        self._sessions.pop(session.id, None)
        if session.backlog is not None:
            session.backlog.close()
        if session.group:
            self._leave(session)
            return
        for label in session.declared:
            if self._owner.get(label) is session:
                del self._owner[label]

    def _leave(self, session: Session) -> None:
        group = session.group
        _take_out(self._members, group, session.id)
        for label in session.declared:
            groups = self._grouped.get(label)
            if groups is not None:
                _take_out(groups, group, session.id)
                if not groups:
                    del self._grouped[label]

    def add_crew(self, crew: Crew) -> None:
        """Take in the sessions of a connection's targets, whose labels are not theirs yet."""
        self._crews[crew.origin] = crew
        for number, session in crew.sessions.items():
            self._sessions[session.id] = session
            for kind, subscription in crew.wants[number].items():
                self.subscribe(session, subscription, kind)

    def crew_claimed(self, crew: Crew) -> None:
        """A crew owns its labels from now on."""
        crew.claimed()
        for label in crew.labels:
            self._crewed[label] = crew

    def crew_lost(self, crew: Crew) -> None:
        """A crew does not own its labels any more; idempotent."""
        crew.lost()
        for label in crew.labels:
            if self._crewed.get(label) is crew:
                del self._crewed[label]

    def remove_crew(self, crew: Crew) -> None:
        """Forget a crew and its sessions; idempotent."""
        self.crew_lost(crew)
        if self._crews.get(crew.origin) is crew:
            del self._crews[crew.origin]
        for session in crew.sessions.values():
            self.remove(session)

    def crew(self, origin: str) -> Crew | None:
        """The crew of the connection whose signals have this origin, if it is here."""
        return self._crews.get(origin)

    def members(self, group: str) -> dict[str, Session]:
        """The sessions here that are members of a group, by id; not to be changed."""
        return self._members.get(group, {})

    def subscribe(self, session: Session, subscription: Subscription, kind: str = EVENT) -> None:
        """Deliver signals of ``kind`` to ``session`` from the next entry on.

        Replaces an earlier subscription to the same kind.
        """
        session.wants[kind] = subscription
        session.look()
        for subject in session.subjects:
            self._listening.setdefault((kind, subject), {})[session.id] = session

    def unsubscribe(self, session: Session, kind: str = EVENT) -> None:
        """Stop delivering signals of ``kind`` to ``session``; idempotent."""
        session.wants.pop(kind, None)
        session.look()
        for subject in session.subjects:
            listening = self._listening.get((kind, subject))
            if listening is not None:
                listening.pop(session.id, None)
                if not listening:
                    del self._listening[kind, subject]

    def get(self, session_id: str) -> Session | None:
        """The session with this id, if it is still connected."""
        return self._sessions.get(session_id)

    def route(self, shard: int, entry_id: bytes, fields: list[Any]) -> None:
        """Hand one journal entry to the sessions that may and want to see it (flow 1)."""
        fields_of = dict(zip(fields[::2], fields[1::2], strict=True))
        meta = EntryMeta.from_json(orjson.loads(fields_of[b"m"]))
        receivers: dict[str, Session] = {}
        for subject in meta.readers:
            listening = self._listening.get((meta.kind, subject))
            if listening:
                receivers.update(listening)
        if meta.revoked:
            _leave_out(receivers, meta.revoked)
        if meta.session:
            receivers.pop(meta.session, None)
        if self._crews:
            self._muster(shard, entry_id, meta, fields_of, receivers)
        if self._grouped and meta.requested_acks:
            self._share(shard, entry_id, meta, fields, receivers)
        if receivers:
            self._deliver(shard, entry_id, meta, fields_of, receivers)
        for label in meta.requested_acks:
            owner = self._owner.get(label)
            if owner is None or owner.closing is not None:
                continue  # maybe closed because the label is somebody else's by now
            if owner.id not in receivers and owner.id != meta.session:
                self._send_weak(meta, fields_of[b"h"], label, _why_not(owner, meta))

    def _share(
        self,
        shard: int,
        entry_id: bytes,
        meta: EntryMeta,
        fields: list[Any],
        receivers: dict[str, Session],
    ) -> None:
        """Leave what asks for a group's label to its members: one of them gets it."""
        shared: dict[str, list[str]] = {}
        for label in meta.requested_acks:
            for group, members in self._grouped.get(label, {}).items():
                shared.setdefault(group, []).append(label)
                for session_id in members.keys() & receivers.keys():
                    del receivers[session_id]
        for group, labels in shared.items():
            if self.on_shared is not None:
                self.on_shared(group, labels, meta, shard, entry_id, fields)

    def _muster(
        self,
        shard: int,
        entry_id: bytes,
        meta: EntryMeta,
        fields: dict[bytes, bytes],
        receivers: dict[str, Session],
    ) -> None:
        """Offer what asks for a crew's label to its sessions, and note what becomes of it there.

        The crew of who has sent it gets nothing.
        """
        own = self._crews.get(meta.session) if meta.session else None
        asked: dict[str, Crew] = {}
        for label in meta.requested_acks:
            crew = self._crewed.get(label)
            if crew is not None and crew is not own:
                asked[crew.id] = crew
        if own is not None:
            for session in own.sessions.values():
                receivers.pop(session.id, None)
        if not asked:
            return
        raw = fields[b"h"]
        entry = Entry(shard, entry_id, meta, headers_of(raw), fields.get(b"v"))

        def conclude(label: str, verdict: Verdict, problem: GatewayError | None) -> None:
            if problem is None:
                self._send_weak(meta, raw, label, verdict, CREW_WEAK[verdict])
            elif self._owns():
                headers = weak_headers(meta.correlation_id, raw, weak=False)
                self._send_ack(meta.origin, failed_ack(meta, label, problem, headers))

        for crew in asked.values():
            judge = crew.judge(meta.requested_acks, conclude)
            for session in crew.sessions.values():
                receivers.pop(session.id, None)
                self._offer(session, entry, judge(session))

    def _deliver(
        self,
        shard: int,
        entry_id: bytes,
        meta: EntryMeta,
        fields: dict[bytes, bytes],
        receivers: dict[str, Session],
    ) -> None:
        """Give it to the receivers; takes those out who do not want the namespace."""
        headers = headers_of(fields[b"h"])
        raw = fields.get(b"v")
        value = None if raw is None else orjson.Fragment(raw)
        render = rendered if meta.kind else event_envelope
        requested, answered, plain = meta.requested_acks, meta.answered, meta.correlation_id
        asked = answered or bool(requested)
        key: tuple[tuple[str, ...] | None, str] = (None, plain)
        encoded: dict[tuple[tuple[str, ...] | None, str], bytes] = {}
        entry: Entry | None = None
        for session in list(receivers.values()):
            namespaces = session.wants[meta.kind].namespaces
            if namespaces and meta.thing_id.partition(":")[0] not in namespaces:
                del receivers[session.id]
                continue
            if meta.rules or not session.direct:
                if entry is None:
                    entry = Entry(shard, entry_id, meta, headers, raw)
                self._offers.offer(session, entry, self._answer_for(session, meta, fields))
                continue
            if asked:
                shown = visible_acks(requested, session.declared)
                key = awaited_of(session, meta, shown) if shown or answered else (shown, plain)
            frame = encoded.get(key)
            if frame is None:
                encoded[key] = frame = orjson.dumps(render(meta, headers, value, *key))
            if session.put(frame):
                self._direct += 1

    def offer(
        self,
        session: Session,
        shard: int,
        entry_id: bytes,
        fields: list[Any],
        on_verdict: OnVerdict,
        *,
        redelivered: bool = False,
    ) -> None:
        """Deliver one entry to one session if it may and wants to see it.

        It comes after everything that the session was given before. ``on_verdict`` is told once
        what became of it, now or later, and must not raise; weak acks are left to it.
        ``redelivered`` is shown to the subscriber.
        """
        fields_of = dict(zip(fields[::2], fields[1::2], strict=True))
        meta = EntryMeta.from_json(orjson.loads(fields_of[b"m"]))
        entry = Entry(shard, entry_id, meta, headers_of(fields_of[b"h"]), fields_of.get(b"v"))
        self._offer(session, entry, on_verdict, redelivered)

    def _offer(
        self, session: Session, entry: Entry, on_verdict: OnVerdict, redelivered: bool = False
    ) -> None:
        meta = entry.meta
        if meta.session == session.id:
            on_verdict(Verdict.OWN)
            return
        subjects = set(session.subjects)
        if subjects.isdisjoint(meta.readers) or not subjects.isdisjoint(meta.revoked):
            on_verdict(Verdict.UNAUTHORIZED)
            return
        self._offers.offer(session, entry, on_verdict, redelivered)

    # --- weak acks

    def _answer_for(
        self, session: Session, meta: EntryMeta, fields: dict[bytes, bytes]
    ) -> OnVerdict:
        """What acknowledges for a session that does not get a signal after all."""

        def decided(verdict: Verdict) -> None:
            if verdict in WEAK:
                for label in meta.requested_acks:
                    if self._owner.get(label) is session:
                        self._send_weak(meta, fields[b"h"], label, verdict)

        return decided if meta.requested_acks else _unasked

    def _send_weak(
        self, meta: EntryMeta, headers: bytes, label: str, verdict: Verdict, text: str = ""
    ) -> None:
        if not self._owns():
            return
        self.weak[verdict] += 1
        copied, text = weak_headers(meta.correlation_id, headers), text or WEAK[verdict]
        self._send_ack(
            meta.origin,
            Acknowledgement(label, meta.thing_id, meta.correlation_id, 200, text, copied),
        )


def _unasked(_verdict: Verdict) -> None:
    """Nobody waits for an ack of this session."""


def _take_out(groups: dict[str, dict[str, Session]], group: str, session_id: str) -> None:
    """Take a session out of a group; idempotent."""
    members = groups.get(group)
    if members is not None:
        members.pop(session_id, None)
        if not members:
            del groups[group]


def _why_not(owner: Session, meta: EntryMeta) -> Verdict:
    """Why the owner of a label is not among the receivers."""
    wanted = owner.wants.get(meta.kind)
    subscribed = wanted is not None and wanted.covers(meta.thing_id)
    return Verdict.UNAUTHORIZED if subscribed else Verdict.UNSUBSCRIBED


def _leave_out(receivers: dict[str, Session], revoked: tuple[str, ...]) -> None:
    """Take out sessions with a subject that may not read it, whatever their others may (ws 5.6)."""
    for session in list(receivers.values()):
        if not set(session.subjects).isdisjoint(revoked):
            del receivers[session.id]
