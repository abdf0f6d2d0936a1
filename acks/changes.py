"""How a command changes a twin: put, create, merge, delete; and checks of what it brings.

Sources: spec acks-and-http 9.1 and 9.2; websocket-... 5.5; RFC 7396.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from acks.document import (
    Twin,
    check_definition,
    check_feature,
    check_feature_definition,
    check_features,
    check_object,
    check_policy_id,
    check_thing,
    put,
    remove,
)
from acks.errors import error
from acks.merge_patch import below, difference, merge, same
from acks.resources import ABSENT, Kind, Path, kind_of, lookup, not_found, require
from acks.signals import Command, JsonObject


class Change(NamedTuple):
    """What a command does to a twin: the new document and what its event and answer say.

    ``document`` is None if the thing is deleted. ``value`` is what the event carries: the new
    value of the addressed resource, the patch of a merge, None for a delete. ``created`` says that
    the answer is 201: the resource did not exist before (a merge counts things only).
    """

    document: JsonObject | None
    action: str  # created | modified | merged | deleted
    value: Any
    created: bool


# --- checks of what a command brings


def _as_is(value: Any) -> Any:
    return value


def _nullable(check: Callable[[Any], None]) -> Callable[[Any], Any]:
    def checked(value: Any) -> Any:
        if value is not None:
            check(value)
        return value

    return checked


def _policy_id(value: Any) -> Any:
    check_policy_id(value)
    return value


_CHECKS: dict[Kind, Callable[[Any], Any]] = {
    "policyId": _policy_id,
    "definition": _nullable(check_definition),
    "attributes": _nullable(lambda value: check_object("attributes", value)),
    "attribute": _as_is,
    "features": check_features,
    "feature": check_feature,
    "feature.definition": _nullable(check_feature_definition),
    "feature.properties": _nullable(lambda value: check_object("properties", value)),
    "feature.property": _as_is,
    "feature.desiredProperties": _nullable(lambda value: check_object("desiredProperties", value)),
    "feature.desiredProperty": _as_is,
}


def check_put(thing_id: str, path: Path, value: Any) -> Any:
    """Check the value of a PUT or create and return what is to be stored at ``path``.

    Fields that things and features do not have are dropped. ``null`` is a value of every part but
    the policyId. Raises ``json.format.invalid``, ``things:id.notsettable``,
    ``things:feature.definition.empty`` and ``.identifier.invalid``, ``gateway:resource.notfound``.
    """
    if not path:
        return check_thing(thing_id, value)
    if len(path) > 1 and path[0] == "attributes":
        return value
    return _CHECKS[kind_of(path)](value)


def check_merge(thing_id: str, path: Path, patch: Any) -> Any:
    """Check a merge patch for what is at ``path`` and return the one to apply.

    Raises ``things:merge.invalid``, ``things:id.notsettable``, ``things:id.notdeletable``,
    ``things:policyId.notdeletable``, and what :func:`check_put` raises.
    """
    if path:
        if patch is None and path == ("policyId",):
            raise error("things:policyId.notdeletable")
        return _CHECKS[kind_of(path)](patch)
    if not isinstance(patch, dict):
        raise error("things:merge.invalid", reason="The patch of a Thing must be a JSON object.")
    checked: JsonObject = {}
    for name, value in patch.items():
        if name == "thingId":
            if value is None:
                raise error("things:id.notdeletable")
            if value != thing_id:
                raise error("things:id.notsettable")
            checked[name] = value
        elif name in ("policyId", "definition", "attributes", "features"):
            checked[name] = check_merge(thing_id, (name,), value)
    return checked


# --- changes


def change(twin: Twin | None, command: Command) -> Change:
    """Compute what ``command`` makes of ``twin``, None if there is no such thing.

    Its value has been checked. The twin needs its document, unless the whole thing is put or
    deleted. Raises ``things:thing.notfound``, ``things:thing.conflict``, the ``notfound`` error of
    a part that is not there, ``things:policyId.notdeletable``.
    """
    if command.action != "put":
        return _OTHERS[command.action](twin, command)
    path = command.path
    if not path:
        return _put_thing(twin, command)
    if twin is None:
        raise error("things:thing.notfound", thing_id=command.thing_id)
    document = twin.document
    assert document is not None
    if len(path) > 2 and path[0] == "features" and lookup(document, path[:2]) is ABSENT:
        raise not_found(command.thing_id, path[:2])
    document, created = put(document, path, command.value)
    return Change(document, "created" if created else "modified", command.value, created)


def _put_thing(twin: Twin | None, command: Command) -> Change:
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


def _create(twin: Twin | None, command: Command) -> Change:
    if twin is not None:
        raise error("things:thing.conflict", thing_id=command.thing_id)
    return _put_thing(None, command)


def _merge(twin: Twin | None, command: Command) -> Change:
    if twin is None:
        if command.path:
            raise error("things:thing.notfound", thing_id=command.thing_id)
        made = merge({"thingId": command.thing_id}, command.value)
        return _put_thing(None, command._replace(value=made))
    assert twin.document is not None
    merged = merge(twin.document, below(command.path, command.value))
    return Change(merged, "merged", command.value, False)


def _delete(twin: Twin | None, command: Command) -> Change:
    thing_id, path = command.thing_id, command.path
    if twin is None:
        raise error("things:thing.notfound", thing_id=thing_id)
    if not path:
        return Change(None, "deleted", None, False)
    if path == ("policyId",):
        raise error("things:policyId.notdeletable")
    assert twin.document is not None
    require(thing_id, twin.document, path)
    return Change(remove(twin.document, path), "deleted", None, False)


_OTHERS: dict[str, Callable[[Twin | None, Command], Change]] = {
    "create": _create,
    "merge": _merge,
    "delete": _delete,
}


# --- if-equal


def unchanged(twin: Twin | None, command: Command) -> bool:
    """Whether a put or merge would leave the thing as it is, for ``if-equal`` (spec 9.2).

    False for other actions. The twin needs its document.
    """
    if twin is None:
        return False
    assert twin.document is not None
    if command.action == "merge":
        return minimized(twin, command) is ABSENT
    if command.action != "put":
        return False
    if not command.path:
        return same(twin.document, _put_thing(twin, command).document)
    return same(lookup(twin.document, command.path), command.value)


def minimized(twin: Twin, command: Command) -> Any:
    """The patch of a merge without what it would not change; ``ABSENT`` if nothing is left.

    For ``if-equal: skip-minimizing-merge`` (spec 9.2). The twin needs its document.
    """
    assert twin.document is not None
    changed = difference(twin.document, below(command.path, command.value))
    return changed if changed is ABSENT else lookup(changed, command.path)
