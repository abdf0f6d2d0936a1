"""Searches in SQL find what RQL finds in the things as their policies show them, on each database.

The reference is in tests/search_lab.py.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from acks.rql import Comparison, Logic, Predicate, Presence, Time, format_predicate
from acks.search_options import SortKey
from tests.search_lab import (
    JsonObject,
    Lab,
    Rule,
    facts_of,
    fits,
    in_order,
    names_of,
    rules_of,
    seen,
)

LONG = "lo" * 100

NAMES = st.sampled_from(["a", "a", "b", "b", "c/d"])
TEXTS = st.sampled_from(
    [
        "", "a", "ab", "aB", "b", "*", "?", "%", "_", "[a]", "\\", "é", "É", "\U0001f600", "\uffff",
        "1", "true", "a\x00b", LONG, LONG + "x", LONG[:100], LONG[:101], "'; DROP TABLE thing; --",
    ]
)  # fmt: skip
LITERALS = (
    st.none()
    | st.booleans()
    | st.integers(-2, 3)
    | st.sampled_from([0.5, -0.5, 1.0, 2.25, 1e300, 2**63 - 1, -(2**63), 2**53 + 1])
    | TEXTS
)
VALUES = st.recursive(
    LITERALS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, min_size=1, max_size=3)
    ),
    max_leaves=8,
)
DEEP = st.dictionaries(NAMES, VALUES, min_size=1, max_size=3) | st.lists(
    st.dictionaries(NAMES, VALUES, max_size=2), max_size=2
)
FIELDS = st.fixed_dictionaries(
    {"a": VALUES | DEEP | st.lists(st.integers(0, 3), min_size=2, max_size=3)},
    optional={"b": VALUES, "c/d": VALUES},
)
FEATURES = st.dictionaries(
    st.sampled_from(["f", "g", "h/i"]),
    st.fixed_dictionaries({}, optional={"properties": FIELDS, "desiredProperties": FIELDS}),
    max_size=2,
)
THINGS: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {"attributes": FIELDS},
    optional={"definition": st.sampled_from(["a:b:1", "a:c:1"]), "features": FEATURES},
) | st.just({})
DOCUMENTS = st.lists(THINGS, min_size=1, max_size=5)

VALUED = ["attributes/a", "attributes/b", "attributes/a/a", "attributes/a/b"]
PLAIN = st.sampled_from(VALUED) | st.sampled_from(
    [
        *("thingId", "policyId", "_namespace", "_revision", "_created", "_modified", "definition"),
        *("attributes/c~1d", "attributes/a/c~1d/b", "attributes/none", "_metadata/attributes/a"),
        *("features/f/properties/a", "features/g/properties/b/a", "features/f/definition"),
        *("features/f/desiredProperties/a", "features/h~1i/properties/a"),
    ]
)
WILD = st.sampled_from(["features/*/properties/a", "features/*/properties/b/a"])
WHOLE = st.sampled_from(
    ["attributes/a", "attributes/a/a", "features/f", "features/*", "features/*/properties"]
)
PATTERNS = st.text("abl*?[%_\\É", max_size=5) | st.sampled_from(
    [LONG[:99] + "*", LONG + "?", LONG[:101] + "*", "*o*l*o*", "a\x00*", "**"]
)
SINGLE = st.sampled_from(["eq", "ne", "gt", "ge", "lt", "le"])
COLUMN_TEXTS = st.sampled_from(
    ["2024-05-15T01:00:00Z", "2024-01-02T00:00:00Z", "a:b:1", "n1:t0", "n1:p0"]
)
LEAVES = (
    st.builds(
        Comparison, SINGLE, PLAIN | WILD, (LITERALS | COLUMN_TEXTS).map(lambda value: (value,))
    )
    | st.builds(
        Comparison,
        st.just("in"),
        PLAIN | WILD,
        st.lists(LITERALS, min_size=1, max_size=4).map(tuple),
    )
    | st.builds(
        Comparison,
        st.sampled_from(["like", "ilike"]),
        PLAIN | WILD,
        (PATTERNS | st.integers(0, 2)).map(lambda value: (value,)),
    )
    | st.builds(Presence, st.sampled_from(["exists", "empty"]), PLAIN | WILD | WHOLE)
    | st.builds(Comparison, st.sampled_from(["lt", "gt"]), st.just("_modified"),
                st.sampled_from(["now", "now-2h[h]"]).map(lambda name: (Time(name),)))
)  # fmt: skip
PREDICATES: st.SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda inner: (
        st.builds(
            Logic,
            st.sampled_from(["and", "or"]),
            st.lists(inner, min_size=1, max_size=3).map(tuple),
        )
        | st.builds(Logic, st.just("not"), inner.map(lambda child: (child,)))
    ),
    max_leaves=6,
)

RULE_PATHS = st.sampled_from(
    [
        *(("attributes", "a"), ("attributes", "a", "a"), ("attributes", "a", "b"), ("attributes",)),
        *(("attributes", "b"), ("attributes", "c/d"), ("attributes", "a", "b", "a"), ()),
    ]
) | st.sampled_from(
    [
        *(("features",), ("features", "f"), ("features", "f", "properties", "a"), ("policyId",)),
        *(("features", "h/i"), ("definition",), ("features", "g", "properties", "b", "a")),
    ]
)
SUBJECTS = st.sampled_from(["s:1", "s:1", "s:2"])
ROOT = st.tuples(SUBJECTS, st.sampled_from([(), ("attributes",)]), st.just(True), st.just(False))
EFFECTS = st.sampled_from([(True, False), (False, True), (False, True), (True, True)])
BELOW = st.builds(lambda who, path, effect: (who, path, *effect), SUBJECTS, RULE_PATHS, EFFECTS)
RULES = st.builds(lambda first, rest: [first, *rest], ROOT, st.lists(BELOW, max_size=4))
REQUESTERS = st.sampled_from([("s:1",), ("s:1",), ("s:1", "s:2"), ("s:2",), ("s:3",), ()])
PROPERTIES = st.sampled_from(
    [
        *("attributes/a", "attributes/a", "attributes/b", "attributes/a/a", "policyId"),
        *("_modified", "_created", "_revision", "definition", "features/f/properties/a"),
    ]
)
SORTS = st.lists(
    st.builds(SortKey, PROPERTIES, st.booleans()), max_size=3, unique_by=lambda key: key.property
).flatmap(lambda keys: st.booleans().map(lambda last: (*keys, SortKey("thingId", last))))


# --- properties


@settings(max_examples=100, deadline=None)
@given(DOCUMENTS, st.lists(PREDICATES, min_size=1, max_size=4))
def test_a_search_finds_what_rql_finds(
    lab: Lab, documents: list[JsonObject], predicates: list[Predicate]
) -> None:
    namespace, things = lab.fill(documents)
    facts = [facts_of(thing) for thing in things]
    for predicate in predicates:
        wanted = names_of([one for one in facts if fits(predicate, one)])
        assert lab.search(namespace, predicate) == wanted, format_predicate(predicate)


@settings(max_examples=100, deadline=None)
@given(DOCUMENTS, st.lists(RULES, min_size=1, max_size=3), REQUESTERS,
       st.lists(PREDICATES, min_size=1, max_size=4))  # fmt: skip
def test_a_search_sees_what_the_policy_shows(
    lab: Lab,
    documents: list[JsonObject],
    rules: list[list[Rule]],
    subjects: tuple[str, ...],
    predicates: list[Predicate],
) -> None:
    policies = [rules_of(each) for each in rules]
    namespace, things = lab.fill(documents, policies)
    facts = seen(things, policies, subjects)
    for predicate in (None, *predicates):
        wanted = names_of([one for one in facts if predicate is None or fits(predicate, one)])
        assert lab.search(namespace, predicate, subjects=subjects) == wanted, predicate


@settings(max_examples=100, deadline=None)
@given(DOCUMENTS, st.lists(RULES, min_size=1, max_size=3), REQUESTERS, SORTS,
       st.none() | PREDICATES, st.integers(1, 3))  # fmt: skip
def test_pages_follow_the_sort(
    lab: Lab,
    documents: list[JsonObject],
    rules: list[list[Rule]],
    subjects: tuple[str, ...],
    sort: tuple[SortKey, ...],
    predicate: Predicate | None,
    size: int,
) -> None:
    policies = [rules_of(each) for each in rules]
    namespace, things = lab.fill(documents, policies)
    facts = [
        one for one in seen(things, policies, subjects) if predicate is None or fits(predicate, one)
    ]
    wanted = in_order(facts, sort)
    assert lab.search(namespace, predicate, subjects=subjects, sort=sort) == wanted
    found = lab.pages(namespace, sort, size, subjects=subjects, predicate=predicate)
    assert found == wanted
    skipped = lab.search(namespace, predicate, subjects=subjects, sort=sort, offset=1, limit=size)
    assert skipped == wanted[1 : 1 + size]


VALUES_OF_A: list[Any] = [
    *(1, 2, None, "1", True, {}, [], [1, 2], [0, 3, "x"], [[], {}]),
    *({"a": 1}, {"a": None}, {"a": {}}, {"a": []}, {"a": {"a": 1}}, {"a": [1, {"a": 1}]}),
    *({"b": 1}, {"b": {"a": 1}}, {"b": [{"a": 1}]}, {"b": {"a": [2]}}, {"b": {"b": 1}}),
    *([{"a": 1}, {"a": 2, "b": {"a": 1}}], [{"b": {"a": 1}}, 1], {"a": 2, "b": 1}),
    {"a": 1, "b": {"a": 1, "b": 2}},
]
SHAPES: list[JsonObject] = [*({"a": value} for value in VALUES_OF_A), {"b": 1}, {}]
A, AA, AB, ABA = (("attributes", *parts) for parts in ("a", "aa", "ab", "aba"))
Said = tuple[tuple[str, ...], bool, bool]
EXCEPTIONS: list[list[Said]] = [
    [],
    [(A, False, True)],
    [(AA, False, True)],
    [(AB, False, True)],
    [(ABA, False, True)],
    [(AA, True, True)],
    [(A, False, True), (AA, True, False)],
    [(A, False, True), (ABA, True, False)],
    [(AB, False, True), (ABA, True, False)],
    [(("policyId",), False, True)],
]
POLICIES = [
    *(
        rules_of([("s:1", root, True, False), *(("s:1", *rule) for rule in rules)])
        for root in ((), ("attributes",))
        for rules in EXCEPTIONS
    ),
    *(rules_of([("s:1", at, True, False)]) for at in (AA, ABA, ("features",))),
    rules_of([("s:1", (), True, False), ("s:2", A, False, True)]),
    rules_of([("s:2", (), True, False)]),
]
NAMED = ["attributes/a", "attributes/a/a", "attributes/a/b", "attributes/a/b/a", "policyId"]
QUESTIONS: list[Predicate] = [
    *(Presence(operator, name) for name in NAMED for operator in ("exists", "empty")),
    *(Comparison(op, name, (1,)) for name in NAMED for op in ("eq", "ne", "gt", "ge", "lt", "le")),
    *(Comparison("in", name, values) for name in NAMED for values in ((None, True), (2, "1", "x"))),
    *(Comparison("like", name, ("*",)) for name in NAMED),
]


def test_every_shape_of_value_under_every_kind_of_rule(lab: Lab) -> None:
    documents = [{"attributes": shape} for shape in SHAPES for _ in POLICIES]
    namespace, things = lab.fill(documents, POLICIES)
    for subjects in (("s:1",), ("s:1", "s:2"), ("s:2",)):
        facts = seen(things, POLICIES, subjects)
        for question in QUESTIONS:
            for predicate in (question, Logic("not", (question,))):
                wanted = names_of([one for one in facts if fits(predicate, one)])
                found = lab.search(namespace, predicate, subjects=subjects, limit=2000)
                assert sorted(found) == wanted, (predicate, subjects)
        for name in ("attributes/a", "attributes/a/a", "attributes/a/b/a"):
            for descending in (False, True):
                sort = (SortKey(name, descending), SortKey("thingId", False))
                found = lab.pages(namespace, sort, 190, subjects=subjects)
                assert found == in_order(facts, sort), (sort, subjects)


def test_limits_may_be_met_by_different_elements(lab: Lab) -> None:
    values = ([0, 3], [1, 2], 1.5, 0, 3)
    namespace, _ = lab.fill([{"attributes": {"a": value}} for value in values])
    name = "attributes/a"
    above, below = Comparison("gt", name, (2,)), Comparison("lt", name, (1,))
    assert lab.search(namespace, Logic("and", (above, below))) == ["t0"]
    inside = (Comparison("ge", name, (1,)), Comparison("le", name, (2,)))
    assert lab.search(namespace, Logic("and", inside)) == ["t0", "t1", "t2"]
    for descending in (False, True):
        sort = (SortKey(name, descending), SortKey("thingId", False))
        assert lab.pages(namespace, sort, 1, predicate=above) == ["t0", "t4"]
