"""Payload mapping: a broker's messages <-> Ditto Protocol messages (spec websocket-... 4.1).

A source or target names its mappers (``payloadMapping``; none means ``Ditto``): built-in ones, or
aliases of ``mappingDefinitions``: ``{alias: {mappingEngine, options, incomingConditions,
outgoingConditions}}``. Each of them maps every message; it may make none of it, or several.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from acks.envelopes import Envelope
from acks.errors import GatewayError, error
from connections.mapping.json_mapper import JsonTemplate
from connections.mapping.mappers import DITTO_MAPPER, Mapper, MappingFailed, Message
from connections.mapping.raw_mapper import RawMessage
from connections.placeholders.lookups import Scope, read_pipeline
from connections.placeholders.templates import Pipeline, PlaceholderError

MAX_MAPPERS = 10
"""Mappers of one source or target."""
MAX_MAPPED = 10
"""Messages that one mapper makes of one message unless its options say otherwise."""

_ENGINES: dict[str, Callable[[Mapping[str, Any]], Mapper]] = {
    "Ditto": lambda options: DITTO_MAPPER,
    "RawMessage": RawMessage.read,
    "JsonTemplate": JsonTemplate.read,
}
_T = TypeVar("_T")
_NAMES = frozenset({"mappingEngine", "options", "incomingConditions", "outgoingConditions"})


class NamedMapper(NamedTuple):
    """A mapper under the name that the document gives it, with its conditions."""

    name: str
    mapper: Mapper
    incoming_if: tuple[Pipeline, ...] = ()
    outgoing_if: tuple[Pipeline, ...] = ()


class Incoming(NamedTuple):
    """What came of a broker's message: envelopes, and why some mappers failed."""

    envelopes: tuple[Envelope, ...]
    problems: tuple[GatewayError, ...] = ()


class Outgoing(NamedTuple):
    """What came of an envelope: messages to be sent, and why some mappers failed."""

    messages: tuple[Message, ...]
    problems: tuple[GatewayError, ...] = ()


# --- reading


def mappers_of(names: Sequence[str], definitions: Mapping[str, Any]) -> tuple[NamedMapper, ...]:
    """The mappers of a source or target, in their order.

    ``definitions`` are the connection's ``mappingDefinitions``. Raises
    ``connectivity:connection.configuration.invalid`` for one that does not exist or whose options
    cannot be read.
    """
    if len(names) > MAX_MAPPERS:
        raise _invalid(f"There are more than {MAX_MAPPERS} payload mappings.")
    return tuple(_mapper_of(name, definitions) for name in names or ("Ditto",))


def check_definitions(definitions: Mapping[str, Any]) -> None:
    """Read all of a connection's ``mappingDefinitions``, used or not; raises as above."""
    for name in definitions:
        _mapper_of(name, definitions)


def _mapper_of(name: str, definitions: Mapping[str, Any]) -> NamedMapper:
    definition = definitions.get(name)
    if definition is None:
        if name not in _ENGINES:
            raise _invalid(f"The payload mapping '{name}' is not defined.")
        definition = {"mappingEngine": name}
    if not isinstance(definition, Mapping) or not _NAMES.issuperset(definition):
        allowed = ", ".join(sorted(_NAMES))
        raise _invalid(f"The mapping definition '{name}' must be an object of {allowed}.")
    engine = definition.get("mappingEngine")
    if not isinstance(engine, str) or engine not in _ENGINES:
        known = ", ".join(_ENGINES)
        raise _invalid(f"The mapping engine of '{name}' is not one of {known}.")
    options = _object(definition, "options", name)
    try:
        return NamedMapper(
            name,
            _ENGINES[engine](options),
            _conditions(definition, "incomingConditions", name),
            _conditions(definition, "outgoingConditions", name),
        )
    except (PlaceholderError, MappingFailed) as problem:
        raise _invalid(f"The mapping definition '{name}' cannot be read: {problem}.") from None


def _object(definition: Mapping[str, Any], field: str, name: str) -> Mapping[str, Any]:
    value = definition.get(field, {})
    if not isinstance(value, Mapping):
        raise _invalid(f"The field '{field}' of the mapping definition '{name}' is no object.")
    return value


def _conditions(definition: Mapping[str, Any], field: str, name: str) -> tuple[Pipeline, ...]:
    texts = _object(definition, field, name).values()
    return tuple(read_pipeline(text if isinstance(text, str) else "") for text in texts)


def _invalid(reason: str) -> GatewayError:
    return error("connectivity:connection.configuration.invalid", reason=reason)


# --- mapping


def map_incoming(mappers: Sequence[NamedMapper], message: Message, scope: Scope) -> Incoming:
    """Map a broker's message by each of the mappers; bad input is told as a problem.

    ``scope`` has the message's headers, and no envelope.
    """
    envelopes: list[Envelope] = []
    problems: list[GatewayError] = []
    for name, mapper, conditions, _ in mappers:
        try:
            if _met(conditions, scope):
                envelopes += _bounded(mapper.incoming(message, scope))
        except (MappingFailed, PlaceholderError) as problem:
            problems.append(mapping_failed(name, str(problem)))
    return Incoming(tuple(envelopes), tuple(problems))


def map_outgoing(mappers: Sequence[NamedMapper], envelope: Envelope, scope: Scope) -> Outgoing:
    """Map a Ditto Protocol message by each of the mappers; what cannot be mapped is a problem.

    ``scope`` has the envelope, and its headers.
    """
    messages: list[Message] = []
    problems: list[GatewayError] = []
    for name, mapper, _, conditions in mappers:
        try:
            if _met(conditions, scope):
                messages += _bounded(mapper.outgoing(envelope, scope))
        except (MappingFailed, PlaceholderError) as problem:
            problems.append(mapping_failed(name, str(problem)))
    return Outgoing(tuple(messages), tuple(problems))


def mapping_failed(mapper: str, reason: str) -> GatewayError:
    """``connectivity:message.mapping.failed``."""
    return error("connectivity:message.mapping.failed", mapper=mapper, reason=reason)


def _met(conditions: tuple[Pipeline, ...], scope: Scope) -> bool:
    return all(condition.resolve(scope, ("true",)) for condition in conditions)


def _bounded(mapped: Sequence[_T]) -> Sequence[_T]:
    if len(mapped) > MAX_MAPPED:
        raise MappingFailed(f"It makes {len(mapped)} messages of one; the most is {MAX_MAPPED}")
    return mapped
