"""Policies: what the vectors do not say."""

from __future__ import annotations

from typing import Any

import pytest

from acks.errors import GatewayError
from acks.policy import READ, WRITE, Policy, implicit_policy
from acks.resources import ABSENT


def policy(**subjects: dict[str, dict[str, list[str]]]) -> Policy:
    entries = {
        name: {"subjects": {f"nginx:{name}": {"type": "t"}}, "resources": resources}
        for name, resources in subjects.items()
    }
    return Policy({"entries": entries})


def test_the_implicit_policy_lets_its_creator_and_nobody_else() -> None:
    implicit = Policy(implicit_policy("ns:n", "nginx:ditto"))
    for kind in ("thing", "policy", "message"):
        for permission in (READ, WRITE):
            assert implicit.may(("nginx:ditto",), permission, kind, ("a", "b"))
            assert not implicit.may(("nginx:other",), permission, kind, ())
    assert implicit.readers(("attributes",)) == ("nginx:ditto",)


def test_readers_of_a_path() -> None:
    both = policy(
        all={"thing:/": {"grant": ["READ"], "revoke": []}},
        part={"thing:/attributes": {"grant": ["READ"], "revoke": []}},
        hole={
            "thing:/": {"grant": ["READ"], "revoke": []},
            "thing:/attributes/secret": {"grant": [], "revoke": ["READ"]},
        },
    )
    assert both.readers(()) == ("nginx:all",)
    assert both.readers(("attributes",)) == ("nginx:all", "nginx:part")
    assert both.readers(("attributes", "open")) == ("nginx:all", "nginx:part", "nginx:hole")
    assert both.readers(("attributes", "secret")) == ("nginx:all", "nginx:part")


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"entries": {}},
        {"entries": {"a": 5}},
        {"entries": {"a": {"subjects": {}}}},
        {"entries": {"a": {"subjects": {"s": {}}, "resources": {"boat:/": {}}}}},
        {"entries": {"a": {"subjects": {"s": {}}, "resources": {"thing:x": {}}}}},
        {"entries": {"a": {"subjects": {"s": {}}, "resources": {"thing:/": 5}}}},
        {"entries": {"a": {"subjects": {"s": {}}, "resources": {"thing:/": {"grant": ["FLY"]}}}}},
        {"entries": {"a": {"subjects": {"s": {}}, "resources": {"thing:/": {"grant": "READ"}}}}},
    ],
)
def test_malformed_policies(document: dict[str, Any]) -> None:
    with pytest.raises(GatewayError) as caught:
        Policy(document)
    assert caught.value.code == "policies:entry.invalid"


def test_an_escaped_slash_in_a_resource_is_part_of_a_name() -> None:
    hole = policy(
        a={
            "thing:/attributes": {"grant": ["READ"], "revoke": []},
            "thing:/attributes/a~1b": {"grant": [], "revoke": ["READ"]},
        }
    )
    assert not hole.may(("nginx:a",), READ, "thing", ("attributes", "a/b"))
    assert hole.may(("nginx:a",), READ, "thing", ("attributes", "a", "b"))


def test_messages_have_resources_of_their_own() -> None:
    asking = policy(a={"message:/inbox/messages/ask": {"grant": ["WRITE"], "revoke": []}})
    assert asking.may(("nginx:a",), WRITE, "message", ("inbox", "messages", "ask"))
    assert not asking.may(("nginx:a",), WRITE, "message", ("inbox", "messages", "other"))
    assert not asking.may(("nginx:a",), WRITE, "thing", ("inbox", "messages", "ask"))


# --- what a partial reader sees

HOLE = policy(
    a={
        "thing:/attributes": {"grant": ["READ", "WRITE"], "revoke": []},
        "thing:/attributes/x/secret": {"grant": [], "revoke": ["READ", "WRITE"]},
        "thing:/features/f": {"grant": ["WRITE"], "revoke": []},
    }
)
THING: dict[str, Any] = {
    "thingId": "ns:t",
    "_revision": 3,
    "policyId": "ns:t",
    "attributes": {"x": {"secret": 1}, "empty": {}, "list": [{"a": 1}]},
    "features": {"f": {}},
}


def test_the_view_of_a_whole_thing_keeps_what_everybody_sees() -> None:
    assert HOLE.view(("nginx:a",), "thing", (), THING) == {
        "thingId": "ns:t",
        "_revision": 3,
        "attributes": {"empty": {}, "list": [{"a": 1}]},
    }
    assert THING["attributes"]["x"] == {"secret": 1}


def test_the_view_of_a_thing_with_nothing_readable_there() -> None:
    bare = {"thingId": "ns:t", "features": {"f": {"properties": {}}}}
    assert HOLE.view(("nginx:a",), "thing", (), bare) == {"thingId": "ns:t"}
    assert HOLE.view(("nginx:other",), "thing", (), bare) is ABSENT


@pytest.mark.parametrize(
    ("path", "value", "seen"),
    [
        (("attributes", "x"), {"secret": 1, "open": None}, {"open": None}),
        (("attributes", "x"), {"secret": 1}, ABSENT),
        (("attributes", "x"), 7, 7),
        (("attributes", "x", "secret"), 1, ABSENT),
        (("attributes", "x", "secret", "deep"), {"a": 1}, ABSENT),
        (("features", "f"), {"properties": {}}, ABSENT),
    ],
)
def test_the_view_of_a_part(path: tuple[str, ...], value: Any, seen: Any) -> None:
    assert HOLE.view(("nginx:a",), "thing", path, value) == seen


def test_special_fields_are_seen_by_whoever_reads_anything() -> None:
    assert HOLE.may_see(("nginx:a",), ("_revision",))
    assert not HOLE.may_see(("nginx:other",), ("_revision",))
    assert not HOLE.may_see(("nginx:a",), ("policyId",))
    assert not HOLE.may_see(("nginx:a",), ("attributes", "x"))


@pytest.mark.parametrize(
    ("path", "patch", "allowed"),
    [
        ((), {"attributes": {"a": 1}, "features": {"f": None}}, True),
        ((), {"attributes": {"x": {"open": 1}}}, True),
        ((), {"attributes": {"x": {"secret": 1}}}, False),
        ((), {"attributes": {"x": None}}, False),
        ((), {"attributes": None}, False),
        ((), {"attributes": {"a": 1}, "features": {"g": {}}}, False),
        ((), {}, False),
        (("attributes", "a"), {"b": {}}, True),
        (("features",), {"f": {"properties": {"a": 1}}}, True),
    ],
)
def test_a_merge_needs_every_leaf(path: tuple[str, ...], patch: Any, allowed: bool) -> None:
    assert HOLE.may_merge(("nginx:a",), path, patch) is allowed
    assert not HOLE.may_merge(("nginx:other",), path, patch)


# --- subjects that expire


def expiring(*subjects: tuple[str, str | None]) -> dict[str, Any]:
    return {
        "entries": {
            name: {
                "subjects": {name: {"type": "t"} | ({"expiry": expiry} if expiry else {})},
                "resources": {"thing:/": {"grant": ["READ"], "revoke": []}},
            }
            for name, expiry in subjects
        }
    }


def test_an_expired_subject_has_no_rights() -> None:
    document = expiring(
        ("a:1", None), ("a:2", "1970-01-01T00:00:01Z"), ("a:3", "1970-01-01T01:00:02+01:00")
    )
    early = Policy(document, 0)
    assert (early.readers(()), early.expires) == (("a:1", "a:2", "a:3"), 1000)
    later = Policy(document, 1000)
    assert (later.readers(()), later.expires) == (("a:1", "a:3"), 2000)
    last = Policy(document, 2000)
    assert (last.readers(()), last.expires) == (("a:1",), None)


@pytest.mark.parametrize("expiry", ["soon", "2020-01-01T00:00:00", 5])
def test_an_unreadable_expiry_is_refused(expiry: Any) -> None:
    with pytest.raises(GatewayError) as caught:
        Policy(expiring(("a:1", expiry)))
    assert caught.value.code == "policies:entry.invalid"
