"""Laws of merge patch and of changes, for every document and patch."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from acks.changes import change, check_merge, minimized, unchanged
from acks.document import Twin
from acks.errors import GatewayError
from acks.facts import MISSING
from acks.headers import Setter, complete
from acks.merge_patch import below, difference, merge, same
from acks.resources import Path, kind_of, lookup, parse_resource
from acks.signals import Command

THING = "a:b"
OPTIONS = complete(Setter.TWIN_MODIFY, None, None, None)

# Few keys and scalars, so that documents and patches meet.
keys = st.sampled_from(["a", "b", "c"])
scalars = st.sampled_from([None, True, False, 0, 1, 1.0, "", "x"])
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(keys, inner, max_size=3)
)
objects = st.dictionaries(keys, values, max_size=3)
paths = st.lists(keys, max_size=3).map(tuple)


def depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth, value), default=0)
    return 0


def members(value: Any) -> list[Any]:
    """Values of all objects that are not inside an array."""
    if not isinstance(value, dict):
        return []
    return [found for child in value.values() for found in [child, *members(child)]]


@given(values, values)
def test_a_merge_is_that_of_rfc_7396(document: Any, patch: Any) -> None:
    before = copy.deepcopy((document, patch))
    merged = merge(document, patch)
    assert same(list(before), [document, patch])
    if not isinstance(patch, dict):
        assert merged is patch
        return
    target = document if isinstance(document, dict) else {}
    for key in target.keys() | patch.keys():
        if key not in patch:
            assert merged[key] is target[key]
        elif patch[key] is None:
            assert key not in merged
        else:
            assert same(merged[key], merge(target.get(key), patch[key]))


@given(values, values)
def test_a_patch_applied_again_changes_nothing(document: Any, patch: Any) -> None:
    once = merge(document, patch)
    assert same(merge(once, patch), once)
    assert difference(once, patch) is MISSING


@given(objects, objects)
def test_a_merge_is_no_deeper_than_what_it_is_made_of(document: Any, patch: Any) -> None:
    assert depth(merge(document, patch)) <= max(depth(document), depth(patch))


@given(objects)
def test_what_a_patch_creates_has_no_nulls(patch: Any) -> None:
    assert None not in members(merge({}, patch))


@given(values, values)
def test_the_difference_does_what_the_patch_does(document: Any, patch: Any) -> None:
    kept = difference(document, patch)
    merged = merge(document, patch)
    assert (kept is MISSING) == same(document, merged)
    if kept is not MISSING:
        assert same(merge(document, kept), merged)
        assert same(difference(document, kept), kept)


def attempt(call: Any, *args: Any) -> Any:
    """What ``call`` returns, or the error it raises."""
    try:
        return call(*args)
    except GatewayError as problem:
        return problem


def command(path: Path, value: Any, action: str) -> Command:
    return Command(THING, path, value, "c", OPTIONS, ("s",), action=action)


def twin(attributes: Any) -> Twin:
    document = {"thingId": THING, "policyId": THING, "attributes": attributes}
    return Twin("t", 1, THING, "", "", document)


@given(objects, paths, values, st.sampled_from(["put", "merge", "delete"]))
def test_changes_leave_the_twin_alone(attributes: Any, rest: Path, value: Any, action: str) -> None:
    before, path = twin(attributes), ("attributes", *rest)
    kept = copy.deepcopy(before.document)
    given = command(path, value, action)
    done = attempt(change, before, given)
    assert same(before.document, kept)
    if isinstance(done, GatewayError):
        assert (done.status, action) == (404, "delete")
        assert lookup(kept or {}, path) is MISSING
        return
    assert done.document is not None
    after = lookup(done.document, path)
    if action == "put":
        assert after is value
    elif action == "delete" or value is None:
        assert after is MISSING
    else:
        assert same(after, merge(lookup(kept or {}, path), value))
    if action != "delete":
        assert unchanged(before, given) == same(done.document, kept)


@given(objects, paths, values)
def test_a_minimized_merge_has_the_same_result(attributes: Any, rest: Path, patch: Any) -> None:
    before = twin(attributes)
    given = command(("attributes", *rest), patch, "merge")
    kept = minimized(before, given)
    full = change(before, given).document
    if kept is MISSING:
        assert same(full, before.document)
    else:
        assert same(change(before, given._replace(value=kept)).document, full)


@given(objects, paths, values)
def test_a_merge_of_a_part_is_a_merge_of_the_whole(document: Any, path: Path, patch: Any) -> None:
    merged = merge(document, below(path, patch))
    if path and patch is None:
        assert lookup(merged, path) is MISSING
    else:
        assert same(lookup(merged, path), merge(lookup(document, path), patch))


names = st.sampled_from(
    ["attributes", "features", "definition", "properties", "desiredProperties", "policyId", "f", ""]
)


@given(st.lists(names | st.text(max_size=3), max_size=6))
def test_every_address_is_a_part_or_refused(segments: list[str]) -> None:
    path = attempt(parse_resource, "/x", segments)
    if isinstance(path, GatewayError):
        assert path.code in ("gateway:resource.notfound", "json.pointer.invalid")
    else:
        assert kind_of(path)
        assert "" not in path


features = st.dictionaries(keys, st.none() | st.dictionaries(names, values | objects))
patches = st.fixed_dictionaries(
    {},
    optional={
        "thingId": st.sampled_from([THING, "a:c", None]),
        "policyId": st.sampled_from(["a:p", "p", None, 1]),
        "definition": st.sampled_from(["a:b:1", "x", None, {}]),
        "attributes": st.none() | objects | values,
        "features": st.none() | features | values,
        "x": values,
    },
)


@given(patches)
def test_whatever_a_patch_holds_it_makes_a_thing_or_is_refused(patch: Any) -> None:
    before = copy.deepcopy(patch)
    checked = attempt(check_merge, THING, (), patch)
    assert same(patch, before)
    if isinstance(checked, GatewayError):
        assert checked.status == 400
        return
    made = change(None, command((), checked, "merge")).document
    assert made is not None
    assert made["thingId"] == THING
    assert isinstance(made["policyId"], str)
    assert None not in members(made)
