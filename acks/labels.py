"""Acknowledgement labels: grammar and the built-in ones (spec acks-and-http 1.1, 1.2)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from acks.errors import error

TWIN_PERSISTED = "twin-persisted"
LIVE_RESPONSE = "live-response"
SEARCH_PERSISTED = "search-persisted"
BUILT_IN = frozenset({TWIN_PERSISTED, LIVE_RESPONSE, SEARCH_PERSISTED})

_LABEL = re.compile(r"(?:\{\{\s*[a-z]+:[a-z]+\s*\}\}:)?[a-zA-Z0-9\-_:]{3,165}", re.ASCII)


def is_label(text: str) -> bool:
    """Whether ``text`` is a label; a placeholder such as ``{{connection:id}}`` may lead it."""
    return _LABEL.fullmatch(text) is not None


def is_resolved(label: str) -> bool:
    """Whether a valid ``label`` has no placeholder left."""
    return not label.startswith("{{")


def check_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Return ``labels`` without repeats, in order.

    Raises ``acknowledgement:label.invalid`` for the first that breaks the grammar.
    """
    for label in labels:
        if not is_label(label):
            raise error("acknowledgement:label.invalid", label=label)
    return tuple(dict.fromkeys(labels))


def custom(labels: Iterable[str]) -> tuple[str, ...]:
    """The labels that somebody outside the gateway must fulfil, in order."""
    return tuple(label for label in labels if label not in BUILT_IN)
