"""Messages whose time is over before they are handled (spec websocket-... 4.4)."""

from __future__ import annotations

from collections.abc import Mapping

_DIGITS = 18


def expired(headers: Mapping[str, str], now: float) -> bool:
    """Whether ``creation-time`` and ``ttl`` (milliseconds) say that a message is over.

    ``now`` is in seconds since 1970. Headers that are no numbers set no limit.
    """
    created, lives = _number(headers.get("creation-time")), _number(headers.get("ttl"))
    return created is not None and lives is not None and now * 1000 >= created + lives


def _number(text: str | None) -> int | None:
    if text is None or len(text) > _DIGITS or not text.isascii() or not text.isdigit():
        return None
    return int(text)
