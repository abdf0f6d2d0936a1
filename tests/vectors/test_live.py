"""The vectors about live signals, and about what is delivered to sessions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from acks.aggregator import Aggregator, combined_status
from acks.envelopes import WEAK_FILTERED, WEAK_UNSUBSCRIBED
from acks.errors import GatewayError
from acks.headers import AckOptions, Setter, aggregates
from acks.journal import ANNOUNCEMENT, COMMAND, EVENT, MESSAGE, EntryMeta
from acks.labels import custom
from acks.live import LiveResponse, awaited, mismatch, parse_channel, parse_timeout_strategy
from acks.rql import EVENT_PREFIXES, parse_checked
from acks.signals import Acknowledgement
from app.session import Session, Subscription
from app.sessions import Sessions
from tests.vectors import load

Json = Any
THING = "mynamespace:myname"
EVERYTHING = Subscription()


def entry(kind: str, requested: list[str], answered: bool = False) -> EntryMeta:
    """A journal entry; the node keeps no built-in labels in it."""
    labels = custom(requested)
    return EntryMeta(
        THING, "modify", "/", 1, "t", "c", labels, "node", 0, ("s",), kind, (), answered
    )


class Delivered:
    """One session to which journal entries are routed, and what it got and sent by itself."""

    def __init__(self, declared: list[str], subscription: Subscription | None = EVERYTHING) -> None:
        self.sent: list[tuple[str, Acknowledgement]] = []
        self.sessions = Sessions(lambda node, ack: self.sent.append((node, ack)), lambda: True)
        self.session = Session(("s",), declared, outbox_bytes=10_000)
        self.sessions.add(self.session)
        if subscription is not None:
            for kind in (EVENT, MESSAGE, COMMAND, ANNOUNCEMENT):
                self.sessions.subscribe(self.session, subscription, kind)

    def route(self, meta: EntryMeta) -> Json:
        """The envelope that the session gets of an entry, None if it gets none."""
        before = len(self.session._outbox)
        self.sessions.route(0, b"1-0", [b"m", json.dumps(meta.to_json()).encode(), b"h", b"{}"])
        frames = list(self.session._outbox)[before:]
        return json.loads(frames[0]) if frames else None

    def expects(self, label: str) -> bool:
        """Whether an ack or a response for ``c`` would be forwarded."""
        if label == "live-response":
            given = LiveResponse(THING, "errors", "", "/", "c", 200, None, {})
            return self.session.answer(given) is not None
        return self.session.forward(Acknowledgement(label, THING, "c", 200)) is not None


@pytest.mark.parametrize(("given", "expected"), load("live-response"))
def test_live_response(given: Json, expected: Json) -> None:
    aggregator = Aggregator(THING, "c", ("live-response",), 3000)
    meta = entry(COMMAND, [], True)._replace(action="delete")
    for what in given["received"]:
        right = "right" in what
        thing_id = THING if right else "OTHER"
        got = LiveResponse(thing_id, "commands", "delete", "/", "c", 204, None, {})
        reason = mismatch(got, meta)
        assert (reason is None) == right
        if reason is None:
            aggregator.receive(Acknowledgement("live-response", THING, "c", 204))
        else:
            aggregator.refuse(reason)
    outcome = aggregator.outcome or aggregator.expire()
    assert outcome is not None
    if "result" in expected:
        assert (outcome.error, outcome.status) == (None, 204)
        return
    assert outcome.error is not None
    assert (outcome.status, outcome.error.code) == (expected["status"], expected["error"])
    assert outcome.error.description == expected["description"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        p
        for p in load("weak-ack")
        # Connections are not there yet.
        if p.values[0].get("declaredBy") != "connection target"
    ],
)
def test_weak_ack(given: Json, expected: Json) -> None:
    if "aggregate" in given:
        assert combined_status([a["status"] for a in given["aggregate"]]) == expected["status"]
    elif "ditto-weak-ack header" in given:
        text = given["ditto-weak-ack header"]
        headers = {} if text is None else {"ditto-weak-ack": text}
        ack = Acknowledgement("my-ack", THING, "c", 200, None, headers)
        assert ack.weak == expected["isWeak"]
    else:
        filtered = "s1 filter" in given
        never = parse_checked("eq(topic:action,'never')", EVENT_PREFIXES)
        delivered = Delivered(given["requested"], Subscription(filter=never) if filtered else None)
        for kind in (EVENT, MESSAGE, COMMAND):
            assert delivered.route(entry(kind, given["requested"])) is None
        assert len(delivered.sent) == 3
        for node, ack in delivered.sent:
            wanted = expected["ack"]
            assert (node, ack.label, ack.status) == ("node", wanted["label"], wanted["status"])
            assert ack.payload == wanted["payload"]
            assert ack.payload == (WEAK_FILTERED if filtered else WEAK_UNSUBSCRIBED)
            assert ack.weak


_FORWARDED = [p for p in load("ws-delivery") if "forwarderStarted" in p.values[1]]
_KINDS = {
    "twin event": EVENT,
    "message": MESSAGE,
    "live command": COMMAND,
    "policy announcement": ANNOUNCEMENT,
}


@pytest.mark.parametrize(("given", "expected"), _FORWARDED)
def test_forwarder(given: Json, expected: Json) -> None:
    signal = given.get("signal", "twin event")
    requested = given.get("requested-acks") or given.get("event requested-acks") or []
    kind = _KINDS[signal.split(",")[0]]
    delivered = Delivered(["my-ack"])
    delivered.route(entry(kind, requested, answered="response-required true" in signal))
    started = delivered.expects("my-ack") or delivered.expects("live-response")
    assert started == expected["forwarderStarted"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [p for p in load("ws-delivery") if "delivered requested-acks" in p.values[1]],
)
@pytest.mark.parametrize("kind", [EVENT, MESSAGE, COMMAND])
def test_delivered_acks(given: Json, expected: Json, kind: str) -> None:
    shown = Delivered(given["declared"]).route(entry(kind, given["event requested-acks"]))
    assert shown["headers"]["requested-acks"] == expected["delivered requested-acks"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [p for p in load("ws-delivery") if "second delivered correlation-id" in p.values[1]],
)
def test_same_correlation_id_twice(given: Json, expected: Json) -> None:
    delivered = Delivered(given["declared"])
    first = delivered.route(entry(EVENT, given["declared"]))
    second = delivered.route(entry(MESSAGE, [], answered=True))
    assert first["headers"]["correlation-id"] == given["correlation-id"]
    assert second["headers"]["correlation-id"] == expected["second delivered correlation-id"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [p for p in load("channel-start") if p.values[0]["command"].split()[0] in ("live", "message")],
)
def test_channel_start(given: Json, expected: Json) -> None:
    acks = tuple(given["requested-acks (after defaulting)"])
    started = aggregates(Setter.LIVE, acks)
    assert started == expected["aggregationStarted"]
    # Without an aggregate the one response is waited for.
    assert awaited(AckOptions(acks, True, 1000)) == (acks if started else ("live-response",))


_HEADERS = {"channel": parse_channel, "live-channel-timeout-strategy": parse_timeout_strategy}


@pytest.mark.parametrize(
    ("given", "expected"),
    [p for p in load("header-validation") if set(p.values[0]) & set(_HEADERS)],
)
def test_headers(given: Json, expected: Json) -> None:
    ((name, text),) = given.items()
    if expected["valid"]:
        assert _HEADERS[name](text)
        return
    with pytest.raises(GatewayError) as caught:
        _HEADERS[name](text)
    problem = caught.value
    assert (problem.status, problem.code) == (expected["status"], expected["error"])
    assert problem.message == expected.get("message", problem.message)
    assert problem.description == expected["description"]
