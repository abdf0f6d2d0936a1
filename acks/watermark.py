"""Watermark: positions finish in any order, the floor advances without gaps (design, section 1).

What has to be told in order (a Kafka offset, an MQTT PUBACK) goes out up to the floor. A position
that is to come again holds the floor, so that nothing after it hides it.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from enum import Enum


class _State(Enum):
    OPEN = "open"
    DONE = "done"
    HELD = "held"


class Watermark:
    """The positions above the floor, at most ``limit`` of them.

    Positions are whole numbers that ascend; they may leave some out (a compacted log). The caller
    stops reading at a position that :meth:`takes` refuses.
    """

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError("a watermark needs room for one position")
        self._limit = limit
        self._states: dict[int, _State] = {}
        self._order: deque[int] = deque()
        self._floor: int | None = None
        self._held = 0

    @property
    def floor(self) -> int | None:
        """The last position up to which everything is finished; None before the first."""
        return self._floor

    @property
    def full(self) -> bool:
        """Whether there is no room for a new position; held ones can come again all the same."""
        return len(self._states) >= self._limit

    def takes(self, position: int) -> bool:
        """Whether :meth:`open` can be called with ``position``: it is known, or there is room."""
        return not self.full or position in self._states or self._is_below(position)

    @property
    def first_held(self) -> int | None:
        """The lowest position that is to come again: where reading has to begin anew."""
        if not self._held:
            return None
        return next(at for at in self._order if self._states[at] is _State.HELD)

    def __len__(self) -> int:
        return len(self._states)

    def open(self, position: int) -> bool:
        """Take a position that was read; returns whether it is to be handled.

        It is not if it is being handled or is finished: after reading anew from a held position
        the later ones come again, too. Raises OverflowError if there is no room.
        """
        state = self._states.get(position)
        if state is None:
            if self._is_below(position):
                return False
            if self.full:
                raise OverflowError(f"more than {self._limit} positions above the floor")
            if self._order and position < self._order[-1]:
                insort(self._order, position)
            else:
                self._order.append(position)
        elif state is not _State.HELD:
            return False
        else:
            self._held -= 1
        self._states[position] = _State.OPEN
        return True

    def _is_below(self, position: int) -> bool:
        return self._floor is not None and position <= self._floor

    def finish(self, position: int) -> bool:
        """An open position is done. False, and nothing changes, if it is not open."""
        return self._leave(position, _State.DONE)

    def hold(self, position: int) -> bool:
        """An open position is to come again; the floor stays below it until it is finished.

        False, and nothing changes, if it is not open.
        """
        if not self._leave(position, _State.HELD):
            return False
        self._held += 1
        return True

    def _leave(self, position: int, state: _State) -> bool:
        if self._states.get(position) is not _State.OPEN:
            return False
        self._states[position] = state
        return True

    def advance(self) -> list[int]:
        """Raise the floor as far as it goes; returns what it passed, in order, each once."""
        passed: list[int] = []
        while self._order and self._states[self._order[0]] is _State.DONE:
            position = self._order.popleft()
            del self._states[position]
            passed.append(position)
        if passed:
            self._floor = passed[-1]
        return passed
