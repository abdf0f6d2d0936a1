"""What the search index knows of a thing: one term for each value at each path (spec 6.2-6.4).

Arrays are flattened: an array's elements are values at the array's path, and the fields of objects
in it are at the path below, as acks/facts.py finds them. There the place's ``depth`` is that of the
outermost array: the rules of a policy end at arrays, so that is where visibility is decided.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

NULL, NUMBER, TEXT, OBJECT, EMPTY_OBJECT, ARRAY, EMPTY_ARRAY, BOOLEAN = range(1, 9)
"""Kinds of terms, in the order in which values of several kinds are sorted.

OBJECT and ARRAY say that a value with something in it is there; every path inside an array has an
ARRAY beside its values. So ``exists`` is: any term; and ``empty`` is: none of a kind in
:data:`FILLED`, and no TEXT other than ''.
"""
FILLED = (NUMBER, OBJECT, ARRAY, BOOLEAN)

HEAD = 100
"""Characters of a text that an index looks at."""
MAX_PATH = 500
"""Characters of a path; a longer one is cut, with a digest of all of it."""
_INT64 = 2**63
_UNSTORABLE = re.compile("[\x00\x01\ud800-\udfff]")
_STORED = {"\x00": "\x01\x01", "\x01": "\x01\x02"}

Path = tuple[str, ...]


class Place(NamedTuple):
    """Where terms are: the path (:func:`path_text`), and how much of it the policy decides on.

    ``depth`` is a number of parts. ``feature`` is the feature's id and ``wild`` the path with a
    ``*`` for it; both are '' outside of features.
    """

    path: str
    depth: int
    feature: str
    wild: str


class Value(NamedTuple):
    """One value as columns: ``text`` holds all of a text too long for ``head``, else None."""

    kind: int
    number: int | float = 0
    head: str = ""
    text: str | None = None


Terms = dict[Place, tuple[Value, ...]]
"""The values at each place, in a fixed order and without duplicates."""

_MARKERS = {kind: Value(kind) for kind in (NULL, OBJECT, EMPTY_OBJECT, ARRAY, EMPTY_ARRAY)}
_TRUE, _FALSE = Value(BOOLEAN, 1), Value(BOOLEAN, 0)


def storable(text: str) -> str:
    """``text`` as databases can hold it: NUL becomes two characters, in an order that stays.

    Half characters (surrogates), which JSON text cannot hold, become the replacement character.
    """
    if _UNSTORABLE.search(text) is None:
        return text
    return _UNSTORABLE.sub(lambda found: _STORED.get(found[0], "\ufffd"), text)


def head_of(text: str) -> str:
    """What is in an index for a ``text``: itself, or its beginning and a digest of all of it.

    So two texts are equal if and only if these are. As to the order: with a ``limit`` of at most
    :data:`HEAD` characters, ``text < limit`` is ``head_of(text) < limit``, and so for the others.
    """
    return _cut(storable(text), HEAD)


def _cut(text: str, length: int) -> str:
    if len(text) <= length:
        return text
    return text[:length] + blake2b(text.encode(), digest_size=16).hexdigest()


def path_text(parts: Path) -> str:
    """A path as it is in the index: ``attributes/a~1b``; a long one is cut, with a digest."""
    text = "/".join([part.replace("~", "~0").replace("/", "~1") for part in parts])
    return _cut(storable(text), MAX_PATH)


def wild_text(parts: Path) -> str:
    """The path with ``*`` for the feature's id; '' outside of features."""
    if len(parts) < 2 or parts[0] != "features":
        return ""
    return path_text(("features", "*", *parts[2:]))


def value_of(item: Any) -> Value:
    """A JSON value that is no object and no array as columns."""
    if isinstance(item, str):
        text = storable(item)
        if len(text) <= HEAD:
            return Value(TEXT, 0, text)
        return Value(TEXT, 0, _cut(text, HEAD), text)
    if item is None:
        return _MARKERS[NULL]
    if isinstance(item, bool):
        return _TRUE if item else _FALSE
    if isinstance(item, int) and not -_INT64 <= item < _INT64:
        item = float(item)
    return Value(NUMBER, item)


def terms_of(document: dict[str, Any]) -> Terms:
    """All terms of a thing's document: of its definition, attributes and features."""
    found: dict[Place, dict[Value, None]] = {}
    # Of each value the path, and the depth of the outermost array around it (0: there is none).
    stack: list[tuple[Path, int, Any]] = []
    if isinstance(document.get("definition"), str):
        stack.append((("definition",), 0, document["definition"]))
    for root in ("attributes", "features"):
        children = document.get(root)
        if isinstance(children, dict):
            stack.extend([((root, name), 0, child) for name, child in children.items()])
    while stack:
        path, array, value = stack.pop()
        if isinstance(value, dict):
            stack.extend([((*path, name), array, child) for name, child in value.items()])
            marker = _MARKERS[OBJECT if value else EMPTY_OBJECT]
        elif isinstance(value, list):
            marker = _MARKERS[ARRAY if value else EMPTY_ARRAY]
            inside = array or len(path)
            stack.extend([(path, inside, child) for child in value])
        else:
            marker = value_of(value)
        at = found.setdefault(_place(path, array), {})
        if array:
            at[_MARKERS[ARRAY]] = None
        if not array or marker.kind in (NULL, NUMBER, TEXT, BOOLEAN):
            at[marker] = None
    return {place: tuple(values) for place, values in found.items()}


def changed_terms(
    old: dict[str, Any] | None, new: dict[str, Any]
) -> Iterator[tuple[Place, tuple[Value, ...], tuple[Value, ...]]]:
    """Places at which two documents differ, with the values before and after; () for none.

    Costs about as much as what differs. ``old`` is None if there was no thing.
    """
    if old is None:
        for place, values in terms_of(new).items():
            yield place, (), values
        return
    before, after = (terms_of(part) for part in _differing(old, new))
    for place, values in before.items():
        now = after.pop(place, ())
        if now != values:
            yield place, values, now
    for place, values in after.items():
        yield place, (), values


def _differing(old: dict[str, Any], new: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both objects without what is the same in them."""
    left: dict[str, Any] = {}
    right: dict[str, Any] = {}
    same: str | None = None
    for name, was in old.items():
        if name not in new:
            left[name] = was
            continue
        now = new[name]
        if type(was) is dict and type(now) is dict and was and now:
            less, more = _differing(was, now)
            if less or more:
                left[name], right[name] = less, more
            else:
                same = name
        # By their texts: 1 and true are equal in Python, in lists as well.
        elif type(was) is not type(now) or was != now or repr(was) != repr(now):
            left[name], right[name] = was, now
        else:
            same = name
    right.update({name: now for name, now in new.items() if name not in old})
    if same is not None and bool(left) != bool(right):
        # What is left of neither may look empty.
        left[same], right[same] = old[same], new[same]
    return left, right


@lru_cache(maxsize=16_384)
def _place(path: Path, array: int) -> Place:
    feature = storable(path[1]) if path[0] == "features" else ""
    return Place(path_text(path), array or len(path), feature, wild_text(path))
