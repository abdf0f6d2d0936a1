"""Riding out a store that is away for a moment, as at its restart."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, TypeVar

from connections.spark.store import AWAY

log = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")
_PAUSE: Final = 0.2  # s between two tries


class Patience:
    """Waits up to ``seconds`` for a store that is away. Nothing is lost by it: offsets stay."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._away_since: float | None = None

    def is_away(self, problem: Exception) -> bool:
        """Called with each failure in a row, pauses; false when patience is over."""
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
            log.warning("the store does not answer, trying again: %s", problem)
        if now - self._away_since > self._seconds:
            return False
        time.sleep(_PAUSE)
        return True

    def is_back(self) -> None:
        """Called with each success."""
        self._away_since = None

    def ask(self, question: Callable[[], _Answer]) -> _Answer:
        """Ask until there is an answer. Raises redis.RedisError when patience is over."""
        while True:
            try:
                answer = question()
            except AWAY as problem:
                if not self.is_away(problem):
                    raise
            else:
                self.is_back()
                return answer
