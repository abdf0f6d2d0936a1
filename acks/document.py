"""How a command changes a twin document: JSON pointers, ids, checks, copy-on-write changes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from acks.errors import GatewayError, error
from acks.signals import Command, JsonObject

MAX_ID_LENGTH = 256
MAX_DEPTH = 100
"""Levels of objects and arrays in a value, and parts of a path. JSON libraries end at about 250,
and a value lies below a path, inside an event or an aggregated answer."""
_INT64 = 2**63
_NINETEEN = b"0" * 19  # the shortest integer that may exceed 64 bits
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_NAMESPACE = r"[a-zA-Z]\w*(?:[.\-]\w+)*"
_THING_ID = re.compile(rf"(?:{_NAMESPACE})?:[^\x00-\x1F\x7F-\xFF/]+", re.ASCII)
_DEFINITION = re.compile(r"[\w.\-]+:[\w.\-]+:[\w.\-]+|https?://\S+", re.ASCII)
_FIELDS = ("policyId", "definition", "attributes", "features")


@lru_cache(maxsize=16_384)
def check_thing_id(text: str) -> str:
    """Return ``text`` if it is ``namespace:name``; raises ``things:id.invalid``."""
    if len(text) > MAX_ID_LENGTH or _THING_ID.fullmatch(text) is None:
        raise error("things:id.invalid", thing_id=text)
    return text


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
        elif not isinstance(item, dict):
            raise _wrong(f"The field '{name}' must be a JSON object.")
        elif name == "features":
            _check_features(item)
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


def _check_features(features: JsonObject) -> None:
    for name, feature in features.items():
        if feature is not None and not isinstance(feature, dict):
            raise _wrong(f"The feature '{name}' must be a JSON object.")


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


class Change(NamedTuple):
    """What a command does to a twin: the new document and what its event and answer say."""

    document: JsonObject
    action: str  # created | modified
    value: Any
    created: bool  # the addressed resource did not exist before


def change(twin: Twin | None, command: Command) -> Change:
    """Compute the change of a PUT on a thing or on something below its attributes.

    A change of a part needs the twin's document. Raises ``things:thing.notfound`` if a part of a
    missing thing is addressed.
    """
    if not command.path:
        return _change_thing(twin, command)
    if twin is None:
        raise error("things:thing.notfound", thing_id=command.thing_id)
    assert twin.document is not None
    document, created = put(twin.document, command.path, command.value)
    return Change(document, "created" if created else "modified", command.value, created)


def _change_thing(twin: Twin | None, command: Command) -> Change:
    given: JsonObject = command.value
    if twin is None:
        policy_id: str = given.get("policyId", command.thing_id)
        document = _with_policy(given, policy_id)
        return Change(document, "created", document, True)
    policy_id = given.get("policyId") or twin.policy_id
    document = _with_policy(given, policy_id)
    return Change(document, "modified", document, False)


def _with_policy(thing: JsonObject, policy_id: str) -> JsonObject:
    """The thing with thingId and policyId first."""
    return {"thingId": thing["thingId"], "policyId": policy_id, **thing}


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
