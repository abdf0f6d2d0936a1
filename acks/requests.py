"""Frames that ask for something: envelope -> command, query, message, live event.

Sources: spec websocket-... 1.4; acks-and-http 2, 5, 7.
"""

from __future__ import annotations

from base64 import b64decode
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

from acks.changes import check_merge, check_put
from acks.commands import check_ids, check_query, make_command, make_query, parse_checks
from acks.document import check_thing_id, format_pointer
from acks.envelopes import Envelope
from acks.errors import GatewayError, error
from acks.fields import parse_fields
from acks.frame_head import FrameHead, as_text
from acks.header_values import check_values
from acks.headers import AckOptions
from acks.live import parse_address
from acks.payloads import MAX_MESSAGE_BYTES, Form, check_size, read_content_type
from acks.preconditions import parse_preconditions
from acks.resources import Path, parse_resource
from acks.signals import Command, Live, Query
from acks.topic import Topic

_PUTS = {"create": "create", "modify": "put", "merge": "merge", "delete": "delete"}
_EVENTS = {"created": "put", "modified": "put", "merged": "merge", "deleted": "delete"}
_MERGE_TYPE = "application/merge-patch+json"


class Asker(NamedTuple):
    """Who asks: its subjects and its session. ``now_ms`` is since the epoch."""

    subjects: tuple[str, ...]
    session: str
    now_ms: int


# --- the parts of an envelope ------------------------------------------------------------------


def not_supported(topic: str, reason: str, path: str | None = None) -> GatewayError:
    """``protocoladapter:unknown.topicpath`` for a topic, or for its combination with a path."""
    message = None
    if path is not None:
        message = f"The topic '{topic}' is not supported in combination with the path '{path}'."
    return error("protocoladapter:unknown.topicpath", topic=topic, message=message, reason=reason)


def _path_text(envelope: Envelope) -> str:
    path = envelope.get("path")
    if path is None:
        raise error("json.field.missing", field="/path")
    if not isinstance(path, str):
        raise error("json.format.invalid", reason="The field 'path' must be a string.")
    return path if path[:1] == "/" else f"/{path}"


def read_part(envelope: Envelope) -> Path:
    """The part of a thing that a frame is about.

    Raises ``json.field.missing``, ``json.format.invalid``, ``json.pointer.invalid``, and
    ``protocoladapter:unknown.topicpath`` for a part that things do not have.
    """
    text = _path_text(envelope)
    try:
        return parse_resource(text, text.split("/")[1:])
    except GatewayError as problem:
        if problem.code != "gateway:resource.notfound":
            raise
        reason = "Things have a policyId, a definition, attributes and features."
        raise not_supported(envelope["topic"], reason, text) from None


def _value(envelope: Envelope) -> Any:
    if "value" not in envelope:
        raise error("json.field.missing", field="/value")
    return envelope["value"]


def fields_text(envelope: Envelope) -> str:
    """The field selector of a retrieve, "" for none; raises ``json.format.invalid``."""
    fields = envelope.get("fields")
    if fields is None:
        return ""
    if not isinstance(fields, str):
        raise error("json.format.invalid", reason="The field 'fields' must be a string.")
    return fields


_selector = lru_cache(maxsize=1024)(parse_fields)


# --- signals -----------------------------------------------------------------------------------


def read_command(
    envelope: Envelope, topic: Topic, head: FrameHead, options: AckOptions, asker: Asker
) -> Command:
    """A frame that changes a thing, or asks its device to. Raises GatewayError."""
    checks = parse_checks(head.known)
    thing_id = check_thing_id(topic.thing_id)
    action = _PUTS.get(topic.action)
    if action is None:
        reason = f"This gateway does not serve the command '{topic.action}'."
        raise not_supported(envelope["topic"], reason)
    path = read_part(envelope)
    if action == "create" and path:
        raise not_supported(envelope["topic"], "Only whole Things are created.", envelope["path"])
    return make_command(
        head,
        options,
        asker.subjects,
        checks,
        thing_id,
        path,
        action,
        None if action == "delete" else _value(envelope),
        asker.now_ms,
        asker.session,
    )


def read_query(
    envelope: Envelope, topic: Topic, head: FrameHead, timeout_ms: int, asker: Asker
) -> Query:
    """A frame that asks for a thing or a part of it. Raises GatewayError."""
    check_query(head.known)
    thing_id, path = check_thing_id(topic.thing_id), read_part(envelope)
    fields = fields_text(envelope)
    selector = _selector(fields) if fields else None
    return make_query(head, timeout_ms, asker.subjects, thing_id, path, selector)


def is_for_many(envelope: Envelope, topic: Topic) -> bool:
    """Whether a retrieve names its things in its value, and not in its topic.

    With a namespace, ``_`` may as well be the name of a thing.
    """
    value = envelope.get("value")
    named = isinstance(value, dict) and "thingIds" in value
    return topic.name == "_" and (topic.namespace == "_" or named)


def read_queries(envelope: Envelope, head: FrameHead, timeout_ms: int, asker: Asker) -> list[Query]:
    """A frame that asks for several things: one query for each. Raises GatewayError."""
    if read_part(envelope):
        reason = "Several Things are read as a whole, or with 'fields'."
        raise not_supported(envelope["topic"], reason, envelope["path"])
    value = envelope.get("value")
    if not isinstance(value, dict) or "thingIds" not in value:
        raise error("json.field.missing", field="/value/thingIds")
    ids = value["thingIds"]
    if not isinstance(ids, list) or not all(isinstance(one, str) for one in ids):
        raise error("json.format.invalid", reason="The 'thingIds' must be an array of strings.")
    check_query(head.known)
    names = check_ids(ids, head.known)
    fields = fields_text(envelope)
    selector = _selector(fields) if fields else None
    known = FrameHead({}, {}, head.correlation_id)  # entity tags are those of one thing
    return [make_query(known, timeout_ms, asker.subjects, name, (), selector) for name in names]


def read_message(
    envelope: Envelope,
    topic: Topic,
    head: FrameHead,
    options: AckOptions,
    asker: Asker,
    timestamp: str,
) -> Live:
    """A frame that is a message; ``timestamp`` is now. Raises GatewayError."""
    check_values(head.known)
    thing_id, path = check_thing_id(topic.thing_id), _path_text(envelope)
    address = parse_address(thing_id, path)
    if address is None or address.subject != topic.action:
        reason = "The path of a message ends in '/inbox/messages/' or '/outbox/messages/' and the "
        raise not_supported(envelope["topic"], f"{reason}subject that its topic ends in.", path)
    headers: dict[str, Any] = {**head.carried, **dict(options.given)}
    headers.update(address.headers(timestamp))
    content_type = head.known.get("content-type")
    if content_type is not None:
        headers["content-type"] = read_content_type(content_type).shown
    value = envelope.get("value")
    _check_payload(value, content_type)
    checks = parse_preconditions(head.known) if "condition" in head.known else None
    return Live(
        thing_id,
        "messages",
        address.subject,
        address.path,
        value,
        head.correlation_id,
        options,
        asker.subjects,
        headers,
        asker.session,
        checks,
    )


def _check_payload(value: Any, content_type: str | None) -> None:
    """Raises ``messages:payload.toolarge`` (spec 9.4)."""
    if type(value) is not str:
        if isinstance(value, (dict, list)):
            check_size(len(as_text(value).encode()))
        return
    if len(value) * 4 <= MAX_MESSAGE_BYTES:
        return
    size = len(value.encode())
    if size > MAX_MESSAGE_BYTES and read_content_type(content_type).form is Form.BINARY:
        with suppress(ValueError):  # what is not base64 is passed on as it is
            size = len(b64decode(value, validate=True))
    check_size(size)


def read_live_event(
    envelope: Envelope, topic: Topic, head: FrameHead, asker: Asker, timeout_ms: int
) -> Live:
    """A frame that is a live event: nobody answers or acknowledges it (spec 3).

    Raises GatewayError.
    """
    check_values(head.known)
    thing_id, path = check_thing_id(topic.thing_id), read_part(envelope)
    action = _EVENTS.get(topic.action)
    if action is None:
        reason = f"This gateway does not serve the event '{topic.action}'."
        raise not_supported(envelope["topic"], reason)
    value, headers = None, {**head.carried, "channel": "live"}
    if action != "delete":
        check = check_merge if action == "merge" else check_put
        value = check(thing_id, path, _value(envelope))
        headers["content-type"] = _MERGE_TYPE if action == "merge" else "application/json"
    revision, timestamp = envelope.get("revision"), envelope.get("timestamp")
    if revision is not None and (type(revision) is not int or revision < 0):
        raise error("json.format.invalid", reason="The field 'revision' must be a number.")
    if timestamp is not None and not isinstance(timestamp, str):
        raise error("json.format.invalid", reason="The field 'timestamp' must be a string.")
    return Live(
        thing_id,
        "events",
        topic.action,
        format_pointer(path),
        value,
        head.correlation_id,
        AckOptions((), response_required=False, timeout_ms=timeout_ms),
        asker.subjects,
        headers,
        asker.session,
        revision=revision or 0,
        timestamp=timestamp or "",
    )
