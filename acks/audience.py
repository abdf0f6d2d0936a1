"""Who may read an event, and how much of it (spec websocket-... 5.3, 5.6).

An entry of the journal names its readers. Where it is not simply all of the event or nothing for
each of them, it carries the READ rules that concern its path too, so that whoever delivers it
decides as the policy would, with the rules of all subjects of a session pooled.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from acks.document import format_pointer
from acks.journal import Rules
from acks.policy import READ, Path, Policy
from acks.resources import ABSENT

_NOTHING: Rules = (((), (), ()),)
"""Rules for readers of the thing to whom none of this is granted: not empty, which would be all."""
_REMEMBERED = 1024
_COMPILED = 256


class Audience(NamedTuple):
    """The subjects that may read an event or a part of it; the rules are empty if none is cut."""

    readers: tuple[str, ...]
    rules: Rules


def audience(policy: Policy, path: Path) -> Audience:
    """Who may read an event at ``thing:path``.

    That is who may read all of it, and everybody who may read any part of the thing (5.6): whether
    something of the event is left for those is decided for each session, by :func:`readable`.
    """
    found = policy.audiences.get(path)
    if found is None:
        # Most paths are told apart by no rule, and share what is found for those that are.
        place = policy.place(path)
        found = policy.places.get(place)
        if found is None:
            found = policy.places[place] = _audience(policy, *place)
        if len(policy.audiences) < _REMEMBERED:
            policy.audiences[path] = found
    return found


def _audience(policy: Policy, path: Path, deeper: bool) -> Audience:
    grants: dict[str, list[Path]] = {}
    revokes: dict[str, list[Path]] = {}
    for subject, at, granted, revoked in policy.reading():
        if path[: len(at)] == at or (deeper and at[: len(path)] == path):
            if granted:
                grants.setdefault(subject, []).append(at)
            if revoked:
                revokes.setdefault(subject, []).append(at)
    whole = []
    for subject, paths in grants.items():
        granted_to = max((len(at) for at in paths if len(at) <= len(path)), default=-1)
        if granted_to > max((len(at) for at in revokes.get(subject, ())), default=-1):
            whole.append(subject)
    readers = tuple(dict.fromkeys((*whole, *policy.readers((), partial=True))))
    if not revokes and len(readers) == len(whole):
        return Audience(readers, ())
    return Audience(readers, _grouped(grants, revokes) or _NOTHING)


def _grouped(grants: dict[str, list[Path]], revokes: dict[str, list[Path]]) -> Rules:
    groups: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for subject in dict.fromkeys((*grants, *revokes)):
        granted = tuple(map(format_pointer, grants.get(subject, ())))
        revoked = tuple(map(format_pointer, revokes.get(subject, ())))
        groups.setdefault((granted, revoked), []).append(subject)
    return tuple((tuple(names), *rules) for rules, names in groups.items())


@lru_cache(maxsize=_COMPILED)
def rights(rules: Rules) -> Policy:
    """The rules of an entry as a policy; ``rules`` must not be empty."""
    entries: dict[str, Any] = {}
    for number, (subjects, granted, revoked) in enumerate(rules):
        resources: dict[str, dict[str, list[str]]] = {}
        for pointers, effect in ((granted, "grant"), (revoked, "revoke")):
            for pointer in pointers:
                resources.setdefault(f"thing:{pointer}", {})[effect] = [READ]
        entries[str(number)] = {
            "subjects": {subject: {"type": ""} for subject in subjects},
            "resources": resources,
        }
    return Policy({"entries": entries})


def readable(policy: Policy, subjects: tuple[str, ...], path: Path, value: Any) -> Any:
    """As much of an event's ``value`` as the session with these ``subjects`` may read.

    ``policy`` are the :func:`rights` of its entry. ABSENT if nothing is left, and ``value`` itself
    for whoever may read all of it.
    """
    if policy.may(subjects, READ, "thing", path):
        return value
    seen = policy.view(subjects, "thing", path, value)
    # Of a thing's patch not even the fields that everybody sees may be left.
    return ABSENT if seen == {} and not path else seen


def may_know(policy: Policy, subjects: tuple[str, ...], path: Path) -> bool:
    """Whether an event without a value, a deletion, is for the session with these ``subjects``.

    It is if they may read something there: otherwise they would keep what is gone.
    """
    return policy.may(subjects, READ, "thing", path, partial=True)
