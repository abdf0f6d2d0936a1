"""Signals on their way out: live events, extra fields, what was delivered before."""

from __future__ import annotations

from acks.envelopes import event_envelope, live_envelope, topic_of
from acks.journal import COMMAND, EVENT, LIVE_EVENT, MESSAGE, EntryMeta

META = EntryMeta(
    "ns:n", "modified", "/attributes/foo", 5, "2026-01-01T10:00:00.123Z", "c", ("my-ack",), "node",
    0, ("nginx:ditto",),
)  # fmt: skip
LIVE = META._replace(kind=LIVE_EVENT, revision=0)


def test_extra_fields_stand_beside_the_value() -> None:
    extra = {"attributes": {"type": "lamp"}}
    envelope = event_envelope(META, {}, 42, None, "c", extra)
    assert list(envelope) == [
        "topic", "headers", "path", "value", "extra", "revision", "timestamp",
    ]  # fmt: skip
    assert envelope["extra"] == extra
    assert "extra" not in event_envelope(META, {}, 42, None, "c")


def test_what_is_delivered_again_says_so() -> None:
    again = event_envelope(META, {}, 42, ("my-ack",), "c", None, True)
    assert again["headers"]["ackgate-redelivered"] is True
    assert "ackgate-redelivered" not in event_envelope(META, {}, 42, ("my-ack",), "c")["headers"]
    message = live_envelope(LIVE._replace(kind=MESSAGE), {}, "hi", None, "c", None, True)
    assert message["headers"]["ackgate-redelivered"] is True


def test_a_live_event() -> None:
    headers = {"response-required": False, "ditto-originator": "nginx:ditto"}
    assert live_envelope(LIVE, headers, 42, ("my-ack",), "c#0", {"policyId": "ns:n"}) == {
        "topic": "ns/n/things/live/events/modified",
        "headers": {
            "correlation-id": "c#0",
            "response-required": False,
            "ditto-originator": "nginx:ditto",
            "requested-acks": ("my-ack",),
            "content-type": "application/json",
        },
        "path": "/attributes/foo",
        "value": 42,
        "extra": {"policyId": "ns:n"},
        "timestamp": "2026-01-01T10:00:00.123Z",
    }


def test_a_live_event_with_a_revision_or_without_a_value() -> None:
    assert live_envelope(LIVE._replace(revision=7), {}, 42, None, "c")["revision"] == 7
    merged = live_envelope(LIVE._replace(action="merged"), {}, {"a": None}, None, "c")
    assert merged["headers"]["content-type"] == "application/merge-patch+json"
    given = live_envelope(LIVE, {"content-type": "application/x"}, 42, None, "c")
    assert given["headers"]["content-type"] == "application/x"
    deleted = live_envelope(LIVE._replace(action="deleted"), {}, None, None, "c")
    assert "content-type" not in deleted["headers"]
    assert "value" not in deleted


def test_topics() -> None:
    topics = {kind: topic_of(META._replace(kind=kind)) for kind in (EVENT, LIVE_EVENT, COMMAND)}
    assert topics == {
        EVENT: "ns/n/things/twin/events/modified",
        LIVE_EVENT: "ns/n/things/live/events/modified",
        COMMAND: "ns/n/things/live/commands/modified",
    }
    message = META._replace(kind=MESSAGE, action="a/b")
    assert topic_of(message) == "ns/n/things/live/messages/a/b"
