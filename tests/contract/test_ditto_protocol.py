"""Messages of Ditto's documentation are read as what they are, and ours fit Ditto's schemas."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft4Validator

from acks.aggregator import Outcome
from acks.document import format_pointer
from acks.envelopes import event_envelope, live_envelope
from acks.errors import CATALOGUE, GatewayError, error
from acks.frame_head import frame_options, read_head
from acks.journal import COMMAND, MESSAGE, EntryMeta
from acks.live import parse_address
from acks.protocol import is_response, read_ack, read_response, read_topic
from acks.requests import (
    Asker,
    is_for_many,
    read_command,
    read_message,
    read_part,
    read_queries,
    read_query,
)
from acks.responses import Asked, answer_envelope, response_envelope
from acks.signals import Acknowledgement, Response
from tests.contract.ditto import ditto_file
from tests.gateways import Json

ASKER = Asker(("nginx:ditto",), "session", 0)
_PLAIN = {"content-type", "correlation-id"}

ELSEWHERE = {
    "streaming": "past events are read by their revision nowhere",
    "connections": "there are no connections yet",
}
"""What of the examples this gateway does not serve (docs/status.md)."""
REFUSED: dict[str, str] = {
    "basic-conditional-requests#Ditto Protocol#2": "its condition has a text without quotes",
    "basic-conditional-requests#Ditto Protocol#4": "merge-thing-patch-conditions is not served",
    "protocol-examples#Command#1": "its value is left out",
    "protocol/examples/things/generated/commands/modify/createthingalternatives": (
        "_copyPolicyFrom is not served"
    ),
    "protocol/examples/things/generated/commands/modify/modifythingalternatives": (
        "_copyPolicyFrom is not served"
    ),
}
"""Commands that get an error, by the beginning of their names, and why."""


def examples() -> list[Json]:
    lines = ditto_file("protocol-examples.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def things(*kinds: str) -> list[tuple[str, Json]]:
    """(name, message) of the examples about things of these kinds."""
    found = []
    for example in examples():
        message = example["message"]
        parts = message["topic"].split("/")
        if example["kind"] in kinds and parts[2] == "things" and parts[4] not in ELSEWHERE:
            found.append((example["name"], message))
    assert found, kinds
    return found


def of_its_value(message: Json) -> Json:
    """The message about the thing that its value names: in some examples the topic names another.

    Ditto refuses that too (things:id.notsettable).
    """
    value = message.get("value")
    if isinstance(value, dict) and "thingId" in value:
        namespace, _, name = value["thingId"].partition(":")
        rest = message["topic"].split("/")[2:]
        return {**message, "topic": "/".join((namespace, name, *rest))}
    return message


def read(message: Json) -> Any:
    """What a command or message of the examples asks for."""
    topic = read_topic(message)
    head = read_head(message, {}, 5_120, "fresh")
    known = head.known
    options = frame_options(
        topic.channel == "live", known.get("requested-acks"), known.get("response-required"),
        known.get("timeout"), "documented", 60_000, 60_000,
    )  # fmt: skip
    if topic.criterion == "messages":
        return read_message(message, topic, head, options, ASKER, "now")
    if is_for_many(message, topic):
        return read_queries(message, head, 1000, ASKER)
    if topic.action == "retrieve":
        return read_query(message, topic, head, 1000, ASKER)
    return read_command(message, topic, head, options, ASKER)


def test_every_command_is_read_as_what_it_is() -> None:
    refused = set()
    for name, given in things("command"):
        message = of_its_value(given)
        reason = next((key for key in REFUSED if name.startswith(key)), None)
        if reason is not None:
            refused.add(reason)
            with pytest.raises(GatewayError):
                read(message)
            continue
        asked = read(message)
        topic = read_topic(message)
        if isinstance(asked, list):
            assert [one.thing_id for one in asked] == message["value"]["thingIds"]
            continue
        assert asked.thing_id == topic.thing_id, name
        assert format_pointer(asked.path) == message["path"], name
        if topic.action == "retrieve":
            assert (asked.fields is not None) == ("fields" in message), name
        elif topic.action != "delete":
            assert asked.value == message["value"], name
    assert refused == set(REFUSED)


def test_every_response_is_what_we_would_send() -> None:
    for name, message in things("response"):
        topic = read_topic(message)
        path = format_pointer(read_part(message))
        asked = Asked(message["topic"], path, topic.thing_id, topic.channel, "c", {})
        ours = response_envelope(asked, Response(message["status"], message.get("value"), {}))
        theirs = {key: value for key, value in message.items() if value is not None}
        assert {**ours, "headers": {}} == {**theirs, "headers": {}}, name


def test_every_event_is_what_we_would_send() -> None:
    for name, message in things("event"):
        if "revision" not in message or "timestamp" not in message:
            continue  # cut short for the text around it
        topic = read_topic(message)
        merged = topic.action == "merged"
        meta = EntryMeta(
            topic.thing_id, topic.action, message["path"], message["revision"],
            message["timestamp"], "c", (), "", 0, (),
        )  # fmt: skip
        value = message.get("value")
        ours = event_envelope(meta, {}, value, None, "c")
        theirs = {k: v for k, v in message.items() if k != "value" or v is not None}
        assert {**ours, "headers": {}} == {**theirs, "headers": {}}, name
        given = message["headers"].get("content-type")
        if merged and given is not None and value is not None:
            assert ours["headers"]["content-type"] == given, name


def test_every_error_is_in_the_catalogue_or_stated() -> None:
    missing = {
        "things:policyId.notallowed": "of an API version that is gone",
        "things:policy.notallowed": "of an API version that is gone",
        "things:thing.toomanymodifyingrequests": "changes of a thing are not limited",
    }
    found = set()
    for name, message in things("error"):
        value = message["value"]
        kind = CATALOGUE.get(value["error"])
        if kind is None:
            found.add(value["error"])
            continue
        assert (kind.status, message["status"]) == (value["status"], value["status"]), name
        assert list(message) == ["topic", "headers", "path", "value", "status"]
    assert found == set(missing)


def test_acks_messages_and_their_responses_are_read() -> None:
    for name, message in things("ack"):
        ack = read_ack(message, read_topic(message), frozenset({"custom-ack"}))
        assert (ack.status, ack.payload) == (message["status"], message.get("value")), name
        assert ack.correlation_id == message["headers"]["correlation-id"]
    for name, message in things("message"):
        live = read(message)
        assert (live.path, live.value) == (message["path"], message.get("value")), name
        assert live.headers["content-type"] == message["headers"]["content-type"]
        meta = EntryMeta(live.thing_id, live.action, live.path, 0, "t", "c", (), "", 0, (), MESSAGE)
        ours = live_envelope(meta, live.headers, live.value, None, "c")
        assert {**ours, "headers": {}} == {**message, "headers": {}}, name
    for name, message in things("message-response"):
        topic = read_topic(message)
        assert is_response(message, topic), name
        response = read_response(message, topic)
        assert (response.status, response.payload) == (message["status"], message.get("value"))
        assert parse_address(topic.thing_id, response.path) is not None, name


# --- their schemas


def validator(name: str) -> Draft4Validator:
    schema = json.loads(ditto_file(f"jsonschema/{name}.json").read_text())
    return Draft4Validator(schema)


ASKED = Asked("ns/n/things/twin/commands/modify", "/attributes/a", "ns:n", "twin", "c", {})
META = EntryMeta("ns:n", "modified", "/", 5, "2026-01-01T10:00:00Z", "c", ("my:ack",), "", 0, ())


@pytest.mark.parametrize(
    ("schema", "envelope"),
    [
        ("protocol-response", response_envelope(ASKED, Response(204, None, {"etag": '"a"'}))),
        ("protocol-response", response_envelope(ASKED, Response(201, {"a": 1}, {}))),
        (
            "protocol-error_response",
            answer_envelope(
                ASKED, Outcome(404, error=error("things:thing.notfound", thing_id="x"))
            ),
        ),
        (
            "protocol-acks",
            answer_envelope(
                ASKED,
                Outcome(
                    200,
                    (
                        Acknowledgement("twin-persisted", "ns:n", "c", 204),
                        Acknowledgement("my:ack", "ns:n", "c", 202, {"done": True}),
                    ),
                ),
            ),
        ),
        ("protocol-envelope", event_envelope(META, {}, {"a": 1}, ("my:ack",), "c")),
        (
            "protocol-envelope",
            live_envelope(META._replace(kind=COMMAND, action="modify"), {}, 1, None, "c"),
        ),
    ],
)
def test_what_we_send_fits_their_schema(schema: str, envelope: Json) -> None:
    sent = json.loads(json.dumps(envelope))
    problems = [error.message for error in validator(schema).iter_errors(sent)]
    assert problems == []
