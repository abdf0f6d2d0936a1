"""Reading streams: what is there, what comes after an offset, what lies between two.

An offset is a JSON object: shard number as text -> id of the last entry read, "0-0" for none.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, TypeAlias

from acks.bookmark import entry_id, read_bookmark
from acks.errors import GatewayError
from connections.spark.options import ReadOptions
from connections.spark.patience import Patience
from connections.spark.places import EARLIEST, LATEST, Bookmark, Map, Moment, Named, Opaque, Place
from connections.spark.store import call, calls, shard_count, spoken_url
from connections.spark.tables import Entry, Numbered, Table

Offset: TypeAlias = dict[str, str]
log = logging.getLogger(__name__)

START: Final = "0-0"
_PAGE: Final = 1000  # entries a call: bounds what one answer holds in memory
_WALK: Final = 2000  # entries that the store walks over in one go: some 8 ms
# Finds the id of the last of the next ARGV[2] entries without sending them over the wire.
_REACH: Final = """
local page = redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], ARGV[3], 'COUNT', ARGV[2])
return {#page, #page > 0 and page[#page][1] or ARGV[1]}
"""


class DataLossError(RuntimeError):
    """Entries after the query's offset may have been trimmed from the journal."""


class OffsetError(RuntimeError):
    """An offset does not belong to this data, or makes no sense as start or end."""


def position(stream_id: str) -> tuple[int, int]:
    """A stream id as something that can be compared: ``(ms, sequence)``."""
    ms, _, sequence = stream_id.partition("-")
    return int(ms), int(sequence)


class Journal:
    """All streams of a table, read with as few round trips as possible.

    Holds no connection and may be pickled. The shard count is asked for once; it never changes.
    """

    def __init__(self, options: ReadOptions, table: Table) -> None:
        self._options = options
        self._table = table
        self._shards: int | None = None
        self._warned: set[tuple[str, str]] = set()

    @property
    def shards(self) -> int:
        """Number of shards. Raises StoreError if there is no data or its format is unknown."""
        if self._shards is None:
            count = shard_count(self._options.url, self._options.prefix)
            self._shards = self._table.shards or count
        return self._shards

    def key(self, shard: str) -> str:
        """Key of the stream of a shard."""
        return self._table.key(self._options.prefix, int(shard))

    # --- places

    def earliest(self) -> Offset:
        """The offset before everything that is still there."""
        return {str(shard): START for shard in range(self.shards)}

    def latest(self) -> Offset:
        """The offset after everything that is there now; one round trip."""
        return self._last(dict.fromkeys(self.earliest(), "+"))

    def oldest(self, shards: Iterable[str]) -> Offset:
        """The first entries of these shards; those that are empty are left out."""
        asked = {shard: ("XRANGE", self.key(shard), "-", "+", "COUNT", 1) for shard in shards}
        pages = calls(self._options.url, asked.values())
        found = zip(asked, pages, strict=True)
        return {shard: page[0][0].decode() for shard, page in found if page}

    def lengths(self) -> Mapping[str, int]:
        """How many entries each shard has."""
        shards = list(self.earliest())
        asked = [("XLEN", self.key(shard)) for shard in shards]
        return dict(zip(shards, calls(self._options.url, asked), strict=True))

    def resolve(self, place: Place, *, end: bool = False) -> Offset:
        """The offset that a place of the user stands for, as the ``end`` of a query or its start.

        Raises :class:`OffsetError` if it is no place in this data.
        """
        match place:
            case Named():
                return self.latest() if place.name == LATEST else self.earliest()
            case Moment():
                if not end:
                    self._check_past(place.ms)
                return self._before(place.ms)
            case Bookmark():
                self._check_shards({str(place.shard)}, "the bookmark")
                moment = position(place.stream_id)[0] + (1 if end else 0)
                return self._before(moment) | {str(place.shard): place.stream_id}
            case Map():
                return self._mapped(dict(place.places))
            case Opaque():
                try:
                    positions = read_bookmark(place.text, self.shards)
                except GatewayError as problem:
                    raise OffsetError(f"the bookmark cannot be read: {problem.message}") from None
                return {str(shard): entry_id(each) for shard, each in enumerate(positions)}

    def _before(self, ms: int) -> Offset:
        """After all that was appended before ``ms`` since the epoch."""
        return self._last(dict.fromkeys(self.earliest(), f"({ms}-0")) if ms else self.earliest()

    def _last(self, ends: Offset) -> Offset:
        """The last entries up to these ids; one round trip."""
        asked = [
            ("XREVRANGE", self.key(shard), end, "-", "COUNT", 1) for shard, end in ends.items()
        ]
        pages = calls(self._options.url, asked)
        lasts = (page[0][0].decode() if page else START for page in pages)
        return dict(zip(ends, lasts, strict=True))

    def _check_past(self, ms: int) -> None:
        """A start in the future would be taken for "from now on"."""
        seconds, microseconds = call(self._options.url, "TIME")
        now = int(seconds) * 1000 + int(microseconds) // 1000
        if ms > now:
            raise OffsetError(f"the start of the query lies {(ms - now) / 1000:g} s in the future")

    def _mapped(self, places: Offset) -> Offset:
        missing = self.earliest().keys() - places.keys()
        if missing:
            raise OffsetError(f"the map of offsets lacks shard {', '.join(sorted(missing))}")
        self._check_shards(places.keys(), "the map of offsets")
        latest = self.latest() if LATEST in places.values() else {}
        named = {EARLIEST: START}
        return {
            shard: latest[shard] if place == LATEST else named.get(place, place)
            for shard, place in places.items()
        }

    def _check_shards(self, named: Any, what: str) -> None:
        strange = set(named) - self.earliest().keys()
        if strange:
            raise OffsetError(
                f"{what} names shard {', '.join(sorted(strange))}; the data has {self.shards} "
                f"shards, from 0 to {self.shards - 1}"
            )

    # --- entries

    def after(
        self, start: Offset, limit: int, until: Offset | None = None
    ) -> tuple[list[Numbered], Offset]:
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

    def reach(self, start: Offset, limit: int, ends: Offset) -> tuple[Offset, Mapping[str, int]]:
        """The offset that :meth:`after` would reach, not beyond ``ends``; fetches no entries.

        Also how many entries of each shard that takes.
        """
        self._check_offset(start)
        counts: Counter[str] = Counter()
        behind = [shard for shard in start if position(ends[shard]) > position(start[shard])]

        def take(reached: Offset, share: int) -> dict[str, tuple[int, str]]:
            found = self._walk(reached, share, ends)
            counts.update({shard: count for shard, (count, _) in found.items()})
            return {shard: (count, last) for shard, (count, last) in found.items() if count}

        return self._advance(start, behind, limit, take), counts

    def _walk(self, starts: Offset, share: int, ends: Offset) -> dict[str, tuple[int, str]]:
        """How many entries each shard has up to ``share``, and the last of them.

        The store does nothing else while it walks, so it is asked for a little at a time.
        """
        found = {shard: (0, start) for shard, start in starts.items()}
        walking = list(starts)
        while walking:
            step = max(1, _WALK // len(walking))
            asked = {shard: min(step, share - found[shard][0]) for shard in walking}
            answers = calls(
                self._options.url,
                [
                    ("EVAL", _REACH, 1, self.key(shard), found[shard][1], count, ends[shard])
                    for shard, count in asked.items()
                ],
            )
            for shard, (count, last) in zip(walking, answers, strict=True):
                found[shard] = found[shard][0] + count, last.decode()
                if count < asked[shard]:
                    asked[shard] = 0
            walking = [shard for shard in walking if asked[shard] and found[shard][0] < share]
        return found

    def between(self, shard: str, start: str, end: str) -> Iterator[list[Entry]]:
        """Pages with exactly the entries of ``shard`` after ``start``, up to and including ``end``.

        Nothing if ``end`` is not after ``start``. Waits for a store that is away.
        Raises like :meth:`after`.
        """
        patience = Patience(self._options.patience)
        previous, more = start, True
        while more and position(previous) < position(end):
            asked = [
                ("XRANGE", self.key(shard), f"({previous}", end, "COUNT", _PAGE),
                *self._at_or_before({shard: previous}),
            ]
            page, *kept = patience.ask(partial(calls, self._options.url, asked))
            self._check_kept({shard: previous}, kept)
            if page:
                yield page
                previous = page[-1][0].decode()
            more = len(page) == _PAGE

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
        self._check_offset(start)
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
        left = {shard: start[shard] for shard in moved if start[shard] != START}
        if left:
            # Asked after reading: what was there then was there before.
            self._check_kept(left, calls(self._options.url, self._at_or_before(left)))
        return reached

    def _check_offset(self, start: Offset) -> None:
        if start.keys() != self.earliest().keys():
            raise OffsetError(
                f"the checkpoint knows {len(start)} shards, the data under the prefix "
                f"{self._options.prefix!r} has {self.shards}: it belongs to other data"
            )

    def _next_pages(
        self, starts: Offset, share: int, until: Offset | None
    ) -> Iterator[tuple[str, list[Entry]]]:
        """One round trip: the next entries of several shards; shards without any are left out."""
        keys = {self.key(shard).encode(): shard for shard in starts}
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

    # --- loss

    def _at_or_before(self, starts: Offset) -> list[tuple[str | int, ...]]:
        """Commands that ask for an entry at or before each offset."""
        return [
            ("XREVRANGE", self.key(shard), start, "-", "COUNT", 1)
            for shard, start in starts.items()
            if start != START
        ]

    def _check_kept(self, starts: Offset, pages: list[list[Entry]]) -> None:
        """Raise DataLossError unless everything after these offsets was there, by the answers.

        Trimming takes the oldest entries first: while an entry at or before an offset is there, all
        after it are. If none is, nobody can tell what went with it.
        """
        asked = [(shard, start) for shard, start in starts.items() if start != START]
        for (shard, start), page in zip(asked, pages, strict=True):
            if page or (shard, start) in self._warned:
                continue
            text = (
                f"shard {shard} of {self._table.name} under the prefix {self._options.prefix!r} at "
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
