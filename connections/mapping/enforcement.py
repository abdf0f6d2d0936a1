"""Enforcement: what a message from a source may be about (spec websocket-... 4.1)."""

from __future__ import annotations

from dataclasses import dataclass

from acks.errors import error
from connections.model import Enforcement
from connections.placeholders.lookups import Scope, read_template
from connections.placeholders.templates import Template


@dataclass(frozen=True, slots=True)
class Guard:
    """An enforcement whose texts have been read; ``shown`` is what an error names."""

    input: Template
    filters: tuple[Template, ...]
    shown: str


def parse_enforcement(enforcement: Enforcement | None) -> Guard | None:
    """Read the texts of an enforcement. Raises PlaceholderError."""
    if enforcement is None:
        return None
    filters = tuple(read_template(text) for text in enforcement.filters)
    return Guard(read_template(enforcement.input), filters, ", ".join(enforcement.filters))


def enforce(guard: Guard | None, scope: Scope) -> None:
    """Check the mapped message of ``scope``: the input has to equal one of the filters.

    An input that is not resolved equals nothing.
    Raises ``connectivity:connection.id.enforcement.failed``.
    """
    if guard is None:
        return
    given = frozenset(guard.input.resolve(scope))
    if any(not given.isdisjoint(text.resolve(scope)) for text in guard.filters):
        return
    entity_id = "".join(scope("entity", "id")) or "unknown"
    raise error(
        "connectivity:connection.id.enforcement.failed", entity_id=entity_id, allowed=guard.shown
    )
