"""Signals on their way out as Ditto Protocol envelopes (spec 5 and 7)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from acks.errors import GatewayError
from acks.journal import MESSAGE, EntryMeta
from acks.topic import errors_topic, event_topic, live_topic

Envelope = dict[str, Any]
MERGE_TYPE = "application/merge-patch+json"

WEAK_UNSUBSCRIBED = (
    "Acknowledgement was issued automatically as weak ack, because the signal is not relevant for "
    "the subscriber. Possible reasons are: the subscriber was not authorized, or the subscriber "
    "did not subscribe for the signal type."
)
"""Payload of a weak ack for a subscriber that is not among the receivers (spec 6)."""


def event_envelope(
    meta: EntryMeta,
    headers: Mapping[str, Any],
    value: Any,
    requested_acks: tuple[str, ...] | None,
    correlation_id: str,
) -> Envelope:
    """A journal entry as a twin event for one subscriber (spec 7.1).

    ``headers`` and ``value`` are the entry's; ``requested_acks`` what this subscriber is to see of
    them (None: no such header), ``correlation_id`` the id it has to repeat in its acks.
    """
    shown: dict[str, Any] = {"correlation-id": correlation_id, "response-required": False}
    if requested_acks is not None:
        shown["requested-acks"] = requested_acks
    shown["entity-revision"] = meta.revision
    shown.update(headers)
    envelope: Envelope = {
        "topic": event_topic(meta.thing_id, meta.action),
        "headers": shown,
        "path": meta.path,
    }
    if value is not None:
        shown["content-type"] = MERGE_TYPE if meta.action == "merged" else "application/json"
        envelope["value"] = value
    envelope["revision"] = meta.revision
    envelope["timestamp"] = meta.timestamp
    return envelope


def live_envelope(
    meta: EntryMeta,
    headers: Mapping[str, Any],
    value: Any,
    requested_acks: tuple[str, ...] | None,
    correlation_id: str,
) -> Envelope:
    """A message or live command for one subscriber (spec 7.2, 7.3); arguments as for an event."""
    shown: dict[str, Any] = {"correlation-id": correlation_id, **headers}
    if requested_acks is not None:
        shown["requested-acks"] = requested_acks
    criterion = "messages" if meta.kind == MESSAGE else "commands"
    envelope: Envelope = {
        "topic": live_topic(meta.thing_id, criterion, meta.action),
        "headers": shown,
        "path": meta.path,
    }
    if value is not None:
        envelope["value"] = value
    if meta.fields:
        envelope["fields"] = meta.fields
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
