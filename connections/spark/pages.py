"""Reading the journal: what is there, what comes after an offset, what lies between two.

An offset is a JSON object: shard number as text -> id of the last entry read, "0-0" for none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from acks.journal import journal_key
from connections.spark.options import ReadOptions
from connections.spark.rows import Entry
from connections.spark.store import call, calls, shard_count, spoken_url

Offset: TypeAlias = dict[str, str]
log = logging.getLogger(__name__)

START: Final = "0-0"
_PAGE: Final = 1000  # entries a call: bounds what one answer holds in memory
# Finds the id of the last of the next ARGV[2] entries without sending them over the wire.
_REACH: Final = """
local page = redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], ARGV[3], 'COUNT', ARGV[2])
return {#page, #page > 0 and page[#page][1] or ARGV[1]}
"""


class DataLossError(RuntimeError):
    """Entries after the query's offset may have been trimmed from the journal."""


class OffsetError(RuntimeError):
    """The checkpoint's offset does not belong to this data."""


def position(stream_id: str) -> tuple[int, int]:
    """A stream id as something that can be compared: ``(ms, sequence)``."""
    ms, _, sequence = stream_id.partition("-")
    return int(ms), int(sequence)


class Journal:
    """All shards of the journal, read with as few round trips as possible.

    Holds no connection and may be pickled. The shard count is asked for once; it never changes.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._shards: int | None = None
        self._warned: set[tuple[str, str]] = set()

    @property
    def shards(self) -> int:
        """Number of shards. Raises StoreError if there is no data or its format is unknown."""
        if self._shards is None:
            self._shards = shard_count(self._options.url, self._options.prefix)
        return self._shards

    def earliest(self) -> Offset:
        """The offset before everything that is still there."""
        return {str(shard): START for shard in range(self.shards)}

    def latest(self) -> Offset:
        """The offset after everything that is there now; one round trip."""
        shards = list(self.earliest())
        asked = [("XREVRANGE", self._key(shard), "+", "-", "COUNT", 1) for shard in shards]
        pages = calls(self._options.url, asked)
        lasts = (page[0][0].decode() if page else START for page in pages)
        return dict(zip(shards, lasts, strict=True))

    def after(
        self, start: Offset, limit: int, until: Offset | None = None
    ) -> tuple[list[tuple[int, Entry]], Offset]:
        """At most ``limit`` entries after ``start``, none after ``until``; and the offset reached.

        Grouped by shard, in order inside a shard. One round trip if nothing is there.
        Raises :class:`DataLossError` unless failOnDataLoss is false.
        """
        found: dict[str, list[Entry]] = {shard: [] for shard in start}

        def take(reached: Offset, share: int) -> dict[str, tuple[int, str]]:
            taken: dict[str, tuple[int, str]] = {}
            for shard, page in self._next_pages(reached, share, until):
                found[shard].extend(page)
                taken[shard] = len(page), page[-1][0].decode()
            return taken

        reached = self._advance(start, list(start), limit, take)
        return [(int(shard), entry) for shard, page in found.items() for entry in page], reached

    def reach(self, start: Offset, limit: int, ends: Offset) -> Offset:
        """The offset that :meth:`after` would reach, not beyond ``ends``; fetches no entries."""
        behind = [shard for shard in start if position(ends[shard]) > position(start[shard])]

        def take(reached: Offset, share: int) -> dict[str, tuple[int, str]]:
            asked = [
                ("EVAL", _REACH, 1, self._key(shard), last, share, ends[shard])
                for shard, last in reached.items()
            ]
            answers = calls(self._options.url, asked)
            return {
                shard: (count, last.decode())
                for shard, (count, last) in zip(reached, answers, strict=True)
                if count
            }

        return self._advance(start, behind, limit, take)

    def between(self, shard: str, start: str, end: str) -> Iterator[list[Entry]]:
        """Pages with exactly the entries of ``shard`` after ``start``, up to and including ``end``.

        Nothing if ``end`` is not after ``start``. Raises like :meth:`after`.
        """
        previous = start
        while position(previous) < position(end):
            page: list[Entry] = call(
                self._options.url, "XRANGE", self._key(shard), f"({previous}", end, "COUNT", _PAGE
            )
            self._check_loss({shard: previous})
            if not page:
                return
            yield page
            previous = page[-1][0].decode()

    def _advance(
        self,
        start: Offset,
        shards: list[str],
        limit: int,
        take: Callable[[Offset, int], dict[str, tuple[int, str]]],
    ) -> Offset:
        """Let ``take(offsets, share)`` move shards forward until ``limit`` entries are taken.

        Each shard gets an equal share; what some leave goes to those that have more. The shard
        that stands longest comes first, so that none starves when the limit is below their number.
        """
        if start.keys() != self.earliest().keys():
            raise OffsetError(
                f"the checkpoint knows {len(start)} shards, the data under the prefix "
                f"{self._options.prefix!r} has {self.shards}: it belongs to other data"
            )
        reached, moved, room = dict(start), set[str](), limit
        waiting = sorted(shards, key=lambda shard: position(start[shard]))
        while room > 0 and waiting:
            asked, waiting = waiting[:room], waiting[room:]
            share = room // len(asked)
            taken = take({shard: reached[shard] for shard in asked}, share)
            for shard, (count, last) in taken.items():
                reached[shard] = last
                room -= count
                moved.add(shard)
                if count == share:
                    waiting.append(shard)
        self._check_loss({shard: start[shard] for shard in moved})
        return reached

    def _next_pages(
        self, starts: Offset, share: int, until: Offset | None
    ) -> Iterator[tuple[str, list[Entry]]]:
        """One round trip: the next entries of several shards; shards without any are left out."""
        keys = {self._key(shard).encode(): shard for shard in starts}
        answer: list[tuple[bytes, list[Entry]]] = call(
            self._options.url, "XREAD", "COUNT", share, "STREAMS", *keys, *starts.values()
        )
        for key, found in answer:
            shard, page = keys[key], found
            if until is not None:
                last = position(until[shard])
                page = [entry for entry in found if position(entry[0].decode()) <= last]
            if page:
                yield shard, page

    def _check_loss(self, starts: Offset) -> None:
        """Was everything after these offsets still there? Must be asked after reading.

        Trimming takes the oldest entries first: while an entry at or before an offset is there, all
        after it are. If none is, nobody can tell what went with it.
        """
        asked = [(shard, start) for shard, start in starts.items() if start != START]
        pages = calls(
            self._options.url,
            [("XREVRANGE", self._key(shard), start, "-", "COUNT", 1) for shard, start in asked],
        )
        for (shard, start), page in zip(asked, pages, strict=True):
            if page or (shard, start) in self._warned:
                continue
            text = (
                f"shard {shard} of the journal under the prefix {self._options.prefix!r} at "
                f"{spoken_url(self._options.url)} was trimmed beyond the offset {start}: entries "
                "may be lost"
            )
            if self._options.fail_on_loss:
                raise DataLossError(
                    f"{text}. Set failOnDataLoss to false to go on with what is left, "
                    "or start with a new checkpoint."
                )
            log.warning("%s; going on with what is left (failOnDataLoss is false)", text)
            self._warned.add((shard, start))

    def _key(self, shard: str) -> str:
        return journal_key(self._options.prefix, int(shard))
