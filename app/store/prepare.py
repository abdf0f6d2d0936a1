"""What a change of a twin amounts to, before it is committed: may it, does it fit, what it says."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import orjson

from acks.changes import Change, change, minimized, unchanged
from acks.document import Twin
from acks.errors import GatewayError, error
from acks.policy import READ, WRITE, Policy, implicit_policy
from acks.policy_document import check_result, revision
from acks.preconditions import Preconditions, check_condition, check_tags
from acks.resources import ABSENT, lookup, not_deletable, not_modifiable
from acks.signals import Command, JsonObject, Response

Path = tuple[str, ...]


Prepared = tuple[Change, Policy, JsonObject | None]
"""A change, the policy that governs the thing afterwards, and a policy to create with it."""


def named_policy(command: Command) -> str | None:
    """The policy id that a command sets, None if it sets none."""
    value = command.value
    if not command.path:
        return value.get("policyId") if type(value) is dict else None
    return value if command.path == ("policyId",) else None


def prepare_creation(
    command: Command,
    named: Policy | None,
    deleted: JsonObject | None,
    compiled: Callable[[JsonObject], Policy],
) -> Prepared:
    """A command on a thing that does not exist; ``named`` is the policy that its value names.

    Otherwise it makes one, whose revisions go on from those of the ``deleted`` one, if any.
    Raises GatewayError: of all commands only those that make a thing are possible.
    """
    if command.checks is not None and command.action != "delete" and not command.path:
        check_tags(command.checks, None, kind="modify")
    done = change(None, command)
    policy, document = named, None
    if policy is None:
        document = command.policy or implicit_policy(command.thing_id, command.subjects[0])
        policy = compiled(document)
        if deleted is not None:
            document = {**document, "_revision": revision(deleted) + 1}
    _check_write(policy, command)
    if command.policy is not None and document is not None:
        check_result(
            command.thing_id,
            (),
            document,
            command.subjects,
            before=None,
            now_ms=time.time_ns() // 1_000_000,
            allow_lockout=command.allow_lockout,
        )
    return done, policy, document


def policy_in_the_way(thing_id: str, *, deleted: bool) -> GatewayError:
    """400: a policy with the thing's id exists, or did and only others may make it again."""
    if deleted:
        reason = f"only others may make the deleted Policy with ID '{thing_id}' again."
        hint = "Those who had 'WRITE' permission on its resource 'policy:/' may, for 30 days."
    else:
        reason = f"a Policy with ID '{thing_id}' exists already."
        hint = "To use that Policy, name it as 'policyId' in the Thing."
    return error(
        "things:thing.notcreatable",
        thing_id=thing_id,
        policy_id=thing_id,
        message=f"The Thing with ID '{thing_id}' could not be created, because {reason}",
        description=hint,
    )


def policy_missing(thing_id: str, policy_id: str) -> GatewayError:
    """404: the thing is there, but its policy is not (spec websocket-... 5.4)."""
    return error(
        "things:thing.notfound",
        thing_id=thing_id,
        description=f"Its Policy with ID '{policy_id}' does not exist. Until it is made again "
        "nobody has access to the Thing.",
    )


def prepare_change(twin: Twin, policy: Policy, command: Command, target: Policy | None) -> Prepared:
    """A command on an existing thing; ``target`` is the policy that its value names, if any.

    The twin needs its document unless the command replaces all of it unconditionally.
    Raises GatewayError.
    """
    _check_write(policy, command)
    if command.checks is not None:
        command = _check_state(twin, policy, command, command.checks)
    done = change(twin, command)
    document = done.document
    if document is None or document["policyId"] == twin.policy_id:
        return done, policy, None
    if target is None:
        raise error(
            "things:thing.notcreatable",
            thing_id=command.thing_id,
            policy_id=document["policyId"],
        )
    _check_write(target, command)
    return done, target, None


def _check_write(policy: Policy, command: Command) -> None:
    subjects, path = command.subjects, command.path
    if policy.may(subjects, WRITE, "thing", path):
        return
    if command.action == "delete":
        raise not_deletable(command.thing_id, path)
    if command.action == "merge" and policy.may_merge(subjects, path, command.value):
        return
    raise not_modifiable(command.thing_id, path)


def _check_state(twin: Twin, policy: Policy, command: Command, checks: Preconditions) -> Command:
    """Check what the command demands of the present state; returns it, maybe with a smaller patch.

    The condition comes before the entity tags (spec acks-and-http 9.2).
    """
    assert twin.document is not None
    check_twin_condition(twin, policy, checks, command.subjects)
    current = lookup(twin.document, command.path)
    deletes = command.action == "delete"
    tag = current_etag(twin, command.path, current, policy, command.subjects)
    check_tags(checks, tag, kind="delete" if deletes else "modify")
    if checks.if_equal == "update" or deletes or current is ABSENT:
        return command
    if unchanged(twin, command):
        raise error(
            "things:precondition.failed",
            message="The previous value was equal to the new value and the 'if-equal' header was "
            f"set to '{checks.if_equal}'.",
            description="Nothing was changed. Without that header an equal value is written again.",
        )
    if checks.if_equal == "skip-minimizing-merge" and command.action == "merge":
        return command._replace(value=minimized(twin, command))
    return command


def check_twin_condition(
    twin: Twin, policy: Policy, checks: Preconditions, subjects: tuple[str, ...]
) -> None:
    """Check the ``condition`` header against a twin, as far as the requester may read it.

    Raises ``things:condition.failed``.
    """
    if checks.condition is None:
        return
    assert twin.document is not None
    special = {"_revision": twin.revision, "_created": twin.created, "_modified": twin.modified}
    check_condition(
        checks,
        twin.document,
        special,
        time.time_ns() // 1_000_000,
        may_read=partial(policy.may_see, subjects),
    )


def etag(path: Path, revision: int, value: bytes) -> str:
    """Entity tag of a thing (by revision) or of a part of it (by value), spec 9.2."""
    if not path:
        return f'"rev:{revision}"'
    return f'"hash:{hashlib.blake2b(value, digest_size=8).hexdigest()}"'


def current_etag(
    twin: Twin, path: Path, value: object, policy: Policy, subjects: tuple[str, ...]
) -> str | None:
    """Entity tag of what is at ``path`` now (``value``); None if nothing is there.

    It tells no more than the requester may read: who sees a part gets the tag of that part, who
    sees nothing one that says nothing of the value.
    """
    if value is ABSENT:
        return None
    if path and not policy.may(subjects, READ, "thing", path):
        value = policy.view(subjects, "thing", path, value)
        if value is ABSENT:
            return etag((), twin.revision, b"")
    return etag(path, twin.revision, orjson.dumps(value) if path else b"")


def response(
    command: Command, done: Change, twin: Twin, policy: Policy, value: bytes, originator: str
) -> Response:
    """The response to a change that makes ``twin``; ``value`` is the new value as JSON."""
    headers: dict[str, object] = {
        "correlation-id": command.correlation_id,
        "response-required": False,
        **command.headers,
    }
    path = command.path
    if not path or (command.action == "put" and policy.may(command.subjects, READ, "thing", path)):
        if command.action != "delete":
            headers["etag"] = etag(path, twin.revision, value)
    elif command.action != "delete":
        assert done.document is not None
        current = lookup(done.document, path)
        tag = current_etag(twin, path, current, policy, command.subjects)
        if tag is not None:
            headers["etag"] = tag
    headers["entity-revision"] = twin.revision
    headers["ditto-originator"] = originator
    if not done.created:
        return Response(204, None, headers)
    return Response(201, as_body(done.value), headers)


def as_body(value: Any) -> Any:
    """A value as the payload of a response, where None is none: ``null`` is a body, too."""
    return _NULL if value is None else value


_NULL = orjson.Fragment(b"null")
