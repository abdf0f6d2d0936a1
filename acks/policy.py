"""Policy document -> may this subject read or write here (spec websocket-... 5.2, 5.3)."""

from __future__ import annotations

from typing import Any

from acks.errors import error

Path = tuple[str, ...]
READ, WRITE, EXECUTE = "READ", "WRITE", "EXECUTE"
_PERMISSIONS = frozenset({READ, WRITE, EXECUTE})
_TYPES = ("thing", "policy", "message")
_REMEMBERED = 1024


def implicit_policy(policy_id: str, subject: str) -> dict[str, Any]:
    """The policy of a thing that was created without one: its creator may do everything (5.5)."""
    allowed = {"grant": [READ, WRITE], "revoke": []}
    return {
        "policyId": policy_id,
        "entries": {
            "DEFAULT": {
                "subjects": {subject: {"type": "generated"}},
                "resources": {f"{name}:/": allowed for name in _TYPES},
            }
        },
    }


def _split_resource(key: str) -> tuple[str, Path]:
    kind, separator, path = key.partition(":")
    if not separator or kind not in _TYPES or not path.startswith("/"):
        raise error("policies:entry.invalid", reason=f"'{key}' is not a resource.")
    return kind, tuple(part for part in path.split("/") if part)


class Policy:
    """A compiled policy document."""

    def __init__(self, document: dict[str, Any]) -> None:
        """Compile ``document``; raises ``policies:entry.invalid`` if it is malformed."""
        self._rules: dict[str, list[tuple[str, Path, frozenset[str], frozenset[str]]]] = {}
        self._readers: dict[Path, tuple[str, ...]] = {}
        self._decisions: dict[tuple[tuple[str, ...], str, str, Path, bool], bool] = {}
        entries = document.get("entries")
        if not isinstance(entries, dict) or not entries:
            raise error("policies:entry.invalid", reason="It has no entries.")
        for label, entry in entries.items():
            self._add(label, entry)

    def _add(self, label: str, entry: Any) -> None:
        subjects = entry.get("subjects") if isinstance(entry, dict) else None
        resources = entry.get("resources") if isinstance(entry, dict) else None
        if not isinstance(subjects, dict) or not isinstance(resources, dict):
            raise error("policies:entry.invalid", reason=f"Entry '{label}' lacks its objects.")
        for key, permissions in resources.items():
            kind, path = _split_resource(key)
            if not isinstance(permissions, dict):
                raise error("policies:entry.invalid", reason=f"'{key}' lacks its permissions.")
            granted = _permissions(permissions.get("grant", []))
            revoked = _permissions(permissions.get("revoke", []))
            for subject in subjects:
                rules = self._rules.setdefault(subject, [])
                rules.append((kind, path, granted, revoked))

    def may(
        self,
        subjects: tuple[str, ...],
        permission: str,
        kind: str,
        path: Path,
        partial: bool = False,
    ) -> bool:
        """Whether the requester with these ``subjects`` has ``permission`` on ``kind:path`` (5.3).

        Unrestricted: on all of it. ``partial``: on it or on something below it.
        """
        key = (subjects, permission, kind, path, partial)
        decision = self._decisions.get(key)
        if decision is None:
            decision = self._decide(subjects, permission, kind, path, partial)
            if len(self._decisions) < _REMEMBERED:
                self._decisions[key] = decision
        return decision

    def _decide(
        self, subjects: tuple[str, ...], permission: str, kind: str, path: Path, partial: bool
    ) -> bool:
        grant = revoke = -1
        for subject in subjects:
            for rule_kind, at, granted, revoked in self._rules.get(subject, ()):
                if rule_kind != kind:
                    continue
                depth = len(at)
                above = path[:depth] == at
                below = not above and at[: len(path)] == path
                if permission in granted and (above or (partial and below)):
                    grant = max(grant, depth)
                if permission in revoked and (above or (not partial and below)):
                    revoke = max(revoke, depth)
        return grant >= 0 and revoke < grant

    def readers(self, path: Path) -> tuple[str, ...]:
        """Subjects that may read everything below ``thing:path``, as they are in the policy."""
        readers = self._readers.get(path)
        if readers is None:
            readers = tuple(s for s in self._rules if self.may((s,), READ, "thing", path))
            if len(self._readers) < _REMEMBERED:
                self._readers[path] = readers
        return readers


def _permissions(values: Any) -> frozenset[str]:
    if not isinstance(values, list) or not _PERMISSIONS.issuperset(values):
        raise error("policies:entry.invalid", reason="Permissions are READ, WRITE and EXECUTE.")
    return frozenset(values)
