"""What put, create, merge and delete make of a twin; what they may bring; if-equal."""

from __future__ import annotations

from typing import Any

import pytest

from acks.changes import Change, change, check_merge, check_put, minimized, unchanged
from acks.document import MAX_DEPTH, Twin
from acks.errors import GatewayError
from acks.headers import Setter, complete
from acks.resources import ABSENT, Path
from acks.signals import Command

THING = "org.example:lamp"
OPTIONS = complete(Setter.TWIN_MODIFY, None, None, None)


def command(path: Path, value: Any, action: str = "put") -> Command:
    return Command(THING, path, value, "c", OPTIONS, ("nginx:ditto",), action=action)


def twin(**fields: Any) -> Twin:
    document = {"thingId": THING, "policyId": THING, **fields}
    now = "2026-01-01T00:00:00.000Z"
    return Twin("t" * 20, 3, document["policyId"], now, now, document)


def code_of(twin: Twin | None, command: Command) -> tuple[int, str]:
    with pytest.raises(GatewayError) as caught:
        change(twin, command)
    return caught.value.status, caught.value.code


# --- put and create


@pytest.mark.parametrize("action", ["put", "create"])
def test_creating_a_thing_gives_it_the_policy_with_its_own_id(action: str) -> None:
    done = change(None, command((), {"thingId": THING, "attributes": {"a": 1}}, action))
    assert done.document == {"thingId": THING, "policyId": THING, "attributes": {"a": 1}}
    assert (done.action, done.created, done.value) == ("created", True, done.document)


def test_an_inline_policy_is_no_part_of_the_thing_and_its_event() -> None:
    given = {"_policy": {"entries": {}}, "_copyPolicyFrom": "a:b", "attributes": {}}
    done = change(None, command((), check_put(THING, (), given)))
    assert done.value == done.document == {"thingId": THING, "policyId": THING, "attributes": {}}


def test_creating_a_thing_that_exists() -> None:
    given = command((), {"thingId": THING}, "create")
    assert code_of(twin(), given) == (409, "things:thing.conflict")


def test_replacing_a_thing_keeps_its_policy() -> None:
    done = change(twin(policyId="org.example:p", features={}), command((), {"thingId": THING}))
    assert done.document == {"thingId": THING, "policyId": "org.example:p"}
    assert (done.action, done.created) == ("modified", False)


@pytest.mark.parametrize("action", ["put", "merge", "delete"])
def test_parts_of_a_missing_thing(action: str) -> None:
    for path in (("attributes",), ("attributes", "a"), ("features", "f"), ("definition",)):
        assert code_of(None, command(path, {}, action)) == (404, "things:thing.notfound")


def test_attribute_is_created_then_modified() -> None:
    first = change(twin(), command(("attributes", "a", "b"), 1))
    assert (first.action, first.created, first.value) == ("created", True, 1)
    again = change(twin(attributes={"a": {"b": 1}}), command(("attributes", "a", "b"), 2))
    assert (again.action, again.created) == ("modified", False)
    null = change(twin(attributes={"a": None}), command(("attributes", "a"), 2))
    assert null.created is False


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("definition",), "a:b:1"),
        (("attributes",), {"a": 1}),
        (("features",), {"f": {}}),
        (("features", "f"), {"properties": {"x": 1}}),
    ],
)
def test_parts_are_created_then_modified(path: Path, value: Any) -> None:
    first = change(twin(), command(path, value))
    assert (first.action, first.created, first.value) == ("created", True, value)
    made = Twin("t", 1, THING, "", "", first.document)
    again = change(made, command(path, value))
    assert (again.action, again.created) == ("modified", False)


@pytest.mark.parametrize(
    "rest",
    [("definition",), ("properties",), ("properties", "x"), ("desiredProperties", "x", "y")],
)
def test_what_is_in_a_feature_needs_the_feature(rest: Path) -> None:
    path = ("features", "f", *rest)
    assert code_of(twin(), command(path, {})) == (404, "things:feature.notfound")
    assert code_of(twin(features={"g": {}}), command(path, {}))[1] == "things:feature.notfound"
    features: tuple[Any, ...] = ({}, None)
    for feature in features:
        done = change(twin(features={"f": feature}), command(path, {}))
        assert (done.action, done.created) == ("created", True)


def test_the_policy_id_is_only_ever_modified() -> None:
    done = change(twin(), command(("policyId",), "org.example:p"))
    assert done == Change(
        {"thingId": THING, "policyId": "org.example:p"}, "modified", "org.example:p", False
    )


# --- merge


def test_merging_a_missing_thing_creates_it_without_nulls() -> None:
    patch = {"attributes": {"a": 1, "b": None}, "definition": None, "features": {"f": {"x": None}}}
    done = change(None, command((), patch, "merge"))
    assert done.document == {
        "thingId": THING, "policyId": THING, "attributes": {"a": 1}, "features": {"f": {}},
    }  # fmt: skip
    assert (done.action, done.value, done.created) == ("created", done.document, True)
    named = change(None, command((), {"thingId": THING, "policyId": "a:p"}, "merge"))
    assert named.document == {"thingId": THING, "policyId": "a:p"}


def test_merging_a_thing() -> None:
    before = twin(attributes={"a": 1, "b": {"c": 2}}, features={"f": {}})
    patch = {"attributes": {"b": {"c": None, "d": 3}}, "features": None}
    done = change(before, command((), patch, "merge"))
    assert done.document == {
        "thingId": THING, "policyId": THING, "attributes": {"a": 1, "b": {"d": 3}},
    }  # fmt: skip
    assert (done.action, done.value, done.created) == ("merged", patch, False)
    assert before == twin(attributes={"a": 1, "b": {"c": 2}}, features={"f": {}})


def test_merging_a_part_that_is_new_is_no_creation() -> None:
    path = ("features", "f", "properties", "x")
    done = change(twin(), command(path, {"y": 1, "z": None}, "merge"))
    assert done.document is not None
    assert done.document["features"] == {"f": {"properties": {"x": {"y": 1}}}}
    assert (done.action, done.value, done.created) == ("merged", {"y": 1, "z": None}, False)


def test_merging_null_removes_a_part() -> None:
    done = change(twin(attributes={"a": 1, "b": 2}), command(("attributes", "a"), None, "merge"))
    assert done.document == {"thingId": THING, "policyId": THING, "attributes": {"b": 2}}
    assert (done.action, done.value) == ("merged", None)


def test_the_deepest_patches_are_merged_compared_and_made_smaller() -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH):
        value = {"a": value}
    path = ("attributes", *["a"] * (MAX_DEPTH - 1))
    deep = command(path, value, "merge")
    done = change(twin(), deep)
    again = Twin("t", 1, THING, "", "", done.document)
    assert change(again, deep).document == done.document
    assert unchanged(again, deep)
    assert unchanged(again, command((), done.document))
    assert minimized(twin(), deep) == value


# --- delete


def test_deleting_a_thing() -> None:
    assert change(twin(), command((), None, "delete")) == Change(None, "deleted", None, False)
    replaced = twin()._replace(document=None)
    assert change(replaced, command((), None, "delete")).document is None
    assert code_of(None, command((), None, "delete")) == (404, "things:thing.notfound")


FULL: dict[str, Any] = {
    "definition": "a:b:1",
    "attributes": {"a": {"b": 1}, "n": None},
    "features": {
        "f": {"definition": ["a:b:1"], "properties": {"x": {"y": 1}}, "desiredProperties": {"z": 1}}
    },
}


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (("definition",), "definition"),
        (("attributes",), "attributes"),
        (("attributes", "a", "b"), "attribute"),
        (("attributes", "n"), "attribute"),
        (("features",), "features"),
        (("features", "f"), "feature"),
        (("features", "f", "definition"), "feature.definition"),
        (("features", "f", "properties"), "feature.properties"),
        (("features", "f", "properties", "x", "y"), "feature.property"),
        (("features", "f", "desiredProperties"), "feature.desiredProperties"),
        (("features", "f", "desiredProperties", "z"), "feature.desiredProperty"),
    ],
)
def test_parts_are_deleted_once(path: Path, kind: str) -> None:
    before = twin(**FULL)
    done = change(before, command(path, None, "delete"))
    assert (done.action, done.value, done.created) == ("deleted", None, False)
    assert before == twin(**FULL)
    after = before._replace(document=done.document)
    assert code_of(after, command(path, None, "delete")) == (404, f"things:{kind}.notfound")
    back = change(after, command(path, _at(FULL, path), "put"))
    assert back.document == before.document


def _at(value: Any, path: Path) -> Any:
    for part in path:
        value = value[part]
    return value


def test_the_policy_id_cannot_be_deleted() -> None:
    given = command(("policyId",), None, "delete")
    assert code_of(twin(), given) == (400, "things:policyId.notdeletable")


# --- what may be brought


@pytest.mark.parametrize("check", [check_put, check_merge])
@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("policyId",), "hello:world:123"),
        (("definition",), "a:b:1"),
        (("definition",), "https://example.com/model"),
        (("definition",), None),
        (("attributes",), {}),
        (("attributes",), None),
        (("attributes", "a"), [1]),
        (("attributes", "a"), None),
        (("features",), {"f": None, "g": {"properties": None}}),
        (("features",), None),
        (("features", "f"), {"definition": ["a:b:1", "http://x/y"], "desiredProperties": {}}),
        (("features", "f"), None),
        (("features", "f", "definition"), None),
        (("features", "f", "definition"), ["a:b:1"]),
        (("features", "f", "properties"), {}),
        (("features", "f", "properties"), None),
        (("features", "f", "properties", "x"), "text"),
        (("features", "f", "desiredProperties", "x"), 5),
    ],
)
def test_good_values(check: Any, path: Path, value: Any) -> None:
    assert check(THING, path, value) == value


@pytest.mark.parametrize("check", [check_put, check_merge])
@pytest.mark.parametrize(
    ("path", "value", "code"),
    [
        (("policyId",), 5, "json.format.invalid"),
        (("policyId",), "no id", "json.format.invalid"),
        (("definition",), "a:b", "json.format.invalid"),
        (("definition",), {}, "json.format.invalid"),
        (("attributes",), [], "json.format.invalid"),
        (("features",), "x", "json.format.invalid"),
        (("features",), {"f": 1}, "json.format.invalid"),
        (("features",), {"f": {"properties": 1}}, "json.format.invalid"),
        (("features",), {"f": {"definition": []}}, "things:feature.definition.empty"),
        (("features", "f"), [], "json.format.invalid"),
        (("features", "f"), {"desiredProperties": []}, "json.format.invalid"),
        (("features", "f", "properties"), 1, "json.format.invalid"),
        (("features", "f", "desiredProperties"), [], "json.format.invalid"),
        (("features", "f", "definition"), "a:b:1", "json.format.invalid"),
        (("features", "f", "definition"), [1], "json.format.invalid"),
        (("features", "f", "definition"), [], "things:feature.definition.empty"),
        (("features", "f", "definition"), ["foo:bar"],
         "things:feature.definition.identifier.invalid"),
        (("features", "f", "x"), 1, "gateway:resource.notfound"),
        ((), {"features": {"f": {"properties": 1}}}, "json.format.invalid"),
        ((), {"attributes": 1}, "json.format.invalid"),
        ((), {"policyId": 1}, "json.format.invalid"),
        ((), {"thingId": "other:id"}, "things:id.notsettable"),
    ],
)  # fmt: skip
def test_bad_values(check: Any, path: Path, value: Any, code: str) -> None:
    with pytest.raises(GatewayError) as caught:
        check(THING, path, value)
    assert caught.value.code == code
    assert caught.value.status == (404 if code.endswith("notfound") else 400)


@pytest.mark.parametrize("check", [check_put, check_merge])
def test_unknown_fields_are_dropped(check: Any) -> None:
    given = {"thingId": THING, "x": 1, "_policy": {}, "features": {"f": {"x": 1, "properties": {}}}}
    kept = {"thingId": THING, "features": {"f": {"properties": {}}}}
    assert check(THING, (), given) == kept
    assert check(THING, ("features",), given["features"]) == kept["features"]
    assert check(THING, ("features", "f"), {"x": 1, "properties": {}}) == {"properties": {}}
    assert given["features"] == {"f": {"x": 1, "properties": {}}}


def test_null_differs_between_put_and_merge() -> None:
    given = {"definition": None, "attributes": None, "features": {"f": None}}
    assert check_put(THING, (), given) == {"thingId": THING, "features": {"f": None}}
    assert check_merge(THING, (), given) == given
    with pytest.raises(GatewayError) as caught:
        check_put(THING, ("policyId",), None)
    assert caught.value.code == "json.format.invalid"


@pytest.mark.parametrize(
    ("path", "patch", "code"),
    [
        ((), None, "things:merge.invalid"),
        ((), [1], "things:merge.invalid"),
        ((), "text", "things:merge.invalid"),
        ((), {"thingId": None}, "things:id.notdeletable"),
        ((), {"policyId": None}, "things:policyId.notdeletable"),
        (("policyId",), None, "things:policyId.notdeletable"),
    ],
)
def test_patches_that_no_thing_takes(path: Path, patch: Any, code: str) -> None:
    with pytest.raises(GatewayError) as caught:
        check_merge(THING, path, patch)
    assert (caught.value.status, caught.value.code) == (400, code)


# --- if-equal


@pytest.mark.parametrize(
    ("path", "value", "action", "equal"),
    [
        ((), {"thingId": THING, "attributes": {"a": 1}}, "put", True),
        ((), {"attributes": {"a": 1}, "policyId": THING, "thingId": THING}, "put", True),
        ((), {"thingId": THING, "attributes": {"a": 1}, "policyId": "a:p"}, "put", False),
        ((), {"thingId": THING, "attributes": {"a": True}}, "put", False),
        ((), {"thingId": THING}, "put", False),
        (("attributes", "a"), 1, "put", True),
        (("attributes", "a"), True, "put", False),
        (("attributes", "b"), None, "put", False),
        (("attributes",), {"a": 1}, "merge", True),
        (("attributes",), {"a": 1, "b": None}, "merge", True),
        (("attributes",), {"a": None}, "merge", False),
        ((), {"attributes": {"a": 2}}, "merge", False),
        ((), {}, "merge", True),
        (("attributes", "a"), 1, "delete", False),
        ((), {"thingId": THING, "attributes": {"a": 1}}, "create", False),
    ],
)
def test_unchanged(path: Path, value: Any, action: str, equal: bool) -> None:
    assert unchanged(twin(attributes={"a": 1}), command(path, value, action)) is equal


def test_a_missing_thing_is_changed_by_anything() -> None:
    assert not unchanged(None, command((), {"thingId": THING}))


def test_minimized() -> None:
    before = twin(attributes={"a": 1, "b": {"c": 2, "d": 3}})
    patch = {"a": 1, "b": {"c": 2, "d": 4}, "x": None}
    assert minimized(before, command(("attributes",), patch, "merge")) == {"b": {"d": 4}}
    whole = command((), {"attributes": patch}, "merge")
    assert minimized(before, whole) == {"attributes": {"b": {"d": 4}}}
    assert minimized(before, command(("attributes", "a"), 1, "merge")) is ABSENT
    assert minimized(before, command(("attributes", "a"), None, "merge")) is None
