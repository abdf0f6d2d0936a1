"""Errors of the search (spec websocket-... 6.4)."""

from __future__ import annotations

from acks.error_kind import ErrorKind

SEARCH_ERRORS = (
    ErrorKind(
        "thing-search:search.option.invalid",
        400,
        "{reason}",
        "At least one provided option is invalid.",
    ),
    ErrorKind(
        "thing-search:search.namespaces.invalid",
        400,
        "The namespaces to search in are not valid.",
        "{reason}",
    ),
    ErrorKind(
        "gateway:query.time.exceeded",
        504,
        "The search took longer than {timeout_ms} ms.",
        "Ask for less at a time: name namespaces, compare for equality, begin no pattern with '*'.",
    ),
)
