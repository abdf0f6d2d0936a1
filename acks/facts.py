"""Facts: what an RQL predicate looks at, in a thing or an event (spec websocket-... 6.2, 6.3)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from acks.signals import JsonObject

Path = tuple[str, ...]
MISSING: Final = object()
"""Stands for a value that is not there: ``null`` is one that is."""
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Facts(Protocol):
    """What a predicate looks at."""

    def find(self, path: Path) -> Any:
        """The JSON value at ``path``, :data:`MISSING` if there is none.

        A path through an array leads to the list of what its elements have there.
        """

    def placeholder(self, name: str) -> str | list[str] | None:
        """What e.g. ``topic:action`` stands for, None if it has no value here.

        ``feature:id`` may stand for several. ``time:`` is not asked for.
        """


class ThingFacts(NamedTuple):
    """A thing, or as much of it as is known: a stored twin, or what an event changed.

    ``special`` are fields beside the document, such as ``_revision`` and ``_modified``;
    ``placeholders`` what e.g. ``topic:action`` stands for.
    """

    document: JsonObject
    special: Mapping[str, Any] = _NOTHING
    placeholders: Mapping[str, str] = _NOTHING

    def find(self, path: Path) -> Any:
        """The value at ``path``; ``_namespace`` is that of the thingId."""
        name = path[0] if path else ""
        if name in self.special:
            return descend(self.special[name], path[1:])
        if path == ("_namespace",) and "thingId" in self.document:
            return str(self.document["thingId"]).partition(":")[0]
        return descend(self.document, path)

    def placeholder(self, name: str) -> str | None:
        """What ``name`` stands for."""
        return self.placeholders.get(name)


def descend(value: Any, path: Path) -> Any:
    """The value at ``path`` in ``value``, or :data:`MISSING`; arrays on the way are flattened."""
    for index, part in enumerate(path):
        if isinstance(value, list):
            found = [descend(item, path[index:]) for item in value]
            found = [item for item in found if item is not MISSING]
            return found or MISSING
        if not isinstance(value, dict) or part not in value:
            return MISSING
        value = value[part]
    return value
