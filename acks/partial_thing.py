"""A twin event as the part of its thing that it changed (spec websocket-... 3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from acks.document import parse_pointer
from acks.envelopes import event_envelope
from acks.fields import Selector, select
from acks.journal import EntryMeta
from acks.resources import ABSENT, lookup
from acks.signals import JsonObject

Path = tuple[str, ...]
_CONTEXT = ("topic", "path", "value", "headers")


class View(NamedTuple):
    """What a stream shows of things: what is at ``path``, and ``fields`` of it, None for all."""

    path: Path = ()
    fields: Selector | None = None


def event_data(
    view: View,
    meta: EntryMeta,
    headers: Mapping[str, Any],
    value: Any,
    parsed: Callable[[], Any],
    extra: JsonObject | None = None,
) -> Any:
    """What a stream with this ``view`` is told of an event: JSON, ABSENT for nothing.

    ``headers`` and ``value`` are the entry's, the value cut to what may be read and as something
    that JSON can be made of (None for none); ``parsed()`` is it as Python has it, ABSENT for none.

    That is the thing with its ``thingId`` and what was changed, at its place, and no more: fields
    that begin with an underscore come only if they are selected. Extra fields are added to what is
    selected; where both say something the event does. With a path it is what is there.
    """
    place = parse_pointer(meta.path)
    if not (view.path or view.fields or extra or meta.action == "merged"):
        # As it came: a document need not be parsed to be passed on.
        if not place and value is not None:
            return value
        return _part(meta.thing_id, place, ABSENT if value is None else value)
    known = parsed()
    part = _part(meta.thing_id, place, known)
    if view.path:
        found = lookup({**part, **_special(meta)}, view.path)
        if view.fields is None or not isinstance(found, dict):
            return found
        return select(view.fields, found) or ABSENT
    if view.fields is not None:
        whole = {**part, **_special(meta)}
        if "_context" in view.fields.tree:
            whole["_context"] = _context(meta, headers, known)
        part = select(view.fields, whole)
        if not part:
            return ABSENT
    return part if extra is None else _over(extra, part)


def _part(thing_id: str, place: Path, value: Any) -> JsonObject:
    """A thing that has its id and, unless that is ABSENT, ``value`` at ``place``."""
    if value is ABSENT or (not place and not isinstance(value, dict)):
        return {"thingId": thing_id}
    for name in reversed(place):
        value = {name: value}
    return {"thingId": thing_id, **value}


def _special(meta: EntryMeta) -> JsonObject:
    """The fields beside the document, as far as the event knows them."""
    special: JsonObject = {
        "_namespace": meta.thing_id.partition(":")[0],
        "_revision": meta.revision,
        "_modified": meta.timestamp,
    }
    if meta.action == "created" and meta.path == "/":
        special["_created"] = meta.timestamp
    return special


def _context(meta: EntryMeta, headers: Mapping[str, Any], value: Any) -> JsonObject:
    """The event's envelope: topic, path, headers and, if it has one, value."""
    given = None if value is ABSENT else {"": value}  # as null it would be none
    envelope = event_envelope(meta, headers, given, None, meta.correlation_id)
    if value is not ABSENT:
        envelope["value"] = value
    return {name: envelope[name] for name in _CONTEXT if name in envelope}


def _over(below: JsonObject, above: JsonObject) -> JsonObject:
    """Both in one: what both say as ``above`` says it, objects one inside the other."""
    merged = dict(above)
    for name, other in below.items():
        value = merged.setdefault(name, other)
        if value is not other and isinstance(value, dict) and isinstance(other, dict):
            merged[name] = _over(other, value)
    return merged
