"""Functions of pipelines, one by one, and their bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connections.placeholders.functions import FUNCTIONS, MAX_LENGTH, MAX_TEXTS, apply
from connections.placeholders.templates import parse_pipeline

PEOPLE = '{"name":"Ann","roles":["a","b"],"at":{"x/y":1},"none":null,"empty":[]}'


@pytest.mark.parametrize(
    ("pipeline", "values", "expected"),
    [
        ("fn:substring-before(':')", ["a:b:c", "d"], ["a"]),
        ("fn:substring-after(':')", ["a:b:c", "d", "e:"], ["b:c", ""]),
        ("fn:substring-before('')", ["a"], []),
        ("fn:delete()", ["a"], []),
        ("fn:delete() | fn:default('b')", ["a"], []),
        ("fn:default('b')", [], ["b"]),
        ("fn:url-encode()", ["a b/ü+"], ["a%20b%2F%C3%BC%2B"]),
        ("fn:url-decode()", ["a+b%2F%C3%BC", "%ff"], ["a b/ü", "\ufffd"]),
        ("fn:base64-encode()", ["hü"], ["aMO8"]),
        ("fn:base64-decode()", ["aMO8", "no base64", "/w=="], ["hü"]),
        ("fn:format('{name}!')", [PEOPLE, "no JSON", "[1]"], ["Ann!"]),
        ("fn:format('{roles}-{name}')", [PEOPLE], ["a-Ann", "b-Ann"]),
        ("fn:format('{/at/x~1y}{none}{gone}{empty}{at}')", [PEOPLE], ['1{"x/y":1}']),
        ("fn:filter(header:x,'exists')", ["a"], []),
        ("fn:filter(header:there,'exists')", ["a"], ["a"]),
        ("fn:filter(header:there,'exists','false')", ["a"], []),
    ],
)
def test_function(pipeline: str, values: list[str], expected: list[str]) -> None:
    read = parse_pipeline(pipeline, frozenset({"header"}))
    found = read.resolve(lambda _, name: ["1"] if name == "there" else [], tuple(values))
    assert list(found) == expected


def test_values_are_bounded_in_number_and_length() -> None:
    long = "a" * (MAX_LENGTH // 2 + 1)
    assert apply("replace", (long, "b"), [("a",), ("aa",)]) == ("b",)
    assert apply("join", (long, long), [(",",)]) == ()
    assert apply("url-encode", ("/" * MAX_LENGTH, "b"), []) == ("b",)
    assert len(apply("split", ("a," * 5000,), [(",",)])) == MAX_TEXTS
    many = '{"a":[' + ",".join(["1"] * 100) + "]}"
    assert len(apply("format", (many,), [("{a}{a}{a}{a}{a}",)])) == MAX_TEXTS


@given(
    st.sampled_from(sorted(FUNCTIONS)),
    st.lists(st.text(), max_size=3),
    st.lists(st.lists(st.text(), max_size=2), min_size=3, max_size=3),
)
def test_a_function_takes_any_values_and_arguments(
    name: str, values: list[str], arguments: list[list[str]]
) -> None:
    for count in FUNCTIONS[name][1]:
        given_values = [tuple(argument) for argument in arguments[:count]]
        assert all(isinstance(text, str) for text in apply(name, tuple(values), given_values))


@given(st.text())
def test_what_is_encoded_can_be_decoded(text: str) -> None:
    for how in ("url", "base64"):
        encoded = apply(f"{how}-encode", (text,), [])
        assert apply(f"{how}-decode", encoded, []) == (text,)
