"""All sessions of a process, and who of them gets which entry."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import orjson
import structlog

from acks.envelopes import WEAK_UNSUBSCRIBED, event_envelope, live_envelope
from acks.headers import visible_acks
from acks.journal import EVENT, EntryMeta
from acks.labels import LIVE_RESPONSE
from acks.signals import Acknowledgement
from app.session import Session, Subscription

log = structlog.get_logger(__name__)


@lru_cache(maxsize=4096)
def _headers(text: bytes) -> dict[str, Any]:
    """An entry's headers; most entries of a requester have the same ones. Not to be changed."""
    headers: dict[str, Any] = orjson.loads(text)
    return headers


SendAck = Callable[[str, Acknowledgement], None]


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
        self.delivered = 0
        self.weak = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def all(self) -> list[Session]:
        """Every session, as of now."""
        return list(self._sessions.values())

    def add(self, session: Session) -> None:
        """Take in a session whose labels have been claimed."""
        self._sessions[session.id] = session
        for label in session.declared:
            self._owner[label] = session

    def remove(self, session: Session) -> None:
        """Forget a session; idempotent."""
        for kind in list(session.wants):
            self.unsubscribe(session, kind)
        self._sessions.pop(session.id, None)
        for label in session.declared:
            if self._owner.get(label) is session:
                del self._owner[label]

    def subscribe(self, session: Session, subscription: Subscription, kind: str = EVENT) -> None:
        """Deliver signals of ``kind`` to ``session`` from the next entry on.

        Replaces an earlier subscription to the same kind.
        """
        session.wants[kind] = subscription
        for subject in session.subjects:
            self._listening.setdefault((kind, subject), {})[session.id] = session

    def unsubscribe(self, session: Session, kind: str = EVENT) -> None:
        """Stop delivering signals of ``kind`` to ``session``; idempotent."""
        session.wants.pop(kind, None)
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
        entry = dict(zip(fields[::2], fields[1::2], strict=True))
        meta = EntryMeta.from_json(orjson.loads(entry[b"m"]))
        receivers: dict[str, Session] = {}
        for subject in meta.readers:
            listening = self._listening.get((meta.kind, subject))
            if listening:
                receivers.update(listening)
        if meta.revoked:
            _leave_out(receivers, meta.revoked)
        if receivers:
            self._deliver(meta, entry, receivers)
        for label in meta.requested_acks:
            owner = self._owner.get(label)
            if owner is not None and owner.id not in receivers:
                self._send_weak(meta, label)

    def _deliver(
        self, meta: EntryMeta, entry: dict[bytes, bytes], receivers: dict[str, Session]
    ) -> None:
        now_ms = time.time_ns() // 1_000_000
        headers = _headers(entry[b"h"])
        raw = entry.get(b"v")
        value = None if raw is None else orjson.Fragment(raw)
        encoded: dict[tuple[str, tuple[str, ...] | None], bytes] = {}
        for session in list(receivers.values()):
            if not session.wants[meta.kind].matches(meta.thing_id):
                del receivers[session.id]
                continue
            shown = visible_acks(meta.requested_acks, session.declared)
            if meta.answered:
                delivered = session.expect(meta, (*(shown or ()), LIVE_RESPONSE), now_ms)
                shown = shown or None  # live-response is asked for, but is not to be seen
            else:
                delivered = session.expect(meta, shown, now_ms) if shown else meta.correlation_id
            key = (delivered, shown)
            frame = encoded.get(key)
            if frame is None:
                render = live_envelope if meta.kind else event_envelope
                envelope = render(meta, headers, value, shown, delivered)
                encoded[key] = frame = orjson.dumps(envelope)
            if session.put(frame):
                self.delivered += 1

    def _send_weak(self, meta: EntryMeta, label: str) -> None:
        if not self._owns():
            return
        self.weak += 1
        headers = {
            "correlation-id": meta.correlation_id,
            "response-required": False,
            "ditto-weak-ack": True,
        }
        self._send_ack(
            meta.origin,
            Acknowledgement(
                label, meta.thing_id, meta.correlation_id, 200, WEAK_UNSUBSCRIBED, headers
            ),
        )


def _leave_out(receivers: dict[str, Session], revoked: tuple[str, ...]) -> None:
    """Take out sessions with a subject that may not read it, whatever their others may (ws 5.6)."""
    for session in list(receivers.values()):
        if not set(session.subjects).isdisjoint(revoked):
            del receivers[session.id]
