"""Ditto Protocol envelope <-> signal: the only place that knows field names (spec 5 and 7)."""

from __future__ import annotations

from typing import Any

from acks.envelopes import Envelope
from acks.errors import GatewayError, error
from acks.labels import BUILT_IN, is_label
from acks.live import LiveResponse
from acks.signals import Acknowledgement
from acks.topic import Topic, parse_topic


def read_headers(envelope: Envelope) -> dict[str, Any]:
    """The envelope's headers with lower-case names, without null values.

    Raises ``json.format.invalid`` if they are no object.
    """
    headers = envelope.get("headers")
    if headers is None:
        return {}
    if not isinstance(headers, dict):
        raise error("json.format.invalid", reason="The field 'headers' must be a JSON object.")
    return {name.lower(): value for name, value in headers.items() if value is not None}


def read_topic(envelope: Any) -> Topic:
    """The topic of a parsed frame.

    Raises ``json.format.invalid`` if the frame is no envelope, ``json.field.missing`` without a
    topic, ``protocoladapter:unknown.topicpath``.
    """
    if not isinstance(envelope, dict):
        raise error("json.format.invalid", reason="A Ditto Protocol message is a JSON object.")
    topic = envelope.get("topic")
    if topic is None:
        raise error("json.field.missing", field="/topic")
    if not isinstance(topic, str):
        raise error("json.format.invalid", reason="The field 'topic' must be a string.")
    return parse_topic(topic)


def is_response(envelope: Envelope, topic: Topic) -> bool:
    """Whether a frame answers a live signal: it has a status (spec 7.2, 7.3)."""
    return (
        topic.group == "things"
        and topic.channel == "live"
        and topic.criterion in ("messages", "commands", "errors")
        and "status" in envelope
    )


def read_response(envelope: Envelope, topic: Topic) -> LiveResponse:
    """Read a subscriber's answer to a live signal. A missing correlation-id reads as "".

    Raises ``protocoladapter:unknown.topicpath`` for a status that is none.
    """
    headers = read_headers(envelope)
    status = envelope["status"]
    if type(status) is not int or not 100 <= status <= 599:
        raise error(
            "protocoladapter:unknown.topicpath",
            topic=envelope["topic"],
            reason="A response needs a 'status' from 100 to 599.",
        )
    path = envelope.get("path")
    return LiveResponse(
        topic.thing_id,
        topic.criterion,
        topic.action,
        path if isinstance(path, str) else "",
        str(headers.pop("correlation-id", "")),
        status,
        envelope.get("value"),
        headers,
    )


def read_ack(envelope: Envelope, topic: Topic, declared: frozenset[str]) -> Acknowledgement:
    """Read a subscriber's ack and check it, in the order of spec 5.4, rows 2 to 7.

    ``declared`` are the labels the session owns. A missing correlation-id reads as "".
    """
    headers = read_headers(envelope)
    status = envelope.get("status")
    if type(status) is not int or not 100 <= status <= 599 or not topic.action:
        raise error(
            "protocoladapter:unknown.topicpath",
            topic=envelope["topic"],
            reason="An acknowledgement needs a label in its topic and a 'status' from 100 to 599.",
        )
    label = topic.action
    if label not in declared or label in BUILT_IN:
        raise _not_issuable(label)
    correlation_id = headers.pop("correlation-id", "")
    return Acknowledgement(
        label,
        topic.thing_id,
        correlation_id if isinstance(correlation_id, str) else str(correlation_id),
        status,
        envelope.get("value"),
        headers,
    )


def _not_issuable(label: str) -> GatewayError:
    if not is_label(label):
        return error("acknowledgement:label.invalid", label=label)
    if label in BUILT_IN:
        return error("acknowledgement:ditto.acklabel.forbidden", label=label)
    return error("acknowledgement:label.not.declared", label=label)
