"""JSON merge patch (RFC 7396): applying one, and what of one would change anything.

Nothing given is changed: what is not touched is shared between the old and the new value.
"""

from __future__ import annotations

from typing import Any

from acks.facts import MISSING

Path = tuple[str, ...]


def merge(target: Any, patch: Any) -> Any:
    """``target`` with ``patch`` applied: objects are merged, ``null`` removes, the rest replaces.

    The result is nested no deeper than the deeper of the two.
    """
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            merged[key] = merge(merged.get(key), value)
        else:
            merged[key] = value
    return merged


def difference(target: Any, patch: Any) -> Any:
    """The part of ``patch`` that changes ``target``, or ``MISSING`` if nothing of it does.

    ``merge(target, difference(target, patch)) == merge(target, patch)``
    """
    if not isinstance(patch, dict):
        return MISSING if same(target, patch) else patch
    if not isinstance(target, dict):
        return patch
    kept = {}
    for key, value in patch.items():
        if key not in target:
            if value is not None:
                kept[key] = value
        elif value is None:
            kept[key] = None
        else:
            changed = difference(target[key], value)
            if changed is not MISSING:
                kept[key] = changed
    return kept or MISSING


def below(path: Path, patch: Any) -> Any:
    """A patch for what is at ``path`` as a patch for the whole."""
    for part in reversed(path):
        patch = {part: patch}
    return patch


def same(left: Any, right: Any) -> bool:
    """Whether two JSON values are equal; ``true`` is not 1, and 1.0 is not 1."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)
