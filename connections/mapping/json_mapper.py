"""Mapping engine ``JsonTemplate``: raw JSON <-> Ditto Protocol, declared, without any code.

Options: ``incoming`` and ``outgoing``, each an object or several in an array. A direction that is
not declared maps as ``Ditto`` does. Examples: docs/connections/mapping.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from acks.envelopes import Envelope
from acks.facts import MISSING
from connections.mapping.json_shapes import (
    JSON,
    Ground,
    Shape,
    check_pointer,
    check_pointers,
    path_text,
    read_shape,
    read_text,
)
from connections.mapping.mappers import (
    DITTO_MAPPER,
    MappingFailed,
    Message,
    check_value,
    read_json,
    write_json,
)
from connections.placeholders.lookups import Scope, read_pipeline
from connections.placeholders.templates import Pipeline, Template

MAX_RULES = 10
"""Objects in ``incoming`` or ``outgoing``."""
MAX_ITEMS = 10
"""Messages that one rule makes of an array (``each``)."""
JSON_TYPE = "application/json"
_NOT_SET: Any = object()


@dataclass(frozen=True, slots=True)
class Into:
    """A rule for messages that come in.

    ``each`` points to an array, each of whose elements is mapped by itself.
    """

    topic: Template
    path: Template
    value: Shape | None
    headers: Shape
    condition: Pipeline | None
    each: str | None

    @classmethod
    def read(cls, rule: Mapping[str, Any]) -> Into:
        """Read a rule. Raises PlaceholderError, MappingFailed."""
        _check_names(rule, {"topic", "path", "value", "headers", "if", "each"})
        value = rule.get("value", _NOT_SET)
        return cls(
            _text(rule, "topic"),
            _text(rule, "path", "/"),
            None if value is _NOT_SET else read_shape(value),
            read_shape(_object(rule, "headers")),
            _condition(rule),
            _pointer(rule, "each") if "each" in rule else None,
        )

    def apply(self, value: Any, scope: Scope) -> list[Envelope]:
        """The messages that it makes of a payload."""
        values = [value]
        if self.each is not None:
            values = Ground(value, scope).at(self.each)
            if not isinstance(values, list):
                raise MappingFailed("There is no array where 'each' points to")
            if len(values) > MAX_ITEMS:
                raise MappingFailed(f"The array has more than {MAX_ITEMS} elements")
        grounds = [Ground(item, scope) for item in values]
        return [self._envelope(ground) for ground in grounds if _met(self.condition, ground)]

    def _envelope(self, ground: Ground) -> Envelope:
        topic = path_text(self.topic, ground, _topic_part)
        path = path_text(self.path, ground, _pointer_part)
        if topic is None or path is None:
            raise MappingFailed("A placeholder of the topic or path is not resolved")
        envelope: Envelope = {"topic": topic, "headers": self.headers(ground), "path": path}
        if self.value is not None:
            filled = self.value(ground)
            if filled is MISSING:
                raise MappingFailed("The value is not resolved")
            envelope["value"] = filled
        check_value(envelope)
        return envelope


@dataclass(frozen=True, slots=True)
class OutOf:
    """A rule for messages that go out; ``json:`` points into the envelope."""

    payload: Shape
    content_type: str
    headers: Shape
    condition: Pipeline | None

    @classmethod
    def read(cls, rule: Mapping[str, Any]) -> OutOf:
        """Read a rule. Raises PlaceholderError, MappingFailed."""
        _check_names(rule, {"payload", "contentType", "headers", "if"})
        content_type = rule.get("contentType", JSON_TYPE)
        if not isinstance(content_type, str):
            raise MappingFailed("'contentType' is no text")
        if "payload" not in rule:
            raise MappingFailed("'payload' is missing")
        headers = read_shape(_object(rule, "headers"))
        return cls(read_shape(rule["payload"]), content_type, headers, _condition(rule))

    def apply(self, envelope: Envelope, scope: Scope) -> list[Message]:
        """The message that it makes of an envelope, none if its condition is not met."""
        ground = Ground(envelope, scope)
        if not _met(self.condition, ground):
            return []
        value = self.payload(ground)
        if value is MISSING:
            raise MappingFailed("The payload is not resolved")
        headers = self.headers(ground)
        texts = {
            name.lower(): text if isinstance(text, str) else write_json(text).decode()
            for name, text in headers.items()
        }
        media_type = self.content_type.partition(";")[0].strip().lower()
        if isinstance(value, str) and not media_type.endswith("json"):
            return [Message(_utf8(value), self.content_type, texts)]
        return [Message(write_json(value), self.content_type, texts)]


@dataclass(frozen=True, slots=True)
class JsonTemplate:
    """The mapper with its rules; every rule is tried."""

    into: tuple[Into, ...]
    out_of: tuple[OutOf, ...]

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> JsonTemplate:
        """Read the options. Raises PlaceholderError, MappingFailed."""
        _check_names(options, {"incoming", "outgoing"})
        return cls(
            tuple(Into.read(rule) for rule in _rules(options, "incoming")),
            tuple(OutOf.read(rule) for rule in _rules(options, "outgoing")),
        )

    def incoming(self, message: Message, scope: Scope) -> Sequence[Envelope]:
        """Ditto Protocol messages as the rules for ``incoming`` say."""
        if not self.into:
            return DITTO_MAPPER.incoming(message, scope)
        value = read_json(message.payload)
        return [envelope for rule in self.into for envelope in rule.apply(value, scope)]

    def outgoing(self, envelope: Envelope, scope: Scope) -> Sequence[Message]:
        """Messages as the rules for ``outgoing`` say."""
        if not self.out_of:
            return DITTO_MAPPER.outgoing(envelope, scope)
        return [message for rule in self.out_of for message in rule.apply(envelope, scope)]


# --- reading options


def _check_names(given: Mapping[str, Any], known: set[str]) -> None:
    if unknown := ", ".join(sorted(given.keys() - known)):
        raise MappingFailed(f"there is no option {unknown}, only {', '.join(sorted(known))}")


def _rules(options: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    value = options.get(name, [])
    rules = value if isinstance(value, list) else [value]
    if len(rules) > MAX_RULES or not all(isinstance(rule, Mapping) for rule in rules):
        raise MappingFailed(f"'{name}' is neither an object nor an array of up to {MAX_RULES}")
    return rules


def _text(rule: Mapping[str, Any], name: str, default: str = "") -> Template:
    text = rule.get(name, default)
    if not isinstance(text, str) or not text:
        raise MappingFailed(f"'{name}' is no text, or missing")
    return read_text(text)


def _pointer(rule: Mapping[str, Any], name: str) -> str:
    text = rule[name]
    if not isinstance(text, str):
        raise MappingFailed(f"'{name}' is no JSON pointer")
    check_pointer(text)
    return text


def _object(rule: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = rule.get(name, {})
    if not isinstance(value, Mapping) or "$number" in value:
        raise MappingFailed(f"'{name}' is no object of texts")
    return value


def _condition(rule: Mapping[str, Any]) -> Pipeline | None:
    text = rule.get("if")
    if text is None:
        return None
    if not isinstance(text, str):
        raise MappingFailed("'if' is no text")
    pipeline = read_pipeline(text, JSON)
    check_pointers(pipeline)
    return pipeline


# --- filling in


def _met(condition: Pipeline | None, ground: Ground) -> bool:
    return condition is None or bool(condition.resolve(ground, ("true",)))


def _topic_part(value: str) -> str:
    if "/" in value or not value:
        raise MappingFailed(f"'{value[:64]}' cannot be a part of a topic")
    return value


def _pointer_part(value: str) -> str:
    if not value:
        raise MappingFailed("An empty text cannot be a part of a path")
    return value.replace("~", "~0").replace("/", "~1")


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise MappingFailed("The text cannot be written in UTF-8") from None
