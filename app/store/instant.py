"""Times as they are stored and shown."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import lru_cache


def now_ms() -> int:
    """The time in ms since the epoch."""
    return time.time_ns() // 1_000_000


@lru_cache(maxsize=4)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def instant(at_ms: int) -> str:
    """A time in ms since the epoch as an ISO-8601 instant with milliseconds."""
    return f"{_second(at_ms // 1000)}.{at_ms % 1000:03d}Z"
