"""What placeholders stand for in a connection."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from connections.mapping.headers import map_headers, parse_header_mapping
from connections.placeholders.lookups import Scope, read_pipeline, read_template, text_headers
from connections.placeholders.templates import PlaceholderError

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
EVENT = {
    "topic": "org.acme/lamp-1/things/twin/events/modified",
    "path": "/features/light",
    "headers": {"Correlation-Id": "c1", "requested-acks": ["a:b"], "ditto-originator": "nginx:joe"},
    "value": {"properties": {"on": True, "level": 3, "tags": ["a", "b"], "none": None}},
    "extra": {"attributes": {"site": "Oslo", "grid": {"x": 1}}},
}
CREATED = {
    "topic": "org.acme/lamp-1/things/twin/events/created",
    "path": "/",
    "value": {"thingId": "org.acme:lamp-1", "features": {"f1": {}, "f2": {}}},
}
MESSAGE = {
    "topic": "org.acme/lamp-1/things/live/messages/ask/more",
    "path": "/features/light/inbox/messages/ask/more",
    "value": {"attributes": {"site": "no thing"}},
    "extra": {"attributes": {"site": "Oslo"}},
}
POLICY = {"topic": "org.acme/p/policies/announcements/subjectDeletion", "path": "/"}
BROKEN = [
    {},
    {"topic": 5},
    {"topic": "a/b"},
    {"topic": "ns/n/things/twin/events/created", "path": 5},
    {"topic": "ns/n/things/twin/events/created", "path": "//"},
]


def scope(envelope: dict[str, Any] | None, **more: Any) -> Scope:
    headers = {} if envelope is None else text_headers(envelope)
    return Scope("C", NOW, **{"headers": headers, "envelope": envelope, **more})


@pytest.mark.parametrize(
    ("envelope", "text", "expected"),
    [
        (EVENT, "entity:id", ["org.acme:lamp-1"]),
        (EVENT, "thing:namespace", ["org.acme"]),
        (EVENT, "thing:name", ["lamp-1"]),
        (EVENT, "policy:id", []),
        (POLICY, "policy:id", ["org.acme:p"]),
        (POLICY, "entity:id", ["org.acme:p"]),
        (POLICY, "thing:id", []),
        (POLICY, "feature:id", []),
        (EVENT, "header:correlation-ID", ["c1"]),
        (EVENT, "header:requested-acks", ['["a:b"]']),
        (EVENT, "header:none", []),
        (EVENT, "connection:id", ["C"]),
        (EVENT, "request:subjectId", ["nginx:joe"]),
        (EVENT, "source:address", []),
        (EVENT, "topic:action", ["modified"]),
        (MESSAGE, "topic:action", []),
        (MESSAGE, "topic:subject", ["ask/more"]),
        (EVENT, "resource:path", ["/features/light"]),
        (MESSAGE, "resource:type", ["message"]),
        (EVENT, "feature:id", ["light"]),
        (MESSAGE, "feature:id", ["light"]),
        (CREATED, "feature:id", ["f1", "f2"]),
        (EVENT, "time:now[h]", ["2026-01-02T03:00:00Z"]),
        (EVENT, "thing-json:features/light/properties/level", ["3"]),
        (EVENT, "thing-json:/features/light/properties/on", ["true"]),
        (EVENT, "thing-json:features/light/properties/tags", ["a", "b"]),
        (EVENT, "thing-json:features/light/properties/none", []),
        (EVENT, "thing-json:features/light/properties/absent", []),
        (EVENT, "thing-json:features/other", []),
        (EVENT, "thing-json:attributes/site", ["Oslo"]),
        (EVENT, "thing-json:attributes/grid", ['{"x":1}']),
        (EVENT, "thing-json://", []),
        (CREATED, "thing-json:thingId", ["org.acme:lamp-1"]),
        (MESSAGE, "thing-json:attributes/site", ["Oslo"]),
    ],
)
def test_what_a_placeholder_stands_for(
    envelope: dict[str, Any], text: str, expected: list[str]
) -> None:
    prefix, _, name = text.partition(":")
    assert list(scope(envelope)(prefix, name)) == expected


def test_a_pointer_above_the_change_sees_the_change() -> None:
    light = EVENT["value"]
    found = scope(EVENT)("thing-json", "features")
    assert len(found) == 1
    assert '"light":{"properties":{"on":true' in found[0]
    assert light == EVENT["value"]


@pytest.mark.parametrize("envelope", [None, *BROKEN])
@pytest.mark.parametrize(
    "text", ["entity:id", "thing-json:a", "feature:id", "topic:full", "resource:path"]
)
def test_without_a_readable_message_nothing_is_resolved(
    envelope: dict[str, Any] | None, text: str
) -> None:
    prefix, _, name = text.partition(":")
    assert scope(envelope)(prefix, name) == ()


def test_on_the_way_in_headers_and_subject_are_those_of_the_source() -> None:
    outer = Scope("C", NOW, {"device": "d", "ditto-originator": "x"}, None, "acme:all", "in/+")
    inner = outer.of(EVENT)
    assert inner("header", "device") == ("d",)
    assert inner("header", "correlation-id") == ()
    assert inner("request", "subjectId") == ("acme:all",)
    assert inner("source", "address") == ("in/+",)
    assert inner("thing", "id") == ("org.acme:lamp-1",)


@pytest.mark.parametrize(
    "text", ["{{ topic:foo }}", "{{ thing:foo }}", "{{ connection:name }}", "{{ time:then }}"]
)
def test_a_name_that_its_prefix_does_not_have_is_refused(text: str) -> None:
    with pytest.raises(PlaceholderError, match="unknown placeholder"):
        read_template(text)


def test_a_pipeline_may_have_braces_around_it() -> None:
    for text in ("fn:filter(header:a,'exists')", "{{ fn:filter(header:a,'exists') }}"):
        pipeline = read_pipeline(text)
        assert pipeline.resolve(Scope("C", NOW, {"a": "1"}), ("x",)) == ("x",)
        assert pipeline.resolve(Scope("C", NOW), ("x",)) == ()


def test_headers_are_mapped() -> None:
    mapping = parse_header_mapping(
        {
            "Thing-Id": "{{ thing:id }}",
            "fixed": "yes",
            "gone": "{{ header:none }}",
            "deleted": "{{ header:correlation-id | fn:delete() | fn:default('x') }}",
            "first": "{{ thing-json:features/light/properties/tags }}",
        }
    )
    assert map_headers(mapping, scope(EVENT)) == {
        "thing-id": "org.acme:lamp-1",
        "fixed": "yes",
        "first": "a",
    }
    with pytest.raises(PlaceholderError):
        parse_header_mapping({"a": "{{ jwt:sub }}"})
