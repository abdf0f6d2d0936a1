"""Views and merges agree with the decision on every single leaf."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from acks.policy import READ, WRITE, Policy
from acks.resources import ABSENT

Path = tuple[str, ...]
NAMES = st.sampled_from("abc")
PATHS = st.lists(NAMES, max_size=4).map(tuple)
PERMISSIONS = st.lists(st.sampled_from([READ, WRITE]), max_size=2)
VALUES = st.recursive(
    st.sampled_from([1, None, "x", [1]]),
    lambda inner: st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)
RULES = st.lists(st.tuples(st.sampled_from(["s:1", "s:2"]), PATHS, PERMISSIONS, PERMISSIONS))


def compiled(rules: list[tuple[str, Path, list[str], list[str]]]) -> Policy:
    entries = {
        str(number): {
            "subjects": {subject: {"type": "t"}},
            "resources": {"thing:/" + "/".join(path): {"grant": granted, "revoke": revoked}},
        }
        for number, (subject, path, granted, revoked) in enumerate(rules)
    }
    return Policy({"entries": entries or {"e": {"subjects": {}, "resources": {}}}})


def leaves(path: Path, value: Any) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, dict) and value:
        for name, child in value.items():
            yield from leaves((*path, name), child)
    else:
        yield path, value


def readable(rules: list[tuple[str, Path, list[str], list[str]]], at: Path) -> bool:
    """The deepest rule at or above ``at`` decides; a revoke wins a tie (spec websocket-... 5.3)."""
    above = [rule for rule in rules if at[: len(rule[1])] == rule[1]]
    granted = max((len(rule[1]) for rule in above if READ in rule[2]), default=-1)
    revoked = max((len(rule[1]) for rule in above if READ in rule[3]), default=-1)
    return granted > revoked


SUBJECTS = ("s:1", "s:2")


@given(RULES, PATHS.filter(bool), VALUES)  # a whole thing has fields that everybody sees
def test_a_view_holds_the_readable_leaves(rules: Any, path: Path, value: Any) -> None:
    policy = compiled(rules)
    wanted = {at: leaf for at, leaf in leaves(path, value) if readable(rules, at)}
    seen = policy.view(SUBJECTS, "thing", path, value)
    assert (dict(leaves(path, seen)) if seen is not ABSENT else {}) == wanted


@given(RULES, PATHS, VALUES)
def test_a_merge_needs_write_on_every_leaf(rules: Any, path: Path, patch: Any) -> None:
    policy = compiled(rules)
    wanted = all(policy.may(SUBJECTS, WRITE, "thing", at) for at, _ in leaves(path, patch))
    assert policy.may_merge(SUBJECTS, path, patch) == (
        policy.may(SUBJECTS, WRITE, "thing", path) or wanted
    )
