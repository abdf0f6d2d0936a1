"""Events reach whom the policy lets read them, and show them no more: leaf by leaf."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from acks.audience import audience, may_know, readable, rights
from acks.journal import EntryMeta
from acks.policy import READ, Policy
from acks.resources import ABSENT
from tests.properties.test_policy import NAMES, PATHS, RULES, VALUES, compiled, leaves
from tests.properties.test_policy import readable as leaf_readable

Path = tuple[str, ...]
SESSIONS = st.lists(st.sampled_from(["s:1", "s:2", "s:3"]), min_size=1, max_size=3, unique=True)
Rules = list[tuple[str, Path, list[str], list[str]]]


def shown(policy: Policy, subjects: tuple[str, ...], path: Path, value: Any) -> Any:
    """What a session gets of an event that has been through the journal, ABSENT for nothing."""
    readers, rules = audience(policy, path)
    meta = EntryMeta("n:s", "modified", "/", 1, "t", "c", (), "node", 0, readers, rules=rules)
    meta = EntryMeta.from_json(meta.to_json())
    if set(subjects).isdisjoint(meta.readers):
        return ABSENT
    return readable(rights(meta.rules), subjects, path, value) if meta.rules else value


@given(RULES, SESSIONS, PATHS.filter(bool), VALUES)
def test_a_session_sees_the_leaves_that_all_its_subjects_together_may_read(
    rules: Rules, session: list[str], path: Path, value: Any
) -> None:
    subjects = tuple(session)
    own = [rule for rule in rules if rule[0] in subjects]
    wanted = {at: leaf for at, leaf in leaves(path, value) if leaf_readable(own, at)}
    policy = compiled(rules)
    if not any(policy.may((s,), READ, "thing", (), partial=True) for s in subjects):
        # Who by none of its subjects reads anything of the thing as a whole is only asked of the
        # path itself.
        alone = [s for s in subjects if policy.may((s,), READ, "thing", path)]
        wanted = wanted if alone else {}
    seen = shown(policy, subjects, path, value)
    assert (dict(leaves(path, seen)) if seen is not ABSENT else {}) == wanted


@given(RULES, SESSIONS, st.dictionaries(NAMES, VALUES, max_size=3))
def test_a_whole_thing_is_cut_like_its_parts(
    rules: Rules, session: list[str], attributes: dict[str, Any]
) -> None:
    subjects = tuple(session)
    thing = {"thingId": "n:s", "policyId": "n:s", **attributes}
    own = [rule for rule in rules if rule[0] in subjects]
    wanted = {at: leaf for at, leaf in leaves((), thing) if leaf_readable(own, at)}
    policy = compiled(rules)
    seen = shown(policy, subjects, (), thing)
    if not any(policy.may((s,), READ, "thing", (), partial=True) for s in subjects):
        assert seen is ABSENT
        return
    if seen is not ABSENT:
        assert seen.pop("thingId") == "n:s"
        wanted.pop(("thingId",), None)
        assert {at: leaf for at, leaf in leaves((), seen) if at} == wanted
    else:
        assert not policy.may(subjects, READ, "thing", (), partial=True)
        assert not wanted


@given(RULES, SESSIONS, PATHS)
def test_deletions_reach_those_who_may_read_something_there(
    rules: Rules, session: list[str], path: Path
) -> None:
    subjects = tuple(session)
    policy = compiled(rules)
    found = audience(policy, path)
    if found.rules:
        assert may_know(rights(found.rules), subjects, path) == policy.may(
            subjects, READ, "thing", path, partial=True
        )
    else:
        alone = any(policy.may((s,), READ, "thing", path) for s in subjects)
        assert (not set(subjects).isdisjoint(found.readers)) == alone


@given(RULES, PATHS)
def test_whoever_reads_all_of_a_path_is_a_reader(rules: Rules, path: Path) -> None:
    policy = compiled(rules)
    readers = set(audience(policy, path).readers)
    assert readers == {*policy.readers(path), *policy.readers((), partial=True)}
