"""Times as they are stored and shown."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache


@lru_cache(maxsize=4)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def instant(now_ms: int) -> str:
    """A time in ms since the epoch as an ISO-8601 instant with milliseconds."""
    return f"{_second(now_ms // 1000)}.{now_ms % 1000:03d}Z"
