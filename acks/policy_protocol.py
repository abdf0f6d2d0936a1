"""Policies in Ditto Protocol: commands in, responses, errors and announcements out.

Sources: spec websocket-... 1.4, 1.8, 5.7. The topic of policies has no channel.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from acks.envelopes import Envelope
from acks.errors import GatewayError, error
from acks.fields import Selector, parse_fields
from acks.journal import EntryMeta
from acks.policy_document import Part, check_policy_id, parse_part
from acks.resources import ABSENT
from acks.signals import Response
from acks.topic import Topic

SUBJECT_DELETION = "subjectDeletion"
"""Name of the announcement that a subject is deleted, or soon will be."""

_ACTIONS = ("create", "modify", "delete", "retrieve")
_ELSEWHERE = {
    "import": "Policy imports are not supported yet.",
    "imports": "Policy imports are not supported yet.",
    "actions": "Policy actions are not supported yet.",
    "namespaces": "Policy entries for certain namespaces are not supported yet.",
    "references": "References to other entries are not supported yet.",
    "allowedAdditions": "Allowed additions are not supported yet.",
    "importable": "A Policy entry's 'importable' is set with the whole entry.",
}
"""Ends of paths that Ditto has, and why they lead nowhere here."""


class PolicyRequest(NamedTuple):
    """What a policy command asks for; ``value`` is unchecked JSON, ABSENT if there is none.

    ``action`` is create, modify, delete or retrieve; ``path`` what the response repeats.
    """

    policy_id: str
    action: str
    part: Part
    path: str
    value: Any = ABSENT
    fields: Selector | None = None


# --- in ----------------------------------------------------------------------------------------


def read_policy_request(envelope: Envelope, topic: Topic) -> PolicyRequest:
    """Read a frame of the group ``policies``.

    Raises ``protocoladapter:unknown.topicpath``, ``policies:id.invalid``, ``json.field.missing``,
    ``json.format.invalid``, ``json.fieldselector.invalid``.
    """
    text = envelope["topic"]
    if topic.criterion != "commands" or topic.action not in _ACTIONS:
        reason = f"Policies take the commands {', '.join(_ACTIONS)}."
        raise error("protocoladapter:unknown.topicpath", topic=text, reason=reason)
    if "status" in envelope:
        reason = "It has a 'status' and is a response; policies take commands."
        raise error("protocoladapter:unknown.topicpath", topic=text, reason=reason)
    policy_id = check_policy_id(topic.thing_id)
    path = _path(envelope)
    part = _part(text, path)
    if not _fits(topic.action, part):
        raise _unknown_path(text, path, f"Nothing is there to {topic.action}.")
    value, fields = ABSENT, None
    if topic.action in ("create", "modify"):
        if "value" not in envelope:
            raise error("json.field.missing", field="/value")
        value = envelope["value"]
    elif topic.action == "retrieve":
        fields = _fields(envelope)
    return PolicyRequest(policy_id, topic.action, part, path, value, fields)


def header_texts(headers: Mapping[str, Any]) -> dict[str, str]:
    """Headers of an envelope, which may be any JSON, as they would stand in an HTTP request."""
    return {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in headers.items()
    }


def _path(envelope: Envelope) -> str:
    path = envelope.get("path")
    if path is None:
        raise error("json.field.missing", field="/path")
    if not isinstance(path, str):
        raise error("json.format.invalid", reason="The field 'path' must be a string.")
    return path


def _part(topic: str, path: str) -> Part:
    """The part of a policy at ``path``. Raises ``protocoladapter:unknown.topicpath``.

    What follows ``resources/`` is itself a pointer and stays escaped; names before it do not.
    """
    segments = path.split("/")[1:]
    if path[:1] not in ("", "/"):
        raise _unknown_path(topic, path, "A path begins with a slash.")
    names = [name.replace("~1", "/").replace("~0", "~") for name in segments]
    if segments[2:3] == ["resources"]:
        names[3:] = segments[3:]
    try:
        return parse_part(path, names)
    except GatewayError as problem:
        if problem.code != "gateway:resource.notfound":
            raise
        last = next((name for name in segments if name in _ELSEWHERE), "")
        reason = _ELSEWHERE.get(last, "A Policy has entries with subjects and resources.")
        raise _unknown_path(topic, path, reason) from None


def _fits(action: str, part: Part) -> bool:
    if action == "create":
        return part == ()
    return action != "delete" or len(part) in (0, 2, 4)


def _fields(envelope: Envelope) -> Selector | None:
    text = envelope.get("fields")
    if text is None:
        return None
    if not isinstance(text, str):
        raise error("json.format.invalid", reason="The field 'fields' must be a string.")
    return parse_fields(text)


def _unknown_path(topic: str, path: str, reason: str) -> GatewayError:
    return error(
        "protocoladapter:unknown.topicpath",
        message=f"The topic '{topic}' is not supported in combination with the path '{path}'.",
        reason=reason,
    )


# --- out ---------------------------------------------------------------------------------------


def policy_response(request: PolicyRequest, response: Response, correlation_id: str) -> Envelope:
    """The response to a policy command as an envelope (spec 1.8)."""
    headers: dict[str, Any] = {
        "correlation-id": correlation_id,
        "response-required": False,
        **response.headers,
    }
    if response.payload is not None:
        headers["content-type"] = "application/json"
    envelope: Envelope = {
        "topic": f"{_base(request.policy_id)}/commands/{request.action}",
        "headers": headers,
        "path": request.path or "/",
    }
    if response.payload is not None:
        envelope["value"] = response.payload
    envelope["status"] = response.status
    return envelope


def policy_error(problem: GatewayError, correlation_id: str, policy_id: str) -> Envelope:
    """An error about a policy as an envelope (spec 1.4)."""
    return {
        "topic": f"{_base(policy_id)}/errors",
        "headers": {
            "correlation-id": correlation_id,
            "response-required": False,
            "content-type": "application/json",
            **problem.headers,
        },
        "path": "/",
        "value": problem.to_json(),
        "status": problem.status,
    }


def announcement_envelope(
    meta: EntryMeta,
    headers: Mapping[str, Any],
    value: Any,
    requested_acks: tuple[str, ...] | None,
    correlation_id: str,
) -> Envelope:
    """A policy announcement for one subscriber (spec 1.8); arguments as for an event.

    ``meta`` names the policy where that of an event names the thing.
    """
    shown: dict[str, Any] = {"correlation-id": correlation_id, "response-required": False}
    if requested_acks is not None:
        shown["requested-acks"] = requested_acks
    shown.update(headers)
    shown["content-type"] = "application/json"
    return {
        "topic": f"{_base(meta.thing_id)}/announcements/{meta.action}",
        "headers": shown,
        "path": meta.path,
        "value": value,
    }


def _base(policy_id: str) -> str:
    namespace, _, name = policy_id.partition(":")
    return f"{namespace}/{name}/policies"
