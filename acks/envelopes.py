"""Signals on their way out as Ditto Protocol envelopes (spec 5 and 7)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from acks.errors import GatewayError
from acks.journal import COMMAND, EVENT, LIVE_EVENT, MESSAGE, EntryMeta
from acks.signals import JsonObject
from acks.topic import errors_topic, event_topic, live_topic

Envelope = dict[str, Any]
MERGE_TYPE = "application/merge-patch+json"
REDELIVERED = "ackgate-redelivered"
"""Header of a signal that somebody else has been given before, in vain."""

_WEAK = (
    "Acknowledgement was issued automatically as weak ack, because the signal is not relevant for "
    "the subscriber. Possible reasons are: "
)
WEAK_UNSUBSCRIBED = _WEAK + (
    "the subscriber was not authorized, or the subscriber did not subscribe for the signal type."
)
"""Payload of a weak ack for a subscriber that is not among the receivers (spec 6)."""
WEAK_FILTERED = _WEAK + (
    "the subscriber did not subscribe for the signal type, or the signal was dropped by a "
    "configured RQL filter."
)
"""Payload for a receiver whose filter does not fit, or to whom nothing is left of it (spec 6)."""
WEAK_DROPPED = _WEAK + (
    "the subscriber was not authorized, the subscriber did not subscribe for the signal type, the "
    "signal was dropped by a configured RQL filter, or the signal was dropped by all payload "
    "mappers."
)
"""Payload for a target of a connection that drops the signal (spec 6)."""

_CRITERIA = {MESSAGE: "messages", COMMAND: "commands", LIVE_EVENT: "events"}


def topic_of(meta: EntryMeta) -> str:
    """The topic of an event or a live signal."""
    if meta.kind == EVENT:
        return event_topic(meta.thing_id, meta.action)
    return live_topic(meta.thing_id, _CRITERIA[meta.kind], meta.action)


def event_envelope(
    meta: EntryMeta,
    headers: Mapping[str, Any],
    value: Any,
    requested_acks: tuple[str, ...] | None,
    correlation_id: str,
    extra: JsonObject | None = None,
    redelivered: bool = False,
) -> Envelope:
    """A journal entry as a twin event for one subscriber (spec 7.1).

    ``headers`` and ``value`` are the entry's, the value cut to what may be read; ``requested_acks``
    what this subscriber is to see of them (None: no such header), ``correlation_id`` the id it has
    to repeat in its acks, ``extra`` its extra fields. ``redelivered``: somebody else has been given
    it before, in vain.
    """
    shown: dict[str, Any] = {"correlation-id": correlation_id, "response-required": False}
    if requested_acks is not None:
        shown["requested-acks"] = requested_acks
    shown["entity-revision"] = meta.revision
    shown.update(headers)
    if redelivered:
        shown[REDELIVERED] = True
    envelope: Envelope = {
        "topic": event_topic(meta.thing_id, meta.action),
        "headers": shown,
        "path": meta.path,
    }
    if value is not None:
        shown["content-type"] = MERGE_TYPE if meta.action == "merged" else "application/json"
        envelope["value"] = value
    if extra is not None:
        envelope["extra"] = extra
    envelope["revision"] = meta.revision
    envelope["timestamp"] = meta.timestamp
    return envelope


def live_envelope(
    meta: EntryMeta,
    headers: Mapping[str, Any],
    value: Any,
    requested_acks: tuple[str, ...] | None,
    correlation_id: str,
    extra: JsonObject | None = None,
    redelivered: bool = False,
) -> Envelope:
    """A message, live command or live event for one subscriber (spec 7.2, 7.3).

    Arguments as for an event.
    """
    shown: dict[str, Any] = {"correlation-id": correlation_id, **headers}
    if requested_acks is not None:
        shown["requested-acks"] = requested_acks
    if redelivered:
        shown[REDELIVERED] = True
    envelope: Envelope = {"topic": topic_of(meta), "headers": shown, "path": meta.path}
    if value is not None:
        envelope["value"] = value
    if meta.fields:
        envelope["fields"] = meta.fields
    if extra is not None:
        envelope["extra"] = extra
    if meta.kind == LIVE_EVENT:
        if value is not None:
            shown.setdefault(
                "content-type", MERGE_TYPE if meta.action == "merged" else "application/json"
            )
        if meta.revision:
            envelope["revision"] = meta.revision
        envelope["timestamp"] = meta.timestamp
    return envelope


def error_envelope(
    problem: GatewayError, correlation_id: str | None, thing_id: str | None = None
) -> Envelope:
    """An error as an envelope; without ``thing_id`` on the topic of unknown things (spec 5.5)."""
    headers: dict[str, Any] = {}
    if correlation_id is not None:
        headers["correlation-id"] = correlation_id
    headers["response-required"] = False
    headers["content-type"] = "application/json"
    return {
        "topic": errors_topic(thing_id),
        "headers": headers,
        "path": "/",
        "value": problem.to_json(),
        "status": problem.status,
    }
