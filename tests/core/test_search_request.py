"""A search as it is asked for, and the cursor to its next page."""

from __future__ import annotations

import json
import zlib
from base64 import urlsafe_b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acks.errors import GatewayError
from acks.rql import Comparison, Logic, parse
from acks.search_options import BY_ID, SortKey
from acks.search_request import (
    MAX_NAMESPACES,
    SearchRequest,
    cursor_of,
    search_request,
)

SUBJECTS = ("nginx:ditto",)


def search(**given_: Any) -> SearchRequest:
    return search_request(SUBJECTS, 1_000, **given_)


def refusal(**given_: Any) -> GatewayError:
    with pytest.raises(GatewayError) as problem:
        search(**given_)
    assert problem.value.status == 400
    return problem.value


def test_a_search_for_everything() -> None:
    assert search() == SearchRequest(SUBJECTS, 1_000)
    assert search(filters=[""], namespaces=["", " "], options="") == search()


def test_all_filters_have_to_fit() -> None:
    one, other = 'eq(attributes/a,"x")', "gt(attributes/b,1)"
    assert search(filters=[one]).predicate == parse(one)
    assert search(filters=[one, other]).predicate == Logic("and", (parse(one), parse(other)))


@pytest.mark.parametrize(
    "filters",
    [
        ["eq(attributes/a,1),eq(attributes/b,1)", "eq(attributes/c,1)"],
        ["eq(attributes/a,1)) ", "eq(attributes/c,1)"],
        ["eq(attributes/a, 1)"],
        ["eq(colour,1)"],
        ["eq(topic:action,1)"],
        ["exists(time:now)"],
        [f"or({','.join(['exists(attributes/a)'] * 60)})"] * 2,
        ["not(" * 50 + "exists(attributes/a)" + ")" * 50],
        [f"in(attributes/a,{','.join(map(str, range(1001)))})"],
    ],
)
def test_a_filter_that_cannot_be_is_refused(filters: list[str]) -> None:
    assert refusal(filters=filters).code == "rql.expression.invalid"


def test_namespaces() -> None:
    assert search(namespaces=["org.example", " a-b.c_d "]).namespaces == {"org.example", "a-b.c_d"}
    for wrong in ("a b", "org..example", "1a", "a.", "a'b", "a%", "ä", "a" * 300):
        problem = refusal(namespaces=["org.example", wrong])
        assert problem.code == "thing-search:search.namespaces.invalid"
    many = [f"ns{number}" for number in range(MAX_NAMESPACES + 1)]
    assert len(search(namespaces=many[1:]).namespaces) == MAX_NAMESPACES
    assert refusal(namespaces=many).code == "thing-search:search.namespaces.invalid"


def test_fields_and_condition() -> None:
    request = search(fields="thingId,attributes(a)", condition="gt(_revision,1)")
    assert request.fields is not None
    assert request.fields.pointers == (("thingId",), ("attributes", "a"))
    assert request.condition == Comparison("gt", "_revision", (1,))
    assert refusal(fields="a(").code == "json.fieldselector.invalid"
    assert refusal(condition="eq(").code == "rql.expression.invalid"


# --- cursors

WHOLE = {
    "filters": ["and(eq(attributes/a,1),gt(_modified,time:now-1h))"],
    "options": "sort(-attributes/b,+_created),size(10)",
    "namespaces": ["org.example", "org.other"],
}
KEY = (1.5, "2026-01-31T12:00:00Z", "org.example:lamp-1")


def cursor() -> str:
    return cursor_of(search(**WHOLE).from_key(KEY))


def test_a_cursor_alone_goes_on_with_its_search() -> None:
    request = search(options=f"cursor({cursor()})")
    whole = search(**WHOLE)
    assert request.after == KEY
    assert request.predicate == whole.predicate
    assert request.namespaces == whole.namespaces
    assert request.options.sort == whole.options.sort == (
        SortKey("attributes/b", True), SortKey("_created", False), BY_ID,
    )  # fmt: skip
    assert request.options.size == 25, "the size of pages is not the cursor's"


def test_a_cursor_fits_the_search_that_it_is_of() -> None:
    options = f"{WHOLE['options']},cursor({cursor()})"
    request = search(**{**WHOLE, "options": options}, fields="thingId")
    assert (request.after, request.options.size) == (KEY, 10)
    spaced = ["and(eq(attributes/a,1), gt(_modified,time:now-1h))"]
    assert search(filters=spaced, options=f"cursor({cursor()})").after == KEY


@pytest.mark.parametrize(
    ("what", "other"),
    [
        ("filter", {"filters": ["eq(attributes/a,1)"]}),
        ("filter", {"filters": ["and(eq(attributes/a,true),gt(_modified,time:now-1h))"]}),
        ("namespaces", {"namespaces": ["org.example"]}),
        ("sort", {"options": "sort(-attributes/b)"}),
        ("sort", {"options": "sort(+attributes/b,+_created)"}),
    ],
)
def test_a_cursor_of_another_search_is_refused(what: str, other: dict[str, Any]) -> None:
    options = ",".join(filter(None, (other.get("options"), f"cursor({cursor()})")))
    problem = refusal(**{**other, "options": options})
    assert problem.code == "thing-search:search.option.invalid"
    assert problem.message == (
        f"The option 'cursor' belongs to another search: its {what} must not change."
    )


def test_a_cursor_does_not_go_with_a_limit() -> None:
    assert "'cursor' and 'limit'" in refusal(options=f"cursor({cursor()}),limit(0,1)").message


def packed(held: object) -> str:
    return urlsafe_b64encode(zlib.compress(json.dumps(held).encode())).rstrip(b"=").decode()


GOOD: dict[str, Any] = {"s": "sort(+thingId)", "k": ["a:b"]}


def test_cursors_may_be_made_by_hand() -> None:
    assert search(options=f"cursor({packed(GOOD)})").after == ("a:b",)


WRONG: list[dict[str, Any]] = [
    {"s": "size(1)", "k": ["a:b", 1]}, {"s": "sort(thingId)"}, {"s": None}, {"k": []},
    {"k": "a:b"}, {"k": {}}, {"k": None}, {"k": ["a:b", 2]}, {"f": 1},
    {"f": "eq(a,1)"}, {"f": "eq("}, {"n": "a"}, {"n": [1]}, {"n": ["a b"]},
    {"k": [float("nan")]}, {"k": [float("inf")]},
]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "A", "AAAA", "_-_-", "x" * 60_000, packed([]), packed(1), packed({}), packed({"s": 1}),
        *(packed({**GOOD, **wrong}) for wrong in WRONG),
        packed(json.loads("[" * 500 + "]" * 500)),
        urlsafe_b64encode(zlib.compress(b"[" * 200_000)).rstrip(b"=").decode(),
        urlsafe_b64encode(zlib.compress(b" " * 1_000_000)).rstrip(b"=").decode(),
        urlsafe_b64encode(zlib.compress(b"\xff")).rstrip(b"=").decode(),
        packed(GOOD)[:-4],
    ],
)  # fmt: skip
def test_what_is_no_cursor_is_refused(text: str) -> None:
    problem = refusal(options=f"cursor({text})")
    assert problem.code == "thing-search:search.option.invalid"
    assert problem.message == "The option 'cursor' is not valid."


VALUES = st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False)


@given(VALUES.filter(lambda value: value not in (float("inf"), float("-inf"))), st.text())
def test_a_cursor_keeps_its_key(value: object, thing_id: str) -> None:
    request = search(options="sort(-attributes/a)").from_key((value, thing_id))
    text = cursor_of(request)
    assert text.replace("-", "").replace("_", "").isalnum()
    assert search(options=f"cursor({text})").after == (value, thing_id)
