"""The options of a search: their grammar, and what they may say together."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from acks.errors import GatewayError
from acks.search_options import (
    BY_ID,
    MAX_LENGTH,
    MAX_OPTIONS,
    MAX_SORT_KEYS,
    Cursor,
    Limit,
    Option,
    Options,
    Size,
    Sort,
    SortKey,
    format_sort,
    parse_options,
    read_options,
    total,
)


def read(text: str) -> Options:
    return read_options(parse_options(text))


def refusal(text: str) -> str:
    with pytest.raises(GatewayError) as problem:
        read(text)
    assert problem.value.code == "thing-search:search.option.invalid"
    assert problem.value.status == 400
    assert problem.value.description == "At least one provided option is invalid."
    return problem.value.message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("sort(+thingId)", [Sort((SortKey("thingId", False),))]),
        ("sort(-/attributes/a)", [Sort((SortKey("attributes/a", True),))]),
        ("sort( attributes/a)", [Sort((SortKey("attributes/a", False),))]),
        (r"sort(-attributes/a\,b\))", [Sort((SortKey("attributes/a,b)", True),))]),
        ("size(10),cursor(a-_9)", [Size(10), Cursor("a-_9")]),
        ("limit(0,+5)", [Limit(0, 5)]),
        ("size(-1)", [Size(-1)]),
    ],
)
def test_options_are_read(text: str, expected: list[Option]) -> None:
    assert parse_options(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "size", "size(", "size()", "size(1", "size(x)", "size(1.5)", "size(1 )", "Size(1)",
        " size(1)", "size(1) ", "size(1),", ",size(1)", "size(1)size(2)", "size(1);sort(+thingId)",
        "sort()", "sort(+)", "sort(+thingId,)", "sort(thingId)", "sort(++)(", 'sort(+a"b)',
        "limit(1)", "limit(1,2,3)", "cursor()", "cursor(a.b)", "page(1)",
        "size(1234567890123456789)",
    ],
)  # fmt: skip
def test_what_is_no_option_is_refused(text: str) -> None:
    assert refusal(text)


def test_what_is_wrong_is_named() -> None:
    assert refusal("size(1),sort(thingId)") == (
        "The search options are invalid: expected '+' or '-' and a property at character 14, but "
        "found 'thingId)'."
    )
    assert refusal("size(1").endswith("expected ')' at the end.")


def test_defaults() -> None:
    assert read("") == Options((BY_ID,), 25, None, None, None)


def test_a_sort_ends_with_the_id() -> None:
    by_a = SortKey("attributes/a", True)
    assert read("sort(-attributes/a)").sort == (by_a, BY_ID)
    assert read("sort(-attributes/a)").sorted_by == (by_a,)
    by_id = SortKey("thingId", True)
    assert read("sort(-thingId,+attributes/a)").sort == (by_id,), "nothing is equal before it"
    assert read("sort(-attributes/a,+attributes/a)").sort == (by_a, BY_ID)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("size(0)", "The option 'size' must be a positive integer."),
        ("size(-1)", "The option 'size' must be a positive integer."),
        ("size(201)", "Parameter <size> must be less than or equal to <200> but it was <201>!"),
        ("limit(0,201)", "Parameter <limit> must be less than or equal to <200> but it was <201>!"),
        ("limit(0,0)", "The option 'limit' must be a positive integer."),
        ("limit(-1,5)", "The offset of the option 'limit' must not be negative."),
        ("size(1),size(1)", "There may not be more than 1 'size' option."),
        ("sort(+thingId),sort(+thingId)", "There may not be more than 1 'sort' option."),
        ("cursor(a),cursor(a)", "There may not be more than 1 'cursor' option."),
        ("cursor(a),limit(0,1)", "The options 'cursor' and 'limit' must not be used together."),
        ("limit(0,1),size(1)", "The options 'size' and 'limit' must not be used together."),
        ("sort(+username)", "Unknown property name: username"),
        ("sort(+features/lamp)", "Unknown property name: features/lamp"),
        ("sort(+topic:action)", "Unknown property name: topic:action"),
        (
            "sort(+features/*/properties/a)",
            "The option 'sort' takes no property of all features.",
        ),
    ],
)
def test_what_options_may_not_say(text: str, message: str) -> None:
    assert refusal(text) == message


def test_limits() -> None:
    assert read("size(200)").size == 200
    assert (read("limit(7,200)").offset, read("limit(7,200)").size) == (7, 200)
    keys = [f"+attributes/a{number}" for number in range(MAX_SORT_KEYS + 1)]
    assert refusal(f"sort({','.join(keys)})").endswith("at most 8 properties.")
    assert len(read(f"sort({','.join(keys[:-1])})").sort) == MAX_SORT_KEYS + 1
    assert refusal(",".join(["size(1)"] * (MAX_OPTIONS + 1))) == "There are at most 20 options."
    assert refusal(f"cursor({'a' * MAX_LENGTH})") == "The options have at most 65,536 characters."


NAMES = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="/\x00"), min_size=1, max_size=20
)


@example([("*", False)])  # the name of an attribute, not all features
@given(st.lists(st.tuples(NAMES, st.booleans()), min_size=1, max_size=8))
def test_a_sort_is_written_as_it_is_read(given_keys: list[tuple[str, bool]]) -> None:
    keys = total(tuple(SortKey(f"attributes/{name}", down) for name, down in given_keys))
    found = parse_options(format_sort(keys[:8]))
    assert found == [Sort(keys[:8])]


@given(st.text(max_size=60) | st.text(st.sampled_from('sortizelmcu(),+-0a/\\" '), max_size=60))
def test_any_text_is_options_or_refused(text: str) -> None:
    found: object = None
    try:
        found = read(text)
    except GatewayError as problem:
        found = problem.code
    assert isinstance(found, Options) or found == "thing-search:search.option.invalid"
