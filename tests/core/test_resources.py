"""Parts of a thing: their names, URLs and errors."""

from __future__ import annotations

from typing import Any

import pytest

from acks.document import MAX_DEPTH
from acks.errors import CATALOGUE, GatewayError
from acks.resources import (
    ABSENT,
    Path,
    kind_of,
    lookup,
    missing,
    not_deletable,
    not_found,
    not_modifiable,
    parse_resource,
    require,
)

THING = "org.example:lamp"
KINDS: dict[str, Path] = {
    "thing": (),
    "policyId": ("policyId",),
    "definition": ("definition",),
    "attributes": ("attributes",),
    "attribute": ("attributes", "a"),
    "features": ("features",),
    "feature": ("features", "f"),
    "feature.definition": ("features", "f", "definition"),
    "feature.properties": ("features", "f", "properties"),
    "feature.property": ("features", "f", "properties", "a", "b"),
    "feature.desiredProperties": ("features", "f", "desiredProperties"),
    "feature.desiredProperty": ("features", "f", "desiredProperties", "a"),
}
UNKNOWN: tuple[Path, ...] = (
    ("thingId",),
    ("_policy",),
    ("attributesasfsafa",),
    ("policyId", "a"),
    ("definition", "a"),
    ("features", "f", "definition", "0"),
    ("features", "f", "inbox"),
    ("inbox", "messages32"),
)


@pytest.mark.parametrize(("kind", "path"), KINDS.items())
def test_kinds(kind: str, path: Path) -> None:
    assert kind_of(path) == kind
    assert parse_resource("/x", list(path)) == path


@pytest.mark.parametrize("path", UNKNOWN)
def test_what_things_do_not_have(path: Path) -> None:
    with pytest.raises(GatewayError) as caught:
        kind_of(path)
    assert (caught.value.status, caught.value.code) == (404, "gateway:resource.notfound")
    with pytest.raises(GatewayError) as caught:
        parse_resource("/api/2/things/x/y", list(path))
    assert caught.value.code == "gateway:resource.notfound"
    assert "'/api/2/things/x/y'" in caught.value.message


def test_segments_are_parts_of_a_pointer() -> None:
    assert parse_resource("", ["attributes", "a~1b", "~01", "a b"]) == (
        "attributes", "a/b", "~1", "a b",
    )  # fmt: skip
    assert parse_resource("", ["features", "a~1b"]) == ("features", "a/b")


@pytest.mark.parametrize(
    ("segments", "path"),
    [
        ([], ()),
        ([""], ()),
        (["attributes", ""], ("attributes",)),
        (["features", "f", ""], ("features", "f")),
    ],
)
def test_one_trailing_slash_is_tolerated(segments: list[str], path: Path) -> None:
    given = list(segments)
    assert parse_resource("/x/", segments) == path
    assert segments == given


@pytest.mark.parametrize(
    ("segments", "code"),
    [
        (["attributes", "", "bar"], "json.pointer.invalid"),
        (["attributes", "", ""], "json.pointer.invalid"),
        (["features", "", "properties"], "json.pointer.invalid"),
        (["features", "f", "", "properties"], "json.pointer.invalid"),
        (["features", "f", "properties", "", "x"], "json.pointer.invalid"),
        (["attributes", "/a"], "json.pointer.invalid"),
        (["attributes", "~1a"], "json.pointer.invalid"),
        (["attributes", "a", "/"], "json.pointer.invalid"),
        (["features", "/f"], "json.pointer.invalid"),
        (["features", "f", "properties", "~1p"], "json.pointer.invalid"),
        (["/attributes", "a"], "gateway:resource.notfound"),
        (["", ""], "gateway:resource.notfound"),
        (["", "attributes"], "gateway:resource.notfound"),
        (["policyId", "", ""], "gateway:resource.notfound"),
    ],
)
def test_empty_segments_and_keys_with_a_leading_slash(segments: list[str], code: str) -> None:
    with pytest.raises(GatewayError) as caught:
        parse_resource("/x", segments)
    assert caught.value.code == code


def test_paths_are_bounded() -> None:
    longest = ["attributes", *["a"] * (MAX_DEPTH - 1)]
    assert len(parse_resource("", longest)) == MAX_DEPTH
    with pytest.raises(GatewayError) as caught:
        parse_resource("", [*longest, "a"])
    assert caught.value.code == "json.pointer.invalid"


def test_lookup() -> None:
    document = {"attributes": {"a": None, "b": [1], "c": "text"}}
    assert lookup(document, ()) is document
    assert lookup(document, ("attributes", "a")) is None
    assert lookup(document, ("attributes", "b")) == [1]
    for path in (("x",), ("attributes", "x"), ("attributes", "a", "x"), ("attributes", "b", "0")):
        assert lookup(document, path) is ABSENT
    assert lookup(document, ("attributes", "c", "0")) is ABSENT


def test_what_is_missing_is_named() -> None:
    document: dict[str, Any] = {"features": {"f": {}}}
    for path, code in (
        (("attributes",), "attributes"),
        (("attributes", "a"), "attribute"),
        (("features", "g"), "feature"),
        (("features", "g", "properties"), "feature"),
        (("features", "g", "properties", "a"), "feature"),
        (("features", "f", "definition"), "feature.definition"),
        (("features", "f", "properties", "a"), "feature.property"),
    ):
        with pytest.raises(GatewayError) as caught:
            require(THING, document, path)
        assert (caught.value.status, caught.value.code) == (404, f"things:{code}.notfound")
        assert missing(THING, document, path).message == caught.value.message
    assert missing(THING, {}, ("features", "f", "properties")).code == "things:feature.notfound"
    assert require(THING, document, ("features", "f")) == {}


@pytest.mark.parametrize(("kind", "path"), KINDS.items())
def test_every_part_has_its_errors(kind: str, path: Path) -> None:
    for problem, what, status in (
        (not_found(THING, path), "notfound", 404),
        (not_modifiable(THING, path), "notmodifiable", 403),
    ):
        assert (problem.status, problem.code) == (status, f"things:{kind}.{what}")
        assert f"'{THING}'" in problem.message
        assert "{" not in problem.message + str(problem.description)
        if path[:1] == ("features",) and len(path) > 1:
            assert "'f'" in problem.message
    refused = not_deletable(THING, path)
    code = "thing.notdeletable" if not path else f"{kind}.notmodifiable"
    assert (refused.status, refused.code) == (403, f"things:{code}")


def test_texts() -> None:
    problem = not_found(THING, ("features", "f", "properties", "a", "b/c"))
    assert problem.message == (
        "The Property with JSON Pointer '/a/b~1c' of the Feature with ID 'f' on the Thing with ID "
        f"'{THING}' does not exist or the requester had insufficient permissions to access it."
    )
    assert problem.description == (
        "Check if the ID of the Thing, the Feature ID and the key of your requested property was "
        "correct and you have sufficient permissions."
    )
    assert not_modifiable(THING, ("attributes", "{x}")).message == (
        f"The Attribute with name '/{{x}}' on the Thing with ID '{THING}' could not be modified as "
        "the requester had insufficient permissions (WRITE is required)."
    )
    assert CATALOGUE["things:thing.conflict"].status == 409
