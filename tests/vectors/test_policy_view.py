"""The vectors about what a partial reader sees."""

from __future__ import annotations

from typing import Any

import pytest

from acks.audience import readable
from acks.document import parse_pointer
from acks.facts import descend
from acks.policy import READ, Policy, split_resource
from acks.resources import ABSENT
from tests.vectors import load

Json = Any


def reader(subject: str, grants: list[str], revokes: list[str]) -> Policy:
    resources: dict[str, Json] = {}
    for key in grants:
        resources.setdefault(key, {"grant": [], "revoke": []})["grant"].append(READ)
    for key in revokes:
        resources.setdefault(key, {"grant": [], "revoke": []})["revoke"].append(READ)
    return Policy({"entries": {"e": {"subjects": {subject: {}}, "resources": resources}}})


@pytest.mark.parametrize(("given", "expected"), load("policy.json_view"))
def test_view(given: Json, expected: Json) -> None:
    kind, path = split_resource(given["root"])
    assert given["permission"] == READ
    value = descend(given["json"], path)
    seen = Policy(given["policy"]).view(tuple(given["subjects"]), kind, path, value)
    assert seen == (expected or ABSENT)


@pytest.mark.parametrize(("given", "expected"), load("policy.accessible_paths"))
def test_accessible_paths(given: Json, expected: Json) -> None:
    subject = given["subject"]
    policy = reader(subject, given["grants_READ"], given["revokes_READ"])
    for pointer in expected["contains"]:
        assert policy.may((subject,), READ, "thing", parse_pointer(pointer)), pointer
    for pointer in expected.get("excludes", ()):
        assert not policy.may((subject,), READ, "thing", parse_pointer(pointer)), pointer


@pytest.mark.parametrize(("given", "expected"), load("partial_access.filter_event"))
def test_event_of_a_partial_reader(given: Json, expected: Json) -> None:
    policy = reader("s", [f"thing:{path}" for path in given["accessible_paths"]], [])
    path = parse_pointer(given["event_path"])
    assert readable(policy, ("s",), path, given["value"]) == (
        ABSENT if expected == {} else expected
    )
