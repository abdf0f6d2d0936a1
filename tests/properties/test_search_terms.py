"""Changed terms, applied to the old ones, are the new ones; classes decide as their policies."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from acks.policy import Policy
from acks.search_rules import granted_subjects, read_rules
from acks.search_terms import changed_terms, terms_of

LEAVES = st.none() | st.booleans() | st.integers(-2, 2) | st.floats(-2, 2) | st.sampled_from("ab")
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=8,
)
FIELDS = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)
FEATURES = st.dictionaries(
    st.sampled_from(["f", "g"]), st.fixed_dictionaries({"properties": FIELDS}), max_size=2
)
THINGS = st.fixed_dictionaries({"attributes": FIELDS, "features": FEATURES})


@given(THINGS, THINGS)
def test_changes_lead_from_one_document_to_the_other(
    old: dict[str, Any], new: dict[str, Any]
) -> None:
    terms = terms_of(old)
    for place, before, after in changed_terms(old, new):
        assert before != after
        assert terms.get(place, ()) == before
        if after:
            terms[place] = after
        else:
            del terms[place]
    assert terms == terms_of(new)


SUBJECTS = ("s:a", "s:b", "s:c")
PATHS = ("/", "/attributes", "/attributes/x", "/attributes/x/y", "/features/f")
EFFECTS = st.sets(st.sampled_from(["READ", "WRITE"]), max_size=2).map(sorted)
RESOURCES = st.dictionaries(
    st.builds(
        "{}:{}".format, st.sampled_from(["thing", "thing", "policy"]), st.sampled_from(PATHS)
    ),
    st.fixed_dictionaries({"grant": EFFECTS, "revoke": EFFECTS}),
    min_size=1,
    max_size=4,
)
NAMES = st.dictionaries(
    st.sampled_from(SUBJECTS),
    st.sampled_from([{}, {"expiry": "2001-01-01T00:00:00Z"}, {"expiry": "2040-01-01T00:00:00Z"}]),
    min_size=1,
)
POLICIES = st.dictionaries(
    st.sampled_from("ABC"),
    st.fixed_dictionaries({"subjects": NAMES, "resources": RESOURCES}),
    min_size=1,
).map(lambda entries: {"entries": entries})


@given(POLICIES)
def test_a_class_decides_as_the_policies_that_are_in_it(document: dict[str, Any]) -> None:
    rules = read_rules(document)
    now = 1_900_000_000_000
    policy = Policy(document, now)
    reduced = Policy(rules, now) if rules else None
    groups = itertools.chain.from_iterable(itertools.combinations(SUBJECTS, n) for n in (1, 2, 3))
    for subjects, path, partial in itertools.product(groups, PATHS, (False, True)):
        parts = tuple(part for part in path.split("/") if part)
        may = policy.may(subjects, "READ", "thing", parts, partial)
        assert may == (
            reduced is not None and reduced.may(subjects, "READ", "thing", parts, partial)
        )
        if may:
            assert rules is not None
            assert granted_subjects(rules) & set(subjects)
