"""Mapping engine ``RawMessage``: the payload of messages, without an envelope around it.

Options: ``outgoingContentType`` for messages that name none, ``incomingMessageHeaders``: where a
payload that comes in goes to. Everything but messages is mapped as ``Ditto`` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from acks.document import check_thing_id
from acks.envelopes import Envelope
from acks.errors import GatewayError
from acks.live import Address, check_subject, is_feature_id
from acks.payloads import BINARY_TYPE, Form, body_of, read_content_type, value_of
from acks.topic import live_topic, parse_topic
from connections.mapping.headers import HeaderMapping, map_headers, parse_header_mapping
from connections.mapping.mappers import (
    DITTO_MAPPER,
    DITTO_TYPE,
    MappingFailed,
    Message,
    read_json,
    write_json,
)
from connections.placeholders.lookups import Scope, text_headers

_DEFAULTS = {
    "ditto-message-direction": "{{ header:ditto-message-direction | fn:default('TO') }}",
    "ditto-message-subject": "{{ header:ditto-message-subject }}",
    "ditto-message-thing-id": "{{ header:ditto-message-thing-id }}",
    "ditto-message-feature-id": "{{ header:ditto-message-feature-id }}",
    "content-type": "{{ header:content-type }}",
    "status": "{{ header:status }}",
}
_BOXES = {"TO": "inbox", "FROM": "outbox"}


@dataclass(frozen=True, slots=True)
class RawMessage:
    """The mapper with its options."""

    content_type: str
    headers: HeaderMapping

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> RawMessage:
        """Read the options. Raises PlaceholderError, MappingFailed."""
        given = options.get("incomingMessageHeaders", {})
        content_type = options.get("outgoingContentType", "text/plain; charset=UTF-8")
        texts = isinstance(given, Mapping) and all(isinstance(text, str) for text in given.values())
        if not texts or not isinstance(content_type, str):
            raise MappingFailed("the options are no texts")
        return cls(content_type, parse_header_mapping({**_DEFAULTS, **given}))

    def incoming(self, message: Message, scope: Scope) -> Sequence[Envelope]:
        """A message, or a response to one if there is a status."""
        if _media_type(message.content_type) == DITTO_TYPE:
            return DITTO_MAPPER.incoming(message, scope)
        headers = map_headers(self.headers, scope)
        content_type = headers.pop("content-type", None) or message.content_type or BINARY_TYPE
        status = headers.pop("status", None)
        try:
            address = _address(headers)
            value = _value(message.payload, content_type)
        except GatewayError as problem:
            raise MappingFailed(f"{problem.message} {problem.description or ''}".strip()) from None
        envelope: Envelope = {
            "topic": live_topic(address.thing_id, "messages", address.subject),
            "headers": {**headers, "content-type": content_type},
            "path": address.path,
        }
        if message.payload:
            envelope["value"] = value
        if status is not None:
            envelope["status"] = _status(status)
        write_json(envelope)
        return (envelope,)

    def outgoing(self, envelope: Envelope, scope: Scope) -> Sequence[Message]:
        """The payload of a message; what is none, as Ditto Protocol."""
        try:
            criterion = parse_topic(str(envelope.get("topic"))).criterion
        except GatewayError as problem:
            raise MappingFailed(problem.message) from None
        if criterion != "messages":
            return DITTO_MAPPER.outgoing(envelope, scope)
        content_type = text_headers(envelope).get("content-type", self.content_type)
        body = body_of(envelope.get("value", ""), read_content_type(content_type))
        if not isinstance(body, bytes):
            body = write_json(body) if "value" in envelope else b""
        return (Message(body, content_type, {}),)


def _media_type(content_type: str | None) -> str:
    return (content_type or "").partition(";")[0].strip().lower()


def _address(headers: dict[str, str]) -> Address:
    """Where a message goes; takes the headers that say so away. Raises as acks/live.py does."""
    thing_id = headers.pop("ditto-message-thing-id", "")
    subject = headers.pop("ditto-message-subject", "")
    box = _BOXES.get(headers.pop("ditto-message-direction", "").upper())
    feature = headers.pop("ditto-message-feature-id", None)
    if box is None:
        raise MappingFailed("'ditto-message-direction' is neither TO nor FROM")
    if feature is not None and not is_feature_id(feature):
        raise MappingFailed("'ditto-message-feature-id' is not valid")
    return Address(check_thing_id(thing_id), box, check_subject(subject), feature)


def _value(payload: bytes, content_type: str) -> Any:
    read = read_content_type(content_type)
    if read.form is Form.JSON:
        return read_json(payload) if payload else None
    return value_of(payload, read)


def _status(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) == 3 and 100 <= int(text) <= 599):
        raise MappingFailed("'status' is none from 100 to 599")
    return int(text)
