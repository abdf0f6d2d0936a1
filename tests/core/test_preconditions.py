"""What a request demands of the present state."""

from __future__ import annotations

import pytest

from acks.errors import GatewayError
from acks.preconditions import (
    Preconditions,
    check_condition,
    check_tags,
    parse_preconditions,
    parse_tags,
    referenced,
)
from acks.rql import parse

THING = {"thingId": "ns:t", "attributes": {"a": 1, "secret": 2}}


def code(problem: pytest.ExceptionInfo[GatewayError]) -> tuple[int, str]:
    return problem.value.status, problem.value.code


def test_no_precondition_is_none() -> None:
    assert parse_preconditions({}) is None
    assert parse_preconditions({"if-equal": "update", "timeout": "5"}) is None


def test_all_headers_are_read() -> None:
    checks = parse_preconditions(
        {
            "if-match": 'W/"a", "b"',
            "if-none-match": "*",
            "if-equal": "skip-minimizing-merge",
            "condition": "eq(attributes/a,1)",
        }
    )
    assert checks == Preconditions(
        ('W/"a"', '"b"'), ("*",), "skip-minimizing-merge", parse("eq(attributes/a,1)")
    )


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ('"a,b","c"', ('"a,b"', '"c"')),
        (' "a" , W/"b" ', ('"a"', 'W/"b"')),
        ('""', ('""',)),
        ('"a",*', ('"a"', "*")),
    ],
)
def test_tags_are_split_outside_quotes(text: str, tags: tuple[str, ...]) -> None:
    assert parse_tags("if-match", text) == tags


@pytest.mark.parametrize(
    ("text", "shown"),
    [("", ""), ("a", "a"), ('"a",', ""), (',"a"', ""), ('"a" "b"', '"a" "b"'), ('"a","b', '"b')],
)
def test_a_bad_tag_is_named(text: str, shown: str) -> None:
    with pytest.raises(GatewayError) as caught:
        parse_preconditions({"if-none-match": text})
    assert code(caught) == (400, "header.invalid")
    assert caught.value.message == f"The opaque tag <{shown}> is not a valid entity-tag."
    assert caught.value.extras == {"invalidHeaderKey": "if-none-match"}


def test_a_long_list_of_tags_is_read_fast() -> None:
    assert len(parse_tags("if-match", ",".join(['"a"'] * 20_000))) == 20_000
    with pytest.raises(GatewayError):
        parse_tags("if-match", '"' * 100_001)


@pytest.mark.parametrize("text", ["", "Skip", "skip "])
def test_a_bad_if_equal_is_refused(text: str) -> None:
    with pytest.raises(GatewayError) as caught:
        parse_preconditions({"if-equal": text})
    assert code(caught) == (400, "header.invalid")
    assert (
        caught.value.description == "The value must be one of: <update|skip|skip-minimizing-merge>."
    )


@pytest.mark.parametrize("text", ["", "eq(", "eq(nothing,1)", "eq(topic:action,'x')"])
def test_a_bad_condition_is_refused(text: str) -> None:
    with pytest.raises(GatewayError) as caught:
        parse_preconditions({"condition": text})
    assert code(caught) == (400, "rql.expression.invalid")


def test_a_query_that_fits_if_none_match_is_not_modified() -> None:
    with pytest.raises(GatewayError) as caught:
        check_tags(Preconditions(if_none_match=('"rev:1"',)), '"rev:1"', kind="query")
    assert code(caught) == (304, "things:precondition.notmodified")
    assert caught.value.headers == {"etag": '"rev:1"'}


def test_a_query_that_does_not_fit_if_match_fails() -> None:
    with pytest.raises(GatewayError) as caught:
        check_tags(Preconditions(if_match=('"rev:2"',)), '"rev:1"', kind="query")
    assert code(caught) == (412, "things:precondition.failed")
    assert caught.value.headers == {"etag": '"rev:1"'}


@pytest.mark.parametrize("kind", ["query", "delete"])
def test_what_is_missing_is_not_found_rather_than_failed(kind: str) -> None:
    check_tags(Preconditions(if_match=("*",)), None, kind=kind)  # type: ignore[arg-type]


def test_policies_have_their_own_codes() -> None:
    with pytest.raises(GatewayError) as caught:
        check_tags(Preconditions(if_match=("*",)), None, kind="modify", entity="policies")
    assert code(caught) == (412, "policies:precondition.failed")
    assert caught.value.headers == {}
    with pytest.raises(GatewayError) as caught:
        check_tags(Preconditions(if_none_match=("*",)), '"rev:1"', kind="query", entity="policies")
    assert code(caught) == (304, "policies:precondition.notmodified")


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("eq(attributes/a,1)", True),
        ("eq(/attributes/a,2)", False),
        ("gt(_revision,6)", True),
        ("eq(_namespace,'ns')", True),
        ("lt(_modified,time:now)", True),
        ("exists(attributes/none)", False),
    ],
)
def test_conditions(condition: str, holds: bool) -> None:
    checks = Preconditions(condition=parse(condition))
    special = {"_revision": 7, "_modified": "2020-01-01T00:00:00.000Z"}
    now_ms = 1_600_000_000_000
    if holds:
        check_condition(checks, THING, special, now_ms, may_read=lambda path: True)
        return
    with pytest.raises(GatewayError) as caught:
        check_condition(checks, THING, special, now_ms)
    assert code(caught) == (412, "things:condition.failed")


def test_a_condition_on_what_may_not_be_read_fails_whatever_it_says() -> None:
    def may_read(path: tuple[str, ...]) -> bool:
        return "secret" not in path

    for condition in ("eq(attributes/secret,2)", "ne(attributes/secret,2)"):
        text = f"or(exists(attributes/a),not({condition}))"
        with pytest.raises(GatewayError) as caught:
            check_condition(Preconditions(condition=parse(text)), THING, {}, 0, may_read=may_read)
        assert code(caught) == (412, "things:condition.failed")


def test_referenced_paths() -> None:
    condition = parse("and(eq(attributes/a/b,1),not(exists(/features/f)),gt(_modified,time:now))")
    assert list(referenced(condition)) == [
        ("attributes", "a", "b"),
        ("features", "f"),
        ("_modified",),
    ]
