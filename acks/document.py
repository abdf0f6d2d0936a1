"""Thing documents: JSON pointers, ids, checks of their values, copy-on-write put and remove."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from acks.errors import GatewayError, error
from acks.signals import JsonObject

MAX_ID_LENGTH = 256
MAX_DEPTH = 100
"""Levels of objects and arrays in a value, and parts of a path. JSON libraries end at about 250,
and a value lies below a path, inside an event or an aggregated answer."""
_INT64 = 2**63
_NINETEEN = b"0" * 19  # the shortest integer that may exceed 64 bits
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_NAMESPACE = r"[a-zA-Z]\w*(?:[.\-]\w+)*"
_NAMESPACE_ALONE = re.compile(_NAMESPACE, re.ASCII)
_THING_ID = re.compile(rf"(?:{_NAMESPACE})?:[^\x00-\x1F\x7F-\xFF/]+", re.ASCII)
_DEFINITION = re.compile(r"[\w.\-]+:[\w.\-]+:[\w.\-]+|https?://\S+", re.ASCII)
_OBJECT_FIELDS = frozenset({"properties", "desiredProperties"})
_FIELDS = ("policyId", "definition", "attributes", "features")
_FEATURE_FIELDS = frozenset({"definition", "properties", "desiredProperties"})
_NO_FEATURE = "The feature must be a JSON object."


@lru_cache(maxsize=16_384)
def check_thing_id(text: str) -> str:
    """Return ``text`` if it is ``namespace:name``; raises ``things:id.invalid``."""
    if len(text) > MAX_ID_LENGTH or _THING_ID.fullmatch(text) is None:
        raise error("things:id.invalid", thing_id=text)
    return text


def is_namespace(text: str) -> bool:
    """Whether ``text`` is a namespace of things and policies, as it stands before their names."""
    return len(text) <= MAX_ID_LENGTH and _NAMESPACE_ALONE.fullmatch(text) is not None


@lru_cache(maxsize=4096)
def parse_pointer(text: str) -> tuple[str, ...]:
    """Split a JSON pointer (RFC 6901) such as ``/a/b~1c``; a trailing slash is tolerated.

    Raises ``json.pointer.invalid`` for two slashes in a row (spec acks-and-http 9.1).
    """
    if text in ("", "/"):
        return ()
    if "//" in text:
        raise error("json.pointer.invalid", pointer=text)
    stripped = text.strip("/")
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in stripped.split("/"))


@lru_cache(maxsize=4096)
def format_pointer(path: tuple[str, ...]) -> str:
    """The inverse of :func:`parse_pointer`; the root is ``/`` as in Ditto Protocol."""
    return "/" + "/".join(part.replace("~", "~0").replace("/", "~1") for part in path)


def invalid_json(text: str, reason: str) -> GatewayError:
    """``json.invalid`` that shows the beginning of the text and why it cannot be read."""
    shown = text if len(text) <= 64 else text[:64] + "..."
    return error("json.invalid", text=shown, reason=reason)


def _numbers_and_keys(value: Any) -> Iterator[Any]:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            for key, child in item.items():
                if not key or key[0] == "/":
                    yield key
                if isinstance(child, (dict, list, int, float)):
                    stack.append(child)
        elif isinstance(item, list):
            stack.extend(child for child in item if isinstance(child, (dict, list, int, float)))
        elif not isinstance(item, (bool, str)) and abs(item) >= _INT64 - 1:
            yield item


def _is_suspicious(text: bytes) -> bool:
    """Whether ``text`` might hold a huge integer or a bad key: cheap, errs on the safe side."""
    return _NINETEEN in text.translate(_DIGITS) or b'"/' in text or b'"\\' in text or b'""' in text


def check_depth(value: Any, openings: int) -> None:
    """Refuse JSON with more than :data:`MAX_DEPTH` levels; raises ``json.invalid``.

    ``openings`` is how many ``{`` and ``[`` its text has: with few of them nothing is looked at.
    """
    if openings <= MAX_DEPTH:
        return
    level, depth = [value], 0
    while level := [item for item in level if isinstance(item, (dict, list))]:
        depth += 1
        if depth > MAX_DEPTH:
            reason = f"It is nested more than {MAX_DEPTH} levels deep."
            raise error("json.invalid", text="...", reason=reason)
        children = (item.values() if isinstance(item, dict) else item for item in level)
        level = [child for group in children for child in group]


def check_json(value: Any, text: bytes) -> None:
    """Refuse what twins cannot hold: integers beyond 64 bits, empty keys, keys like ``/a``, depth.

    ``text`` is what ``value`` was parsed from. Only a text that could hold such a thing is looked
    at closely; and numbers are then read again from it, because fast parsers turn huge integers
    into floats. Raises ``json.invalid``, ``json.pointer.invalid``.
    """
    check_depth(value, text.count(b"{") + text.count(b"["))
    if not _is_suspicious(text):
        return
    for found in _numbers_and_keys(value):
        if isinstance(found, str):
            raise error("json.pointer.invalid", pointer=found or "''")
        for number in _numbers_and_keys(json.loads(text)):
            if isinstance(number, int) and not -_INT64 <= number < _INT64:
                raise invalid_json(str(number), "The number is no 64 bit integer.")
        return


# --- things ------------------------------------------------------------------------------------


def check_thing(thing_id: str, value: Any) -> JsonObject:
    """Check a thing given in a PUT and return its known fields, thingId first.

    Fields that things do not have are dropped, as are ``null`` ones.
    Raises ``json.format.invalid``, ``things:id.notsettable``.
    """
    if not isinstance(value, dict):
        raise _wrong("The Thing must be a JSON object.")
    given = value.get("thingId", thing_id)
    if given != thing_id:
        raise error("things:id.notsettable")
    thing: JsonObject = {"thingId": thing_id}
    for name in _FIELDS:
        item = value.get(name)
        if item is None:
            continue
        if name == "policyId":
            check_policy_id(item)
        elif name == "definition":
            check_definition(item)
        elif name == "features":
            item = check_features(item)
        else:
            check_object(name, item)
        thing[name] = item
    return thing


def check_policy_id(value: Any) -> None:
    """Raises ``json.format.invalid`` unless ``value`` is a ``namespace:name`` string."""
    if not isinstance(value, str) or _THING_ID.fullmatch(value) is None:
        raise _wrong("The field 'policyId' must be a namespaced entity ID.")


def check_definition(value: Any) -> None:
    """Raises ``json.format.invalid`` unless ``value`` is ``namespace:name:version`` or a URL."""
    if not isinstance(value, str) or _DEFINITION.fullmatch(value) is None:
        raise _wrong("The field 'definition' must be of the form 'namespace:name:version'.")


def check_object(name: str, value: Any) -> None:
    """Raises ``json.format.invalid`` unless ``value``, of the field ``name``, is an object."""
    if not isinstance(value, dict):
        raise _wrong(f"The field '{name}' must be a JSON object.")


def check_features(value: Any) -> Any:
    """Check the features of a thing or of a patch, null or an object; return those to store.

    Raises ``json.format.invalid`` and what :func:`check_feature` raises.
    """
    if value is None:
        return None
    check_object("features", value)
    for feature in value.values():
        if type(feature) is dict:
            for field, item in feature.items():
                if type(item) is not dict or field not in _OBJECT_FIELDS:
                    break
            else:
                continue  # the common case, without a call
        return {name: check_feature(feature, name) for name, feature in value.items()}
    return value


def check_feature(value: Any, name: str = "") -> Any:
    """Check a feature of a thing or of a patch, null or an object; return the one to store.

    Fields that features do not have are dropped; null ones stay. Raises ``json.format.invalid``
    and what :func:`check_feature_definition` raises.
    """
    if value is None:
        return None
    if not isinstance(value, dict):
        raise _wrong(f"The feature '{name}' must be a JSON object." if name else _NO_FEATURE)
    for field, item in value.items():
        if item is None or field not in _FEATURE_FIELDS:
            continue
        if field == "definition":
            check_feature_definition(item)
        else:
            check_object(field, item)
    if _FEATURE_FIELDS.issuperset(value):
        return value
    return {field: item for field, item in value.items() if field in _FEATURE_FIELDS}


def check_feature_definition(value: Any) -> None:
    """Check the definition of a feature: an array of ``namespace:name:version`` or URLs.

    Raises ``json.format.invalid``, ``things:feature.definition.empty``,
    ``things:feature.definition.identifier.invalid``.
    """
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _wrong("The definition of a feature must be a JSON array of strings.")
    if not value:
        raise error("things:feature.definition.empty")
    for item in value:
        if _DEFINITION.fullmatch(item) is None:
            raise error("things:feature.definition.identifier.invalid", identifier=item)


def _wrong(reason: str) -> GatewayError:
    return error("json.format.invalid", reason=reason)


class Twin(NamedTuple):
    """A twin as stored: ``tag`` names the write that made it; the times are ISO instants.

    ``document`` may be None where nobody needs it: replacing a twin takes the other facts alone.
    """

    tag: str
    revision: int
    policy_id: str
    created: str
    modified: str
    document: JsonObject | None


def put(document: JsonObject, path: tuple[str, ...], value: Any) -> tuple[JsonObject, bool]:
    """Return a copy of ``document`` with ``value`` at ``path``, and whether nothing was there.

    Only the objects along the path are copied. Objects that are missing on the way are made;
    something else on the way is replaced, as Ditto does.
    """
    root = dict(document)
    node = root
    for part in path[:-1]:
        child = node.get(part)
        child = dict(child) if isinstance(child, dict) else {}
        node[part] = child
        node = child
    created = path[-1] not in node
    node[path[-1]] = value
    return root, created


def remove(document: JsonObject, path: tuple[str, ...]) -> JsonObject:
    """Return a copy of ``document`` without what is at ``path``, which must be there.

    Only the objects along the path are copied.
    """
    root = dict(document)
    node = root
    for part in path[:-1]:
        child = dict(node[part])
        node[part] = child
        node = child
    del node[path[-1]]
    return root
