"""The vectors of text commands and of what a WebSocket session sends and reads."""

from __future__ import annotations

import json
from typing import Any

import pytest

from acks.aggregator import Outcome, combined_status
from acks.control import START, STOP, TOKEN, read_control, read_wish
from acks.errors import GatewayError
from acks.frame_head import frame_options, session_defaults
from acks.headers import parse_declared_acks
from acks.journal import ANNOUNCEMENT, COMMAND, EVENT, LIVE_EVENT, MESSAGE
from acks.labels import check_labels
from acks.protocol import read_ack, read_topic
from acks.responses import Asked, answer_envelope
from acks.signals import Acknowledgement
from acks.topic import parse_topic
from tests.vectors import load

Json = Any
KINDS = {
    "EVENTS": EVENT,
    "MESSAGES": MESSAGE,
    "LIVE_COMMANDS": COMMAND,
    "LIVE_EVENTS": LIVE_EVENT,
    "POLICY_ANNOUNCEMENTS": ANNOUNCEMENT,
}


@pytest.mark.parametrize(("given", "expected"), load("ws.control_message"))
def test_control_message(given: str | None, expected: Json) -> None:
    control = read_control(given or "")
    kind = expected["control"]
    if kind is None:
        assert control is None
        return
    assert control is not None
    if kind == "JWT":
        assert control.name == TOKEN
        assert control.parameters.get("jwtToken", "") == expected["jwtToken"]
        return
    word = expected["type"].replace("_", "-")
    assert (control.name, control.kind) == (
        f"{START if kind == 'START' else STOP}{word}",
        KINDS[expected["type"]],
    )
    if kind == "STOP":
        return
    text = expected["filter"]
    if control.kind == ANNOUNCEMENT:
        assert (text, read_wish(control).filter) == (None, None)
    else:
        assert control.parameters.get("filter") == text
    if text in ("", "eq(foo,1)"):
        # Things do not have the field of the latter; it is only there to be cut out.
        with pytest.raises(GatewayError) as caught:
            read_wish(control)
        assert (caught.value.status, caught.value.code) == (400, "rql.expression.invalid")
        del control.parameters["filter"]
    wish = read_wish(control)
    assert (wish.filter is None) == (text in (None, "", "eq(foo,1)"))
    assert wish.namespaces == frozenset(expected["namespaces"])
    fields = wish.extra_fields
    pointers = None if fields is None else ["/" + "/".join(p) for p in fields.pointers]
    assert pointers == expected["extraFields"]


def asked(thing_id: str, channel: str = "twin") -> Asked:
    namespace, _, name = thing_id.partition(":")
    topic = f"{namespace}/{name}/things/{channel}/commands/modify"
    return Asked(topic, "/", thing_id, channel, "foobar", {})


def outcome(acks: list[tuple[str, Json]]) -> Outcome:
    made = tuple(
        Acknowledgement(
            label, "ns:n", "c", ack["status"], ack.get("payload"), ack.get("headers", {})
        )
        for label, ack in acks
    )
    return Outcome(combined_status([ack.status for ack in made]), made)


@pytest.mark.parametrize(("given", "expected"), load("protocol-acks"))
def test_aggregated_acks(given: Json, expected: Json) -> None:
    thing_id = "org.eclipse.ditto.test:myThing"
    channel = given.get("commandChannel", "twin")
    envelope = answer_envelope(asked(thing_id, channel), outcome(list(given["acks"].items())))
    assert {name: envelope[name] for name in expected} == expected
    assert list(envelope) == ["topic", "headers", "path", "value", "status"]


@pytest.mark.parametrize(("given", "expected"), load("protocol.acks"))
def test_acks(given: Json, expected: Json) -> None:
    if "ack" in given:
        ack = given["ack"]
        frame = {**expected, "headers": {"correlation-id": "c"}, "status": 200}
        read = read_ack(frame, read_topic(frame), frozenset({ack["label"]}))
        assert (read.label, read.thing_id) == (ack["label"], ack["entityId"])
        return
    envelope = answer_envelope(
        asked("ns:n"), outcome([(ack["label"], ack) for ack in given["acks"]])
    )
    assert envelope["status"] == expected["status"]
    assert envelope["topic"].endswith(expected.get("topic_suffix", "/acks"))
    for label, entry in expected.get("value", {}).items():
        shown = dict(envelope["value"][label])
        shown["headers"] = {k: v for k, v in shown["headers"].items() if k != "response-required"}
        assert shown == entry


@pytest.mark.parametrize(("given", "expected"), load("protocol-topic"))
def test_topic(given: Json, expected: Json) -> None:
    if "error" in expected:
        with pytest.raises(GatewayError) as caught:
            parse_topic(given["topic"])
        body = caught.value.to_json()
        assert {name: body[name] for name in expected} == expected
        return
    topic = parse_topic(given["topic"])
    assert (topic.criterion, topic.action or None) == (expected["criterion"], expected["subject"])


@pytest.mark.parametrize(("given", "expected"), load("ws-outcome"))
def test_header_interaction(given: Json, expected: Json) -> None:
    """The combinations that are client errors; what the others give is for tests/service."""
    required = "true" if given["response-required"] else "false"
    acks, timeout = json.dumps(given["requested-acks"]), given["timeout"]
    wrong = expected.get("frameStatus") == 400

    def read() -> bool:
        options = frame_options(False, acks, required, timeout, "documented", 60_000, 60_000)
        return options.response_required

    if not wrong:
        assert read() == (expected.get("frame", "") is not None)
        return
    with pytest.raises(GatewayError) as caught:
        read()
    assert (caught.value.status, caught.value.code) == (400, "header.invalid")


@pytest.mark.parametrize(("given", "expected"), load("header.json_array.read_external"))
def test_upgrade_header(given: Json, expected: str) -> None:
    name, text = given["header"], given["value"]
    if name == "declared-acks":
        assert list(parse_declared_acks(text)) == json.loads(expected)
        return
    assert session_defaults({name: text})[name].replace(" ", "") == expected


@pytest.mark.parametrize(
    ("given", "expected"), [p for p in load("doc-example") if "topic" in p.values[0]]
)
def test_documented_ack(given: Json, expected: Json) -> None:
    ack = read_ack(given, read_topic(given), frozenset({"custom-ack"}))
    assert ack.status == given["status"]
    assert ack.payload == given.get("value")
    assert ack.success == expected["kind"].startswith("successful")


@pytest.mark.parametrize(
    ("given", "expected"), [p for p in load("doc-example") if "ws" in p.values[0]]
)
def test_documented_upgrade(given: Json, expected: Json) -> None:
    text = given["ws"].partition("declared-acks=")[2]
    assert list(check_labels(parse_declared_acks(text))) == expected["declaredLabels"]
