"""The vectors about what reaches a session: filters, partial reads, ack requests, weak acks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from acks.audience import readable, rights
from acks.document import format_pointer, parse_pointer
from acks.envelopes import WEAK_UNSUBSCRIBED
from acks.headers import visible_acks
from acks.journal import COMMAND, EVENT, LIVE_EVENT, MESSAGE, EntryMeta
from acks.labels import custom
from acks.resources import ABSENT
from acks.rql import EVENT_PREFIXES, parse_checked
from acks.signals import Acknowledgement
from acks.topic import parse_topic
from app.session import Session, Subscription
from app.sessions import Sessions
from tests.vectors import load

Json = Any
KINDS = {"messages": MESSAGE, "commands": COMMAND, "events": LIVE_EVENT}


def meta(
    topic: str, path: str, requested: tuple[str, ...] = (), readers: tuple[str, ...] = ("s",)
) -> EntryMeta:
    """The entry of a signal with this topic."""
    of = parse_topic(topic)
    kind = EVENT if of.channel == "twin" else KINDS[of.criterion]
    return EntryMeta(
        of.thing_id, of.action, path, 1, "t", "c", custom(requested), "node", 0, readers, kind
    )


class Subscriber:
    """A session of the subject ``s`` in a process of its own."""

    def __init__(self, declared: tuple[str, ...] = ()) -> None:
        self.acks: list[Acknowledgement] = []
        self.sessions = Sessions(lambda _, ack: self.acks.append(ack), lambda: True)
        self.session = Session(("s",), declared, outbox_bytes=100_000)
        self.sessions.add(self.session)

    async def got(self, entry: EntryMeta, value: Json = ABSENT) -> list[Json]:
        """The envelopes that come of an entry."""
        fields = [b"m", json.dumps(entry.to_json()).encode(), b"h", b"{}"]
        if value is not ABSENT:
            fields += [b"v", json.dumps(value).encode()]
        self.sessions.route(0, b"1-0", fields)
        self.session.put(b'"end"')
        return [json.loads(frame) for frame in await self.session.frames()][:-1]


@pytest.mark.parametrize(
    ("given", "expected"),
    # 005 asks for a field that the event lacks, before it is known.
    [p for p in load("rql.event_filter") if p.id != "rql-event-filter-005"],
)
async def test_event_filter(given: Json, expected: Json) -> None:
    signal = given["signal"]
    text = given["filter"]
    predicate = None if text is None else parse_checked(text, EVENT_PREFIXES)
    subscriber = Subscriber()
    entry = meta(signal["topic"], signal["path"])
    subscription = Subscription(frozenset(given.get("namespaces", ())), predicate)
    subscriber.sessions.subscribe(subscriber.session, subscription, entry.kind)
    got = await subscriber.got(entry, signal.get("value", ABSENT))
    assert [envelope["topic"] for envelope in got] == (
        [signal["topic"]] if expected["passes_prefilter"] else []
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    # Every session has a subject here.
    [p for p in load("partial_access.resolve") if p.values[0]["subscriber_subjects"]],
)
def test_partial_access(given: Json, expected: Json) -> None:
    """Which paths a session may read, by the rules that an entry carries."""
    header = given["partial_access_header"] or {"subjects": [], "paths": {}}
    grants: dict[str, list[str]] = {subject: [] for subject in header["subjects"]}
    for path, indices in header["paths"].items():
        for index in indices:
            grants[header["subjects"][index]].append(f"/{path}")
    for subject in given["readGranted"]:
        grants.setdefault(subject, ["/"])
    subjects = tuple(given["subscriber_subjects"])
    receives = not set(subjects).isdisjoint(given["readGranted"])
    assert receives == (expected["access"] != "none")
    if not receives:
        return
    policy = rights(tuple(((name,), tuple(paths), ()) for name, paths in grants.items()))
    every = {parse_pointer(path) for paths in grants.values() for path in paths} - {()}
    found = {
        format_pointer(path) for path in every if readable(policy, subjects, path, 1) is not ABSENT
    }
    whole = readable(policy, subjects, (), {"x": 1}) == {"x": 1}
    assert whole == (expected["access"] == "unrestricted")
    if not whole:
        assert found == set(expected["paths"])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        p
        for p in load("header.requested_acks.write_external")
        # Other headers pass as they are: tests of envelopes.
        if p.values[0]["header"] == "requested-acks"
    ],
)
def test_requested_acks_on_their_way_out(given: Json, expected: str | None) -> None:
    requested = json.loads(given["value"] or "[]")
    labels = custom(tuple(label for label in requested if label))
    shown = visible_acks(labels, frozenset(labels))
    assert (None if shown is None else json.dumps(shown, separators=(",", ":"))) == expected


async def test_ws_session_006() -> None:
    [(given, expected)] = [p.values for p in load("ws.session") if p.id == "ws-session-006"]
    subscriber = Subscriber(tuple(given["session_declared"]))
    subscriber.sessions.subscribe(subscriber.session, Subscription())
    entry = meta("ns/t/things/twin/events/modified", "/", tuple(given["event_requested_acks"]))
    [event] = await subscriber.got(entry, {})
    assert event["headers"]["requested-acks"] == expected["requested-acks_in_delivered_event"]


async def test_ws_session_005() -> None:
    [(given, expected)] = [p.values for p in load("ws.session") if p.id == "ws-session-005"]
    assert (expected["event_delivered_to_same_session"], "no weak ack" in expected["result"]) == (
        False,
        True,
    )
    subscriber = Subscriber(tuple(given["requested-acks"]))
    subscriber.sessions.subscribe(subscriber.session, Subscription())
    entry = meta("ns/t/things/twin/events/modified", "/", tuple(given["requested-acks"]))
    own = entry._replace(session=subscriber.session.id)
    assert await subscriber.got(own, {}) == []
    assert subscriber.acks == []
    assert len(await subscriber.got(entry, {})) == 1


@pytest.mark.parametrize(("given", "expected"), load("ack.weak"))
async def test_weak(given: Json, expected: Json) -> None:
    requested = tuple(given["requested-acks"])
    if "session_declared" in given:
        subscriber = Subscriber(tuple(given["session_declared"]))
        subscriber.sessions.subscribe(subscriber.session, Subscription())
        await subscriber.got(meta("ns/t/things/twin/events/modified", "/", requested), {})
        for label in given["session_declared"]:
            routed = subscriber.session.forward(Acknowledgement(label, "ns:t", "c", 200))
            assert (routed is not None) == expected["forwarder_started"]
        return
    assert not given["subscriber_authorized_for_signal"]
    subscriber = Subscriber(tuple(given["declared_in_cluster"]))
    subscriber.sessions.subscribe(subscriber.session, Subscription())
    topic = "ns/t/things/twin/events/modified"
    assert await subscriber.got(meta(topic, "/", requested, ("other",)), {}) == []
    assert [ack.label for ack in subscriber.acks] == expected["weak_acks"]
    assert all(ack.payload == WEAK_UNSUBSCRIBED for ack in subscriber.acks)
    assert not set(expected["none_for"]) & {ack.label for ack in subscriber.acks}
