"""Ditto Protocol envelope <-> signal: the only place that knows field names (spec 5 and 7)."""

from __future__ import annotations

from typing import Any

from acks.envelopes import Envelope
from acks.errors import GatewayError, error
from acks.frame_head import as_text, check_array
from acks.header_values import check_values
from acks.headers import comes_along, travels
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
    topic, ``protocoladapter:unknown.topicpath``, and what is wrong with headers before that.
    """
    if not isinstance(envelope, dict):
        raise error("json.format.invalid", reason="A Ditto Protocol message is a JSON object.")
    topic = envelope.get("topic")
    if topic is None:
        raise error("json.field.missing", field="/topic")
    if not isinstance(topic, str):
        raise error("json.format.invalid", reason="The field 'topic' must be a string.")
    try:
        return parse_topic(topic)
    except GatewayError:
        _sent_along(envelope)  # bad headers are told first (spec 5.4)
        raise


def _sent_along(envelope: Envelope) -> dict[str, str]:
    """The headers of an ack or a response that its requester is to see, as text (spec 1.4, 4).

    Names that are not known keep their case. Raises ``header.invalid``, ``timeout.invalid`` for
    values that a known header cannot have.
    """
    known: dict[str, str] = {}
    shown: dict[str, str] = {}
    headers = envelope.get("headers")
    if headers is not None and not isinstance(headers, dict):
        raise error("json.format.invalid", reason="The field 'headers' must be a JSON object.")
    for given, value in (headers or {}).items():
        name = given.lower()
        if value is None or name == "correlation-id":
            continue
        text = value if type(value) is str else as_text(value)
        if name == "requested-acks":
            if type(value) is not list:
                check_array(text)
            continue  # an ack asks for none: its labels are nobody's business
        known[name] = text
        if comes_along(name):
            shown[given if travels(name) else name] = text
    check_values(known)
    return shown


def _correlation_id(headers: dict[str, Any]) -> str:
    """Takes it out of the headers; a missing one reads as ""."""
    given = headers.pop("correlation-id", "")
    return given if isinstance(given, str) else as_text(given)


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

    Raises ``protocoladapter:unknown.topicpath`` for a status that is none, ``header.invalid`` and
    ``timeout.invalid`` for bad headers.
    """
    headers = read_headers(envelope)
    correlation_id = _correlation_id(headers)
    shown = _sent_along(envelope) if headers else {}
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
        correlation_id,
        status,
        envelope.get("value"),
        shown,
    )


def read_ack(envelope: Envelope, topic: Topic, declared: frozenset[str]) -> Acknowledgement:
    """Read a subscriber's ack and check it, in the order of spec 5.4, rows 2 to 7.

    ``declared`` are the labels the session owns. A missing correlation-id reads as "".
    """
    headers = read_headers(envelope)
    correlation_id = _correlation_id(headers)
    shown = _sent_along(envelope) if headers else {}
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
    return Acknowledgement(
        label, topic.thing_id, correlation_id, status, envelope.get("value"), shown
    )


def is_weak_built_in(envelope: Envelope, topic: Topic) -> bool:
    """Whether a frame is a weak ack of a built-in label: nobody minds it (spec websocket-... 1.4).

    Raises ``json.format.invalid`` as :func:`read_headers`.
    """
    if topic.action not in BUILT_IN:
        return False
    return str(read_headers(envelope).get("ditto-weak-ack", "")).lower() == "true"


def _not_issuable(label: str) -> GatewayError:
    if not is_label(label):
        return error("acknowledgement:label.invalid", label=label)
    if label in BUILT_IN:
        return error("acknowledgement:ditto.acklabel.forbidden", label=label)
    return error("acknowledgement:label.not.declared", label=label)
