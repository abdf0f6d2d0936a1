"""The live channel's rules: what is awaited, which responses count, what their senders get."""

from __future__ import annotations

from typing import Any

import pytest

from acks.aggregator import Aggregator, Outcome, http_answer
from acks.envelopes import live_envelope
from acks.errors import GatewayError
from acks.headers import AckOptions, Setter, complete
from acks.journal import COMMAND, MESSAGE, EntryMeta
from acks.live import (
    Address,
    LiveResponse,
    awaited,
    is_claim,
    is_smart,
    kind_of,
    mismatch,
    parse_address,
    parse_channel,
    parse_timeout_strategy,
    resources_of,
)
from acks.pending import Pending
from acks.policy import READ, Policy, split_resource
from acks.protocol import is_response, read_response, read_topic
from acks.signals import Acknowledgement, Live, Response

OPTIONS = AckOptions(("live-response",), True, 1000)


def live(
    path: str = "/inbox/messages/ask", action: str = "ask", criterion: str = "messages"
) -> Live:
    return Live("ns:n", criterion, action, path, "hi", "c", OPTIONS, ("nginx:ditto",))


def meta(kind: str = MESSAGE, action: str = "ask", path: str = "/inbox/messages/ask") -> EntryMeta:
    return EntryMeta(
        "ns:n", action, path, 0, "2026-01-01T10:00:00.123Z", "c", ("my-ack",), "node", 9,
        ("nginx:ditto",), kind, ("nginx:out",), True, "",
    )  # fmt: skip


def response(**facts: Any) -> LiveResponse:
    known: dict[str, Any] = {
        "thing_id": "ns:n", "criterion": "messages", "action": "ask",
        "path": "/inbox/messages/ask", "correlation_id": "c", "status": 200, "payload": "ho",
        "headers": {},
    }  # fmt: skip
    return LiveResponse(**{**known, **facts})


# --- what is awaited


@pytest.mark.parametrize(
    ("requested", "required", "timeout_ms", "labels"),
    [
        (None, None, None, ("live-response",)),
        (None, False, None, ()),
        (None, None, 0, ()),
        ((), None, None, ("live-response",)),
        ((), False, None, ()),
        (("my-ack",), None, None, ("my-ack", "live-response")),
        (("my-ack",), False, None, ("my-ack",)),
        (("live-response",), False, None, ()),
        (("twin-persisted", "my-ack"), None, None, ("my-ack",)),
        (("twin-persisted",), None, None, ("live-response",)),
    ],
)
def test_awaited_labels(
    requested: tuple[str, ...] | None,
    required: bool | None,
    timeout_ms: int | None,
    labels: tuple[str, ...],
) -> None:
    options = complete(Setter.LIVE, requested, required, timeout_ms, "ditto")
    assert awaited(options) == labels


def test_entry_of_a_live_signal_round_trip() -> None:
    entry = meta()
    assert EntryMeta.from_json(entry.to_json()) == entry
    assert {"k", "x", "w", "f"} < set(entry.to_json())
    assert not {"k", "x", "w", "f"} & set(entry._replace(kind="").to_json())


# --- addresses


def test_paths_and_resources_of_messages() -> None:
    assert Address("a:b", "inbox", "a/b", None).path == "/inbox/messages/a/b"
    lamp = Address("a:b", "outbox", "ask", "lamp")
    assert lamp.path == "/features/lamp/outbox/messages/ask"
    escaped = Address("a:b", "inbox", "a~1b/c", "a/b~c")
    assert escaped.path == "/features/a~1b~0c/inbox/messages/a~1b/c"
    for address in (lamp, escaped):
        assert parse_address("a:b", address.path) == address
    assert resources_of(live()) == ("message", (("inbox", "messages", "ask"),))
    command = live("/attributes/a~1b", "modify", "commands")
    assert resources_of(command) == ("thing", (("attributes", "a/b"),))
    assert resources_of(live("/", "delete", "commands")) == ("thing", ((),))
    assert (kind_of(live()), kind_of(command)) == (MESSAGE, COMMAND)


@pytest.mark.parametrize(
    ("path", "readings"),
    [
        ("/inbox/messages/a/b", ["inbox messages a b"]),
        ("/inbox/messages//a//b/", ["inbox messages a b"]),
        ("/inbox/messages/a~b", ["inbox messages a~b"]),
        ("/inbox/messages/a~1b", ["inbox messages a b", "inbox messages a~1b"]),
        ("/features/a~1b/outbox/messages/x/y", ["features a/b outbox messages x y"]),
        ("/features/q~1inbox~1messages~1z/inbox/messages/w",
         ["features q/inbox/messages/z inbox messages w"]),
    ],
)  # fmt: skip
def test_a_subject_with_a_tilde_has_two_readings(path: str, readings: list[str]) -> None:
    kind, found = resources_of(live(path))
    assert (kind, [" ".join(one) for one in found]) == ("message", readings)


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("message:/", ()),
        ("message:/inbox/messages/a~1b", ("inbox", "messages", "a", "b")),
        ("message:/inbox/messages/a~0b", ("inbox", "messages", "a~b")),
        ("message:/inbox/messages/a~01b", ("inbox", "messages", "a~1b")),
        ("message:/inbox/messages/~1", ("inbox", "messages", "/")),
        ("message:/features/a~1b", ("features", "a/b")),
        ("message:/features/a~1b/inbox/messages/x~1y",
         ("features", "a/b", "inbox", "messages", "x", "y")),
    ],
)  # fmt: skip
def test_rules_for_messages(key: str, path: tuple[str, ...]) -> None:
    assert split_resource(key) == ("message", path)


def test_only_the_claim_of_the_inbox_needs_no_permission() -> None:
    assert is_claim(live("/inbox/messages/claim", "claim"))
    assert not is_claim(live("/outbox/messages/claim", "claim"))
    assert not is_claim(live("/features/f/inbox/messages/claim", "claim"))
    assert not is_claim(live("/inbox/messages/claim", "modify", "commands"))


# --- envelopes


def test_message_of_the_specification() -> None:
    headers = {"content-type": "text/plain", "timeout": "60", "response-required": True}
    envelope = live_envelope(meta(), headers, "hi", ("my-ack",), "c#0")
    assert envelope == {
        "topic": "ns/n/things/live/messages/ask",
        "headers": {"correlation-id": "c#0", **headers, "requested-acks": ("my-ack",)},
        "path": "/inbox/messages/ask",
        "value": "hi",
    }


def test_live_retrieve_without_value() -> None:
    entry = meta(COMMAND, "retrieve", "/")._replace(fields="thingId,attributes(a)")
    assert live_envelope(entry, {}, None, None, "c") == {
        "topic": "ns/n/things/live/commands/retrieve",
        "headers": {"correlation-id": "c"},
        "path": "/",
        "fields": "thingId,attributes(a)",
    }


def frame(topic: str = "ns/n/things/live/messages/ask", **fields: Any) -> dict[str, Any]:
    headers = {"Correlation-Id": "c", "content-type": "text/plain"}
    return {"topic": topic, "headers": headers, "path": "/inbox/messages/ask", **fields}


def test_a_response_is_read() -> None:
    envelope = frame(value="ho", status=200)
    assert is_response(envelope, read_topic(envelope))
    assert read_response(envelope, read_topic(envelope)) == response(
        headers={"content-type": "text/plain"}
    )


@pytest.mark.parametrize(
    "topic",
    [
        "ns/n/things/live/messages/ask",
        "ns/n/things/live/commands/modify",
        "ns/n/things/live/errors",
    ],
)
def test_what_is_a_response(topic: str) -> None:
    envelope = frame(topic, status=200)
    assert is_response(envelope, read_topic(envelope))
    assert not is_response(frame(topic), read_topic(envelope))


@pytest.mark.parametrize(
    "topic",
    [
        "ns/n/things/twin/commands/modify",
        "ns/n/things/live/acks/abc",
        "ns/n/things/live/events/created",
    ],
)
def test_what_is_no_response(topic: str) -> None:
    envelope = frame(topic, status=200)
    assert not is_response(envelope, read_topic(envelope))


@pytest.mark.parametrize("status", [None, "200", True, 99, 600, 200.0])
def test_a_response_without_a_status_is_refused(status: Any) -> None:
    envelope = frame(status=status)
    with pytest.raises(GatewayError) as caught:
        read_response(envelope, read_topic(envelope))
    assert caught.value.code == "protocoladapter:unknown.topicpath"


# --- which responses count


@pytest.mark.parametrize(
    ("facts", "fits"),
    [
        ({}, True),
        ({"action": "answer", "path": "/outbox/messages/answer"}, True),
        ({"criterion": "errors", "action": "", "path": "/", "status": 404}, True),
        ({"thing_id": "ns:other"}, False),
        ({"thing_id": "ns:other", "criterion": "errors"}, False),
        ({"criterion": "commands", "action": "modify"}, False),
        ({"path": "/features/lamp/inbox/messages/ask"}, False),
        ({"path": "/attributes"}, False),
    ],
)
def test_responses_to_a_message(facts: dict[str, Any], fits: bool) -> None:
    assert (mismatch(response(**facts), meta()) is None) == fits


@pytest.mark.parametrize(
    ("facts", "fits"),
    [
        ({}, True),
        ({"path": "attributes/on/"}, True),
        ({"criterion": "errors", "action": "", "path": "/"}, True),
        ({"thing_id": "ns:other"}, False),
        ({"action": "retrieve"}, False),
        ({"path": "/attributes/off"}, False),
        ({"criterion": "messages", "path": "/inbox/messages/modify"}, False),
    ],
)
def test_responses_to_a_command(facts: dict[str, Any], fits: bool) -> None:
    known = {"criterion": "commands", "action": "modify", "path": "/attributes/on", **facts}
    reason = mismatch(response(**known), meta(COMMAND, "modify", "/attributes/on"))
    assert (reason is None) == fits
    assert reason is None or "differs from" in reason


def test_the_reason_is_short_whatever_a_subscriber_writes() -> None:
    reason = mismatch(response(thing_id="ns:" + "n" * 100_000), meta())
    assert reason is not None
    assert len(reason) < 500


def test_a_timeout_tells_of_a_refused_response() -> None:
    pending: Pending[str] = Pending()
    pending.open("c", Aggregator("ns:n", "c", ("live-response",), 4000), 1.0, "waiter")
    pending.refuse("c", "It was not this one.")
    pending.refuse("other", "Nobody waits for it.")
    ((_, outcome),) = pending.expire(2.0)
    assert outcome.error is not None
    assert (outcome.status, outcome.error.code) == (408, "command.timeout")
    assert outcome.error.description is not None
    assert outcome.error.description.endswith("received, though: It was not this one.")


# --- answers


def answer(status: int, payload: Any, **headers: Any) -> Any:
    ack = Acknowledgement("live-response", "ns:n", "c", status, payload, headers)
    return http_answer(Outcome(status, (ack,)), True, {})


@pytest.mark.parametrize(
    ("payload", "content_type", "body", "shown"),
    [
        ("poooong", "application/json", "poooong", "application/json"),
        ({"a": [1]}, None, {"a": [1]}, "application/json"),
        ("plain", "text/plain; charset=utf-8", b"plain", "text/plain; charset=utf-8"),
        ("AAEC/w==", "application/octet-stream", b"\x00\x01\x02\xff", "application/octet-stream"),
        ("x", "null", b"x", "application/octet-stream"),
    ],
)
def test_a_response_keeps_its_form(
    payload: Any, content_type: str | None, body: Any, shown: str
) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    found = answer(226, payload, **headers)
    assert (found.status, found.body, found.content_type) == (226, body, shown)


def test_statuses_of_responses() -> None:
    assert answer(502, "x").status == 200
    assert answer(404, "x").status == 404
    assert answer(204, "x").body is None
    assert answer(200, None, **{"content-type": "text/plain"}).body is None
    custom = Acknowledgement("my-ack", "ns:n", "c", 502, "x")
    assert http_answer(Outcome(502, (custom,)), True, {}).status == 502


def test_having_been_sent_is_an_answer_only_if_nobody_is_awaited() -> None:
    taken = Response(202, None, {})
    assert Aggregator("ns:n", "c", ("live-response",), 9).respond(taken) is None
    assert Aggregator("ns:n", "c", ("my-ack", "live-response"), 9).respond(taken) is None
    outcome = Aggregator("ns:n", "c", (), 9, response_required=False).respond(taken)
    assert outcome is not None
    assert http_answer(outcome, False, {}).status == 202


# --- headers


@pytest.mark.parametrize(
    ("text", "channel"), [(None, "twin"), (" LIVE ", "live"), ("Twin", "twin")]
)
def test_channels(text: str | None, channel: str) -> None:
    assert parse_channel(text) == channel


def test_headers_with_wrong_values() -> None:
    with pytest.raises(GatewayError) as caught:
        parse_channel("alive")
    assert caught.value.description == "The value must either be <twin> or <live>."
    with pytest.raises(GatewayError) as caught:
        parse_timeout_strategy("what")
    assert caught.value.message == (
        "The value 'what' of the header 'live-channel-timeout-strategy' is not a valid enum value "
        "of type 'LiveChannelTimeoutStrategy'."
    )


def test_which_queries_are_smart() -> None:
    assert is_smart("live", "use-twin", None)
    assert not is_smart("live", "fail", "eq(attributes/a,1)")
    assert is_smart("twin", "fail", "eq(attributes/a,1)")
    assert not is_smart("twin", "use-twin", None)


# --- readers


def test_subjects_with_a_permission_by_what_stands_above() -> None:
    def resources(*rules: tuple[str, list[str], list[str]]) -> dict[str, Any]:
        return {path: {"grant": grant, "revoke": revoke} for path, grant, revoke in rules}

    entries = {
        "all": resources(("message:/", ["READ"], [])),
        "deep": resources(("message:/inbox/messages/ask", ["READ"], [])),
        "below": resources(("message:/inbox/messages/ask/more", ["READ"], [])),
        "hole": resources(
            ("message:/", ["READ"], []), ("message:/inbox", [], ["READ"])
        ),
        "back": resources(
            ("message:/", [], ["READ"]), ("message:/inbox", ["READ"], [])
        ),
        "thing": resources(("thing:/", ["READ"], [])),
    }  # fmt: skip
    policy = Policy(
        {
            "entries": {
                name: {"subjects": {f"s:{name}": {"type": "t"}}, "resources": rules}
                for name, rules in entries.items()
            }
        }
    )
    granted, revoked = policy.effected(READ, "message", ("inbox", "messages", "ask"))
    assert set(granted) == {"s:all", "s:deep", "s:back"}
    assert revoked == ("s:hole",)
