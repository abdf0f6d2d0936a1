"""The parts of a thing that can be addressed: their names, their errors, finding them in a twin.

Source: spec acks-and-http 9.1.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from acks.document import MAX_DEPTH, format_pointer
from acks.errors import GatewayError, error
from acks.facts import MISSING
from acks.signals import JsonObject

Path = tuple[str, ...]
Kind = Literal[
    "thing", "policyId", "definition", "attributes", "attribute", "features", "feature",
    "feature.definition", "feature.properties", "feature.property", "feature.desiredProperties",
    "feature.desiredProperty",
]  # fmt: skip

ABSENT: Final = MISSING
"""What :func:`lookup` finds where nothing is: ``null`` is something."""

_IN_THING: dict[str, Kind] = {
    "policyId": "policyId", "definition": "definition", "attributes": "attributes",
    "features": "features",
}  # fmt: skip
_IN_FEATURE: dict[str, Kind] = {
    "definition": "feature.definition", "properties": "feature.properties",
    "desiredProperties": "feature.desiredProperties",
}  # fmt: skip
_BELOW: dict[Kind, Kind] = {
    "attributes": "attribute", "feature.properties": "feature.property",
    "feature.desiredProperties": "feature.desiredProperty",
}  # fmt: skip


def _find_kind(path: Path) -> Kind | None:
    depth = len(path)
    if not depth:
        return "thing"
    if path[0] != "features" or depth == 1:
        kind, rest = _IN_THING.get(path[0]), depth - 1
    elif depth == 2:
        return "feature"
    else:
        kind, rest = _IN_FEATURE.get(path[2]), depth - 3
    if kind is None or not rest:
        return kind
    return _BELOW.get(kind)


def kind_of(path: Path) -> Kind:
    """Which resource of a thing ``path`` is, e.g. ``feature.property``.

    Raises ``gateway:resource.notfound`` if things have no such part.
    """
    kind = _find_kind(path)
    if kind is None:
        raise error("gateway:resource.notfound", path=format_pointer(path))
    return kind


def parse_resource(path_text: str, segments: list[str]) -> Path:
    """The part of a thing that the URL segments below its id address: (), ("attributes", "a").

    ``segments`` are percent-decoded; one empty one at the end, of a trailing slash, is tolerated.
    Raises ``gateway:resource.notfound`` (naming ``path_text``), and ``json.pointer.invalid`` for
    what cannot be a key (empty, or with a leading slash) and for more than :data:`MAX_DEPTH`.
    """
    given = segments[:-1] if segments and segments[-1] == "" else segments
    path = tuple(part.replace("~1", "/").replace("~0", "~") for part in given)
    known = _find_kind(path) is not None
    bad = any(not part or part[0] == "/" for part in path)
    if bad and (known or path[0] in ("attributes", "features")):
        raise error("json.pointer.invalid", pointer="/" + "/".join(given))
    if not known:
        raise error("gateway:resource.notfound", path=path_text)
    if len(path) > MAX_DEPTH:
        reason = f"A path has at most {MAX_DEPTH} parts."
        raise error("json.pointer.invalid", pointer="/" + "/".join(given), description=reason)
    return path


def location(method: str, uri: str, entity_id: str, resource: str) -> str:
    """The address of what a request has created, for ``Location`` (spec acks-and-http 4.2).

    ``uri`` is that of the request. A POST names only the collection, so ``entity_id`` and the
    ``resource`` inside the entity (``/`` for all of it) follow; others name what they create.
    """
    address = uri.partition("?")[0]
    if method != "POST":
        return address
    at = address.find(f"/{entity_id}")
    collection = address if at < 0 else address[:at]
    return f"{collection.rstrip('/')}/{entity_id}{resource.rstrip('/')}"


# --- finding them


def lookup(document: JsonObject, path: Path) -> Any:
    """The value at ``path`` in a thing, or :data:`ABSENT`. Arrays have no parts."""
    value: Any = document
    for part in path:
        if not isinstance(value, dict) or part not in value:
            return ABSENT
        value = value[part]
    return value


def require(thing_id: str, document: JsonObject, path: Path) -> Any:
    """The value at ``path`` in a thing; raises the error that :func:`missing` gives."""
    value = lookup(document, path)
    if value is ABSENT:
        raise missing(thing_id, document, path)
    return value


def missing(thing_id: str, document: JsonObject, path: Path) -> GatewayError:
    """The 404 for ``path``, where nothing is: of its feature if that is missing, else its own."""
    if path[0] == "features" and len(path) > 2 and lookup(document, path[:2]) is ABSENT:
        path = path[:2]
    return not_found(thing_id, path)


# --- their errors


def not_found(thing_id: str, path: Path) -> GatewayError:
    """404 of the resource's own code, e.g. ``things:attribute.notfound``."""
    return _problem("notfound", thing_id, path)


def not_modifiable(thing_id: str, path: Path) -> GatewayError:
    """403 for a change without WRITE, e.g. ``things:feature.property.notmodifiable``."""
    return _problem("notmodifiable", thing_id, path)


def not_deletable(thing_id: str, path: Path) -> GatewayError:
    """403 for a delete without WRITE: things have a code for it, their parts have not."""
    if path:
        return not_modifiable(thing_id, path)
    return error("things:thing.notdeletable", thing_id=thing_id)


def _problem(what: str, thing_id: str, path: Path) -> GatewayError:
    kind = kind_of(path)
    in_feature = path[:1] == ("features",)
    return error(
        f"things:{kind}.{what}",
        thing_id=thing_id,
        feature_id=path[1] if in_feature and len(path) > 1 else "",
        path=format_pointer(path[3:] if in_feature else path[1:]),
    )
