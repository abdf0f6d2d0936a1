"""Messages of AMQP 1.0 and their headers.

The properties of the protocol have its names as headers; other headers are application properties.
``amqp.application.property:NAME`` is an application property whose name is that of a property,
``amqp.message.annotation:NAME`` a message annotation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import proton

from connections.driver import Publication
from connections.texts import text_of

APPLICATION = "amqp.application.property:"
ANNOTATION = "amqp.message.annotation:"


def _as_text(text: str) -> Any:
    return text


def _kind(text: str) -> str | None:
    return None if text == "None" else str(text)  # what the library makes of none


def _ascii(text: str) -> str:
    return text.encode("ascii").decode()


def _millis(seconds: float) -> str | None:
    return str(round(seconds * 1000)) if seconds else None


def _number(text: str, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= most):
        raise ValueError(f"it is no number up to {most}")
    return int(text)


def _seconds(text: str) -> float:
    return _number(text, 1 << 53) / 1000


def _sequence(text: str) -> int:
    return _number(text, (1 << 32) - 1)


# Header -> attribute of the library's messages, how to show it, how to read it (ValueError).
_PROPERTIES: dict[str, tuple[str, Callable[[Any], str | None], Callable[[str], Any]]] = {
    "message-id": ("id", text_of, _as_text),
    "user-id": ("user_id", text_of, str.encode),
    "to": ("address", text_of, _as_text),
    "subject": ("subject", text_of, _as_text),
    "reply-to": ("reply_to", text_of, _as_text),
    "correlation-id": ("correlation_id", text_of, _as_text),
    "content-type": ("content_type", _kind, _ascii),
    "absolute-expiry-time": ("expiry_time", _millis, _seconds),
    "creation-time": ("creation_time", _millis, _seconds),
    "group-id": ("group_id", text_of, _as_text),
    "group-sequence": ("group_sequence", lambda n: str(n) if n else None, _sequence),
    "reply-to-group-id": ("reply_to_group_id", text_of, _as_text),
}


def decoded(raw: bytes) -> Any:
    """A message of the library; ValueError if the bytes are none.

    The library is lenient: what it cannot read is missing from the message.
    """
    message = proton.Message()
    try:
        message.decode(raw)
    except (proton.ProtonException, ValueError, RecursionError) as problem:
        raise ValueError(f"This is no AMQP 1.0 message: {problem}") from problem
    return message


def payload_of(message: Any) -> bytes:
    """The body as bytes: of a data section as it is, texts in UTF-8, the rest as JSON."""
    body = message.body
    if body is None:
        return b""
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    return text_of(body).encode()


def headers_of(message: Any) -> dict[str, str]:
    """Properties, application properties and message annotations, names in lower case."""
    headers = {}
    for name, value in (message.annotations or {}).items():
        headers[ANNOTATION + str(name).lower()] = text_of(value)
    for name, value in (message.properties or {}).items():
        if value is not None:
            low = str(name).lower()
            headers[APPLICATION + low if low in _PROPERTIES else low] = text_of(value)
    for name, (attribute, shown, _) in _PROPERTIES.items():
        value = getattr(message, attribute)
        if value is not None and value != b"" and (text := shown(value)):
            headers[name] = text
    return headers


def identity(address: str, message: Any) -> str:
    """A name for a message that is the same when it comes again.

    A digest of what the sender made, and its message-id: others may use the same one.
    """
    own = sorted((str(name), text_of(value)) for name, value in (message.properties or {}).items())
    facts = (text_of(message.correlation_id), message.creation_time, message.subject, own)
    digest = hashlib.blake2b(repr(facts).encode("utf-8", "replace"), digest_size=16)
    digest.update(payload_of(message))
    given = "" if message.id is None else f" {text_of(message.id)}"
    return f"{address} {digest.hexdigest()}{given}"


def redeliveries(message: Any) -> int | None:
    """How often a message was delivered before; None if the broker does not say.

    Brokers that do not count leave 0, and say at most who was the first to have it.
    """
    if message.delivery_count:
        return int(message.delivery_count)
    return 0 if message.first_acquirer else None


def encoded(publication: Publication) -> bytes:
    """A publication as a durable message with a data section; ValueError if it cannot be one."""
    message = proton.Message(body=publication.payload, inferred=True, durable=True)
    properties: dict[str, str] = {}
    annotations: dict[Any, str] = {}
    for name, value in _named(publication).items():
        if name.startswith(APPLICATION):
            properties[name.removeprefix(APPLICATION)] = value
        elif name.startswith(ANNOTATION):
            annotations[proton.symbol(name.removeprefix(ANNOTATION))] = value
        elif name in _PROPERTIES:
            attribute, _, read = _PROPERTIES[name]
            setattr(message, attribute, _read(name, value, read))
        else:
            properties[name] = value
    message.properties = properties or None
    message.annotations = annotations or None
    try:
        raw: bytes = message.encode()
    except (proton.ProtonException, ValueError) as problem:
        raise ValueError(f"This cannot be an AMQP 1.0 message: {problem}") from problem
    return raw


def _named(publication: Publication) -> Mapping[str, str]:
    if publication.content_type is None:
        return publication.headers
    return {**publication.headers, "content-type": publication.content_type}


def _read(name: str, text: str, read: Callable[[str], Any]) -> Any:
    try:
        return read(text)
    except ValueError as problem:
        raise ValueError(f"The header <{name}> has no fitting value: {problem}") from problem
