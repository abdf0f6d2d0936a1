"""Envelopes and topics: spec acks-and-http 5 and 7."""

from __future__ import annotations

import pytest

from acks.envelopes import error_envelope, event_envelope
from acks.errors import CATALOGUE, GatewayError, error
from acks.journal import EntryMeta, shard_of, twin_key
from acks.protocol import read_ack, read_headers, read_response, read_topic
from acks.topic import parse_topic

META = EntryMeta(
    "ns:n", "modified", "/attributes/foo", 5, "2026-01-01T10:00:00.123Z", "c", ("my-ack",), "node",
    0, ("nginx:ditto",),
)  # fmt: skip


def test_event_of_the_specification() -> None:
    envelope = event_envelope(META, {"ditto-originator": "nginx:ditto"}, 42, ("my-ack",), "c")
    assert envelope == {
        "topic": "ns/n/things/twin/events/modified",
        "headers": {
            "correlation-id": "c",
            "requested-acks": ("my-ack",),
            "response-required": False,
            "entity-revision": 5,
            "ditto-originator": "nginx:ditto",
            "content-type": "application/json",
        },
        "path": "/attributes/foo",
        "value": 42,
        "revision": 5,
        "timestamp": "2026-01-01T10:00:00.123Z",
    }
    assert list(envelope) == ["topic", "headers", "path", "value", "revision", "timestamp"]


def test_event_without_value_or_acks() -> None:
    envelope = event_envelope(META, {}, None, None, "c#0")
    assert "value" not in envelope
    assert "requested-acks" not in envelope["headers"]
    assert "content-type" not in envelope["headers"]
    assert envelope["headers"]["correlation-id"] == "c#0"


def test_journal_meta_round_trip() -> None:
    assert EntryMeta.from_json(META.to_json()) == META


def test_shards_are_stable() -> None:
    assert [shard_of(f"org.example:lamp-{i}", 8) for i in range(6)] == [7, 1, 3, 5, 6, 0]
    assert twin_key("ackgate", 3, "ns:n") == "ackgate:{s3}:twin:ns:n"


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ("", "The topic path has no namespace part."),
        ("ns", "The topic path has no entity name part."),
        ("ns/n", "The topic path has no group part."),
        ("ns/n/boats", "Group name <boats> is unknown."),
        ("ns/n/things", "The topic path has no channel part."),
        ("ns/n/things/dead", "Channel name <dead> is unknown."),
        ("ns/n/things/twin", "The topic path has no criterion part."),
        ("ns/n/things/twin/songs", "Criterion name <songs> is unknown."),
        ("ns/n/things/twin/commands", "The topic path has no action part."),
        ("ns/n/things/twin/commands/sing", "Action name <sing> is unknown."),
    ],
)
def test_topics_that_are_none(topic: str, reason: str) -> None:
    with pytest.raises(GatewayError) as caught:
        parse_topic(topic)
    assert caught.value.code == "protocoladapter:unknown.topicpath"
    assert caught.value.message == f"The topic path '{topic}' is not supported."
    assert caught.value.description == reason


def test_topics() -> None:
    ack = parse_topic("ns/n/things/twin/acks/my:ack")
    assert (ack.thing_id, ack.criterion, ack.action) == ("ns:n", "acks", "my:ack")
    message = parse_topic("ns/n/things/live/messages/a/b")
    assert (message.channel, message.action) == ("live", "a/b")
    assert parse_topic("ns/n/policies/commands/create").channel == "none"


def envelope(label: str = "my:ack", **fields: object) -> dict[str, object]:
    base = {
        "topic": f"ns/n/things/twin/acks/{label}",
        "headers": {"Correlation-Id": "c", "x-y": "z", "gone": None},
        "path": "/",
        "value": {"any": "json"},
        "status": 202,
    }
    return {**base, **fields}


def test_ack_is_read() -> None:
    frame = envelope()
    ack = read_ack(frame, read_topic(frame), frozenset({"my:ack"}))
    assert (ack.label, ack.thing_id, ack.correlation_id) == ("my:ack", "ns:n", "c")
    assert (ack.status, ack.payload, dict(ack.headers)) == (202, {"any": "json"}, {"x-y": "z"})


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (envelope(headers=5), "json.format.invalid"),
        (envelope(status="200"), "protocoladapter:unknown.topicpath"),
        (envelope(status=True), "protocoladapter:unknown.topicpath"),
        (envelope(status=99), "protocoladapter:unknown.topicpath"),
        (envelope(status=600), "protocoladapter:unknown.topicpath"),
        (envelope("x"), "acknowledgement:label.invalid"),
        (envelope("twin-persisted"), "acknowledgement:ditto.acklabel.forbidden"),
        (envelope("other:ack"), "acknowledgement:label.not.declared"),
        ({"topic": "ns/n/things/twin/acks", "status": 200}, "protocoladapter:unknown.topicpath"),
    ],
)
def test_acks_that_are_refused(frame: dict[str, object], code: str) -> None:
    # A built-in label stays forbidden for somebody who has declared it.
    declared = frozenset({"my:ack", "twin-persisted"})
    with pytest.raises(GatewayError) as caught:
        read_ack(frame, read_topic(frame), declared)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (5, "json.format.invalid"),
        ({}, "json.field.missing"),
        ({"topic": 5}, "json.format.invalid"),
        ({"topic": "x"}, "protocoladapter:unknown.topicpath"),
    ],
)
def test_frames_without_a_topic(frame: object, code: str) -> None:
    with pytest.raises(GatewayError) as caught:
        read_topic(frame)
    assert caught.value.code == code


def test_error_envelope_of_the_specification() -> None:
    problem = error("acknowledgement:label.not.declared", label="x-ack")
    assert error_envelope(problem, "c") == {
        "topic": "unknown/unknown/things/twin/errors",
        "headers": {
            "correlation-id": "c",
            "response-required": False,
            "content-type": "application/json",
        },
        "path": "/",
        "value": {
            "status": 400,
            "error": "acknowledgement:label.not.declared",
            "message": "Cannot send acknowledgement with label <x-ack>, which is not declared.",
            "description": "Each connection may only send acknowledgements whose label matches "
            "one declared for the connection.",
        },
        "status": 400,
    }
    assert error_envelope(problem, "c", "ns:n")["topic"] == "ns/n/things/twin/errors"


SENT_ALONG = {
    "Correlation-Id": "c", "X-Mine": "1", "x-number": 5, "x-object": {"a": [1]}, "x-none": None,
    "Content-Type": "text/plain", "timeout": "5s", "location": "l", "traceparent": "t",
    "etag": '"e"', "entity-revision": 3, "ditto-originator": "o", "ditto-weak-ack": True,
    "if-match": '"a"', "authorization": "a", "ditto-auth-context": "x", "cache-control": "x",
    "requested-acks": ["abc"], "response-required": False,
}  # fmt: skip


def test_headers_of_acks_and_responses_that_their_requester_sees() -> None:
    seen = {
        "X-Mine": "1",
        "x-number": "5",
        "x-object": '{"a":[1]}',
        "content-type": "text/plain",
        "timeout": "5s",
        "location": "l",
        "traceparent": "t",
    }
    frame = envelope(headers=SENT_ALONG)
    ack = read_ack(frame, read_topic(frame), frozenset({"my:ack"}))
    assert (ack.correlation_id, dict(ack.headers)) == ("c", seen)
    frame = {**frame, "topic": "ns/n/things/live/commands/modify"}
    response = read_response(frame, read_topic(frame))
    assert (response.correlation_id, dict(response.headers)) == ("c", seen)


@pytest.mark.parametrize(
    ("headers", "code", "text"),
    [
        ({"response-required": 5}, "header.invalid", "is not a valid boolean."),
        ({"Timeout": "1a"}, "timeout.invalid", 'For input string: "1a"'),
        ({"requested-acks": "abc,def"}, "header.invalid", "is not a valid JSON array."),
        ({"requested-acks": 5}, "header.invalid", "is not a valid JSON array."),
        ({"channel": "alive"}, "header.invalid", "'channel'"),
        ({"if-match": "a"}, "header.invalid", "<a>"),
    ],
)
@pytest.mark.parametrize("topic", ["twin/acks/a?", "live/commands/modify", "twin/songs/sing"])
def test_bad_headers_are_told_before_anything_else_of_an_ack(
    headers: dict[str, object], code: str, text: str, topic: str
) -> None:
    """5.4: headers, then the topic, the status, the label."""
    sent = {"correlation-id": "c", **headers}
    frame = {"topic": f"ns/n/things/{topic}", "headers": sent, "status": 99}

    def read() -> None:
        found = read_topic(frame)
        if found.criterion == "acks":
            read_ack(frame, found, frozenset())
        else:
            read_response(frame, found)

    with pytest.raises(GatewayError) as caught:
        read()
    assert caught.value.code == code
    assert text in caught.value.message


def test_header_names_are_read_without_case() -> None:
    assert read_headers({"headers": {"A-b": 1, "C": None}}) == {"a-b": 1}
    assert read_headers({}) == {}


def test_catalogue_is_consistent() -> None:
    for code, kind in CATALOGUE.items():
        assert kind.code == code
        assert 400 <= kind.status <= 599 or kind.status == 304
        assert kind.retryable == (kind.status in (408, 424, 429) or kind.status >= 500)
    with pytest.raises(KeyError):
        error("no:such.error")
