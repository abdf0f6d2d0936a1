"""The way of one streaming query through a table, whichever way its rows are read.

Lives in the Python process that Spark keeps beside the driver for a streaming source.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from connections.spark.automatic import AutomaticAcks
from connections.spark.labels import LabelLost
from connections.spark.options import ReadOptions
from connections.spark.pages import Journal, Offset
from connections.spark.patience import Patience
from connections.spark.places import EARLIEST, LATEST, SINCE, Named
from connections.spark.store import AWAY

#: What Spark keeps in the checkpoint: an :data:`Offset`; with automatic acks also the key SINCE,
#: with the places where the shards that moved stood before.
Kept: TypeAlias = dict[str, Any]
#: ``take(start, until)`` reads on, not beyond ``until``, and returns the offset it has reached.
Take: TypeAlias = Callable[[Offset, Offset | None], Offset]


class Course:
    """Where the query begins, how it gets on, and what is due when Spark asks for more."""

    def __init__(self, options: ReadOptions, journal: Journal) -> None:
        self._journal = journal
        self._start = options.start or Named(LATEST)
        self._patience = Patience(options.patience)
        self._acks = AutomaticAcks(options, journal) if options.acknowledges else None
        self._unwritten: Kept | None = None
        self._until: Offset | None = None

    def begin(self) -> Kept:
        """Where a query without checkpoint starts.

        The first batch is kept empty: its end, which Spark puts into the checkpoint, is the start.
        So a query that dies in its first batch does not start at a later "latest" when it comes
        back. Raises LabelTaken if somebody else has a label of the option ``ackLabels``.
        """
        if self._acks is not None:
            self._acks.claim()
        offset = self._journal.resolve(self._start)
        if self._start != Named(EARLIEST):
            self._unwritten = offset
        return offset

    def end_now(self) -> None:
        """Read nothing that comes later than now (Trigger.AvailableNow)."""
        self._until = self._journal.latest()

    def advance(self, start: Kept, take: Take) -> Kept:
        """Where the next batch ends, which begins at ``start``; that itself if nothing is new.

        Spark asks once the batch that ended at ``start`` is in the checkpoint, so this is the
        moment for its acks. Raises what ``take`` raises; a store that is away is waited for.
        """
        fresh, self._unwritten = self._unwritten == start, None
        # A query that catches up and ends would take an empty batch for the end.
        if fresh and self._until is None:
            return start
        try:
            if self._acks is not None:
                self._acks.settle(start.get(SINCE, {}), start)
            reached = take(places(start), self._until)
        except (*AWAY, LabelLost) as problem:
            # The same here.
            if self._until is None and self._patience.is_away(problem):
                return start
            raise
        self._patience.is_back()
        moved = {
            shard: place for shard, place in start.items() if reached.get(shard, place) != place
        }
        if not moved:
            return start
        return {**reached, SINCE: moved} if self._acks is not None else {**reached}

    def stop(self) -> None:
        """Free what the query holds. Spark often ends the process instead; leases run out."""
        if self._acks is not None:
            self._acks.close()


def places(kept: Kept) -> Offset:
    """The places of the shards in an offset."""
    return {shard: place for shard, place in kept.items() if shard != SINCE}
