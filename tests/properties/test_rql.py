"""Properties of RQL and of field selectors that hold for every input."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from acks.errors import GatewayError
from acks.facts import ThingFacts
from acks.fields import Selector, parse_extra_fields, parse_fields, select
from acks.rql import (
    EVENT_PREFIXES,
    Comparison,
    Logic,
    Predicate,
    Presence,
    Time,
    format_predicate,
    matches,
    parse,
    parse_checked,
)
from acks.wildcards import like

NOW = datetime(2024, 5, 15, 13, 47, 28, 123000, tzinfo=UTC)

texts = st.text(max_size=8)
literals = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
    | st.sampled_from(["now", "now-2h[h]", "now_epoch_millis"]).map(Time)
)
scalars = (
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, "1", "1.0", "a", ""])
)
names = texts | st.sampled_from(["thingId", "attributes/a", "attributes/b/c", "features/f"])
single = st.sampled_from(["eq", "ne", "gt", "ge", "lt", "le", "like", "ilike"])


def predicates(values: st.SearchStrategy[Any], named: st.SearchStrategy[str]) -> Any:
    leaves = (
        st.builds(Comparison, single, named, values.map(lambda value: (value,)))
        | st.builds(
            Comparison, st.just("in"), named, st.lists(values, min_size=1, max_size=4).map(tuple)
        )
        | st.builds(Presence, st.sampled_from(["exists", "empty"]), named)
    )
    return st.recursive(
        leaves,
        lambda inner: (
            st.builds(
                Logic,
                st.sampled_from(["and", "or"]),
                st.lists(inner, min_size=1, max_size=3).map(tuple),
            )
            | st.builds(Logic, st.just("not"), inner.map(lambda child: (child,)))
        ),
        max_leaves=8,
    )


@given(predicates(literals, names))
def test_a_formatted_predicate_parses_back(predicate: Predicate) -> None:
    again = parse(format_predicate(predicate))
    assert again == predicate
    assert repr(again) == repr(predicate)  # equality takes 1, 1.0 and True for the same


FRAGMENTS = [
    "eq(", "and(", "not(", "in(", "exists(", ")", ",", "attributes/a", "'x'", '"', "\\", "\\u00",
    "1", "-0", ".5", "time:now", "null", " ", "{{", "}}", "/", "features/*", "(",
]  # fmt: skip
noise = st.text() | st.lists(st.sampled_from(FRAGMENTS)).map("".join)


def problem_of(read: Callable[[str], object], text: str) -> str | None:
    """The code of the error that reading the text raises, None if it can be read."""
    try:
        read(text)
    except GatewayError as problem:
        return f"{problem.status} {problem.code}"
    return None


@given(noise)
def test_any_text_is_parsed_or_refused(text: str) -> None:
    problem = problem_of(parse, text)
    assert problem in (None, "400 rql.expression.invalid")
    if problem is None:
        assert parse(format_predicate(parse(text))) == parse(text)


@given(noise)
def test_any_property_is_known_or_refused(text: str) -> None:
    problem = problem_of(lambda name: parse_checked(f"eq({name},1)", EVENT_PREFIXES), text)
    assert problem in (None, "400 rql.expression.invalid")
    if problem is None:
        predicate = parse_checked(f"eq({text},1)", EVENT_PREFIXES)
        assert not matches(predicate, ThingFacts({}), NOW)


@given(noise)
def test_any_selector_is_parsed_or_refused(text: str) -> None:
    problem = problem_of(parse_fields, text)
    assert problem in (None, "400 json.fieldselector.invalid", "400 json.pointer.invalid")
    if problem is None:
        pointers = parse_fields(text).pointers
        assert pointers
        assert all(pointers)


@given(st.sampled_from(["thingId", "attributes", "features"]), noise)
def test_extra_fields_are_fields(root: str, text: str) -> None:
    text = f"{root}/{text}"
    problem = problem_of(parse_extra_fields, text)
    if problem is None:
        assert parse_extra_fields(text) == parse_fields(text)
    else:
        assert problem in (problem_of(parse_fields, text), "400 things:field.selection.invalid")


json_values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=6,
)
documents = st.dictionaries(st.sampled_from(["attributes", "thingId"]), json_values)
known = predicates(
    scalars | st.just(Time("now")), st.sampled_from(["attributes/a", "attributes/b/c", "thingId"])
)


@given(known, documents)
def test_logic(predicate: Predicate, document: dict[str, Any]) -> None:
    facts = ThingFacts(document)
    fits = matches(parse_checked(format_predicate(predicate), EVENT_PREFIXES), facts, NOW)
    assert matches(Logic("not", (predicate,)), facts, NOW) is not fits
    never = Presence("exists", "attributes/absent")
    assert matches(Logic("or", (never, predicate)), facts, NOW) is fits
    assert matches(Logic("and", (predicate, never)), facts, NOW) is False


@given(scalars, st.lists(scalars, min_size=1, max_size=4), json_values)
def test_comparisons_agree_with_each_other(
    value: Any, values: list[Any], document_value: Any
) -> None:
    facts = ThingFacts({"attributes": {"a": document_value}})

    def ask(operator: str, *literals: Any) -> bool:
        return matches(Comparison(operator, "attributes/a", literals), facts, NOW)

    assert ask("ne", value) is not ask("eq", value)
    assert ask("in", *values) == any(ask("eq", each) for each in values)
    if value is not None:
        assert ask("ge", value) == (ask("gt", value) or ask("eq", value))
        assert ask("le", value) == (ask("lt", value) or ask("eq", value))


@given(st.text("aAb.\n"), st.text("aAb.*?"), st.booleans())
def test_like_agrees_with_a_regular_expression(text: str, pattern: str, ignore: bool) -> None:
    parts = {"*": ".*", "?": "."}
    expression = "".join(parts.get(char, re.escape(char)) for char in pattern)
    flags = re.DOTALL | (re.IGNORECASE if ignore else 0)
    assert like(text, pattern, ignore) == bool(re.fullmatch(expression, text, flags))


paths = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3).map(tuple)


def walk(value: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        if not isinstance(value, dict) or part not in value:
            return None, False
        value = value[part]
    return value, True


@given(
    st.lists(paths, min_size=1, max_size=4), st.dictionaries(st.sampled_from("abc"), json_values)
)
def test_selected_parts_are_those_of_the_document(
    pointers: list[tuple[str, ...]], document: dict[str, Any]
) -> None:
    found = select(Selector(tuple(pointers)), document)
    for path in pointers:
        assert walk(found, path) == walk(document, path)
    assert select(Selector(tuple(pointers)), found) == found
    text = ",".join("/".join(path) for path in pointers)
    assert select(parse_fields(text), document) == found
