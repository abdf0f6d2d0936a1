"""One partition as long as it is assigned: what was read, given out, and may be committed.

Offsets may be settled in any order; the offset that is committed is the one below which everything
is finished (acks/watermark.py). A message that is given back is read again from its offset after a
while; the later ones that come again with it are known and left out.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from acks.watermark import Watermark
from connections.pauses import doubling

FIRST_DELAY_S = 0.1
LAST_DELAY_S = 60.0
"""How long a message waits that was given back, doubling each time (spec websocket-... 4.4)."""

T = TypeVar("T")


class Partition(Generic[T]):
    """What is known of a partition from its assignment to its revocation; ``T``: a message.

    ``alive`` ends with the assignment. At most ``limit`` messages beyond the floor are given out;
    the next ones wait here, and the caller does not read the partition meanwhile (:attr:`stuck`).
    """

    def __init__(self, topic: str, number: int, limit: int) -> None:
        self.topic = topic
        self.number = number
        self.alive = True
        self.paused = False
        self.began_anew = False  # the log has other messages than those that were read
        self._marks = Watermark(limit)
        self._top = -1  # the highest offset that was read
        self._sought: int | None = None  # the lowest where reading began again
        self._new: deque[tuple[int, T]] = deque()
        self._again: deque[tuple[int, T]] = deque()
        self._tries: dict[int, int] = {}
        self._held: set[int] = set()
        self._due: float | None = None
        self._awaited: tuple[int, float] | None = None
        self._told: int | None = None

    @property
    def stuck(self) -> bool:
        """Whether reading on is of no use: there is no room, and nothing is awaited."""
        return bool(self._new) and self._marks.full and self._awaited is None

    @property
    def unsettled(self) -> int:
        """Messages beyond what is committed: read, given out, or done after one that is not."""
        return len(self._new) + len(self._marks) + (self.uncommitted() is not None)

    def read(self, offset: int, message: T) -> None:
        """Take a message that was read; one that is known already is left out.

        Whatever is beyond the highest offset so far is new: the log is read in its order, also
        after it was gone back in. An offset from before all that is known means that the topic was
        made anew: :attr:`began_anew`.
        """
        if offset > self._top:
            self._top = offset
            self._new.append((offset, message))
        elif self._sought is None or offset < self._sought:
            self.began_anew = True
        elif offset in self._held:
            self._again.append((offset, message))

    def next(self) -> tuple[int, T] | None:
        """The next message to give out; it is open from now on. None: none, or no room."""
        while self._again:
            offset, message = self._again.popleft()
            if offset in self._held and self._marks.open(offset):
                self._held.discard(offset)
                if self._awaited is not None and self._awaited[0] == offset:
                    self._awaited = None
                return offset, message
        if not self._new or self._marks.full:
            return None
        offset, message = self._new.popleft()
        self._marks.open(offset)
        return offset, message

    def finish(self, offset: int) -> None:
        """A message is done; the floor rises as far as it can."""
        if self._marks.finish(offset):
            self._tries.pop(offset, None)
            self._marks.advance()

    def give_back(self, offset: int, now: float) -> None:
        """A message is to come again after a while; ``now`` in seconds of a monotonic clock."""
        if not self._marks.hold(offset):
            return
        self._held.add(offset)
        tries = self._tries[offset] = self._tries.get(offset, 0) + 1
        if self._due is None:
            self._due = now + doubling(FIRST_DELAY_S, LAST_DELAY_S, tries)

    def due(self, now: float) -> int | None:
        """The offset from where it is time to read again; None: there is none yet."""
        if self._due is None:
            missed = self._held and self._awaited is None  # not where another one was read again
            return self._marks.first_held if missed else None
        if now < self._due:
            return None
        self._due = None
        return self._marks.first_held

    def sought(self, offset: int, now: float) -> None:
        """Reading begins again at this offset."""
        self._awaited = (offset, now)
        self._sought = offset if self._sought is None else min(offset, self._sought)

    def overdue(self, now: float, most_s: float) -> bool:
        """Whether a message that was given back has not come for so long that it will not."""
        return self._awaited is not None and now - self._awaited[1] > most_s

    def patient(self, now: float) -> None:
        """Nothing is read at present: what is awaited is awaited from now on."""
        if self._awaited is not None:
            self._awaited = (self._awaited[0], now)

    def uncommitted(self) -> int | None:
        """The offset to commit (of the first message that is not done); None: nothing new."""
        floor = self._marks.floor
        return None if floor is None or floor + 1 == self._told else floor + 1

    def committed(self, offset: int | None) -> None:
        """What was sent to be committed; None: it has failed, so it is to be sent again."""
        self._told = offset


@dataclass(slots=True, eq=False)
class Token:
    """A message that was given out."""

    partition: Partition[Any]
    offset: int
    settled: bool = False
