"""What a subscription wants of a signal: filters and extra fields."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from acks.fields import parse_extra_fields
from acks.interest import MAX_FIELDS, extra_of, features_of, fits, looks_at_things
from acks.journal import COMMAND, EVENT, LIVE_EVENT, MESSAGE, EntryMeta
from acks.resources import ABSENT
from acks.rql import EVENT_PREFIXES, parse_checked

Json = Any
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
META = EntryMeta(
    "org.example:lamp", "modified", "/attributes/color", 5, "2026-01-01T10:00:00Z", "c", (), "node",
    0, ("nginx:ditto",),
)  # fmt: skip


def wanted(text: str, meta: EntryMeta = META, value: Json = "red", extra: Json = None) -> bool:
    return fits(parse_checked(text, EVENT_PREFIXES), meta, value, extra, NOW)


@pytest.mark.parametrize(
    ("text", "fit"),
    [
        ("eq(attributes/color,'red')", True),
        ("eq(attributes/color,'blue')", False),
        ("exists(/attributes/color)", True),
        ("exists(attributes/size)", False),
        ("ne(attributes/size,1)", True),
        ("eq(thingId,'org.example:lamp')", True),
        ("eq(_namespace,'org.example')", True),
        ("gt(_revision,4)", True),
        ("eq(_modified,'2026-01-01T10:00:00Z')", True),
        ("exists(_created)", False),
        ("exists(policyId)", False),
        ("eq(topic:action,'modified')", True),
        ("eq(topic:channel,'twin')", True),
        ("eq(resource:path,'/attributes/color')", True),
        ("eq(entity:name,'lamp')", True),
        ("eq(resource:type,'thing')", True),
        ("lt(_modified,time:now-1h)", True),
        ("exists(thing:id)", False),
        ("exists(feature:id)", False),
        ("exists(header:correlation-id)", False),
        ("like(topic:full,'org.example/lamp/*')", True),
    ],
)
def test_a_filter_sees_what_has_changed(text: str, fit: bool) -> None:
    assert wanted(text) is fit


def test_a_whole_thing_and_its_creation() -> None:
    created = META._replace(action="created", path="/", revision=1)
    thing = {"thingId": "org.example:lamp", "policyId": "p:p", "attributes": {"n": [1, 2]}}
    assert wanted("and(eq(attributes/n,2),eq(policyId,'p:p'),exists(_created))", created, thing)


def test_a_deletion_has_no_data() -> None:
    gone = META._replace(action="deleted")
    assert not wanted("exists(attributes/color)", gone, ABSENT)
    assert wanted("and(eq(topic:action,'deleted'),ne(attributes/color,1))", gone, ABSENT)


def test_a_merge_is_its_patch() -> None:
    merged = META._replace(action="merged", path="/attributes")
    patch = {"color": None, "size": {"w": 3}}
    assert wanted("and(eq(attributes/color,null),eq(attributes/size/w,3))", merged, patch)


def test_extra_fields_are_looked_at_where_nothing_has_changed() -> None:
    extra = {"attributes": {"color": "old", "size": 3}, "_revision": 9}
    assert wanted("and(eq(attributes/color,'red'),eq(attributes/size,3))", extra=extra)
    assert wanted("eq(_revision,5)", extra=extra)
    assert not wanted("eq(attributes/size,3)")


@pytest.mark.parametrize(("kind", "fit"), [(LIVE_EVENT, True), (COMMAND, True), (MESSAGE, False)])
def test_only_the_payload_of_a_message_is_no_part_of_the_thing(kind: str, fit: bool) -> None:
    action = "modify" if kind == COMMAND else META.action
    live = META._replace(kind=kind, action=action, revision=0)
    assert wanted("eq(attributes/color,'red')", live) is fit
    assert wanted("and(eq(thingId,'org.example:lamp'),not(exists(_revision)))", live)
    assert wanted("eq(topic:channel,'live')", live)


def test_a_message_by_its_subject() -> None:
    message = META._replace(kind=MESSAGE, action="ask", path="/inbox/messages/ask")
    text = "and(eq(topic:subject,'ask'),eq(resource:type,'message'),ge(attributes/size,3))"
    assert wanted(text, message, {"any": 1}, {"attributes": {"size": 3}})
    assert not wanted("eq(attributes/any,1)", message, {"any": 1})


def test_what_takes_too_long_does_not_fit() -> None:
    long = META._replace(path="/attributes")
    value = {"list": ["x" * 100] * 20_000}
    assert not wanted("not(like(attributes/list,'*y*'))", long, value)


@pytest.mark.parametrize(
    ("text", "meta", "value", "fit"),
    [
        ("eq(thing:id,'org.example:lamp')", META, "red", True),
        ("and(eq(thing:namespace,'org.example'),eq(thing:name,'lamp'))", META, "red", True),
        ("eq(thing:id,'org.example:door')", META, "red", False),
        ("exists(feature:id)", META, "red", False),
        ("ne(feature:id,'a')", META, "red", True),
        ("eq(feature:id,'a')", META._replace(path="/features/a/properties/on"), True, True),
        ("eq(feature:id,'b')", META._replace(path="/features/a/properties/on"), True, False),
        ("exists(feature:id)", META._replace(path="/features/a", action="deleted"), ABSENT, True),
        ("eq(feature:id,'b')", META._replace(path="/features"), {"a": {}, "b": {}}, True),
        ("eq(feature:id,'c')", META._replace(path="/features"), {"a": {}, "b": {}}, False),
        ("like(feature:id,'a*')", META._replace(path="/"), {"features": {"ab": {}}}, True),
        ("empty(feature:id)", META._replace(path="/"), {"features": {}}, True),
        ("exists(header:correlation-id)", META, "red", False),
        (
            "and(eq(feature:id,'a'),eq(thing:name,'lamp'))",
            META._replace(kind=MESSAGE, action="ask", path="/features/a/inbox/messages/ask"),
            "hello",
            True,
        ),
    ],
)
def test_a_filter_of_a_target_knows_the_thing_and_its_features(
    text: str, meta: EntryMeta, value: Json, fit: bool
) -> None:
    predicate = parse_checked(text, EVENT_PREFIXES)
    assert fits(predicate, meta, value, None, NOW, of_target=True) is fit


def test_features_of_a_target_may_need_the_value() -> None:
    predicate = parse_checked("eq(feature:id,'a')", EVENT_PREFIXES)
    assert looks_at_things(predicate, of_target=True)
    assert not looks_at_things(predicate)
    names = parse_checked("eq(thing:id,'a:b')", EVENT_PREFIXES)
    assert not looks_at_things(names, of_target=True)


def test_whether_a_filter_needs_the_thing() -> None:
    names = parse_checked("and(eq(topic:action,'x'),lt(time:now,'y'))", EVENT_PREFIXES)
    assert not looks_at_things(names)
    mixed = parse_checked("or(eq(topic:action,'x'),not(exists(attributes/a)))", EVENT_PREFIXES)
    assert looks_at_things(mixed)


# --- extra fields

TWIN = {
    "thingId": "org.example:lamp",
    "policyId": "p:p",
    "attributes": {"type": "lamp", "color": "red"},
    "features": {
        "a": {"definition": ["d:a:1"], "properties": {"on": True}},
        "b": {"properties": {"on": False}},
        "c\\1": {"properties": {"on": None}},
    },
}
SPECIAL = {"_revision": 5, "_namespace": "org.example"}


def extra(text: str, meta: EntryMeta = META, value: Json = ABSENT) -> Json:
    return extra_of(parse_extra_fields(text), meta, lambda: value, TWIN, SPECIAL)


def on(*names: str) -> Json:
    features: Json = TWIN["features"]
    return {name: {"properties": {"on": features[name]["properties"]["on"]}} for name in names}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("attributes/type,policyId", {"attributes": {"type": "lamp"}, "policyId": "p:p"}),
        ("_revision,_namespace,_created", {"_revision": 5, "_namespace": "org.example"}),
        ("features/*/properties/on", {"features": on("a", "b", "c\\1")}),
        ("features/x,definition", None),
        ("features/{{feature:id}}/properties", None),
        ("thingId,features/{{other:id}}/properties", {"thingId": "org.example:lamp"}),
    ],
)
def test_extra_fields(text: str, found: Json) -> None:
    assert extra(text) == found


@pytest.mark.parametrize(
    ("path", "value", "names"),
    [
        ("/features/a/properties/on", True, ["a"]),
        ("/features/c\\1", {}, ["c\\1"]),
        ("/features", {"b": {}, "x": {}}, ["b"]),
        ("/", {"features": {"a": {}, "b": {}}}, ["a", "b"]),
        ("/", {"features": None}, []),
        ("/", {"attributes": {}}, []),
        ("/attributes/features", {"a": {}}, []),
        ("/features", ABSENT, []),
    ],
)
def test_the_feature_that_it_is_about(path: str, value: Json, names: list[str]) -> None:
    found = extra("features/{{ feature:id }}/properties/on", META._replace(path=path), value)
    assert found == ({"features": on(*names)} if names else None)


def test_a_message_is_about_the_feature_in_its_path() -> None:
    path = "/features/b/inbox/messages/ask"
    message = META._replace(kind=MESSAGE, action="ask", path=path)
    assert extra("features/{{feature:id}}/properties/on", message, "hi") == {"features": on("b")}
    assert features_of(message._replace(path="/inbox/messages/ask"), lambda: {"features": {}}) == ()


def test_placeholders_come_to_a_bounded_number_of_fields() -> None:
    value: Json = {f"f{number}": {} for number in range(MAX_FIELDS + 500)}
    meta = META._replace(kind=EVENT, path="/features")
    twin = {"features": {name: {"properties": 1} for name in value}}
    selector = parse_extra_fields("features/{{feature:id}}/properties")
    found = extra_of(selector, meta, lambda: value, twin, {})
    assert found is not None
    assert len(found["features"]) == MAX_FIELDS
