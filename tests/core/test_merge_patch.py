"""JSON merge patch: the examples of RFC 7396, and what a patch would change."""

from __future__ import annotations

from typing import Any

import pytest

from acks.facts import MISSING
from acks.merge_patch import below, difference, merge, same

EXAMPLES: tuple[tuple[Any, Any, Any], ...] = (  # RFC 7396, appendix A
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    (["a", "b"], ["c", "d"], ["c", "d"]),
    ({"a": "b"}, ["c"], ["c"]),
    ({"a": "foo"}, None, None),
    ({"a": "foo"}, "bar", "bar"),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
)


@pytest.mark.parametrize(("target", "patch", "result"), EXAMPLES)
def test_examples(target: Any, patch: Any, result: Any) -> None:
    assert merge(target, patch) == result


def test_untouched_parts_are_shared_and_arrays_are_values() -> None:
    target = {"a": {"x": 1}, "b": {"y": {}}}
    merged = merge(target, {"a": {"z": [None]}})
    assert merged == {"a": {"x": 1, "z": [None]}, "b": {"y": {}}}
    assert merged["b"] is target["b"]
    assert target["a"] == {"x": 1}


@pytest.mark.parametrize(
    ("target", "patch", "kept"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, {"b": 3}),
        ({"a": {"x": 1, "y": 2}}, {"a": {"x": 1, "y": None, "z": None}}, {"a": {"y": None}}),
        ({"a": None}, {"a": None}, {"a": None}),
        ({}, {"a": {"b": None}}, {"a": {"b": None}}),
        ({"a": 1}, {"a": {}}, {"a": {}}),
        ({"a": 1}, {"a": True}, {"a": True}),
        ({"a": {"x": 1}}, {"a": {}}, MISSING),
        ({"a": {"x": [1, {"y": None}]}}, {"a": {"x": [1, {"y": None}]}, "z": None}, MISSING),
        ({}, {}, MISSING),
        (1, 1, MISSING),
        (1, 2, 2),
    ],
)
def test_difference(target: Any, patch: Any, kept: Any) -> None:
    found = difference(target, patch)
    assert found is MISSING if kept is MISSING else same(found, kept)


def test_below() -> None:
    assert below((), 1) == 1
    assert below(("a", "b"), None) == {"a": {"b": None}}


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        (1, 1, True),
        (1, True, False),
        (0, False, False),
        (1, 1.0, False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"b": 1}, False),
        ([1, [2]], [1, [2]], True),
        ([1], [1, 1], False),
        ([True], [1], False),
        (None, None, True),
        (None, MISSING, False),
    ],
)
def test_equality_is_that_of_json(left: Any, right: Any, equal: bool) -> None:
    assert same(left, right) is equal
