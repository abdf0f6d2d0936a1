"""The JSON of a connection: its shape, its bounds, its defaults (spec websocket-... 4.1).

What it means is looked at in connections/documents/validation.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from acks.errors import GatewayError, error
from acks.signals import JsonObject
from connections.mapping.payloads import MAX_MAPPERS

MAX_BYTES = 100 * 1024
"""Of a document as JSON."""
MAX_SOURCES = 4
MAX_TARGETS = 4
MAX_TEXT = 4_096
MAX_PEM = 64 * 1024
MAX_ITEMS = 100
"""Entries of a list or an object, where nothing else is said."""
MAX_MAPPINGS = MAX_MAPPERS
"""Payload mappings of one source or target."""
MAX_CLIENTS = 9
"""Clients of a connection, and consumers of a source."""
STATUSES = ("open", "closed", "failed", "misconfigured", "unknown")
RESPONSE_TYPES = ("response", "error", "nack")
KINDS = ("amqp-091", "amqp-10", "mqtt", "mqtt-5", "kafka", "http-push", "hono")

_LEGACY_HEADERS = {
    name: f"{{{{header:{name}}}}}" for name in ("correlation-id", "content-type", "reply-to")
}
_HEADERLESS = ("mqtt", "http-push")
"""Kinds whose sources have no header ``reply-to``."""

_Read = Callable[[Any, str], Any]
_REQUIRED: Any = object()


def wrong(reason: str, description: str | None = None) -> GatewayError:
    """``connectivity:connection.configuration.invalid`` for this reason."""
    code = "connectivity:connection.configuration.invalid"
    if description is None:
        return error(code, reason=reason)
    return error(code, reason=reason, description=description)


def read_document(value: object, connection_id: str) -> JsonObject:
    """A connection's document in full, its defaults filled in; ``id`` is ``connection_id``.

    Fields whose names begin with ``_`` are left out, other unknown ones are refused. Raises
    ``connectivity:connection.configuration.invalid``, ``json.field.missing``.
    """
    fields = _Fields(value, "")
    kind = fields.get("connectionType", _choice("Connection type", KINDS), _REQUIRED)
    document = {
        "id": connection_id,
        **fields.present("name", _text),
        "connectionType": kind,
        "connectionStatus": fields.get(
            "connectionStatus", _choice("Connection status", STATUSES), "unknown"
        ),
        "uri": fields.get("uri", _text, _REQUIRED),
        "sources": fields.get("sources", _list(lambda one, at: read_source(one, at, kind)), []),
        "targets": fields.get("targets", _list(read_target), []),
        "clientCount": fields.get("clientCount", _number(1, MAX_CLIENTS), 1),
        "failoverEnabled": fields.get("failoverEnabled", _flag, True),
        "validateCertificates": fields.get("validateCertificates", _flag, True),
        "processorPoolSize": fields.get("processorPoolSize", _number(1, 1_000), 1),
        "specificConfig": fields.get("specificConfig", _options, {}),
        "mappingDefinitions": fields.get("mappingDefinitions", _definitions, {}),
        "tags": fields.get("tags", _list(_text), []),
        **fields.present("ca", _pem),
        **fields.present("credentials", _credentials),
        **fields.present("sshTunnel", _tunnel),
    }
    if fields.present("mappingContext", _anything):
        raise wrong("There is no 'mappingContext' here; use 'mappingDefinitions'.")
    fields.take("id")
    fields.end()
    return document


# --- parts


def read_source(value: Any, place: str, kind: str) -> JsonObject:
    """A source in full; ``place`` names it in errors, ``kind`` is that of its connection.

    Raises as :func:`read_document`.
    """
    fields = _Fields(value, place)
    source = {
        "addresses": fields.get("addresses", _list(_text), _REQUIRED),
        "consumerCount": fields.get("consumerCount", _number(1, MAX_CLIENTS), 1),
        **fields.present("qos", _number(0, 2)),
        "authorizationContext": fields.get("authorizationContext", _list(_text), []),
        **fields.present("enforcement", _enforcement),
        **fields.present("acknowledgementRequests", _requests),
    }
    replies = fields.present("replyTarget", _reply_target)
    headers = fields.present("headerMapping", _texts)
    legacy = not replies and kind not in _HEADERLESS
    source["headerMapping"] = headers.get("headerMapping", dict(_LEGACY_HEADERS) if legacy else {})
    source |= fields.present("payloadMapping", _mappings)
    source |= fields.present("declaredAcks", _list(_text))
    source["replyTarget"] = replies.get("replyTarget") or _legacy_reply_target(legacy)
    fields.end()
    return source


def read_target(value: Any, place: str) -> JsonObject:
    """A target in full; raises as :func:`read_document`."""
    fields = _Fields(value, place)
    target = {
        "address": fields.get("address", _text, _REQUIRED),
        "topics": fields.get("topics", _list(_text), _REQUIRED),
        **fields.present("qos", _number(0, 2)),
        "authorizationContext": fields.get("authorizationContext", _list(_text), []),
        **fields.present("issuedAcknowledgementLabel", _text),
        "headerMapping": fields.get("headerMapping", _texts, {}),
        **fields.present("payloadMapping", _mappings),
    }
    fields.end()
    return target


def _reply_target(value: Any, place: str) -> JsonObject:
    """What is not enabled has no defaults: it stays as short as it was given."""
    fields = _Fields(value, place)
    enabled = fields.get("enabled", _flag, True)
    address = fields.get("address", _text, _REQUIRED if enabled else None)
    headers = fields.get("headerMapping", _texts, {} if enabled else None)
    types = fields.get(
        "expectedResponseTypes", _list(_text), ["response", "error"] if enabled else None
    )
    reply = {
        "address": address,
        "headerMapping": headers,
        "expectedResponseTypes": types and [one for one in types if one in RESPONSE_TYPES],
        "enabled": enabled,
    }
    fields.end()
    return {name: one for name, one in reply.items() if one is not None}


def _legacy_reply_target(legacy: bool) -> JsonObject:
    """What a source without a word about replies has: the header ``reply-to``, where there is one.

    A reply has no ``reply-to`` of its own.
    """
    if not legacy:
        return {"enabled": False}
    headers = {name: text for name, text in _LEGACY_HEADERS.items() if name != "reply-to"}
    return {
        "address": "{{header:reply-to}}",
        "headerMapping": headers,
        "expectedResponseTypes": ["response", "error"],
        "enabled": True,
    }


def _enforcement(value: Any, place: str) -> JsonObject:
    fields = _Fields(value, place)
    found = {
        "input": fields.get("input", _text, _REQUIRED),
        "filters": fields.get("filters", _list(_text), []),
    }
    fields.end()
    return found


def _requests(value: Any, place: str) -> JsonObject:
    fields = _Fields(value, place)
    found = {
        "includes": fields.get("includes", _list(_text), []),
        **fields.present("filter", _text),
    }
    fields.end()
    return found


def _definitions(value: Any, place: str) -> JsonObject:
    found = _object(value, place)
    return {name: _definition(one, f"{place}.{name}") for name, one in found.items()}


def _definition(value: Any, place: str) -> JsonObject:
    fields = _Fields(value, place)
    found = {
        "mappingEngine": fields.get("mappingEngine", _text, _REQUIRED),
        "options": fields.get("options", _object, {}),
        **fields.present("incomingConditions", _texts),
        **fields.present("outgoingConditions", _texts),
    }
    fields.end()
    return found


def _credentials(value: Any, place: str) -> JsonObject:
    found = _object(value, place)
    if found.get("type") is None:
        raise error("json.field.missing", field=f"/{place}/type")
    _text(found["type"], f"{place}.type")
    return {
        name: _object(one, f"{place}.{name}")
        if isinstance(one, dict)
        else _pem(one, f"{place}.{name}")
        for name, one in found.items()
        if one is not None
    }


def _tunnel(value: Any, place: str) -> JsonObject:
    found = _object(value, place)
    return {**found, "enabled": _flag(found.get("enabled", False), f"{place}.enabled")}


# --- values


class _Fields:
    """The fields of an object, taken one by one; a null is as good as none."""

    def __init__(self, value: Any, place: str) -> None:
        self._place = place
        self._left = dict(_object(value, place))

    def take(self, name: str) -> Any:
        """A field's value, None if there is none."""
        return self._left.pop(name, None)

    def get(self, name: str, read: _Read, default: Any) -> Any:
        """A field as ``read`` takes it; its default, if it has one."""
        value = self.take(name)
        if value is not None:
            return read(value, self._named(name))
        if default is _REQUIRED:
            raise error("json.field.missing", field="/" + self._named(name).replace(".", "/"))
        return default

    def present(self, name: str, read: _Read) -> JsonObject:
        """The field alone as an object, an empty one if it is not there."""
        value = self.take(name)
        return {} if value is None else {name: read(value, self._named(name))}

    def end(self) -> None:
        """Raises unless every field was taken."""
        for name in self._left:
            if not name.startswith("_"):
                raise wrong(f"There is no field '{self._named(name)[:200]}' in a connection.")

    def _named(self, name: str) -> str:
        return f"{self._place}.{name}" if self._place else name


def _object(value: Any, place: str) -> JsonObject:
    if not isinstance(value, dict):
        raise wrong(f"{_quoted(place)} has to be a JSON object.")
    if len(value) > MAX_ITEMS:
        raise wrong(f"{_quoted(place)} has more than {MAX_ITEMS} entries.")
    return value


def _list(read: _Read) -> _Read:
    def listed(value: Any, place: str) -> list[Any]:
        if not isinstance(value, list):
            raise wrong(f"{_quoted(place)} has to be a JSON array.")
        if len(value) > MAX_ITEMS:
            raise wrong(f"{_quoted(place)} has more than {MAX_ITEMS} entries.")
        return [read(one, f"{place}[{at}]") for at, one in enumerate(value)]

    return listed


def _mappings(value: Any, place: str) -> list[str]:
    found: list[str] = _list(_text)(value, place)
    if len(found) > MAX_MAPPINGS:
        raise wrong(f"{_quoted(place)} has more than {MAX_MAPPINGS} payload mappings.")
    return found


def _text(value: Any, place: str) -> str:
    text = _of_length(value, place, MAX_TEXT)
    if any(char < " " or char == "\x7f" for char in text):
        raise wrong(f"{_quoted(place)} has control characters.")
    return text


def _pem(value: Any, place: str) -> str:
    """A text of lines, as certificates and keys are."""
    return _of_length(value, place, MAX_PEM)


def _of_length(value: Any, place: str, most: int) -> str:
    if not isinstance(value, str):
        raise wrong(f"{_quoted(place)} has to be a text.")
    if len(value) > most:
        raise wrong(f"{_quoted(place)} has more than {most:,} characters.")
    return value


def _texts(value: Any, place: str) -> dict[str, str]:
    found = _object(value, place)
    for name in found:
        if not name:
            raise wrong(f"{_quoted(place)} has an entry without a name.")
        _text(name, place)
    return {name: _text(one, f"{place}.{name}") for name, one in found.items()}


def _options(value: Any, place: str) -> dict[str, str]:
    """Texts; numbers and booleans are taken as the texts they are in JSON."""
    shown = {
        name: str(one).lower() if isinstance(one, (bool, int, float)) else one
        for name, one in _object(value, place).items()
        if one is not None
    }
    return _texts(shown, place)


def _flag(value: Any, place: str) -> bool:
    if not isinstance(value, bool):
        raise wrong(f"{_quoted(place)} has to be true or false.")
    return value


def _number(least: int, most: int) -> _Read:
    def numbered(value: Any, place: str) -> int:
        if type(value) is not int or not least <= value <= most:
            raise wrong(f"{_quoted(place)} has to be a whole number from {least} to {most}.")
        return value

    return numbered


def _choice(what: str, choices: tuple[str, ...]) -> _Read:
    def chosen(value: Any, place: str) -> str:
        text = _text(value, place)
        if text not in choices:
            raise wrong(f"{what} <{text[:100]}> is invalid!", f"There is: {', '.join(choices)}.")
        return text

    return chosen


def _anything(value: Any, place: str) -> Any:
    del place
    return value


def _quoted(place: str) -> str:
    return f"'{place[:200]}'" if place else "A connection"
