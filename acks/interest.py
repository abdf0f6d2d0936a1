"""What a subscription wants of a signal: its filter, its extra fields (spec websocket-... 1.5, 7).

Both are given what the subscriber may read of the signal and of the twin, and nothing else: a
filter must not tell what is hidden.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from acks.document import is_namespace, parse_pointer
from acks.envelopes import topic_of
from acks.errors import GatewayError
from acks.facts import MISSING, ThingFacts, descend
from acks.fields import Selector, select
from acks.journal import COMMAND, EVENT, LIVE_EVENT, EntryMeta
from acks.placeholders import PREFIXES, signal_placeholders
from acks.resources import ABSENT
from acks.rql import Predicate, leaves, matches
from acks.signals import JsonObject
from acks.topic import parse_topic

Path = tuple[str, ...]
_CHANGES = frozenset({EVENT, LIVE_EVENT, COMMAND})
_FEATURE, _THING = "feature:id", "thing:"
_FEATURE_ID = re.compile(r"\{\{\s*feature:id\s*\}\}")
MAX_FIELDS = 2000
"""Fields that a selector may come to when ``{{feature:id}}`` stands for several features."""


def read_namespaces(text: str, refusal: Callable[[str], GatewayError]) -> frozenset[str]:
    """The namespaces of a list with commas, empty for all of them (spec websocket-... 1.2).

    Raises what ``refusal`` makes of the reason why it is none.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if not is_namespace(name):
            raise refusal(f"'{name[:64]}' in the parameter 'namespaces' is no namespace.")
    return frozenset(names)


# --- filters


class SignalFacts:
    """What a filter sees of a signal: what it changes, then the extra fields, and placeholders.

    ``value`` is that of the signal, ABSENT without one; that of a message is no part of a thing.
    ``of_target``: the filter is that of a connection's target, which knows more placeholders.
    """

    __slots__ = ("_changed", "_extra", "_meta", "_names", "_of_target", "_value")

    def __init__(
        self, meta: EntryMeta, value: Any, extra: JsonObject, of_target: bool = False
    ) -> None:
        document: Any = {}
        if value is not ABSENT and meta.kind in _CHANGES:
            document = value
            for part in reversed(parse_pointer(meta.path)):
                document = {part: document}
        special: dict[str, Any] = {"thingId": meta.thing_id}
        if meta.kind == EVENT:
            special |= {"_revision": meta.revision, "_modified": meta.timestamp}
            if meta.action == "created" and meta.path == "/":
                special["_created"] = meta.timestamp
        special["_namespace"] = meta.thing_id.partition(":")[0]
        self._changed = ThingFacts(document if isinstance(document, dict) else {}, special)
        self._extra = extra
        self._meta = meta
        self._value = value
        self._of_target = of_target
        self._names: dict[str, str] | None = None

    def find(self, path: Path) -> Any:
        """The value at ``path``, :data:`MISSING` if it is in neither of the two."""
        found = self._changed.find(path)
        return descend(self._extra, path) if found is MISSING else found

    def placeholder(self, name: str) -> str | list[str] | None:
        """What ``topic:``, ``entity:`` or ``resource:`` stands for; others are absent (6.2).

        For targets ``thing:`` is known, too, and ``feature:id``, which may be several.
        """
        if self._names is None:
            topic = topic_of(self._meta)
            self._names = signal_placeholders(topic, parse_topic(topic), self._meta.path)
        if self._of_target:
            if name == _FEATURE:
                return list(features_of(self._meta, lambda: self._value)) or None
            if name.startswith(_THING):
                return self._names.get(f"entity:{name.removeprefix(_THING)}")
        return self._names.get(name)


def fits(
    predicate: Predicate,
    meta: EntryMeta,
    value: Any,
    extra: JsonObject | None,
    now: datetime,
    *,
    of_target: bool = False,
) -> bool:
    """Whether a signal fits a filter at ``now`` (aware); no if that is too much to find out.

    ``of_target``: the filter of a connection's target.
    """
    try:
        return matches(predicate, SignalFacts(meta, value, extra or {}, of_target), now)
    except GatewayError:
        return False


def looks_at_things(predicate: Predicate, *, of_target: bool = False) -> bool:
    """Whether it takes more than the placeholders to evaluate a filter, with :func:`fits`."""
    return any(
        leaf.property.partition(":")[0] not in PREFIXES or (of_target and leaf.property == _FEATURE)
        for leaf in leaves(predicate)
    )


# --- extra fields


def extra_of(
    selector: Selector,
    meta: EntryMeta,
    value: Callable[[], Any],
    twin: JsonObject,
    special: Mapping[str, Any],
) -> JsonObject | None:
    """The field ``extra`` of a signal, None if there is nothing to show.

    ``value()`` gives that of the signal if it is needed, ABSENT for none; ``twin`` is as much of
    the thing as the subscriber may read, ``special`` its fields beside the document.
    """
    if any("{{" in part for path in selector.pointers for part in path):
        selector = _resolved(selector, features_of(meta, value))
    return select(selector, {**twin, **special}) or None


def features_of(meta: EntryMeta, value: Callable[[], Any]) -> tuple[str, ...]:
    """The features that a signal is about: what ``{{feature:id}}`` stands for."""
    path = parse_pointer(meta.path)
    if len(path) > 1 and path[0] == "features":
        return (path[1],)
    if path not in ((), ("features",)) or meta.kind not in _CHANGES:
        return ()
    found = descend(value(), ("features",) if not path else ())
    return tuple(found) if isinstance(found, dict) else ()


def _resolved(selector: Selector, features: tuple[str, ...]) -> Selector:
    """The selector with a path for each feature; one with another placeholder selects nothing."""
    found: dict[Path, None] = {}
    for path in selector.pointers:
        named = any(_FEATURE_ID.search(part) for part in path)
        for feature in features if named else ("",):
            # In a replacement a backslash would mean something.
            name = feature.replace("\\", r"\\")
            plain = tuple(_FEATURE_ID.sub(name, part) for part in path)
            if len(found) < MAX_FIELDS and not any("{{" in part for part in plain):
                found[plain] = None
    return Selector(tuple(found))
