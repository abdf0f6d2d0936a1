"""Searches that mean harm, and rules that do: nothing is injected, everything is bounded."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acks.document import format_pointer
from acks.errors import GatewayError
from acks.rql import MAX_COMPARISONS, MAX_DEPTH, MAX_VALUES, Comparison, Logic, Predicate, Presence
from acks.search_options import BY_ID, SortKey
from acks.search_terms import head_of
from app.search.find import check_keys
from app.search.literals import MAX_PATTERN
from app.search.properties import MAX_MIXED
from app.store.sql.database import IndexBusy
from tests.search_lab import JsonObject, Lab, asked_of, rules_of

MARK = "zqz"
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.lists(
    st.sampled_from(
        ["'", '"', ";", "--", "/*", "?", "$1", ")", "\\", "%", "_", "[", "*", "\x00", "{}", "%s"]
    )
).map("".join)
OPERATORS = ["eq", "ne", "gt", "ge", "lt", "le", "like", "ilike", "in"]


@settings(max_examples=60, deadline=None)
@given(TEXTS, TEXTS.filter(bool), st.sampled_from(OPERATORS))
def test_no_value_and_no_name_becomes_sql(lab: Lab, text: str, name: str, operator: str) -> None:
    text, name = MARK + text, MARK + name
    things = [{"attributes": {name: text}}, {"attributes": {"other": text, name: "other"}}]
    policy = rules_of([("s:1", (), True, False), ("s:1", ("attributes", name, name), False, True)])
    namespace, _ = lab.fill(things, [policy])
    at = "attributes" + format_pointer((name,))
    with asked_of(lab.database) as asked:
        assert lab.search(namespace, Comparison("eq", at, (text,))) == ["t0"]
        assert lab.search(namespace, Presence("exists", at)) == ["t0", "t1"]
        lab.search(namespace, Comparison(operator, at, (text,)))
        lab.search(namespace, Comparison(operator, "thingId", (text,)), subjects=("s:1", text))
        sort = (SortKey(at, True), BY_ID)
        after = [[3, head_of(text)], [3, head_of(text)]]
        found = lab.search(namespace, sort=sort, after=after, limit=25)
        assert found == ["t1"]  # "other" is less than what begins with a z
        lab.search(text)
    assert asked
    assert not any(MARK in statement for statement, _ in asked)
    assert lab.search(namespace) == ["t0", "t1"]


def nested(levels: int) -> Predicate:
    predicate: Predicate = Comparison("eq", "attributes/a", (1,))
    for _ in range(levels - 1):
        predicate = Logic("not", (predicate,))
    return predicate


def every(operator: str) -> Predicate:
    leaves = [
        Comparison(("eq", "ne", "gt", "like")[at % 4], f"attributes/a{at % 9}", (str(at),))
        for at in range(MAX_COMPARISONS)
    ]
    return Logic(operator, tuple(leaves))


def test_the_largest_filters_are_answered(lab: Lab) -> None:
    namespace, _ = lab.fill([{"attributes": {"a": 1}}, {"attributes": {"a": 2, "a1": "0"}}])
    assert lab.search(namespace, nested(MAX_DEPTH)) == ["t1"]
    assert lab.search(namespace, nested(MAX_DEPTH - 1)) == ["t0"]
    assert lab.search(namespace, every("or")) == ["t1"]
    assert lab.search(namespace, every("and")) == []
    numbers = Comparison("in", "attributes/a", tuple(range(1, MAX_VALUES + 1)))
    assert lab.search(namespace, numbers) == ["t0", "t1"]
    texts = Comparison("in", "attributes/a", (*map(str, range(MAX_VALUES - 1)), 2))
    assert lab.search(namespace, texts) == ["t1"]
    listed = [Comparison("in", "attributes/a", tuple(range(at, at + 80))) for at in range(100)]
    assert lab.search(namespace, Logic("and", tuple(listed[:2]))) == ["t0", "t1"]
    assert lab.search(namespace, Logic("or", tuple(listed))) == ["t0", "t1"]


@pytest.mark.parametrize("operator", ["like", "ilike"])
@pytest.mark.parametrize(
    "pattern",
    [
        *("*a*a*a*a*a*a*b", "*" + "a*" * 200 + "b", "*?a" * 150 + "b*"),
        *("*" + "a" * 200 + "b" + "a" * 200 + "*", "?" * MAX_PATTERN),
    ],
    ids=range(5),
)
def test_patterns_take_bounded_time(lab: Lab, operator: str, pattern: str) -> None:
    texts = ["a" * 100_000, "A" * 100_000, "a" * 99_999 + "c"]
    namespace, _ = lab.fill([{"attributes": {"a": text}} for text in texts])
    assert lab.search(namespace, Comparison(operator, "attributes/a", (pattern,))) == []
    assert lab.search(namespace, Comparison(operator, "attributes/a", ("a" + "*a" * 200 + "*c",)))


def test_a_longer_pattern_is_refused(lab: Lab) -> None:
    namespace, _ = lab.fill([{}])
    for name in ("attributes/a", "thingId"):
        for operator in ("like", "ilike"):
            long = Comparison(operator, name, ("*" * (MAX_PATTERN + 1),))
            with pytest.raises(GatewayError) as caught:
                lab.search(namespace, long)
            assert caught.value.code == "rql.expression.invalid"


def test_a_large_array_is_one_property(lab: Lab) -> None:
    namespace, _ = lab.fill([{"attributes": {"a": list(range(10_000))}}, {"attributes": {"a": 0}}])
    assert lab.search(namespace, Comparison("eq", "attributes/a", (9_999,))) == ["t0"]
    assert lab.search(namespace, Comparison("ne", "attributes/a", (9_999,))) == ["t1"]
    sort = (SortKey("attributes/a", True), BY_ID)
    assert lab.pages(namespace, sort, 1) == ["t0", "t1"]


def test_a_search_ends_at_its_deadline(lab: Lab) -> None:
    namespace, _ = lab.fill([{}])
    for finder in lab.finders:
        with pytest.raises(IndexBusy):
            lab.run(finder.find(lab.query(namespace), 0.0))
        with pytest.raises(IndexBusy):
            lab.run(finder.count(lab.query(namespace), -1.0))


def test_many_sets_of_rules_below_a_property_show_no_more(lab: Lab) -> None:
    """Policies of strangers that name a subject neither slow it down nor show it anything."""
    hidden = [
        rules_of(
            [("s:1", (), True, False), ("s:1", ("attributes", "a", "x", f"y{at}"), False, True)]
        )
        for at in range(MAX_MIXED + 50)
    ]
    closed = [("s:1", ("attributes", "a"), False, True), ("s:1", ("attributes", "b"), True, False)]
    document: JsonObject = {"attributes": {"a": {"x": {f"y{at}": 1 for at in range(300)}}}}
    namespace, _ = lab.fill([document] * len(hidden) + [document], [*hidden, rules_of(closed)])
    names = {f"t{at}" for at in range(len(hidden))}
    found = set(lab.search(namespace, Presence("exists", "attributes/a/x"), limit=500))
    assert found <= names
    assert len(found) == MAX_MIXED
    first = Comparison("eq", "attributes/a/x/y0", (1,))
    assert set(lab.search(namespace, first, limit=500)) == names - {"t0"}


KEYS_OF_A = ((SortKey("attributes/a", False), BY_ID), [[2, "1"], [3, "n:t0"]])


@pytest.mark.parametrize(
    "key",
    [
        None, 1, "a", {}, [2], [2, 1], [2, "x"], [2, "1e999"], [2, str(2**63)], [2, "nan"],
        [2, "1" * 400], [2, "٣"], [3, "a" * 2000], [3, "\x00"], [3, "\ud800"], [4, "a"], [8, "2"],
        [True, "a"], ["2", "1"], [2, "1", ""], [2.5, "1"],
    ],
)  # fmt: skip
def test_keys_that_no_hit_has_are_refused(key: Any) -> None:
    sort, keys = KEYS_OF_A
    check_keys(sort, keys)
    with pytest.raises(ValueError):  # noqa: PT011 - the message is for nobody
        check_keys(sort, [key, keys[1]])
    with pytest.raises(ValueError):  # noqa: PT011
        check_keys(sort, [keys[0], key])
    with pytest.raises(ValueError):  # noqa: PT011
        check_keys(sort, keys[:1])
