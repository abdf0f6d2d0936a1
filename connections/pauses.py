"""Waiting, in one place: pauses that double between tries, and looks whether something holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

FIRST_RETRY_S, LAST_RETRY_S = 1.0, 60.0
"""Before a source that its broker has ended is consumed again."""
_LOOK_S = 0.02
"""Between two looks."""
_MOST_DOUBLINGS = 30


def doubling(first_s: float, last_s: float, failures: int) -> float:
    """Seconds until the next try: ``first_s`` after one failure, doubling up to ``last_s``."""
    return min(first_s * 2.0 ** min(failures - 1, _MOST_DOUBLINGS), last_s)


async def until(holds: Callable[[], bool], grace_s: float) -> None:
    """Wait until something holds that nobody tells; at most ``grace_s`` seconds."""
    loop = asyncio.get_running_loop()
    end = loop.time() + grace_s
    while not holds() and loop.time() < end:  # noqa: ASYNC110 - nobody could set an event
        await asyncio.sleep(_LOOK_S)
