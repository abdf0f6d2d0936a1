"""Policy document -> may this subject read or write here (spec websocket-... 5.2, 5.3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from acks.errors import error
from acks.resources import ABSENT

if TYPE_CHECKING:
    from acks.audience import Audience

Path = tuple[str, ...]
READ, WRITE, EXECUTE = "READ", "WRITE", "EXECUTE"
_PERMISSIONS = frozenset({READ, WRITE, EXECUTE})
_TYPES = ("thing", "policy", "message")
_ROOTS = tuple(f"{name}:" for name in _TYPES)
_REMEMBERED = 1024
ALWAYS_SEEN = ("thingId", "_namespace", "_revision", "_modified", "_created")
"""Fields of a thing that whoever may read any of it sees (spec websocket-... 5.4)."""


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


def split_resource(key: str) -> tuple[str, Path]:
    """Kind and path of a resource such as ``thing:/attributes``.

    Raises ``policies:entry.invalid``.
    """
    kind, separator, path = key.partition(":")
    if not separator or kind not in _TYPES or not path.startswith("/"):
        raise error("policies:entry.invalid", reason=f"'{key}' is not a resource.")
    parts = [part.replace("~1", "/").replace("~0", "~") for part in path.split("/") if part]
    if kind == "message":
        return kind, message_parts(parts)
    if kind == "policy" and len(parts) > 3 and parts[2] in ("subjects", "resources"):
        # What follows is one name in the document: "nginx:a/b", "thing:/attributes", "thing:/".
        name = "/".join(parts[3:])
        parts[3:] = [f"{name}/" if name in _ROOTS else name]
    return kind, tuple(parts)


def message_parts(parts: Sequence[str]) -> Path:
    """The path of a message's resource in the one form in which rules and messages are compared.

    A subject is text, and a slash in it is the same however it was escaped, so it separates in
    every case: ``a~1b`` in a rule is the subject ``a/b``. A feature id stays one part, whatever is
    in it. A part of slashes alone stays too: a rule for it is not one for all above it.
    """
    at = 4 if parts[:1] == ["features"] else 2
    path = list(parts[:at])
    for part in parts[at:]:
        path += [one for one in part.split("/") if one] or [part]
    return tuple(path)


def expiry_ms(subject: Any) -> int | None:
    """When a policy's subject (its JSON) expires, in ms since the epoch; None if it does not.

    Raises ValueError if that cannot be read.
    """
    text = subject.get("expiry") if isinstance(subject, dict) else None
    if text is None:
        return None
    moment = datetime.fromisoformat(text) if isinstance(text, str) else None
    if moment is None or moment.tzinfo is None:
        raise ValueError(f"'{text}' is no ISO-8601 instant")
    return int(moment.timestamp() * 1000)


class _Mark:
    """What the rules of a requester say about one path, and about those below it."""

    __slots__ = ("below", "granted", "holes", "revoked")

    def __init__(self) -> None:
        self.granted = self.revoked = False
        self.holes = False  # something below is revoked
        self.below: dict[str, _Mark] = {}

    def passes(self, inherited: bool) -> bool:
        """Whether the permission holds here, if it holds (or not) above; a revoke wins."""
        return not self.revoked and (self.granted or inherited)

    def at(self, path: Path) -> tuple[_Mark, bool]:
        """The mark at ``path`` below this one, the root, and whether the permission holds there."""
        mark, allowed = self, self.passes(False)
        for part in path:
            mark = mark.below.get(part, _UNMARKED)
            allowed = mark.passes(allowed)
        return mark, allowed


_UNMARKED = _Mark()


class Policy:
    """A compiled policy document.

    ``expires`` is when the first of its subjects loses its rights (ms since the epoch, None if
    none does): from then on the document has to be compiled again.
    """

    def __init__(self, document: dict[str, Any], now_ms: int = 0) -> None:
        """Compile ``document`` as it holds at ``now_ms`` (since the epoch).

        Raises ``policies:entry.invalid`` if it is malformed.
        """
        self.expires: int | None = None
        self._now_ms = now_ms
        self._marks: dict[tuple[tuple[str, ...], str, str], _Mark] = {}
        self._rules: dict[str, list[tuple[str, Path, frozenset[str], frozenset[str]]]] = {}
        self.audiences: dict[Path, Audience] = {}  # what acks/audience.py has found out
        self.places: dict[tuple[Path, bool], Audience] = {}  # the same, by place()
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
        current = [name for name, subject in subjects.items() if self._is_current(label, subject)]
        for key, permissions in resources.items():
            kind, path = split_resource(key)
            if not isinstance(permissions, dict):
                raise error("policies:entry.invalid", reason=f"'{key}' lacks its permissions.")
            granted = check_permissions(permissions.get("grant", []))
            revoked = check_permissions(permissions.get("revoke", []))
            for subject in current:
                rules = self._rules.setdefault(subject, [])
                rules.append((kind, path, granted, revoked))

    def _is_current(self, label: str, subject: Any) -> bool:
        """Whether a subject has not expired; notes when it will."""
        try:
            expiry = expiry_ms(subject)
        except ValueError as problem:
            reason = f"A subject's expiry in entry '{label}': {problem}."
            raise error("policies:entry.invalid", reason=reason) from None
        if expiry is None:
            return True
        if expiry <= self._now_ms:
            return False
        self.expires = expiry if self.expires is None else min(self.expires, expiry)
        return True

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

    def readers(self, path: Path, partial: bool = False) -> tuple[str, ...]:
        """Subjects that may read everything below ``thing:path``, or with ``partial`` any of it.

        As they are in the policy, each by itself.
        """
        return tuple(s for s in self._rules if self.may((s,), READ, "thing", path, partial))

    def reading(self) -> Iterator[tuple[str, Path, bool, bool]]:
        """All rules on reading things: the subject, the path, whether granted, whether revoked."""
        for subject, rules in self._rules.items():
            for kind, at, granted, revoked in rules:
                if kind == "thing" and (READ in granted or READ in revoked):
                    yield subject, at, READ in granted, READ in revoked

    def place(self, path: Path) -> tuple[Path, bool]:
        """As much of ``path`` as there are rules on reading things; whether they go on below it.

        Paths with the same place are for the same subjects.
        """
        mark = self._marked(tuple(self._rules), READ, "thing")
        for depth, part in enumerate(path):
            below = mark.below.get(part)
            if below is None:
                return path[:depth], False
            mark = below
        return path, bool(mark.below)

    def effected(
        self, permission: str, kind: str, path: Path
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Subjects to which ``permission`` on ``kind:path`` is granted, and revoked (5.6).

        Only what is said about the path itself or above it counts, for each subject by itself.
        """
        granted_to: list[str] = []
        revoked_from: list[str] = []
        for subject, rules in self._rules.items():
            grant = revoke = -1
            for rule_kind, at, granted, revoked in rules:
                if rule_kind == kind and path[: len(at)] == at:
                    if permission in granted:
                        grant = max(grant, len(at))
                    if permission in revoked:
                        revoke = max(revoke, len(at))
            if revoke >= 0 and revoke >= grant:
                revoked_from.append(subject)
            elif grant >= 0:
                granted_to.append(subject)
        return tuple(granted_to), tuple(revoked_from)

    # --- parts of a value

    def view(
        self, subjects: tuple[str, ...], kind: str, path: Path, value: Any, foreign: bool = False
    ) -> Any:
        """As much of ``value``, which is at ``kind:path``, as the requester may READ (5.3, 5.4).

        Objects of which nothing is left are left out; if that is all of it: ABSENT. Of a whole
        thing :data:`ALWAYS_SEEN` is kept for whoever may read any of it. ``value`` is not changed,
        and the view shares what it does not filter with it. ``foreign``: it may be of another
        shape than a twin, so what cannot be cut although a revoke lies below is left out too.
        """
        seen = _visible(*self._marked(subjects, READ, kind).at(path), value, foreign)
        if path or kind != "thing" or not isinstance(value, dict):
            return seen
        if seen is ABSENT:
            if not self.may(subjects, READ, kind, path, partial=True):
                return ABSENT
            seen = {}
        return {name: value[name] for name in ALWAYS_SEEN if name in value} | seen

    def may_see(self, subjects: tuple[str, ...], path: Path) -> bool:
        """Whether the requester may READ all of ``thing:path``, which may name a special field."""
        if path and path[0] in ALWAYS_SEEN:
            return self.may(subjects, READ, "thing", (), partial=True)
        return self.may(subjects, READ, "thing", path)

    def may_merge(self, subjects: tuple[str, ...], path: Path, patch: Any) -> bool:
        """Whether the requester may merge ``patch`` into the thing at ``path`` (5.4).

        With unrestricted WRITE there, or with partial WRITE if every leaf of the patch is writable:
        all of what is at its place, for a leaf replaces that.
        """
        if self.may(subjects, WRITE, "thing", path):
            return True
        if not self.may(subjects, WRITE, "thing", path, partial=True):
            return False
        return _all_leaves(*self._marked(subjects, WRITE, "thing").at(path), patch)

    def _marked(self, subjects: tuple[str, ...], permission: str, kind: str) -> _Mark:
        root = self._marks.get((subjects, permission, kind))
        if root is not None:
            return root
        root = _Mark()
        for subject in subjects:
            for rule_kind, at, granted, revoked in self._rules.get(subject, ()):
                if rule_kind != kind or permission not in granted | revoked:
                    continue
                mark = root
                for part in at:
                    mark.holes |= permission in revoked
                    mark = mark.below.setdefault(part, _Mark())
                mark.granted |= permission in granted
                mark.revoked |= permission in revoked
        if len(self._marks) < _REMEMBERED:
            self._marks[subjects, permission, kind] = root
        return root


def _visible(mark: _Mark, allowed: bool, value: Any, foreign: bool) -> Any:
    """What is left of ``value`` below ``mark``, itself allowed or not; ABSENT for nothing.

    As deep as the rules at most: below them all or nothing is visible.
    """
    if not mark.below or not isinstance(value, dict) or not value:
        uncut = foreign and mark.holes and value != {}
        return value if allowed and not uncut else ABSENT
    left = {}
    for name, child in value.items():
        below = mark.below.get(name)
        if below is not None:
            child = _visible(below, below.passes(allowed), child, foreign)  # noqa: PLW2901
        elif not allowed:
            continue
        if child is not ABSENT:
            left[name] = child
    return left or ABSENT


def _all_leaves(mark: _Mark, allowed: bool, patch: Any) -> bool:
    """Whether the permission holds for all that the leaves of ``patch`` replace."""
    if not isinstance(patch, dict) or not patch:
        return allowed and not mark.holes
    for name, child in patch.items():
        below = mark.below.get(name)
        if below is None:
            if not allowed:
                return False
        elif not _all_leaves(below, below.passes(allowed), child):
            return False
    return True


def check_permissions(values: Any) -> frozenset[str]:
    """The permissions that a resource grants or revokes; raises ``policies:entry.invalid``."""
    known = isinstance(values, list) and all(
        isinstance(value, str) and value in _PERMISSIONS for value in values
    )
    if not known:
        reason = "Permissions are lists of 'READ', 'WRITE' and 'EXECUTE'."
        raise error("policies:entry.invalid", reason=reason)
    return frozenset(values)
