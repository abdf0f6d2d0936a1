"""A connection's crew: the sessions of its targets, which share what the connection declares.

Sources: spec websocket-... 4.2 (end), 4.5; acks-and-http 6.

A label that a target issues is that target's alone: if it does not get a signal, the label is
acknowledged weakly. A label that the connection's sources declare is everybody's: only if no target
gets the signal, there is a weak ack. What the connection itself has sent comes back to none of its
targets, and is not acknowledged for them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any
from uuid import uuid4

import orjson
from typing_extensions import override

from acks.envelopes import WEAK_DROPPED, WEAK_UNSUBSCRIBED, Envelope
from acks.errors import GatewayError
from acks.fields import Selector, parse_extra_fields
from acks.journal import ANNOUNCEMENT, COMMAND, EVENT, LIVE_EVENT, MESSAGE, EntryMeta
from acks.labels import custom
from acks.live import LiveResponse
from acks.rql import EVENT_PREFIXES, parse_checked
from acks.signals import Acknowledgement
from app.offers import OnVerdict, Verdict
from app.session import Session, Subscription
from connections.model import Connection, Target, Topic

Routed = tuple[str, Acknowledgement]
"""Where an ack goes: (node, ack with the request's correlation-id)."""
Conclude = Callable[[str, Verdict, GatewayError | None], None]
"""Acknowledges for the crew: (label, what became of the signal, why it failed if it did)."""

RELAYED = "connection#ack"
"""Name, where a label would stand, of an ack on its way to its connection's crew elsewhere."""
CONNECTION_ANNOUNCEMENTS = "_/_/connections/announcements"
KINDS = {
    "_/_/things/twin/events": EVENT,
    "_/_/things/live/messages": MESSAGE,
    "_/_/things/live/events": LIVE_EVENT,
    "_/_/things/live/commands": COMMAND,
    "_/_/policies/announcements": ANNOUNCEMENT,
}
"""Kinds of journal entries by the topics of targets; connection announcements are not in there."""
_FAILED = (
    "Acknowledgement was issued automatically as failed ack, because the signal enrichment failed: "
)
_NO_TARGET = -1


def origin_of(connection_id: str) -> str:
    """What signals of a connection have as their session."""
    return f"connection:{connection_id}"


class TargetSession(Session):
    """The session of a target.

    What it has no room for is dropped and counted: a broker does not come back to read it.
    """

    def __init__(self, subjects: tuple[str, ...], *, outbox_bytes: int) -> None:
        super().__init__(subjects, (), outbox_bytes=outbox_bytes)
        self.issued: str | None = None
        self.dropped = 0
        self.failure: GatewayError | None = None  # of the last signal that failed
        self.on_filtered: Callable[[], None] | None = None

    @override
    def overflow(self) -> None:
        self.dropped += 1

    @override
    def filtered(self) -> None:
        if self.on_filtered is not None:
            self.on_filtered()

    @override
    def failed(self, meta: EntryMeta, problem: GatewayError) -> None:
        self.failure = problem

    def may_issue(self, labels: frozenset[str]) -> None:
        """From now on these labels are shown to it, and taken from it; none: not any more."""
        self.declared = labels

    def delivered(self, correlation_id: str) -> EntryMeta | None:
        """The signal that was delivered with this id, and whose acks are awaited."""
        forwarder = self._forwarders.get(correlation_id)
        return None if forwarder is None else forwarder.meta


Judge = Callable[[TargetSession], OnVerdict]


class Crew:
    """The sessions of a connection's targets by their index; ``outbox_bytes`` bounds each of them.

    ``labels`` is what is claimed for all of them together; :attr:`owns` says whether it is theirs.
    Raises what the parsers of filters and fields do, for a connection that was not validated.
    """

    def __init__(self, connection: Connection, *, outbox_bytes: int) -> None:
        self.id = uuid4().hex
        self.connection_id = connection.id
        self.origin = origin_of(connection.id)
        self.owns = False
        self.sessions: dict[int, TargetSession] = {}
        self.wants: dict[int, dict[str, Subscription]] = {}
        self._told: list[TargetSession] = []  # want to know of the connection itself
        self._open = False  # as was announced last
        self._issuers: dict[str, TargetSession] = {}
        for target in connection.targets:
            self._add(target, outbox_bytes)
        declared = (label for source in connection.sources for label in source.declared)
        self.shared = frozenset(custom(declared)).difference(self._issuers)
        self.labels = self.shared.union(self._issuers)
        if not self.sessions and self.labels:
            # Who declares labels is asked for acks, even if it wants no signals (acks-and-http 6).
            self.sessions[_NO_TARGET] = TargetSession((), outbox_bytes=outbox_bytes)
            self.wants[_NO_TARGET] = {}

    def _add(self, target: Target, outbox_bytes: int) -> None:
        session = TargetSession(target.subjects, outbox_bytes=outbox_bytes)
        self.sessions[target.index] = session
        self.wants[target.index] = subscriptions_of(target)
        if any(topic.path == CONNECTION_ANNOUNCEMENTS for topic in target.topics):
            self._told.append(session)
        for label in custom(() if target.issued is None else (target.issued,)):
            session.issued = label
            self._issuers[label] = session

    def claimed(self) -> None:
        """The labels are ours."""
        self.owns = True
        for session in self.sessions.values():
            issued = () if session.issued is None else (session.issued,)
            session.may_issue(self.shared | frozenset(issued))

    def lost(self) -> None:
        """The labels are not ours any more."""
        self.owns = False
        for session in self.sessions.values():
            session.may_issue(frozenset())

    def announce(self, is_open: bool, moment: str) -> None:
        """Tell the targets that want it, if the connection has been opened or closed."""
        if is_open is self._open:
            return
        self._open = is_open
        if self._told:
            frame = orjson.dumps(_announcement(self.connection_id, is_open, moment))
            for session in self._told:
                session.put(frame)

    # --- acks of the connection

    def forward(self, ack: Acknowledgement) -> Routed | None:
        """Where an ack of one of its sources goes; None if none of its targets waits for it."""
        for session in self._given(ack.correlation_id, ack.thing_id):
            routed = session.forward(ack)
            if routed is not None:
                return routed
        return None

    def answer(self, response: LiveResponse) -> Routed | None:
        """Where a response of one of its sources to a live signal goes, as :meth:`forward`."""
        for session in self._given(response.correlation_id, response.thing_id):
            routed = session.answer(response)
            if routed is not None:
                return routed
        return None

    def _given(self, correlation_id: str, thing_id: str) -> Iterable[TargetSession]:
        """The sessions that were given a signal with this id, those of this thing first.

        Each of them finds ids of its own for signals that have the same one.
        """
        found = [
            (meta.thing_id != thing_id, number, session)
            for number, session in self.sessions.items()
            if (meta := session.delivered(correlation_id)) is not None
        ]
        return [session for _, _, session in sorted(found, key=lambda one: one[:2])]

    # --- acks for the connection

    def judge(self, requested: Collection[str], conclude: Conclude) -> Judge:
        """Who is to be told what becomes of a signal that asks for these labels.

        It has to be told of each session once, now or later.
        """
        return _Judgement(self, requested, conclude).of


class _Judgement:
    """What becomes of one signal with each session, and the acks that follow from that."""

    __slots__ = ("_conclude", "_crew", "_left", "_requested", "_verdicts")

    def __init__(self, crew: Crew, requested: Collection[str], conclude: Conclude) -> None:
        self._crew = crew
        self._requested = requested
        self._conclude = conclude
        self._left = len(crew.sessions)
        self._verdicts: dict[Verdict, GatewayError | None] = {}

    def of(self, session: TargetSession) -> OnVerdict:
        """Takes the verdict about one session."""

        def decided(verdict: Verdict) -> None:
            failure = session.failure if verdict is Verdict.FAILED else None
            self._verdicts[verdict] = failure
            self._left -= 1
            if session.issued is not None and session.issued in self._requested:
                self._answer_for(session.issued, {verdict: failure})
            if not self._left:
                for label in self._requested:
                    if label in self._crew.shared:
                        self._answer_for(label, self._verdicts)

        return decided

    def _answer_for(self, label: str, verdicts: Mapping[Verdict, GatewayError | None]) -> None:
        """Acknowledge in the place of those who did not get it, unless one of them did.

        Nor if there was no room for it somewhere: there it was relevant.
        """
        if Verdict.DELIVERED in verdicts or Verdict.CLOSED in verdicts or not self._crew.owns:
            return
        for verdict in _BY_WEIGHT:
            if verdict in verdicts:
                self._conclude(label, verdict, verdicts[verdict])
                return


_BY_WEIGHT = (
    Verdict.FAILED,
    Verdict.FILTERED,
    Verdict.HIDDEN,
    Verdict.UNAUTHORIZED,
    Verdict.UNSUBSCRIBED,
)
"""Which verdict speaks for several targets that did not get a signal."""
WEAK = {
    Verdict.UNAUTHORIZED: WEAK_UNSUBSCRIBED,
    Verdict.UNSUBSCRIBED: WEAK_UNSUBSCRIBED,
    Verdict.FILTERED: WEAK_DROPPED,
    Verdict.HIDDEN: WEAK_DROPPED,
}
"""Payload of a crew's weak ack after a verdict (spec acks-and-http 6)."""


def failed_ack(
    meta: EntryMeta, label: str, problem: GatewayError, headers: dict[str, Any]
) -> Acknowledgement:
    """The ack for a signal that could not be enriched (spec acks-and-http 6)."""
    text = _FAILED + problem.message
    return Acknowledgement(label, meta.thing_id, meta.correlation_id, problem.status, text, headers)


def _announcement(connection_id: str, is_open: bool, moment: str) -> Envelope:
    """A connection announcement (spec websocket-... 4.1)."""
    what = "opened" if is_open else "closed"
    return {
        "topic": f"_/{connection_id}/connections/announcements/{what}",
        "headers": {
            "correlation-id": str(uuid4()),
            "response-required": False,
            "content-type": "application/json",
            "ditto-connection-id": connection_id,
        },
        "path": "/",
        "value": {f"{what}At": moment},
    }


# --- what a target wants -----------------------------------------------------------------------


def subscriptions_of(target: Target) -> dict[str, Subscription]:
    """What a target wants, by kind of journal entries; several topics of a kind become one.

    Raises ``rql.expression.invalid``, ``things:field.selection.invalid``.
    """
    by_kind: dict[str, list[Topic]] = {}
    for topic in target.topics:
        if topic.path in KINDS:
            by_kind.setdefault(KINDS[topic.path], []).append(topic)
    return {kind: _subscription(kind, topics) for kind, topics in by_kind.items()}


def _subscription(kind: str, topics: list[Topic]) -> Subscription:
    everywhere = any(not topic.namespaces for topic in topics)
    namespaces = frozenset() if everywhere else frozenset().union(*(t.namespaces for t in topics))
    if kind == ANNOUNCEMENT:
        return Subscription(namespaces)
    texts = [_filter_of(topic, alone=len(topics) == 1) for topic in topics]
    wanted = ",".join(texts)
    if len(texts) > 1:
        wanted = "" if "" in texts else f"or({wanted})"
    predicate = parse_checked(wanted, EVENT_PREFIXES) if wanted else None
    return Subscription(namespaces, predicate, _extra(topics), of_target=True)


def _filter_of(topic: Topic, *, alone: bool) -> str:
    """The filter of a topic, which names its namespaces if there are other topics of its kind."""
    if alone or not topic.namespaces:
        return topic.filter
    names = ",".join(f"'{name}'" for name in sorted(topic.namespaces))
    within = f"in(_namespace,{names})"
    return f"and({within},{topic.filter})" if topic.filter else within


def _extra(topics: list[Topic]) -> Selector | None:
    texts = [topic.extra_fields for topic in topics if topic.extra_fields]
    return parse_extra_fields(",".join(texts)) if texts else None
