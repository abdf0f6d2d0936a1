"""What a stream of server-sent events is told of a twin event."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from acks.document import parse_pointer
from acks.fields import parse_fields
from acks.journal import EntryMeta
from acks.partial_thing import View, event_data
from acks.resources import ABSENT

THING_ID = "org.example:lamp"
THING = {"thingId": THING_ID, "policyId": THING_ID, "attributes": {"a": 1, "b": {"c": 2}}}
WHEN = "2026-08-18T10:00:00.000Z"


class Event(NamedTuple):
    """An event of revision 7; no ``extra`` fields unless given."""

    path: str
    value: Any = ABSENT
    action: str = "modified"
    extra: dict[str, Any] | None = None


def data(event: Event, fields: str | None = None, path: str = "/") -> Any:
    """What a stream with these fields at this path is told."""
    meta = EntryMeta(
        THING_ID, event.action, event.path, 7, WHEN, "id-1", (), "node", 0, ("nginx:ditto",)
    )
    return event_data(
        View(parse_pointer(path), None if fields is None else parse_fields(fields)),
        meta,
        {"ditto-originator": "nginx:ditto"},
        None if event.value is ABSENT else event.value,
        lambda: event.value,
        event.extra,
    )


def test_a_created_or_modified_thing_is_told_as_it_is() -> None:
    assert data(Event("/", THING, "created")) == THING
    assert data(Event("/", THING)) == THING


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("/attributes/a", 5, {"attributes": {"a": 5}}),
        ("/attributes/a", False, {"attributes": {"a": False}}),
        ("/attributes/a~1b/c", [1], {"attributes": {"a/b": {"c": [1]}}}),
        ("/attributes", {}, {"attributes": {}}),
        ("/features/f/properties/on", True, {"features": {"f": {"properties": {"on": True}}}}),
        ("/policyId", "a:b", {"policyId": "a:b"}),
    ],
)
def test_a_changed_part_stands_at_its_place(path: str, value: Any, told: dict[str, Any]) -> None:
    assert data(Event(path, value)) == {"thingId": THING_ID, **told}


@pytest.mark.parametrize("path", ["/", "/attributes", "/attributes/a", "/features/f"])
def test_of_a_deletion_only_the_thing_is_told(path: str) -> None:
    assert data(Event(path, action="deleted")) == {"thingId": THING_ID}
    assert data(Event(path, action="deleted"), "attributes,features") is ABSENT


def test_a_patch_is_told_with_its_nulls() -> None:
    patch = {"attributes": {"a": None, "b": {"c": 3}}}
    assert data(Event("/", patch, "merged")) == {"thingId": THING_ID, **patch}
    assert data(Event("/attributes/a", None, "merged")) == {
        "thingId": THING_ID,
        "attributes": {"a": None},
    }


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ("thingId", {"thingId": THING_ID}),
        ("attributes/b/c", {"attributes": {"b": {"c": 2}}}),
        ("thingId,attributes(a)", {"thingId": THING_ID, "attributes": {"a": 1}}),
        ("_revision,_modified", {"_revision": 7, "_modified": WHEN}),
        ("_namespace", {"_namespace": "org.example"}),
        ("_created", ABSENT),
        ("features", ABSENT),
        ("attributes/x", ABSENT),
        ("_context/path", {"_context": {"path": "/"}}),
    ],
)
def test_fields_choose_and_what_has_none_of_them_is_not_told(fields: str, told: Any) -> None:
    assert data(Event("/", THING), fields) == told


def test_only_a_new_thing_says_when_it_was_created() -> None:
    assert data(Event("/", THING, "created"), "_created") == {"_created": WHEN}
    assert data(Event("/attributes", {}, "created"), "_created") is ABSENT


def test_fields_see_the_part_at_its_place() -> None:
    event = Event("/features/f/properties/on", True)
    told = {"features": {"f": {"properties": {"on": True}}}}
    assert data(event, "features/*/properties/on") == told
    assert data(event, "features/g") is ABSENT
    assert data(event, "thingId,features/g") == {"thingId": THING_ID}


def test_the_context_is_the_envelope() -> None:
    told = data(Event("/attributes/a", 5), "thingId,_context")
    assert told == {
        "thingId": THING_ID,
        "_context": {
            "topic": "org.example/lamp/things/twin/events/modified",
            "path": "/attributes/a",
            "value": 5,
            "headers": {
                "correlation-id": "id-1",
                "response-required": False,
                "entity-revision": 7,
                "ditto-originator": "nginx:ditto",
                "content-type": "application/json",
            },
        },
    }
    assert "value" not in data(Event("/attributes/a", action="deleted"), "_context")["_context"]
    null = data(Event("/attributes/a", None, "merged"), "_context/value")
    assert null == {"_context": {"value": None}}


def test_extra_fields_are_added_and_the_event_comes_first() -> None:
    extra = {"attributes": {"a": 0, "b": {"c": 0, "d": 4}}, "_revision": 8}
    event = Event("/attributes", {"a": 5, "b": {"c": 6}}, extra=extra)
    added = {"attributes": {"a": 5, "b": {"c": 6, "d": 4}}, "_revision": 8}
    assert data(event) == {"thingId": THING_ID, **added}
    assert data(event, "attributes/a") == {
        "attributes": {"a": 5, "b": {"c": 0, "d": 4}},
        "_revision": 8,
    }
    assert data(event, "features") is ABSENT, "extra fields alone are no event"
    scalar = Event("/attributes/b", 1, extra=extra)
    assert data(scalar)["attributes"] == {"a": 0, "b": 1}


def test_extra_fields_stay_as_they_are() -> None:
    extra = {"attributes": {"b": {"d": 4}}}
    before = json.dumps(extra)
    data(Event("/attributes", {"b": {"c": 6}}, extra=extra))
    assert json.dumps(extra) == before


@pytest.mark.parametrize(
    ("at", "path", "value", "told"),
    [
        ("/attributes/a", "/", THING, 1),
        ("/attributes/a", "/attributes", {"a": 5}, 5),
        ("/attributes/a", "/attributes/a", 5, 5),
        ("/attributes/b", "/attributes/b/c", 5, {"c": 5}),
        ("/attributes/a", "/attributes/b", {"c": 1}, ABSENT),
        ("/attributes/a", "/features/f", {}, ABSENT),
        ("/_revision", "/features/f", {}, 7),
        ("/thingId", "/features/f", {}, THING_ID),
        ("/nonsense", "/", THING, ABSENT),
    ],
)
def test_a_path_is_told_what_is_there(at: str, path: str, value: Any, told: Any) -> None:
    assert data(Event(path, value), path=at) == told


def test_a_path_is_told_of_null_but_not_of_deletions() -> None:
    merged = Event("/attributes", {"a": None}, "merged")
    assert data(merged, path="/attributes/a") is None
    assert data(Event("/attributes/a", action="deleted"), path="/attributes/a") is ABSENT


def test_fields_choose_below_the_path() -> None:
    event = Event("/", THING)
    assert data(event, "b/c", "/attributes") == {"b": {"c": 2}}
    assert data(event, "x", "/attributes") is ABSENT
    assert data(event, "x", "/attributes/a") == 1
