"""Session: everything a connected subscriber has (design rule 5)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import orjson
import structlog

from acks.envelopes import error_envelope
from acks.errors import GatewayError, error
from acks.fields import Selector
from acks.headers import next_correlation_id
from acks.interest import looks_at_things
from acks.journal import EntryMeta
from acks.labels import LIVE_RESPONSE
from acks.live import INVALID_RESPONSE, LiveResponse, mismatch
from acks.resources import ABSENT
from acks.rql import Predicate, leaves
from acks.signals import Acknowledgement, JsonObject

if TYPE_CHECKING:
    from app.backlog import Backlog

log = structlog.get_logger(__name__)

FORWARD_MS = 65_000
"""How long an ack is awaited from a subscriber when the signal says nothing (spec 5.3), ms."""

_SLACK = 100
_NOT_FORWARDED = ("requested-acks", "ditto-weak-ack")


@dataclass(slots=True)
class Subscription:
    """What a session wants of a signal type: namespaces, empty for all of them.

    ``filter`` is what a signal has to fit (``parse_checked(text, EVENT_PREFIXES)``),
    ``extra_fields`` what of the twin goes along with it (spec websocket-... 1.2). ``of_target``:
    the filter is that of a connection's target (6.2).
    """

    namespaces: frozenset[str] = frozenset()
    filter: Predicate | None = None
    extra_fields: Selector | None = None
    of_target: bool = False
    plain: bool = field(init=False)  # signals are sent as they are
    weight: int = field(init=False)  # comparisons of the filter
    early: bool = field(init=False)  # the filter can be evaluated without extra fields

    def __post_init__(self) -> None:
        self.plain = self.filter is None and self.extra_fields is None
        self.weight = 0 if self.filter is None else sum(1 for _ in leaves(self.filter))
        self.early = self.filter is not None and not looks_at_things(
            self.filter, of_target=self.of_target
        )

    def covers(self, thing_id: str) -> bool:
        """Whether the thing is in a namespace that is wanted."""
        return not self.namespaces or thing_id.partition(":")[0] in self.namespaces


class Delivery(NamedTuple):
    """A signal as one session may see it, for a session that renders signals by itself.

    ``shard`` and ``entry_id`` are its place in the journal, ``headers`` the entry's, ``value`` what
    is left of its value after partial reads (JSON or an ``orjson.Fragment`` of it, None for none),
    ``extra`` the enrichment, if any. ``parsed()`` is the value as Python has it, ABSENT for none.
    """

    shard: int
    entry_id: bytes
    meta: EntryMeta
    headers: Mapping[str, Any]
    value: Any
    extra: JsonObject | None = None
    parsed: Callable[[], Any] = lambda: ABSENT


Render = Callable[[Delivery], bytes | None]
"""A signal as a frame for the outbox; None if nothing of it is to be sent now."""


@dataclass(slots=True)
class _Forwarder:
    """A delivered signal whose acks are awaited, which ones and until when (ms, epoch)."""

    meta: EntryMeta
    labels: set[str]
    until: int


class Session:
    """One connected subscriber: its subjects, labels, subscription, outbox and awaited acks.

    ``outbox_bytes`` bounds what waits to be sent; a session over it is closed with ``overflow``.
    """

    def __init__(
        self, subjects: tuple[str, ...], declared: Iterable[str], *, outbox_bytes: int
    ) -> None:
        self.id = uuid4().hex
        self.subjects = subjects
        self.declared = frozenset(declared)
        self.group = ""  # with whose other members it shares its labels
        self.wants: dict[str, Subscription] = {}  # by kind of journal entries
        self.closing: tuple[int, str] | None = None
        self.render: Render | None = None  # None: Ditto Protocol envelopes; set before subscribing
        self.backlog: Backlog | None = None  # signals that wait, and all that come after them
        self.direct = True  # no backlog, no filter, no extra fields, and the usual envelopes
        self.send_soon: Callable[[bytes], bool] | None = None  # way past an empty outbox, if open
        self._outbox: deque[bytes] = deque()
        self._waiting = 0
        self.limit = outbox_bytes
        self._ready = asyncio.Event()
        self._ending = asyncio.Event()
        self._forwarders: dict[str, _Forwarder] = {}
        self._last: dict[str, str] = {}  # by id, under which other one it was delivered last
        self._lost = False  # a label of this session is somebody else's

    # --- outbox

    def put(self, frame: bytes) -> bool:
        """Queue a text frame (UTF-8); False if the session is over its bound and being closed."""
        if self.closing is not None:
            return False
        if self.send_soon is not None and not self._outbox and self.send_soon(frame):
            return True
        if self._waiting + len(frame) > self.limit:
            self.overflow()
            return False
        self._outbox.append(frame)
        self._waiting += len(frame)
        self._ready.set()
        return True

    def look(self) -> None:
        """Note whether signals can go out at once and as they are, after something has changed."""
        self.direct = (
            self.backlog is None
            and self.render is None
            and all(wanted.plain for wanted in self.wants.values())
        )

    async def frames(self) -> list[bytes]:
        """Wait for frames and take all of them; an empty list means: close now."""
        while not self._outbox and self.closing is None:
            self._ready.clear()
            await self._ready.wait()
        taken, self._outbox = list(self._outbox), deque()
        self._waiting = 0
        return taken

    def overflow(self) -> None:
        """Have the connection closed: more waits for the subscriber than it may."""
        self.close(1013, "The subscriber is too slow; you may reconnect.")

    def close(self, code: int, reason: str) -> None:
        """Have the connection closed with this WebSocket code after what is queued is sent."""
        if self.closing is None:
            self.closing = (code, reason)
            self._ready.set()
            self._ending.set()

    async def ended(self) -> None:
        """Wait until the session is to be closed."""
        await self._ending.wait()

    def filtered(self) -> None:
        """A signal that it may read did not fit its filter."""

    def failed(self, meta: EntryMeta, problem: GatewayError) -> None:
        """Say that a signal cannot be shown as it should be (spec websocket-... 1.5).

        Who has another form than envelopes is sent away: coming back, it may get the signal.
        """
        if self.render is None:
            envelope = error_envelope(problem, meta.correlation_id, meta.thing_id)
            self.put(orjson.dumps(envelope))
        else:
            self.close(1011, problem.message)

    def lost(self) -> None:
        """Say that a label of this session is taken by somebody else, and close (spec ws 1.6)."""
        self._lost = True
        problem = error("acknowledgement:label.not.unique")
        self.put(orjson.dumps(error_envelope(problem, None)))
        self.close(1000, "A declared label is taken.")

    # --- acks

    def expect(self, meta: EntryMeta, labels: tuple[str, ...], now_ms: int) -> str:
        """Await acks of ``labels`` for a signal; returns the correlation-id to deliver it with.

        It differs from the signal's while another signal with the same id is open (spec 5.3).
        """
        forwarders = self._forwarders
        while forwarders:
            first = next(iter(forwarders))
            if forwarders[first].until > now_ms:
                break
            del forwarders[first]
        until = meta.deadline if meta.deadline > now_ms else now_ms + FORWARD_MS
        delivered = meta.correlation_id
        if delivered in forwarders:
            delivered = self._free_id(delivered)
        forwarders[delivered] = _Forwarder(meta, set(labels), until)
        return delivered

    def _free_id(self, taken: str) -> str:
        """The next id after ``taken`` that no open signal has."""
        forwarders, last = self._forwarders, self._last
        # From where it ended the last time: thousands may be open under one id.
        found = last.get(taken, taken)
        while found in forwarders:
            found = next_correlation_id(found)
        last[taken] = found
        if len(last) > 2 * len(forwarders) + _SLACK:
            self._last = {one: name for one, name in last.items() if name in forwarders}
        return found

    def forward(self, ack: Acknowledgement) -> tuple[str, Acknowledgement] | None:
        """Where an ack of this session goes: (node, ack with the request's correlation-id).

        None if nothing with this correlation-id was delivered here, or it is over (spec 5.4, 9), or
        if the label may be somebody else's by now.
        """
        if self._lost:
            return None
        meta = self._taken(ack.correlation_id, ack.label)
        if meta is None:
            return None
        return meta.origin, _forwarded(meta, ack)

    def answer(self, response: LiveResponse) -> tuple[str, Acknowledgement] | None:
        """Where a response of this session goes: (node, ack for its request), as :meth:`forward`.

        One that does not fit what was delivered becomes a notice of that, and a better one may
        still come (spec 3).
        """
        forwarder = self._forwarders.get(response.correlation_id)
        if forwarder is None or LIVE_RESPONSE not in forwarder.labels:
            return None
        meta = forwarder.meta
        reason = mismatch(response, meta)
        if reason is not None:
            return meta.origin, Acknowledgement(
                INVALID_RESPONSE, meta.thing_id, meta.correlation_id, 400, reason
            )
        self._taken(response.correlation_id, LIVE_RESPONSE)
        # Among the acks of several labels an error stands without its text (spec 4, 4).
        bare = response.criterion == "errors" and meta.requested_acks
        ack = Acknowledgement(
            LIVE_RESPONSE,
            meta.thing_id,
            meta.correlation_id,
            response.status,
            None if bare else response.payload,
            response.headers,
        )
        return meta.origin, _forwarded(meta, ack)

    def _taken(self, delivered: str, label: str) -> EntryMeta | None:
        """The signal delivered with this id if it waits for ``label``, which it then has got."""
        forwarder = self._forwarders.get(delivered)
        if forwarder is None or label not in forwarder.labels:
            return None
        forwarder.labels.discard(label)
        if not forwarder.labels:
            del self._forwarders[delivered]
        return forwarder.meta


def _forwarded(meta: EntryMeta, ack: Acknowledgement) -> Acknowledgement:
    """A subscriber's ack as the request sees it: with the request's own correlation-id."""
    headers = {
        "correlation-id": meta.correlation_id,
        **{name: value for name, value in ack.headers.items() if name not in _NOT_FORWARDED},
        "response-required": False,
    }
    return Acknowledgement(
        ack.label, meta.thing_id, meta.correlation_id, ack.status, ack.payload, headers
    )
