"""Who may read an event, and how much of it."""

from __future__ import annotations

from typing import Any

import pytest

from acks.audience import audience, may_know, readable, rights
from acks.journal import EntryMeta
from acks.policy import Policy
from acks.resources import ABSENT

Json = Any


def policy(**resources: dict[str, str]) -> Policy:
    """Subjects with the paths they are granted ("+") and revoked ("-")."""
    entries = {}
    for name, paths in resources.items():
        rules = {}
        for path, effect in paths.items():
            grant = ["READ"] if effect == "+" else []
            revoke = ["READ"] if effect == "-" else []
            rules[f"thing:{path}"] = {"grant": grant, "revoke": revoke}
        entries[name] = {"subjects": {name: {"type": "t"}}, "resources": rules}
    return Policy({"entries": entries})


def test_an_ordinary_policy_adds_nothing() -> None:
    both = policy(a={"/": "+"}, b={"/": "+"})
    for path in ((), ("attributes",), ("features", "f", "properties", "x")):
        assert audience(both, path) == (("a", "b"), ())


def test_rules_that_do_not_concern_the_path_are_left_out() -> None:
    hole = policy(a={"/": "+", "/attributes/secret": "-"})
    assert audience(hole, ("attributes", "open")) == (("a",), ())
    assert audience(hole, ("features",)) == (("a",), ())
    rules = ((("a",), ("/",), ("/attributes/secret",)),)
    assert audience(hole, ()) == (("a",), rules)
    assert audience(hole, ("attributes",)) == (("a",), rules)
    assert audience(hole, ("attributes", "secret", "deep")) == (("a",), rules)


def test_partial_readers_of_the_thing_are_readers_of_every_event() -> None:
    part = policy(all={"/": "+"}, part={"/attributes/a": "+"}, nobody={"/": "-"})
    assert audience(part, ("attributes", "a")).readers == ("all", "part")
    readers, rules = audience(part, ("features",))
    assert readers == ("all", "part")
    assert rules == ((("all",), ("/",), ()), (("nobody",), (), ("/",)))
    assert readable(rights(rules), ("part",), ("features",), {"f": {}}) is ABSENT


def test_a_reader_of_something_else_sees_nothing_where_no_rule_applies() -> None:
    elsewhere = policy(part={"/attributes/a": "+"})
    readers, rules = audience(elsewhere, ("features",))
    assert readers == ("part",)
    assert rules  # without rules it would be all of it
    assert readable(rights(rules), ("part",), ("features",), 1) is ABSENT
    assert not may_know(rights(rules), ("part",), ("features",))


def test_subjects_with_the_same_rules_share_them() -> None:
    resources = {"thing:/attributes/a~1b": {"grant": ["READ"], "revoke": []}}
    subjects = {"s:1": {"type": "t"}, "s:2": {"type": "t"}}
    two = Policy({"entries": {"e": {"subjects": subjects, "resources": resources}}})
    rules = ((("s:1", "s:2"), ("/attributes/a~1b",), ()),)
    assert audience(two, ()) == (("s:1", "s:2"), rules)
    value = {"attributes": {"a/b": 1, "a": {"b": 2}}}
    assert readable(rights(rules), ("s:2",), (), value) == {"attributes": {"a/b": 1}}


def test_a_revoke_of_another_subject_counts_for_a_session_that_has_both() -> None:
    rules = audience(policy(a={"/": "+"}, b={"/attributes/secret": "-"}), ()).rules
    value = {"thingId": "n:s", "attributes": {"secret": 1, "open": 2}}
    assert readable(rights(rules), ("a",), (), value) is value
    assert readable(rights(rules), ("b",), (), value) is ABSENT
    for both in (("a", "b"), ("b", "a")):
        seen = readable(rights(rules), both, (), value)
        assert seen == {"thingId": "n:s", "attributes": {"open": 2}}


@pytest.mark.parametrize(
    ("path", "value", "seen"),
    [
        ((), {"thingId": "n:s", "_created": 3, "x": 1}, {"thingId": "n:s", "_created": 3}),
        ((), {"attributes": {"b": 1}}, ABSENT),
        ((), {"attributes": {"a": None, "b": None}}, {"attributes": {"a": None}}),
        ((), {"attributes": None}, ABSENT),
        ((), {}, ABSENT),
        (("attributes",), {"a": {"x": 1}, "b": 2}, {"a": {"x": 1}}),
        (("attributes",), {"b": 2}, ABSENT),
        (("attributes",), None, ABSENT),
        (("attributes", "a"), None, None),
        (("attributes", "a", "x"), 0, 0),
        (("attributes", "b"), {"a": 1}, ABSENT),
    ],
)  # fmt: skip
def test_what_a_partial_reader_sees(path: tuple[str, ...], value: Json, seen: Json) -> None:
    rules = audience(policy(all={"/": "+"}, part={"/attributes/a": "+"}), path).rules
    subjects = ("part", "x")
    if rules:
        found = readable(rights(rules), subjects, path, value)
        assert found is seen if seen is ABSENT else found == seen
        return
    assert seen == value


@pytest.mark.parametrize(
    ("path", "known"),
    [
        ((), True),
        (("attributes",), True),
        (("attributes", "a"), True),
        (("attributes", "b"), False),
        (("features",), False),
    ],
)
def test_deletions_are_for_those_who_may_read_something_there(
    path: tuple[str, ...], known: bool
) -> None:
    rules = audience(policy(all={"/": "+"}, part={"/attributes/a": "+", "/x": "-"}), ()).rules
    assert may_know(rights(rules), ("part",), path) is known
    assert may_know(rights(rules), ("all",), path)


def test_rules_travel_with_the_entry() -> None:
    rules = audience(policy(a={"/": "+", "/attributes/b": "-"}), ()).rules
    meta = EntryMeta("n:s", "modified", "/", 1, "t", "c", (), "node", 0, ("a",), rules=rules)
    assert EntryMeta.from_json(meta.to_json()) == meta
    assert rights(rules).readers(("attributes", "b")) == ()
    with_session = meta._replace(session="s1", rules=())
    assert EntryMeta.from_json(with_session.to_json()) == with_session


def test_many_paths_share_what_is_found_for_few() -> None:
    part = policy(all={"/": "+"}, part={"/attributes/a": "+"})
    found = {id(audience(part, ("attributes", f"x{number}"))) for number in range(3000)}
    assert len(found) == 1
    assert len(part.audiences) <= 1024
