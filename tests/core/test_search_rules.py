"""What a policy says about reading, in one form for all that say the same."""

from __future__ import annotations

from typing import Any

import pytest

from acks.policy import Policy, implicit_policy
from acks.search_rules import granted_subjects, read_rules

READ, WRITE = ["READ"], ["WRITE"]


def entry(subjects: dict[str, Any], **resources: tuple[list[str], list[str]]) -> dict[str, Any]:
    return {
        "subjects": subjects,
        "resources": {key: {"grant": g, "revoke": r} for key, (g, r) in resources.items()},
    }


def test_implicit_policies_of_one_subject_are_one_class() -> None:
    one, other = (read_rules(implicit_policy(name, "nginx:alice")) for name in ("a:b", "a:c"))
    assert one == other
    assert one == {
        "entries": {
            "0": {
                "subjects": {"nginx:alice": {}},
                "resources": {"thing:/": {"grant": READ, "revoke": []}},
            }
        }
    }


def test_labels_order_types_and_other_permissions_do_not_matter() -> None:
    one = {
        "entries": {
            "A": entry({"s:a": {"type": "x"}}, **{"thing:/": (READ, []), "policy:/": (READ, [])}),
            "B": entry({"s:b": {}}, **{"thing:/": (READ + WRITE, [])}),
            "C": entry({"s:c": {}}, **{"thing:/": (WRITE, [])}),
        }
    }
    other = {"entries": {"Z": entry({"s:b": {}, "s:a": {}}, **{"thing:/": (READ, [])})}}
    assert read_rules(one) == read_rules(other)


def test_rules_of_several_entries_come_together() -> None:
    apart = {
        "entries": {
            "A": entry({"s:a": {}}, **{"thing:/": (READ, [])}),
            "B": entry({"s:a": {}}, **{"thing:/": ([], READ), "thing:/attributes/x": ([], READ)}),
        }
    }
    rules = read_rules(apart)
    assert rules is not None
    assert rules["entries"]["0"]["resources"] == {
        "thing:/": {"grant": READ, "revoke": READ},
        "thing:/attributes/x": {"grant": [], "revoke": READ},
    }


def test_a_subject_with_two_expiries_keeps_both() -> None:
    first, second = "2030-01-01T00:00:00Z", "2031-01-01T00:00:00Z"
    both = {
        "entries": {
            "A": entry({"s:a": {"expiry": first}}, **{"thing:/": (READ, [])}),
            "B": entry({"s:a": {"expiry": second}}, **{"thing:/": (READ, [])}),
        }
    }
    rules = read_rules(both)
    assert rules is not None
    expiries = [list(e["subjects"].items()) for e in rules["entries"].values()]
    assert expiries == [[("s:a", {"expiry": first})], [("s:a", {"expiry": second})]]
    between = 1_910_000_000_000  # in 2030
    assert Policy(rules, between).may(("s:a",), "READ", "thing", ())
    assert not Policy(rules, between + 10**11).may(("s:a",), "READ", "thing", ())


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"entries": {}},
        {"entries": None},
        {"entries": {"A": entry({"s:a": {}}, **{"thing:/": (WRITE, [])})}},
        {"entries": {"A": entry({"s:a": {}}, **{"thing:/": ([], READ)})}},
        {"entries": {"A": entry({"s:a": {"expiry": "soon"}}, **{"thing:/": (READ, [])})}},
        {"entries": {"A": entry({"s:a": {}}, thing=(READ, []))}},
        {"entries": {"A": []}},
    ],
)
def test_where_nobody_is_granted_anything_there_are_no_rules(document: dict[str, Any]) -> None:
    assert read_rules(document) is None


def test_only_subjects_with_a_grant_are_candidates() -> None:
    document = {
        "entries": {
            "A": entry({"s:a": {}}, **{"thing:/": (READ, []), "thing:/x": ([], READ)}),
            "B": entry({"s:b": {}}, **{"thing:/": ([], READ)}),
        }
    }
    rules = read_rules(document)
    assert rules is not None
    assert granted_subjects(rules) == {"s:a"}
