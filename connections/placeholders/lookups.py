"""What the placeholders of a connection stand for (spec websocket-... 4.2, 6.2).

``header:<name>``, ``entity|thing|policy:id|namespace|name``, ``thing-json:<pointer>``,
``feature:id``, ``connection:id``, ``request:subjectId``, ``source:address``, ``topic:*``,
``resource:type|path``, ``time:*``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from acks.document import parse_pointer
from acks.envelopes import Envelope
from acks.errors import GatewayError
from acks.facts import MISSING, descend
from acks.placeholders import is_placeholder, resolve_time, signal_placeholders
from acks.topic import Topic, parse_topic
from connections.placeholders.functions import MAX_TEXTS, Values, json_text
from connections.placeholders.templates import (
    Pipeline,
    PlaceholderError,
    Reference,
    Template,
    parse_pipeline,
    parse_template,
)

_IDS = frozenset({"id", "namespace", "name"})
_OTHER_NAMES = {
    "policy": _IDS,
    "connection": frozenset({"id"}),
    "request": frozenset({"subjectId"}),
    "source": frozenset({"address"}),
}
PREFIXES = frozenset(
    {"header", "entity", "thing", "thing-json", "feature", "topic", "resource", "time"}
    | _OTHER_NAMES.keys()
)
"""Every prefix that texts of a connection may name."""
_CHANGES = ("commands", "events")
ORIGINATOR = "ditto-originator"


@dataclass(frozen=True, slots=True)
class Scope:
    """What is known where a text is resolved; it is the Lookup of placeholders/templates.py.

    ``headers`` are those that ``header:`` means, by lower-case name: on the way in those of the
    broker's message, on the way out :func:`text_headers` of the envelope. ``envelope`` is the
    Ditto Protocol message, None if there is none yet. ``subject`` is the source's first one; on
    the way out None: there the originator is meant. ``address`` is the source's; ``now`` is aware.
    """

    connection_id: str
    now: datetime
    headers: Mapping[str, str] = field(default_factory=dict)
    envelope: Envelope | None = None
    subject: str | None = None
    address: str | None = None

    def __call__(self, prefix: str, name: str) -> Values:
        """What ``prefix:name`` stands for, nothing if it has no value here."""
        match prefix:
            case "header":
                return _one(self.headers.get(name.lower()))
            case "time":
                return _one(resolve_time(name, self.now))
            case "connection" if name == "id":
                return (self.connection_id,)
            case "request" if name == "subjectId":
                return _one(self.subject or self.headers.get(ORIGINATOR))
            case "source" if name == "address":
                return _one(self.address)
            case _ if self.envelope is not None:
                return of_envelope(self.envelope, prefix, name)
            case _:
                return ()

    def of(self, envelope: Envelope) -> Scope:
        """The same for a message that was mapped from it."""
        return replace(self, envelope=envelope)


def text_headers(envelope: Envelope) -> dict[str, str]:
    """The headers of an envelope by lower-case name; what is no text, in its JSON form."""
    headers = envelope.get("headers")
    if not isinstance(headers, dict):
        return {}
    return {name.lower(): json_text(value) for name, value in headers.items() if value is not None}


def of_envelope(envelope: Envelope, prefix: str, name: str) -> Values:
    """What a placeholder stands for in a Ditto Protocol message; nothing for one that is broken."""
    text, given = envelope.get("topic"), envelope.get("path", "/")
    if not isinstance(text, str) or not isinstance(given, str):
        return ()
    try:
        topic, path = parse_topic(text), parse_pointer(given)
    except GatewayError:
        return ()
    match prefix:
        case "thing-json":
            return _thing_json(envelope, topic, path, name)
        case "feature":
            return _features(envelope, topic, path) if name == "id" else ()
        case "thing" | "policy":
            group = "things" if prefix == "thing" else "policies"
            prefix = "entity" if topic.group == group else ""
        case _:
            pass
    return _one(signal_placeholders(text, topic, given).get(f"{prefix}:{name}"))


def _thing_json(envelope: Envelope, topic: Topic, path: tuple[str, ...], name: str) -> Values:
    """What a change makes of the thing at a pointer, then what its extra fields have there."""
    try:
        wanted = parse_pointer(name)
    except GatewayError:
        return ()
    found: Any = MISSING
    if topic.group == "things" and topic.criterion in _CHANGES and "value" in envelope:
        if wanted[: len(path)] == path:
            found = descend(envelope["value"], wanted[len(path) :])
        elif path[: len(wanted)] == wanted:
            found = envelope["value"]
            for part in reversed(path[len(wanted) :]):
                found = {part: found}
    if found is MISSING:
        found = descend(envelope.get("extra"), wanted)
    return values_of(found)


def values_of(found: Any) -> Values:
    """A JSON value as texts: an array as those of its elements, null and MISSING as none."""
    items = found if isinstance(found, list) else [found]
    return tuple(
        json_text(item) for item in items[:MAX_TEXTS] if item is not None and item is not MISSING
    )


def _features(envelope: Envelope, topic: Topic, path: tuple[str, ...]) -> Values:
    if topic.group != "things":
        return ()
    if len(path) > 1 and path[0] == "features":
        return (path[1],)
    if path not in ((), ("features",)) or topic.criterion not in _CHANGES:
        return ()
    found = descend(envelope.get("value"), ("features",) if not path else ())
    return tuple(found)[:MAX_TEXTS] if isinstance(found, dict) else ()


def _one(value: str | None) -> Values:
    return () if value is None else (value,)


# --- reading texts


def is_known(reference: Reference) -> bool:
    """Whether there is such a placeholder in connections."""
    prefix, name = reference
    if prefix in _OTHER_NAMES:
        return name in _OTHER_NAMES[prefix]
    return prefix == "thing-json" or is_placeholder(prefix, name)


def read_template(text: str, more: frozenset[str] = frozenset()) -> Template:
    """Read a text of a connection, e.g. an address; ``more`` are prefixes beside PREFIXES.

    Raises PlaceholderError, also for a name that its prefix does not have (``topic:foo``).
    """
    template = parse_template(text, PREFIXES | more)
    for part in template.parts:
        if isinstance(part, Pipeline):
            _check(part, more)
    return template


def read_pipeline(text: str, more: frozenset[str] = frozenset()) -> Pipeline:
    """Read a condition or filter, with or without braces around it; arguments as above.

    Raises PlaceholderError.
    """
    plain = text.strip()
    if plain.startswith("{{") and plain.endswith("}}"):
        plain = plain[2:-2]
    pipeline = parse_pipeline(plain, PREFIXES | more)
    _check(pipeline, more)
    return pipeline


def _check(pipeline: Pipeline, more: frozenset[str]) -> None:
    for reference in pipeline.references():
        if reference.prefix not in more and not is_known(reference):
            raise PlaceholderError(f"unknown placeholder {reference.prefix}:{reference.name}")
