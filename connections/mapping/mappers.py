"""What a payload mapper is, and the one for Ditto Protocol messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple, Protocol

import orjson

from acks.document import check_json
from acks.envelopes import Envelope
from acks.errors import GatewayError
from connections.placeholders.lookups import Scope

DITTO_TYPE = "application/vnd.eclipse.ditto+json"
_SHOWN = 64


class MappingFailed(Exception):
    """A message cannot be mapped, or a mapper's options cannot be read; says why."""


class Message(NamedTuple):
    """A broker's message, coming in or going out. ``headers`` have lower-case names."""

    payload: bytes
    content_type: str | None
    headers: Mapping[str, str]


class Mapper(Protocol):
    """One way of mapping. Both raise MappingFailed, and nothing else for whatever input."""

    def incoming(self, message: Message, scope: Scope) -> Sequence[Envelope]:
        """The Ditto Protocol messages that a broker's message stands for."""

    def outgoing(self, envelope: Envelope, scope: Scope) -> Sequence[Message]:
        """The broker's messages that a Ditto Protocol message becomes."""


class DittoProtocol:
    """Messages that are Ditto Protocol already (mapping engine ``Ditto``)."""

    def incoming(self, message: Message, scope: Scope) -> Sequence[Envelope]:
        """The payload: a JSON object with a topic."""
        envelope = read_json(message.payload)
        if not isinstance(envelope, dict):
            raise MappingFailed("The payload is not a JSON object")
        if not isinstance(envelope.get("topic"), str):
            raise MappingFailed("The payload has no text in its field 'topic'")
        return (envelope,)

    def outgoing(self, envelope: Envelope, scope: Scope) -> Sequence[Message]:
        """The envelope as JSON."""
        return (Message(write_json(envelope), DITTO_TYPE, {}),)


DITTO_MAPPER = DittoProtocol()


def read_json(payload: bytes) -> Any:
    """Parse a payload. Raises MappingFailed, also for what twins cannot hold."""
    try:
        value = orjson.loads(payload)
        check_json(value, payload)
    except orjson.JSONDecodeError as problem:
        shown = payload[:_SHOWN].decode("utf-8", "replace")
        raise MappingFailed(f"The payload '{shown}' is not JSON: {problem}") from None
    except GatewayError as problem:
        raise MappingFailed(f"{problem.message} {problem.description or ''}".strip()) from None
    except (ValueError, RecursionError) as problem:
        raise MappingFailed(f"The payload cannot be read: {problem}") from None
    return value


def write_json(value: Any) -> bytes:
    """JSON bytes. Raises MappingFailed for what cannot be written, e.g. half a surrogate pair."""
    try:
        return orjson.dumps(value)
    except (orjson.JSONEncodeError, RecursionError) as problem:
        raise MappingFailed(f"The value cannot be written as JSON: {problem}") from None


def check_value(value: Any) -> Any:
    """A JSON value that was put together, if a twin can hold it; raises MappingFailed."""
    read_json(write_json(value))
    return value


def number(text: str) -> int | float:
    """The number that a text is; raises MappingFailed."""
    try:
        value = json.loads(text.strip())
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
        raise MappingFailed(f"'{text[:_SHOWN]}' is no number")
    return value
