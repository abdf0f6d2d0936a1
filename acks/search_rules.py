"""What a policy says about reading things, in one form for all policies that say the same.

The search index keeps these forms, its *classes*, instead of policies: the implicit policies of all
things that somebody made are one class.
"""

from __future__ import annotations

from acks.errors import GatewayError
from acks.policy import READ, expiry_ms, split_resource
from acks.signals import JsonObject


def read_rules(document: JsonObject) -> JsonObject | None:
    """The READ rules on things of a policy document, as a policy document with nothing else in it.

    Documents whose rules let the same subjects read the same give equal results, key order
    included, whatever their labels; expiries are kept as they are written. None if nobody may read
    anything, and for what is no policy: whoever cannot be granted anything sees nothing.
    """
    rules: dict[tuple[str, str], dict[str, tuple[bool, bool]]] = {}
    try:
        for entry in document["entries"].values():
            said = _said(entry["resources"])
            for subject, facts in entry["subjects"].items() if said else ():
                expiry_ms(facts)
                until = facts.get("expiry") if isinstance(facts, dict) else None
                known = rules.setdefault((subject, until or ""), {})
                for resource, (granted, revoked) in said.items():
                    was = known.get(resource, (False, False))
                    known[resource] = (granted or was[0], revoked or was[1])
    except (KeyError, TypeError, AttributeError, ValueError, GatewayError):
        return None
    if not any(granted for said in rules.values() for granted, _ in said.values()):
        return None
    return {"entries": _entries(rules)}


def _said(resources: JsonObject) -> dict[str, tuple[bool, bool]]:
    """Of each resource of a thing whether READ is granted and revoked, if either is."""
    said = {}
    for key, permissions in resources.items():
        granted = READ in permissions.get("grant", ())
        revoked = READ in permissions.get("revoke", ())
        if (granted or revoked) and split_resource(key)[0] == "thing":
            said[key] = (granted, revoked)
    return said


def _entries(rules: dict[tuple[str, str], dict[str, tuple[bool, bool]]]) -> JsonObject:
    """One entry for all subjects with the same rules; one that has two expiries is in two."""
    groups: dict[tuple[tuple[str, tuple[bool, bool]], ...], list[tuple[str, str]]] = {}
    for subject, said in sorted(rules.items()):
        groups.setdefault(tuple(sorted(said.items())), []).append(subject)
    entries: JsonObject = {}
    for resources, subjects in sorted(groups.items()):
        # Subjects are keys: the same one with another expiry has to go into another entry.
        parts: list[dict[str, str]] = []
        for name, until in subjects:
            part = next((part for part in parts if name not in part), None)
            if part is None:
                parts.append(part := {})
            part[name] = until
        for part in parts:
            entries[str(len(entries))] = _entry(part, resources)
    return entries


def _entry(
    subjects: dict[str, str], resources: tuple[tuple[str, tuple[bool, bool]], ...]
) -> JsonObject:
    return {
        "subjects": {name: {"expiry": until} if until else {} for name, until in subjects.items()},
        "resources": {
            key: {"grant": [READ] * granted, "revoke": [READ] * revoked}
            for key, (granted, revoked) in resources
        },
    }


def granted_subjects(rules: JsonObject) -> set[str]:
    """The subjects to which the result of :func:`read_rules` grants anything."""
    found: set[str] = set()
    for entry in rules["entries"].values():
        if any(said["grant"] for said in entry["resources"].values()):
            found.update(entry["subjects"])
    return found
