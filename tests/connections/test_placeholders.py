"""Texts with placeholders: how they are read, and what the functions do."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connections.placeholders.functions import MAX_TEXTS
from connections.placeholders.templates import (
    MAX_FUNCTIONS,
    PlaceholderError,
    parse_pipeline,
    parse_template,
)

KNOWN = {
    "jwt:sub": ["alice"],
    "jwt:aud": ["a", "b"],
    "jwt:scope": ["x y  z"],
    "jwt:name": ["  Ann Lee "],
    "header:q": ["1"],
}
PREFIXES = frozenset({"jwt", "header"})


def lookup(prefix: str, name: str) -> Sequence[str]:
    return KNOWN.get(f"{prefix}:{name}", [])


def texts(template: str) -> list[str]:
    return list(parse_template(template, PREFIXES).resolve(lookup))


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("plain", ["plain"]),
        ("", [""]),
        ("}} and {", ["}} and {"]),
        ("{{jwt:sub}}", ["alice"]),
        ("{{ jwt:sub }}!", ["alice!"]),
        ("{{\n jwt:sub\t}}", ["alice"]),
        ("<{{ jwt:sub }}-{{ jwt:aud }}>", ["<alice-a>", "<alice-b>"]),
        ("{{ jwt:aud }}{{ jwt:aud }}", ["aa", "ab", "ba", "bb"]),
        ("{{ jwt:none }}", []),
        ("{{ jwt:sub }}/{{ jwt:none }}", []),
        ("{{ jwt:none | fn:default('}} {{') }}", ["}} {{"]),
        ("{{ jwt:none | fn:default(jwt:aud) }}", ["a", "b"]),
        ("{{ jwt:none | fn:default(jwt:nothing) }}", []),
        ("{{ jwt:sub | fn:default('x') }}", ["alice"]),
        ("{{ fn:default('x') }}", ["x"]),
        ("{{ jwt:scope | fn:split(' ') }}", ["x", "y", "z"]),
        ('{{jwt:scope|fn:split("")}}', ["x y  z"]),
        ("{{ jwt:scope | fn:split(' ') | fn:join('+') | fn:upper() }}", ["X+Y+Z"]),
        ("{{ jwt:none | fn:join(',') }}", []),
        ("{{ jwt:name | fn:trim() | fn:lower() | fn:replace(' ','_') }}", ["ann_lee"]),
        ("{{ jwt:name | fn:replace('','x') | fn:trim() }}", ["Ann Lee"]),
        ("{{ jwt:aud | fn:filter('ne','a') }}", ["b"]),
        ("{{ jwt:sub | fn:filter(jwt:aud,'eq','b') }}", ["alice"]),
        ("{{ jwt:sub | fn:filter(jwt:aud,'like','?') }}", ["alice"]),
        ("{{ jwt:sub | fn:filter(jwt:aud,'ne','b') }}", []),
        ("{{ jwt:sub | fn:filter(header:q,'ne','0') }}", ["alice"]),
        ("{{ jwt:sub | fn:filter('exists','true') }}", ["alice"]),
        ("{{ jwt:sub | fn:filter(jwt:none,'exists','perhaps') }}", []),
        ("{{ jwt:sub | fn:filter('foo','alice') }}", []),
        ("{{ jwt:sub | fn:filter(jwt:none,'alice') }}", []),
    ],
)
def test_texts_that_a_template_stands_for(template: str, expected: list[str]) -> None:
    assert texts(template) == expected


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ jwt:sub", "expected '}}' at character 11"),
        ("{{ }}", "expected a placeholder"),
        ("{{ sub }}", "expected a placeholder"),
        ("{{ jwt: }}", "expected a placeholder"),
        ("{{ :sub }}", "expected a placeholder"),
        ("{{ jwt:sub jwt:aud }}", "expected '}}'"),
        ("{{ foo:bar }}", "unknown placeholder foo:bar; there is header, jwt"),
        ("{{ jwt:sub | fn:default(foo:bar) }}", "unknown placeholder foo:bar"),
        ("{{ jwt:sub | jwt:aud }}", "expected a function"),
        ("{{ jwt:sub | fn:eval('x') }}", "unknown function fn:eval"),
        ("{{ jwt:sub | fn:lower }}", "expected '('"),
        ("{{ jwt:sub | fn:lower('x') }}", "fn:lower takes 0 arguments, not 1"),
        ("{{ jwt:sub | fn:filter('x') }}", "fn:filter takes 2 or 3 arguments, not 1"),
        ("{{ jwt:sub | fn:split('x }}", "expected a closing '"),
        ("{{ jwt:sub | fn:split('x',) }}", "expected a placeholder"),
        ("{{ jwt:sub | fn:split('x' }}", "expected ')'"),
        ("{{ jwt:sub" + " | fn:lower()" * (MAX_FUNCTIONS + 1) + " }}", "more than 10 functions"),
    ],
)
def test_what_cannot_be_read_is_said(template: str, says: str) -> None:
    with pytest.raises(PlaceholderError) as caught:
        parse_template(template, PREFIXES)
    assert says in str(caught.value)


def test_a_pipeline_may_stand_alone() -> None:
    pipeline = parse_pipeline("fn:filter(header:q,'ne','0') | fn:default('x')", PREFIXES)
    assert pipeline.resolve(lookup, ("in",)) == ("in",)
    assert parse_pipeline("fn:filter(header:q,'eq','0')", PREFIXES).resolve(lookup, ("in",)) == ()
    with pytest.raises(PlaceholderError, match="expected the end"):
        parse_pipeline("jwt:sub }}", PREFIXES)


def test_no_template_stands_for_more_texts_than_allowed() -> None:
    many = [str(number) for number in range(1000)]
    template = parse_template("{{ jwt:a }}" * 20, PREFIXES)
    assert len(template.resolve(lambda prefix, name: many)) == MAX_TEXTS


@given(st.text(alphabet="{}|()'\",: jwtfndefaulsp-ü"))
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    try:
        template = parse_template(text, PREFIXES)
    except PlaceholderError:
        return
    assert all("{{" not in text for text in template.resolve(lambda prefix, name: ["x"]))


@given(st.text())
def test_a_text_without_braces_stands_for_itself(text: str) -> None:
    plain = text.replace("{{", "")
    assert texts(plain) == [plain]
