"""What the search index knows of a thing."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from acks.search_terms import (
    ARRAY,
    BOOLEAN,
    EMPTY_ARRAY,
    EMPTY_OBJECT,
    FILLED,
    HEAD,
    MAX_PATH,
    NULL,
    NUMBER,
    OBJECT,
    TEXT,
    Place,
    Value,
    changed_terms,
    head_of,
    path_text,
    storable,
    terms_of,
    value_of,
    wild_text,
)


def found(document: dict[str, Any], path: str) -> list[tuple[Any, ...]]:
    """Kind and value of the terms at a path, wherever the policy decides about it."""
    return [
        (value.kind, value.number or value.head)
        for place, values in terms_of(document).items()
        if place.path == path
        for value in values
    ]


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (None, Value(NULL)),
        (True, Value(BOOLEAN, 1)),
        (False, Value(BOOLEAN, 0)),
        (7, Value(NUMBER, 7)),
        (-0.5, Value(NUMBER, -0.5)),
        (2**63 - 1, Value(NUMBER, 2**63 - 1)),
        ("", Value(TEXT)),
        ("a", Value(TEXT, 0, "a")),
        ("x" * HEAD, Value(TEXT, 0, "x" * HEAD)),
    ],
)
def test_every_kind_of_value_has_its_columns(item: Any, expected: Value) -> None:
    assert value_of(item) == expected


def test_a_long_text_is_there_as_a_whole_beside_its_head() -> None:
    long, other = "x" * HEAD + "y", "x" * HEAD + "z"
    assert value_of(long).text == long
    assert value_of(long).head == head_of(long) != head_of(other)
    assert value_of(long).head.startswith("x" * HEAD)


def test_an_integer_beyond_64_bits_is_the_nearest_number() -> None:
    assert value_of(2**64) == Value(NUMBER, float(2**64))


def test_heads_are_in_the_order_of_their_texts_for_short_limits() -> None:
    limit = "m" * HEAD
    texts = [
        "",
        "m" * (HEAD - 1),
        limit,
        limit + "a",
        "m" * (HEAD - 1) + "n",
        "z",
        "m",
        limit + "z",
    ]
    for text in texts:
        assert (head_of(text) < limit) == (text < limit)
        assert (head_of(text) > limit) == (text > limit)


def test_no_text_is_refused_by_a_database_and_none_changes_places() -> None:
    texts = ["\x00", "\x00\x00", "\x00\x01", "\x01", "\x01\x01", "\x02", "", "\x00a", "\x01a", "a"]
    for one, other in itertools.permutations(texts, 2):
        assert (storable(one) < storable(other)) == (one < other)
    assert not any("\x00" in storable(text) for text in texts)
    assert storable("a\ud800b") == "a\ufffdb"


def test_a_path_is_a_pointer_without_its_first_slash() -> None:
    assert path_text(("attributes", "a/b~c", "d")) == "attributes/a~1b~0c/d"
    assert wild_text(("features", "f/1", "properties", "t")) == "features/*/properties/t"
    assert wild_text(("features", "f")) == "features/*"
    assert wild_text(("attributes", "features", "f")) == ""


def test_long_paths_are_cut_and_stay_apart() -> None:
    one, other = (("attributes", "k" * 1000 + end) for end in "ab")
    assert path_text(one) != path_text(other)
    assert len(path_text(one)) < MAX_PATH + 40


def test_leaves_objects_and_the_definition_are_found() -> None:
    thing = {
        "thingId": "a:b",
        "policyId": "a:p",
        "definition": "a:b:1",
        "attributes": {"on": True, "where": {"room": "r1", "extra": {}}},
        "features": {"lamp": {"definition": ["x:y:1"], "properties": {"level": 3}}},
    }
    assert found(thing, "definition") == [(TEXT, "a:b:1")]
    assert found(thing, "attributes/on") == [(BOOLEAN, 1)]
    assert found(thing, "attributes/where") == [(OBJECT, "")]
    assert found(thing, "attributes/where/extra") == [(EMPTY_OBJECT, "")]
    assert found(thing, "features/lamp/definition") == [(ARRAY, ""), (TEXT, "x:y:1")]
    assert found(thing, "features/lamp/properties/level") == [(NUMBER, 3)]
    assert {place.path.partition("/")[0] for place in terms_of(thing)} == {
        *("definition", "attributes", "features")
    }


def test_where_a_feature_is_named_its_wildcard_is_too() -> None:
    thing = {"features": {"a/b": {"properties": {"t": 1}}}}
    place = Place("features/a~1b/properties/t", 4, "a/b", "features/*/properties/t")
    assert terms_of(thing)[place] == (Value(NUMBER, 1),)


def test_arrays_are_flattened_without_duplicates() -> None:
    thing = {"attributes": {"list": [1, [2, [1]], "x", None, []], "none": []}}
    assert found(thing, "attributes/none") == [(EMPTY_ARRAY, "")]
    values = found(thing, "attributes/list")
    assert sorted(values, key=str) == [
        (NULL, ""),
        (NUMBER, 1),
        (NUMBER, 2),
        (TEXT, "x"),
        (ARRAY, ""),
    ]


def test_what_is_in_an_array_is_decided_on_at_the_array() -> None:
    thing = {"attributes": {"rooms": [{"size": 3, "door": {"open": True}}, {"size": []}]}}
    places = {place.path: place.depth for place in terms_of(thing)}
    assert places == {
        "attributes/rooms": 2,
        "attributes/rooms/size": 2,
        "attributes/rooms/door": 2,
        "attributes/rooms/door/open": 2,
    }
    # exists, and not empty: what is found there is a list of something.
    assert found(thing, "attributes/rooms/size") == [(ARRAY, ""), (NUMBER, 3)]
    assert found(thing, "attributes/rooms/door") == [(ARRAY, "")]


@pytest.mark.parametrize("empty", [None, "", [], {}])
def test_what_is_empty_has_no_filled_term(empty: Any) -> None:
    (values,) = terms_of({"attributes": {"a": empty}}).values()
    assert not any(value.kind in FILLED or value.head for value in values)


@pytest.mark.parametrize("full", [0, False, "x", [None], [[]], [""], {"a": None}])
def test_what_is_not_empty_has_one(full: Any) -> None:
    values = terms_of({"attributes": {"a": full}})[Place("attributes/a", 2, "", "")]
    assert any(value.kind in FILLED or value.head for value in values)


def changes(old: dict[str, Any] | None, new: dict[str, Any]) -> set[str]:
    return {place.path for place, _, _ in changed_terms(old, new)}


def test_only_what_differs_is_a_change() -> None:
    old: dict[str, Any] = {
        "attributes": {"a": 1, "b": {"c": [1, 2], "d": 2}},
        "features": {"f": {}},
    }
    assert changes(old, old) == set()
    assert changes(old, {**old, "attributes": {**old["attributes"], "a": 2}}) == {"attributes/a"}
    assert changes(None, {"attributes": {"a": 1}}) == {"attributes/a"}
    assert changes(old, {"attributes": old["attributes"]}) == {"features/f"}


def test_an_object_that_lost_all_or_some_of_its_fields() -> None:
    full, half, empty = ({"attributes": {"o": o}} for o in ({"a": 1, "b": 2}, {"a": 1}, {}))
    assert changes(full, half) == {"attributes/o/b"}
    assert changes(half, full) == {"attributes/o/b"}
    assert changes(half, empty) == {"attributes/o", "attributes/o/a"}
    assert changes(empty, half) == {"attributes/o", "attributes/o/a"}


@pytest.mark.parametrize(("was", "now"), [(1, True), (0, False), ([1], [True]), ("1", 1)])
def test_values_that_python_takes_for_equal_are_not(was: Any, now: Any) -> None:
    assert changes({"attributes": {"a": was}}, {"attributes": {"a": now}}) == {"attributes/a"}


def test_deep_documents_are_walked() -> None:
    deep: Any = 1
    for _ in range(98):
        deep = {"k": deep}
    assert len(terms_of({"attributes": {"a": deep}})) == 99
    assert len(changes({"attributes": {"a": deep}}, {"attributes": {}})) == 99
