"""The acks that targets issue: what a broker said of a publication (spec websocket-... 4.5)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from acks.envelopes import WEAK_DROPPED, Envelope
from acks.errors import GatewayError, error
from acks.labels import LIVE_RESPONSE
from acks.protocol import is_response, read_headers, read_topic
from acks.signals import Acknowledgement
from acks.topic import Topic
from connections.driver import Published
from connections.publishing import failed

MAX_PAYLOAD_BYTES = 100_000
"""Bytes of an issued ack's payload (spec 4.5); what is longer is left out."""
DITTO_TYPE = "application/vnd.eclipse.ditto+json"
_REFUSED = "Sending the message as a live response is not possible."
_CONNECTION = "ditto-connection-id"
_TRUE = (True, "true")
_NOT_COPIED = frozenset(("content-type", "requested-acks"))  # they say what a signal is


def thing_of(envelope: Envelope) -> str:
    """The id of the thing or policy that a Ditto Protocol message is about, by its topic."""
    namespace, _, rest = str(envelope["topic"]).partition("/")
    return f"{namespace}:{rest.partition('/')[0]}"


def wants(label: str | None, envelope: Envelope) -> bool:
    """Whether the sender of a signal waits for this label of a target (spec 4.5)."""
    if label is None:
        return False
    headers = envelope["headers"]
    if label in headers.get("requested-acks", ()):
        return True
    return (
        label == LIVE_RESPONSE
        and "/things/live/" in envelope["topic"]
        and headers.get("response-required") in _TRUE
    )


def issued_ack(
    label: str, envelope: Envelope, published: Published, connection_id: str
) -> Acknowledgement:
    """What became of the publication of a signal, as the ack of its target's label."""
    if label == LIVE_RESPONSE:
        published = _as_live_response(envelope, published)
    payload = published.payload
    if payload is not None and _size(payload) > MAX_PAYLOAD_BYTES:
        payload = None
    return Acknowledgement(
        label,
        thing_of(envelope),
        str(envelope["headers"].get("correlation-id", "")),
        published.status,
        payload,
        {**published.headers, _CONNECTION: connection_id},
    )


def weak_ack(label: str, envelope: Envelope, connection_id: str) -> Acknowledgement:
    """The ack for a signal of which the payload mapping has made nothing (acks-and-http 6)."""
    copied = {name: text for name, text in envelope["headers"].items() if name not in _NOT_COPIED}
    headers = {**copied, "response-required": False, "ditto-weak-ack": True}
    return issued_ack(label, envelope, Published(200, WEAK_DROPPED, headers), connection_id)


def refused_ack(
    label: str, envelope: Envelope, problem: GatewayError, connection_id: str
) -> Acknowledgement:
    """The ack for a signal that cannot be published because of this error."""
    published = failed(problem)
    return issued_ack(label, envelope, published, connection_id)


def explicit_ack(
    envelope: Envelope, published: Published, connection_id: str
) -> Acknowledgement | None:
    """The ack or live response that the other side has answered a publication with, if it has.

    Only a body of Ditto Protocol counts; whether its label may be issued is the gateway's business.
    """
    body = _ditto_body(published)
    if body is None:
        return None
    try:
        topic = read_topic(body)
        headers = read_headers(body)
        if topic.criterion == "acks" and topic.action:
            answer = _said(body, headers)
            if answer is None:
                return None
            ack = issued_ack(topic.action, envelope, answer, connection_id)
            given = str(headers.get("correlation-id", ack.correlation_id))
            return ack._replace(correlation_id=given, thing_id=topic.thing_id)
        if is_response(body, topic):
            return issued_ack(LIVE_RESPONSE, envelope, published, connection_id)
    except GatewayError:
        return None
    return None


def _as_live_response(envelope: Envelope, published: Published) -> Published:
    """The answer to a live signal: the response that the body is, or the body as its payload."""
    body = _ditto_body(published)
    if body is None:
        return published
    try:
        topic = read_topic(body)
        headers = read_headers(body)
        reason = _mismatch(envelope, read_topic(envelope), body, topic, headers)
    except GatewayError as unreadable:
        reason = unreadable.message
    else:
        answer = _said(body, _shown(headers))
        if reason is None and answer is not None:
            return answer
    problem = error(
        "connectivity:message.sending.failed",
        message=reason or "The live response has no status.",
        description=_REFUSED,
        status=422,
    )
    return failed(problem)


def _mismatch(
    envelope: Envelope, asked: Topic, body: Envelope, topic: Topic, headers: Mapping[str, Any]
) -> str | None:
    """Why a body is no response to a live signal, in the words of spec 4.5."""
    wanted = envelope["headers"].get("correlation-id")
    given = headers.get("correlation-id")
    if given is not None and given != wanted:
        return (
            f"Correlation ID of live response <{_cut(given)}> differs from correlation ID of "
            f"command <{wanted}>."
        )
    if topic.thing_id != asked.thing_id:
        return (
            f"Entity ID of live response <{_cut(topic.thing_id)}> differs from entity ID of "
            f"command <{asked.thing_id}>."
        )
    related = (topic.channel, topic.criterion) == ("live", asked.criterion)
    if related and asked.criterion == "commands":
        related = topic.action == asked.action and body.get("path") == envelope.get("path")
    if not is_response(body, topic) or not (related or topic.criterion == "errors"):
        return (
            f"Type of live response <{_cut(f'{topic.criterion}/{topic.action}')}> is not related "
            f"to type of command <{asked.criterion}/{asked.action}>"
        )
    return None


def _shown(headers: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in headers.items() if name != "requested-acks"}


def _said(body: Envelope, headers: Mapping[str, Any]) -> Published | None:
    """Status, value and headers of a Ditto Protocol message; None if it has no status."""
    status = body.get("status")
    if type(status) is not int or not 100 <= status <= 599:
        return None
    return Published(status, body.get("value"), headers)


def _cut(text: object) -> str:
    return str(text)[:200]


def _ditto_body(published: Published) -> dict[str, Any] | None:
    """The body of an answer if it says that it is a Ditto Protocol message, and is an object."""
    kind = published.content_type
    if published.body is None or kind is None:
        return None
    if kind.partition(";")[0].strip().lower() != DITTO_TYPE:
        return None
    if len(published.body) > MAX_PAYLOAD_BYTES:
        return None
    try:
        body = json.loads(published.body)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def _size(payload: Any) -> int:
    if isinstance(payload, str):
        return len(payload.encode("utf-8", "surrogatepass"))
    return len(json.dumps(payload, separators=(",", ":"), ensure_ascii=True))
