"""Payload mapping: which mappers there are, and what each of them makes of messages."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from acks.errors import GatewayError
from connections.mapping.mappers import DITTO_TYPE, Message
from connections.mapping.payloads import (
    MAX_MAPPED,
    MAX_MAPPERS,
    Incoming,
    Outgoing,
    check_definitions,
    map_incoming,
    map_outgoing,
    mappers_of,
)
from connections.placeholders.lookups import Scope, text_headers

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MODIFY = {"topic": "ns/n/things/twin/commands/modify", "path": "/attributes/a", "value": 1}
ASK = {
    "topic": "ns/n/things/live/messages/ask",
    "headers": {"content-type": "text/plain"},
    "path": "/inbox/messages/ask",
    "value": "Hey",
}

DEEP = json.loads("[" * 60 + "]" * 60)


def definition(engine: str, **options: Any) -> dict[str, Any]:
    return {"alias": {"mappingEngine": engine, "options": options}}


def incoming(
    payload: Any,
    definitions: dict[str, Any] | None = None,
    names: tuple[str, ...] = ("alias",),
    content_type: str | None = None,
    **headers: Any,
) -> Incoming:
    text = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    mappers = mappers_of(names if definitions else (), definitions or {})
    message = Message(text, content_type, named)
    return map_incoming(mappers, message, Scope("C", NOW, named))


def outgoing(envelope: dict[str, Any], definitions: dict[str, Any] | None = None) -> Outgoing:
    mappers = mappers_of(("alias",) if definitions else (), definitions or {})
    return map_outgoing(mappers, envelope, Scope("C", NOW, text_headers(envelope), envelope))


def reason(mapped: Incoming | Outgoing) -> str:
    (problem,) = mapped.problems
    assert (problem.status, problem.code) == (400, "connectivity:message.mapping.failed")
    return f"{problem.message} {problem.description}"


# --- Ditto


def test_ditto_protocol_is_taken_as_it_is() -> None:
    assert incoming(MODIFY).envelopes == (MODIFY,)
    (message,) = outgoing(MODIFY).messages
    assert orjson.loads(message.payload) == MODIFY
    assert message.content_type == DITTO_TYPE


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"[]", "not a JSON object"),
        (b'"text"', "not a JSON object"),
        (b"{}", "field 'topic'"),
        (b'{"topic":5}', "field 'topic'"),
        (b'{"topic":"a","value":' + b"[" * 2000 + b"]" * 2000 + b"}", "payload"),
        (b'{"topic":"a","value":' + b"[" * 150 + b"]" * 150 + b"}", "levels deep"),
        (b'{"topic":"a","value":' + b"9" * 30 + b"}", "64 bit"),
        (b'{"topic":"a","value":' + b"9" * 5000 + b"}", "payload"),
        (b'{"topic":"a","value":{"/x":1}}', "pointer"),
        (b'{"topic":"a","value":"\\ud800"}', "payload"),
    ],
)
def test_bad_input_is_a_problem(payload: bytes, says: str) -> None:
    mapped = incoming(payload)
    assert mapped.envelopes == ()
    assert says in reason(mapped)


def test_what_cannot_be_written_is_a_problem() -> None:
    assert "cannot be written" in reason(outgoing({"topic": "a", "value": "\ud800"}))


# --- which mappers


def test_every_mapper_maps_and_fails_by_itself() -> None:
    definitions = {
        "one": {"mappingEngine": "Ditto"},
        "two": {
            "mappingEngine": "JsonTemplate",
            "options": {"incoming": {"topic": "ns/{{ json:none }}/things/twin/commands/modify"}},
        },
    }
    mapped = incoming(MODIFY, definitions, ("one", "two", "Ditto"))
    assert mapped.envelopes == (MODIFY, MODIFY)
    assert "'two'" in reason(mapped)


def test_conditions_decide_whether_a_mapper_is_used() -> None:
    definitions = definition("Ditto")
    definitions["alias"]["incomingConditions"] = {
        "a": "fn:filter(header:a,'eq','1')",
        "b": "{{ fn:filter(header:b,'exists') }}",
    }
    definitions["alias"]["outgoingConditions"] = {"c": "fn:filter(topic:action,'eq','delete')"}
    assert incoming(MODIFY, definitions) == Incoming(())
    assert incoming(MODIFY, definitions, a="1") == Incoming(())
    assert incoming(MODIFY, definitions, a="1", b="").envelopes == (MODIFY,)
    assert outgoing(MODIFY, definitions) == Outgoing(())


@pytest.mark.parametrize(
    "definitions",
    [
        {"alias": "Ditto"},
        {"alias": {}},
        {"alias": {"mappingEngine": "JavaScript"}},
        {"alias": {"mappingEngine": ["Ditto"]}},
        {"alias": {"mappingEngine": "Ditto", "unknown": 1}},
        {"alias": {"mappingEngine": "Ditto", "options": 1}},
        {"alias": {"mappingEngine": "Ditto", "incomingConditions": {"a": 1}}},
        {"alias": {"mappingEngine": "Ditto", "incomingConditions": {"a": "nonsense"}}},
        {"alias": {"mappingEngine": "Ditto", "outgoingConditions": []}},
        definition("RawMessage", outgoingContentType=1),
        definition("RawMessage", incomingMessageHeaders={"a": 1}),
        definition("RawMessage", incomingMessageHeaders={"a": "{{ a"}),
        definition("JsonTemplate", other={}),
        definition("JsonTemplate", incoming="text"),
        definition("JsonTemplate", incoming={}),
        definition("JsonTemplate", incoming=[{"topic": "t"}] * 11),
        definition("JsonTemplate", incoming={"topic": "{{ jwt:sub }}"}),
        definition("JsonTemplate", incoming={"topic": "{{ json:a//b }}"}),
        definition("JsonTemplate", incoming={"topic": "t", "path": ""}),
        definition("JsonTemplate", incoming={"topic": "t", "headers": "text"}),
        definition("JsonTemplate", incoming={"topic": "t", "each": 1}),
        definition("JsonTemplate", incoming={"topic": "t", "each": "/a//b"}),
        definition("JsonTemplate", incoming={"topic": "t", "if": 1}),
        definition("JsonTemplate", incoming={"topic": "t", "if": "fn:filter(json://,'exists')"}),
        definition("JsonTemplate", incoming={"topic": "t", "value": "{{ json:a | fn:none() }}"}),
        definition("JsonTemplate", incoming={"topic": "t", "value": DEEP}),
        definition("JsonTemplate", outgoing={}),
        definition("JsonTemplate", outgoing={"payload": 1, "contentType": 1}),
    ],
)  # fmt: skip
def test_definitions_that_cannot_be_read_are_refused(definitions: dict[str, Any]) -> None:
    for read in (
        lambda: mappers_of(("alias",), definitions),
        lambda: check_definitions(definitions),
    ):
        with pytest.raises(GatewayError) as caught:
            read()
        assert caught.value.code == "connectivity:connection.configuration.invalid"


def test_mappers_have_to_exist_and_are_bounded() -> None:
    for names in (("none",), ("Ditto",) * (MAX_MAPPERS + 1)):
        with pytest.raises(GatewayError) as caught:
            mappers_of(names, {})
        assert caught.value.code == "connectivity:connection.configuration.invalid"


# --- JsonTemplate

TELEMETRY = {
    "topic": "org.acme/{{ json:device }}/things/twin/commands/modify",
    "path": "/features/{{ json:sensor }}/properties",
    "headers": {"correlation-id": "{{ json:id }}", "response-required": False},
    "value": {
        "value": "{{ json:reading/value }}",
        "celsius": {"$number": "{{ json:text | fn:substring-before(' ') }}"},
        "unit": "{{ json:reading/unit | fn:upper() }}",
        "{{ json:sensor }}-tags": ["{{ json:tags }}", "{{ json:none }}", 5, None, True],
        "qos": {"$number": "{{ header:mqtt-qos }}"},
        "none": "{{ json:none }}",
        "empty": "",
        "text": "fixed",
    },
}
READING = {
    "device": "lamp-1",
    "sensor": "t/1~",
    "id": "c1",
    "reading": {"value": {"deep": [1.5, None]}, "unit": "c"},
    "text": "23.42 °C",
    "tags": ["x", "y"],
}


def test_raw_json_becomes_a_command() -> None:
    definitions = definition("JsonTemplate", incoming=TELEMETRY)
    assert incoming(READING, definitions, mqtt_qos="1").envelopes == (
        {
            "topic": "org.acme/lamp-1/things/twin/commands/modify",
            "headers": {"correlation-id": "c1", "response-required": False},
            "path": "/features/t~11~0/properties",
            "value": {
                "value": {"deep": [1.5, None]},
                "celsius": 23.42,
                "unit": "C",
                "t/1~-tags": [["x", "y"], 5, None, True],
                "qos": 1,
                "empty": "",
                "text": "fixed",
            },
        },
    )


def test_several_rules_and_conditions() -> None:
    def rule(action: str, **more: Any) -> dict[str, Any]:
        return {"topic": f"ns/n/things/twin/commands/{action}", "path": "/attributes/a", **more}

    definitions = definition(
        "JsonTemplate",
        incoming=[
            rule("modify", **{"if": "fn:filter(json:kind,'eq','set')", "value": "{{ json:to }}"}),
            rule("delete", **{"if": "fn:filter(json:kind,'eq','gone')"}),
        ],
    )
    assert incoming({"kind": "other"}, definitions) == Incoming(())
    (set_to,) = incoming({"kind": "set", "to": None}, definitions).envelopes
    assert set_to["value"] is None
    (deleted,) = incoming({"kind": "gone"}, definitions).envelopes
    assert "value" not in deleted
    assert "value is not resolved" in reason(incoming({"kind": "set"}, definitions))


def test_each_element_of_an_array_becomes_a_command() -> None:
    rule = {
        "each": "readings",
        "topic": "ns/{{ json:thing }}/things/twin/commands/modify",
        "path": "/attributes/a",
        "value": "{{ json:v }}",
        "if": "fn:filter(json:v,'ne','0')",
    }
    definitions = definition("JsonTemplate", incoming=rule)
    readings = [{"thing": "a", "v": 1}, {"thing": "b", "v": 0}, {"thing": "c", "v": 2}]
    mapped = incoming({"readings": readings}, definitions)
    assert [(e["topic"][3], e["value"]) for e in mapped.envelopes] == [("a", 1), ("c", 2)]
    assert "no array" in reason(incoming({}, definitions))
    assert "more than" in reason(incoming({"readings": readings * 4}, definitions))


def test_one_mapper_makes_a_bounded_number_of_messages() -> None:
    rule = {"each": "/", "topic": "ns/n/things/twin/commands/modify", "value": 1}
    definitions = definition("JsonTemplate", incoming=[rule, rule])
    assert len(incoming([1] * (MAX_MAPPED // 2), definitions).envelopes) == MAX_MAPPED
    assert "the most is" in reason(incoming([1] * MAX_MAPPED, definitions))


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b"no JSON", "is not JSON"),
        ({}, "not resolved"),
        ({**READING, "device": "n/things/twin/commands/delete?"}, "part of a topic"),
        ({**READING, "device": ""}, "part of a topic"),
        ({**READING, "sensor": ""}, "part of a path"),
        ({**READING, "text": "cold C"}, "is no number"),
        ({**READING, "text": "NaN C"}, "is no number"),
        ({**READING, "text": "true C"}, "is no number"),
        ({**READING, "sensor": "/x"}, "pointer"),
    ],
)
def test_a_device_cannot_write_elsewhere(payload: Any, says: str) -> None:
    mapped = incoming(payload, definition("JsonTemplate", incoming=TELEMETRY))
    assert mapped.envelopes == ()
    assert says in reason(mapped)


def test_a_placeholder_that_is_the_whole_topic_is_taken_as_it_is() -> None:
    rule = {"topic": "{{ json:topic }}", "path": "{{ header:path }}"}
    (made,) = incoming(MODIFY, definition("JsonTemplate", incoming=rule), path="/a/b").envelopes
    assert (made["topic"], made["path"]) == (MODIFY["topic"], "/a/b")


def test_messages_become_raw_json() -> None:
    rule = {
        "payload": {"thing": "{{ thing:id }}", "to": "{{ json:value }}", "of": "{{ json:path }}"},
        "headers": {"X-Kind": "{{ topic:action }}", "n": "{{ json:value }}"},
    }
    (message,) = outgoing(MODIFY, definition("JsonTemplate", outgoing=rule)).messages
    assert orjson.loads(message.payload) == {"thing": "ns:n", "to": 1, "of": "/attributes/a"}
    assert message.content_type == "application/json"
    assert message.headers == {"x-kind": "modify", "n": "1"}


def test_messages_become_text() -> None:
    rule = {"payload": "{{ thing:name }}={{ json:value }}", "contentType": "text/plain"}
    definitions = definition("JsonTemplate", outgoing=[rule, {**rule, "if": "topic:subject"}])
    (message,) = outgoing(MODIFY, definitions).messages
    assert message == Message(b"n=1", "text/plain", {})
    missing = definition("JsonTemplate", outgoing={"payload": "{{ json:extra }}"})
    assert "not resolved" in reason(outgoing(MODIFY, missing))


def test_a_direction_without_rules_is_ditto_protocol() -> None:
    only_in = definition("JsonTemplate", incoming=TELEMETRY)
    assert outgoing(MODIFY, only_in) == outgoing(MODIFY)
    only_out = definition("JsonTemplate", outgoing={"payload": 1})
    assert incoming(MODIFY, only_out) == incoming(MODIFY)


# --- RawMessage

RAW = definition("RawMessage")
TO_LAMP: dict[str, Any] = {"ditto_message_thing_id": "ns:n", "ditto_message_subject": "ask"}


def test_a_payload_becomes_a_message() -> None:
    mapped = incoming(b"Hey", RAW, content_type="text/plain", **TO_LAMP)
    assert mapped.envelopes == (ASK,)


@pytest.mark.parametrize(
    ("payload", "content_type", "value"),
    [
        (b"\x00\xff", None, "AP8="),
        (b"\x00\xff", "application/octet-stream", "AP8="),
        (b'{"a":1}', "application/json", {"a": 1}),
        ("grün".encode("latin-1"), "text/plain; charset=iso-8859-1", "grün"),
    ],
)
def test_the_content_type_says_how_a_payload_stands_in_the_message(
    payload: bytes, content_type: str | None, value: Any
) -> None:
    (envelope,) = incoming(payload, RAW, content_type=content_type, **TO_LAMP).envelopes
    assert envelope["value"] == value
    (message,) = outgoing(envelope, RAW).messages
    assert message.payload == payload


def test_options_say_where_a_message_goes() -> None:
    headers: dict[str, Any] = {
        "ditto-message-thing-id": "ns:{{ header:device }}",
        "ditto-message-subject": "told",
        "ditto-message-direction": "from",
        "ditto-message-feature-id": "f/1",
        "status": "204",
        "x": "{{ header:device }}",
    }
    (envelope,) = incoming(
        b"", definition("RawMessage", incomingMessageHeaders=headers), device="n"
    ).envelopes
    assert envelope == {
        "topic": "ns/n/things/live/messages/told",
        "headers": {"x": "n", "content-type": "application/octet-stream"},
        "path": "/features/f~11/outbox/messages/told",
        "status": 204,
    }


def test_ditto_protocol_is_recognised() -> None:
    assert incoming(MODIFY, RAW, content_type=f"{DITTO_TYPE}; charset=utf-8").envelopes == (MODIFY,)


@pytest.mark.parametrize(
    ("payload", "content_type", "headers", "says"),
    [
        (b"", None, {}, "Thing ID"),
        (b"", None, {"ditto_message_thing_id": "ns:n"}, "subject"),
        (b"", None, {**TO_LAMP, "ditto_message_direction": "up"}, "neither TO nor FROM"),
        (b"", None, {**TO_LAMP, "ditto_message_feature_id": ""}, "feature-id"),
        (b"", None, {**TO_LAMP, "status": "2OO"}, "status"),
        (b"", None, {**TO_LAMP, "status": "²00"}, "status"),
        (b"\xff", "text/plain", TO_LAMP, "charset"),
        (b"{", "application/json", TO_LAMP, "not JSON"),
    ],
)
def test_what_is_no_message_is_a_problem(
    payload: bytes, content_type: str | None, headers: dict[str, Any], says: str
) -> None:
    mapped = incoming(payload, RAW, content_type=content_type, **headers)
    assert mapped.envelopes == ()
    assert says in reason(mapped)


def test_other_signals_are_ditto_protocol() -> None:
    assert outgoing(MODIFY, RAW) == outgoing(MODIFY)
    assert "topic path" in reason(outgoing({"topic": "nonsense"}, RAW))


def test_a_message_without_payload_or_content_type() -> None:
    (message,) = outgoing({"topic": ASK["topic"], "path": ASK["path"]}, RAW).messages
    assert message == Message(b"", "text/plain; charset=UTF-8", {})
