"""Policies: what the vectors do not say."""

from __future__ import annotations

from typing import Any

import pytest

from acks.errors import GatewayError
from acks.policy import READ, WRITE, Policy, implicit_policy


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
