"""Documents: pointers, ids, checks of values, put and remove."""

from __future__ import annotations

import json

import pytest

from acks.document import (
    check_json,
    check_thing,
    check_thing_id,
    format_pointer,
    parse_pointer,
    put,
    remove,
)
from acks.errors import GatewayError

THING = "org.example:lamp"


@pytest.mark.parametrize("text", ["org.example:lamp", ":lamp", "a.b-c.d_1:č", "ns:a b:c"])
def test_thing_ids(text: str) -> None:
    assert check_thing_id(text) == text


@pytest.mark.parametrize("text", ["", "lamp", "1ns:x", "ns:", "ns:a/b", "ns:" + "x" * 300, "n\n:x"])
def test_thing_ids_that_are_none(text: str) -> None:
    with pytest.raises(GatewayError) as caught:
        check_thing_id(text)
    assert caught.value.code == "things:id.invalid"


def test_pointers() -> None:
    assert parse_pointer("/") == ()
    assert parse_pointer("/a/b~1c/d~0e/") == ("a", "b/c", "d~e")
    assert format_pointer(("a", "b/c")) == "/a/b~1c"
    with pytest.raises(GatewayError) as caught:
        parse_pointer("/a//b")
    assert caught.value.code == "json.pointer.invalid"


def test_put_copies_only_what_it_changes() -> None:
    document = {"attributes": {"a": {"x": 1}, "b": {"y": 2}}}
    changed, created = put(document, ("attributes", "a", "x"), 5)
    assert (changed["attributes"]["a"], created) == ({"x": 5}, False)
    assert document["attributes"]["a"] == {"x": 1}
    assert changed["attributes"]["b"] is document["attributes"]["b"]


def test_put_makes_and_replaces_what_is_in_the_way() -> None:
    assert put({}, ("a", "b", "c"), 1) == ({"a": {"b": {"c": 1}}}, True)
    assert put({"a": 5}, ("a", "b"), 1) == ({"a": {"b": 1}}, True)


def test_remove_copies_only_what_it_changes() -> None:
    document = {"attributes": {"a": {"x": 1, "z": None}, "b": {"y": 2}}}
    changed = remove(document, ("attributes", "a", "x"))
    assert changed["attributes"] == {"a": {"z": None}, "b": {"y": 2}}
    assert document["attributes"]["a"] == {"x": 1, "z": None}
    assert changed["attributes"]["b"] is document["attributes"]["b"]
    assert remove(document, ("attributes",)) == {}


def test_things_are_checked() -> None:
    assert check_thing(THING, {"attributes": {}, "unknown": 1, "features": None}) == {
        "thingId": THING,
        "attributes": {},
    }
    for value, code in (
        ([], "json.format.invalid"),
        ("x", "json.format.invalid"),
        ({"thingId": "other:id"}, "things:id.notsettable"),
        ({"attributes": 1}, "json.format.invalid"),
        ({"features": {"f": 1}}, "json.format.invalid"),
        ({"policyId": "x"}, "json.format.invalid"),
        ({"definition": 5}, "json.format.invalid"),
    ):
        with pytest.raises(GatewayError) as caught:
            check_thing(THING, value)
        assert caught.value.code == code, value


@pytest.mark.parametrize("text", ["89314404000484999942", '{"a":[-9223372036854775809]}'])
def test_integers_beyond_64_bits_are_refused(text: str) -> None:
    with pytest.raises(GatewayError) as caught:
        check_json(json.loads(text), text.encode())
    assert caught.value.code == "json.invalid"


@pytest.mark.parametrize("text", ["9223372036854775807", "-9223372036854775808", "1e300", '"9e99"'])
def test_numbers_that_fit(text: str) -> None:
    check_json(json.loads(text), text.encode())


@pytest.mark.parametrize("text", ['{"/a":1}', '{"a":[{"":1}]}'])
def test_keys_that_no_pointer_reaches(text: str) -> None:
    with pytest.raises(GatewayError) as caught:
        check_json(json.loads(text), text.encode())
    assert caught.value.code == "json.pointer.invalid"
