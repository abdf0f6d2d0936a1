"""Field selectors: grammar, limits, selection."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from acks.errors import GatewayError
from acks.fields import (
    MAX_FIELDS,
    MAX_LENGTH,
    Selector,
    parse_extra_fields,
    parse_fields,
    select,
)

THING: dict[str, Any] = {
    "thingId": "org.example:lamp",
    "policyId": "org.example:lamp",
    "attributes": {
        "a": 1,
        "b": {"c": {"d": 2}, "e": None, "empty": {}},
        "list": [{"x": 1}],
        "*": 5,
        "sla/sh": 6,
    },
    "features": {
        "one": {"properties": {"on": True, "hue": 7}, "definition": ["a:b:c"]},
        "two": {"properties": {"on": False}},
        "bare": {},
        "none": None,
    },
    "_revision": 3,
    "_policy": {"entries": {}},
}


def code(text: str) -> str:
    with pytest.raises(GatewayError) as caught:
        parse_fields(text)
    assert caught.value.status == 400
    assert len(caught.value.message) < 200
    return caught.value.code


@pytest.mark.parametrize(
    ("text", "pointers"),
    [
        ("a", ["a"]),
        ("/a", ["a"]),
        ("a/", ["a"]),
        ("a,a,/a", ["a"]),
        ("a(b)", ["a/b"]),
        ("a(b,c(d/e,f),g),h", ["a/b", "a/c/d/e", "a/c/f", "a/g", "h"]),
        ("a(b(c(d)))", ["a/b/c/d"]),
        ("a/b(/c)", ["a/b/c"]),
        ("a b", ["a b"]),
        ("{{feature:id}},x{y}", ["{{feature:id}}", "x{y}"]),
        ("a({{b)", ["a/{{b"]),
        ("f/{{fn:a('/',')')}}/p(q)", ["f/{{fn:a('/',')')}}/p/q"]),
    ],
)
def test_grammar(text: str, pointers: list[str]) -> None:
    assert parse_fields(text).pointers == tuple(_split(pointer) for pointer in pointers)


def _split(pointer: str) -> tuple[str, ...]:
    if "{{fn" in pointer:
        return ("f", "{{fn:a('/',')')}}", "p", "q")
    return tuple(pointer.split("/"))


def test_escapes() -> None:
    assert parse_fields("a~1b/c~0d").pointers == (("a/b", "c~d"),)


@pytest.mark.parametrize(
    "text",
    [
        "", ",", "a,", ",a", "a,,b", "/", "(", ")", "()", "(a)", "a(", "a()", "a(b", "a)", "a(b))",
        "a(b)c", "a(b)(c)", "a(,b)", "a(b,)", "a((b))", "a)b(",
        "listOfAddresses/postal(city,street))", "{{x(",
    ],
)  # fmt: skip
def test_what_is_no_selector(text: str) -> None:
    assert code(text) == "json.fieldselector.invalid"


def test_two_slashes_are_no_pointer() -> None:
    assert code("a//b") == "json.pointer.invalid"


@pytest.mark.parametrize(
    "text",
    [
        "(" * 8000,
        "a(" * 4000,
        "a(" * 2000 + "b" + ")" * 2000,
        "a/" * 4000 + "a",
        ",".join(f"a{number}" for number in range(MAX_FIELDS + 1)),
        "{" * 8000 + "(",
        "{{" * 4000 + ")",
        "a" * (MAX_LENGTH + 1),
    ],
    ids=lambda text: text[:8],
)
def test_hostile_selectors_are_refused(text: str) -> None:
    assert code(text) == "json.fieldselector.invalid"


def test_limits() -> None:
    assert len(parse_fields(",".join(map(str, range(MAX_FIELDS)))).pointers) == MAX_FIELDS
    assert parse_fields("a" * MAX_LENGTH).pointers == (("a" * MAX_LENGTH,),)
    assert parse_fields("a(" * 99 + "a" + ")" * 99).pointers == (("a",) * 100,)


def test_selectors_are_immutable_values() -> None:
    one, other = parse_fields("a(b,c)"), parse_fields("a/b,a/c")
    assert one == other
    assert len({one, other}) == 1
    with pytest.raises(AttributeError):
        one.pointers = ()  # type: ignore[misc]


# --- selection -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("thingId", {"thingId": "org.example:lamp"}),
        ("thingId,missing,attributes/missing", {"thingId": "org.example:lamp"}),
        ("missing", {}),
        ("attributes/b/c", {"attributes": {"b": {"c": {"d": 2}}}}),
        ("attributes(b(c/d,e),a)", {"attributes": {"b": {"c": {"d": 2}, "e": None}, "a": 1}}),
        ("attributes/b/empty", {"attributes": {"b": {"empty": {}}}}),
        ("attributes/b/empty/x", {}),
        ("attributes/a/x", {}),
        ("attributes/list", {"attributes": {"list": [{"x": 1}]}}),
        ("attributes/list/x", {}),
        ("attributes/*", {"attributes": {"*": 5}}),
        ("attributes/sla~1sh", {"attributes": {"sla/sh": 6}}),
        ("attributes/b/e,attributes/b", {"attributes": {"b": THING["attributes"]["b"]}}),
        ("attributes/b,attributes/b/e", {"attributes": {"b": THING["attributes"]["b"]}}),
        ("features/one/properties/hue", {"features": {"one": {"properties": {"hue": 7}}}}),
        (
            "features/*/properties/on",
            {
                "features": {
                    "one": {"properties": {"on": True}},
                    "two": {"properties": {"on": False}},
                }
            },
        ),
        (
            "features(one/definition,*/properties/on)",
            {
                "features": {
                    "one": {"properties": {"on": True}, "definition": ["a:b:c"]},
                    "two": {"properties": {"on": False}},
                }
            },
        ),
        ("features/*/definition", {"features": {"one": {"definition": ["a:b:c"]}}}),
        ("features/*", {"features": THING["features"]}),
        ("features/*,features/one/definition", {"features": THING["features"]}),
        ("features,features/*/definition", {"features": THING["features"]}),
        ("_revision,_policy,_created", {"_revision": 3, "_policy": {"entries": {}}}),
    ],
)
def test_select(fields: str, expected: dict[str, Any]) -> None:
    before = copy.deepcopy(THING)
    assert select(parse_fields(fields), THING) == expected
    assert before == THING


def test_features_without_any() -> None:
    selector = parse_fields("thingId,features/*/properties")
    assert select(selector, {"thingId": "a:b"}) == {"thingId": "a:b"}
    assert select(selector, {"thingId": "a:b", "features": {}}) == {"thingId": "a:b"}


def test_many_fields_of_many_features() -> None:
    names = ",".join(f"x{number}" for number in range(MAX_FIELDS))
    features = {str(number): {"x1": number} for number in range(20_000)}
    selector = parse_fields(f"features/*({names})")
    assert select(selector, {"features": features}) == {"features": features}


# --- fields of things ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "/thingId", "attributes(a,b)", "features/*/properties/x", "_context/topic", "_metadata",
        "_policy,_revision,_created,_modified,_namespace,definition,policyId",
        "{{anything}}", "x/{{feature:id}}",
    ],
)  # fmt: skip
def test_extra_fields(text: str) -> None:
    assert parse_extra_fields(text) == parse_fields(text)


@pytest.mark.parametrize(
    "text",
    ["x", "thingId, attributes", "attributes/", "attributes/,thingId", "thingId/x", "policyId(a)"],
)
def test_what_is_no_field_of_a_thing(text: str) -> None:
    with pytest.raises(GatewayError) as caught:
        parse_extra_fields(text)
    problem = caught.value
    assert (problem.status, problem.code) == (400, "things:field.selection.invalid")
    assert problem.message == f"Thing field selection <{text}> was not valid."


def test_a_selector_can_be_made_of_paths() -> None:
    assert select(Selector((("attributes", "a"),)), THING) == {"attributes": {"a": 1}}
