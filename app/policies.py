"""Reading and changing policies: may it, does it fit, is it safe; then the store."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import orjson

from acks.errors import error
from acks.fields import Selector, select
from acks.policy import READ, WRITE, Policy
from acks.policy_document import (
    SPECIAL,
    Part,
    PolicyChange,
    check_result,
    delete_part,
    find_part,
    not_found,
    not_modifiable,
    put_part,
    revision,
    shown,
)
from acks.preconditions import Preconditions, check_tags
from acks.resources import ABSENT
from acks.signals import JsonObject, Response
from app.store.instant import instant
from app.store.policies import PolicyStore, StoredPolicy
from app.store.prepare import etag

MAX_ATTEMPTS = 50
"""Times a change is computed again when others change the same policy, before it is given up."""


class PolicyCommand(NamedTuple):
    """A change of a policy or a part of it; ``value`` is checked, ABSENT to delete the part.

    ``only_create``: it is refused if the policy is there.
    """

    policy_id: str
    part: Part
    value: Any
    subjects: tuple[str, ...]
    checks: Preconditions
    allow_lockout: bool
    only_create: bool = False


async def change_policy(store: PolicyStore, command: PolicyCommand) -> Response:
    """Carry out a change of a policy; its response. Raises GatewayError."""
    for _ in range(MAX_ATTEMPTS):
        stored = await store.find(command.policy_id)
        now_ms = time.time_ns() // 1_000_000
        if stored is None or stored.deleted:
            done = _create(stored, command, now_ms)
        else:
            done = _change(stored, command, now_ms)
        before = b"" if stored is None else stored.text
        if await store.write(command.policy_id, before, done.document):
            return _response(command, done)
    raise error("policies:policy.unavailable", policy_id=command.policy_id)


def _create(deleted: StoredPolicy | None, command: PolicyCommand, now_ms: int) -> PolicyChange:
    """Make a policy; again only for those who could have changed all of the ``deleted`` one.

    Things may still name that, and whoever makes it decides about them.
    """
    policy_id, document = command.policy_id, command.value
    if command.part or document is ABSENT:
        raise not_found(policy_id, ())
    if deleted is not None and not deleted.policy.may(command.subjects, WRITE, "policy", ()):
        raise not_modifiable(policy_id, ())
    check_tags(command.checks, None, kind="modify", entity="policies")
    _check_result(command, document, None, now_ms)
    now = instant(now_ms)
    number = 1 if deleted is None else revision(deleted.document) + 1
    special = {"_revision": number, "_created": now, "_modified": now}
    return PolicyChange({**document, **special}, document, True)


def _change(stored: StoredPolicy, command: PolicyCommand, now_ms: int) -> PolicyChange:
    policy_id, part, value = command.policy_id, command.part, command.value
    if command.only_create:
        raise error("policies:policy.conflict", policy_id=policy_id)
    if not stored.policy.may(command.subjects, WRITE, "policy", part):
        raise not_modifiable(policy_id, part)
    document, delete = stored.document, value is ABSENT
    current = find_part(shown(document), part)
    if delete and current is ABSENT:
        raise not_found(policy_id, part)
    tag = _etag(document, part, current)
    check_tags(command.checks, tag, kind="delete" if delete else "modify", entity="policies")
    if not delete and command.checks.if_equal != "update" and current == value:
        raise error(
            "policies:precondition.failed",
            message="The previous value was equal to the new value and the 'if-equal' header was "
            f"set to '{command.checks.if_equal}'.",
        )
    if delete:
        done = delete_part(document, part)
    elif part:
        done = put_part(document, part, value)
    else:
        done = PolicyChange(value, value, False)
    if done.document is None:
        return done
    _check_result(command, done.document, stored.policy, now_ms)
    now = instant(now_ms)
    special = {
        "_revision": revision(document) + 1,
        "_created": document.get("_created", now),
        "_modified": now,
    }
    return done._replace(document={**done.document, **special})


def _check_result(
    command: PolicyCommand, document: JsonObject, before: Policy | None, now_ms: int
) -> None:
    check_result(
        command.policy_id,
        command.part,
        document,
        command.subjects,
        before=before,
        now_ms=now_ms,
        allow_lockout=command.allow_lockout,
    )


def _response(command: PolicyCommand, done: PolicyChange) -> Response:
    headers: dict[str, object] = {}
    if done.document is not None:
        headers["entity-revision"] = revision(done.document)
        tag = _etag(done.document, command.part, find_part(shown(done.document), command.part))
        if tag is not None:
            headers["etag"] = tag
    return Response(201, done.value, headers) if done.created else Response(204, None, headers)


async def read_policy(
    store: PolicyStore,
    policy_id: str,
    part: Part,
    subjects: tuple[str, ...],
    checks: Preconditions,
    fields: Selector | None,
) -> Response:
    """As much of a policy or of a part of it as the requester may read (spec websocket-... 5.4).

    Raises GatewayError: ``notfound`` also for what may not be read.
    """
    stored = await store.get(policy_id)
    if stored is None:
        raise not_found(policy_id, ())
    if not stored.policy.may(subjects, READ, "policy", part, partial=True):
        raise not_found(policy_id, part)
    document = stored.document
    current = find_part(shown(document), part)
    seen = stored.policy.view(subjects, "policy", part, current)
    if seen is ABSENT:
        raise not_found(policy_id, part)
    if not part:
        seen = {"policyId": policy_id, **seen}
    tag = _etag(document, part, current)
    check_tags(checks, tag, kind="query", entity="policies")
    if fields is not None and isinstance(seen, dict):
        special = {name: document[name] for name in SPECIAL if name in document}
        whole = {**seen, "_revision": revision(document), **special}
        seen = select(fields, seen if part else whole)
    return Response(200, seen, {"etag": tag, "entity-revision": revision(document)})


def _etag(document: JsonObject, part: Part, current: Any) -> str | None:
    if current is ABSENT:
        return None
    text = orjson.dumps(current, option=orjson.OPT_SORT_KEYS) if part else b""
    return etag(part, revision(document), text)
