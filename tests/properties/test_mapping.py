"""Payload mapping for every input: a message, or an error of the catalogue, never an exception."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from acks.document import check_json
from acks.errors import GatewayError
from connections.mapping.mappers import Message
from connections.mapping.payloads import Incoming, Outgoing, map_incoming, map_outgoing, mappers_of
from connections.placeholders.lookups import Scope, text_headers

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DEFINITIONS: dict[str, Any] = {
    "template": {
        "mappingEngine": "JsonTemplate",
        "options": {
            "incoming": {
                "topic": "ns/{{ json:a }}/things/twin/commands/{{ json:b | fn:default('modify') }}",
                "path": "/features/{{ header:a }}",
                "headers": {"correlation-id": "{{ json:b }}", "{{ json:a }}": "x"},
                "value": {"{{ json:a }}": "{{ json:b }}", "n": {"$number": "{{ header:a }}"}},
            },
            "outgoing": {
                "payload": {"v": "{{ json:value }}", "{{ topic:action }}": "{{ thing-json:a }}"},
                "headers": {"x": "{{ json:headers }}"},
            },
        },
    },
    "each": {
        "mappingEngine": "JsonTemplate",
        "options": {
            "incoming": {
                "each": "a",
                "topic": "{{ json:a }}",
                "path": "{{ json:b }}",
                "value": "{{ json:/ }}",
            },
            "outgoing": {"payload": "{{ json:value }}", "contentType": "text/plain"},
        },
    },
}
MAPPERS = {name: mappers_of((name,), DEFINITIONS) for name in ("Ditto", "RawMessage", *DEFINITIONS)}

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5)
)
names = st.sampled_from(["a", "b", "topic", "path", "value", "headers", "/a", "", "ü"])
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)
topics = st.sampled_from(
    [
        "ns/n/things/twin/commands/modify",
        "ns/n/things/twin/events/created",
        "ns/n/things/live/messages/ask",
        "ns/n/policies/announcements/subjectDeletion",
        "nonsense",
    ]
)
texts = st.text(max_size=8)
good_headers = st.fixed_dictionaries(
    {
        "a": st.integers().map(str),
        "status": st.just("200"),
        "content-type": st.sampled_from(
            ["text/plain", "application/json", "text/x; charset=utf-16", "image/png"]
        ),
        "ditto-message-thing-id": st.just("ns:n"),
        "ditto-message-subject": st.sampled_from(["ask", "ask/more"]),
        "ditto-message-direction": st.sampled_from(["TO", "FROM"]),
        "ditto-message-feature-id": st.sampled_from(["f", "f/1"]),
    }
)
bad_headers = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(
        ("a", "status", "content-type", "ditto-message-direction", "ditto-message-feature-id"),
        texts,
    ),
)
# A header that is bad stands in place of a good one.
headers = st.one_of(
    good_headers,
    bad_headers,
    st.builds(lambda good, bad: {**good, **bad}, good_headers, bad_headers),
)
envelopes = st.fixed_dictionaries(
    {},
    optional={
        "topic": st.one_of(topics, values),
        "path": st.one_of(st.sampled_from(["/", "/a", "/features/f"]), values),
        "headers": st.one_of(st.dictionaries(names, values, max_size=3), values),
        "value": values,
        "extra": values,
        "status": values,
    },
)


def dumped(value: Any) -> bytes:
    """JSON of whatever was made up: huge integers, too."""
    return json.dumps(value).encode()


templated = st.fixed_dictionaries(
    {
        "a": st.one_of(
            texts, st.just("x"), st.lists(st.fixed_dictionaries({"a": topics, "b": texts}))
        ),
        "b": st.one_of(scalars, values, st.just("delete")),
    }
)
payloads = st.one_of(st.binary(), values.map(dumped), envelopes.map(dumped), templated.map(dumped))


def checked(mapped: Incoming | Outgoing) -> None:
    for problem in mapped.problems:
        assert isinstance(problem, GatewayError)
        assert (problem.status, problem.code) == (400, "connectivity:message.mapping.failed")
        assert problem.to_json()["description"]


@pytest.mark.parametrize("name", MAPPERS)
@given(payload=payloads, headers=headers, content_type=st.none() | st.text(max_size=30))
@example(b"[" * 100_000, {}, None)
@example(b'{"topic":' * 300, {}, None)
@example(b'{"a":[' + b"1," * 50 + b"1]}", {}, None)
def test_whatever_comes_in_is_mapped_or_refused(
    name: str, payload: bytes, headers: dict[str, str], content_type: str | None
) -> None:
    message = Message(payload, headers.get("content-type", content_type), headers)
    mapped = map_incoming(MAPPERS[name], message, Scope("C", NOW, headers, None, "s:s", "in"))
    checked(mapped)
    assert not (mapped.envelopes and mapped.problems), "one mapper: all or nothing"
    for envelope in mapped.envelopes:
        assert isinstance(envelope["topic"], str)
        text = orjson.dumps(envelope)
        check_json(envelope, text)


@pytest.mark.parametrize("name", MAPPERS)
@given(envelope=envelopes)
def test_whatever_goes_out_is_mapped_or_refused(name: str, envelope: dict[str, Any]) -> None:
    scope = Scope("C", NOW, text_headers(envelope), envelope)
    mapped = map_outgoing(MAPPERS[name], envelope, scope)
    checked(mapped)
    for message in mapped.messages:
        assert isinstance(message.payload, bytes)
        assert all(isinstance(text, str) for pair in message.headers.items() for text in pair)


@given(payload=values.map(dumped))
def test_what_ditto_protocol_maps_stays_the_same(payload: bytes) -> None:
    message = Message(payload, None, {})
    for envelope in map_incoming(MAPPERS["Ditto"], message, Scope("C", NOW)).envelopes:
        again = map_outgoing(MAPPERS["Ditto"], envelope, Scope("C", NOW, {}, envelope))
        assert orjson.loads(again.messages[0].payload) == orjson.loads(payload)
