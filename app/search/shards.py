"""One shard of the index: what its journal says is written, in order, and then acknowledged."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from acks.bookmark import read_position
from acks.journal import journal_key
from acks.search_acks import Asked, Indexing, indexing_of
from app.search.acks import SearchAcks
from app.search.batches import Batch, Entry, Pending, after, before, read_entry
from app.search.reads import last_entry, stream_facts
from app.search.source import Source
from app.store.instant import now_ms
from app.store.redis_client import Redis, Reply, StoreError, StoreUnavailable
from app.store.sql.database import Database, IndexBusy, IndexUnavailable, Row, Write
from app.store.sql.index_writer import IndexWriter, Result, Status
from app.store.streams import entries_of

log = structlog.get_logger(__name__)

FIRST_PAUSE, LAST_PAUSE = 0.05, 2.0
"""Pause before a batch that could not be written is tried again, doubling, s."""
QUICK = 3
"""Attempts after which those who wait for a batch are told that it failed."""
BOOKMARK_S = 5.0
"""How long entries that say nothing to the index may stay behind the bookmark, s."""
LOOK_BACK_MS, LOOK_BACK = 60_000, 2_000
"""How far back a new owner looks for requests that still wait: ms, and entries."""
_INDEXING = {
    Status.WRITTEN: Indexing.WRITTEN,
    Status.UNCHANGED: Indexing.UNCHANGED,
    Status.FAILED: Indexing.FAILED,
}
PROBLEMS = (StoreUnavailable, StoreError, IndexUnavailable, IndexBusy)
"""What goes by: the store or the index cannot be used for now."""


@dataclass
class Means:
    """What all shards of a process share. ``interval`` is in s.

    ``rebuilding`` lets one batch of a rebuild at a time into the index. ``counts`` are for the
    metrics.
    """

    redis: Redis
    database: Database
    writer: IndexWriter
    acks: SearchAcks
    prefix: str
    shards: int
    interval: float
    rebuilding: asyncio.Lock = field(default_factory=asyncio.Lock)
    rebuilds: int = 0  # under way
    counts: Counter[str] = field(default_factory=Counter)


class Shard:
    """A shard that is ours. ``bookmark`` is the last entry that is done with."""

    def __init__(self, number: int, fence: int, bookmark: bytes, means: Means) -> None:
        self.number = number
        self.fence = fence
        self.key = journal_key(means.prefix, number)
        self.bookmark = bookmark
        self.mark = 0  # of the rebuild that is going on
        self.pending = Pending(bookmark)
        self.means = means
        self.source = Source(means.redis, means.writer, means.prefix, means.shards, number)
        self.turn = asyncio.Lock()  # held from the reading of things to their commit
        self.rebuild = asyncio.Event()  # it has to be built anew from the things
        self.wanted = 0  # when the last rebuild was wanted that is known here, ms
        self._gap = False  # that is so, and not stored yet
        self._stopping = False
        self._since = 0.0
        self._some = asyncio.Event()
        self._due = asyncio.Event()
        self._busy: Batch | None = None

    # --- what comes

    def take(self, page: Sequence[tuple[bytes, list[Reply]]]) -> None:
        """Take entries that were read of the journal, in their order."""
        pending, idle = self.pending, not len(self.pending)
        for position, fields in page:
            try:
                entry = read_entry(position, fields)
            except (KeyError, ValueError) as problem:
                self.means.counts["skipped"] += 1
                log.error("search.entry_unreadable", shard=self.number, error=repr(problem))
                continue
            if entry is not None:
                pending.add(entry)
        pending.position = page[-1][0]
        self.means.counts["entries"] += len(page)
        if idle:
            self._since = asyncio.get_running_loop().time()
        if len(pending):
            self._some.set()
        if pending.due:
            self._due.set()

    def went_back(self, end: bytes) -> None:
        """The store has lost its newest entries: go on from its ``end``, and look at everything."""
        log.warning("search.journal_went_back", shard=self.number, end=end.decode())
        self.pending = Pending(end)
        self.distrust()

    def distrust(self) -> None:
        """Entries may be missing: the shard has to be rebuilt."""
        self._gap = True
        self.rebuild.set()

    def trust(self) -> None:
        """A rebuild has begun, and that is stored: what was missing will be there."""
        self._gap = False

    def lag_s(self) -> float:
        """How old the oldest entry is that is not in the index yet, s; 0 if there is none."""
        oldest = (self._busy and self._busy.oldest) or self.pending.oldest
        if oldest is None:
            return 0.0
        return max(0.0, (now_ms() - read_position(oldest)[0]) / 1000)

    def stop(self) -> None:
        """Let :meth:`run` end with the batch that it is at."""
        self._stopping = True
        self._some.set()
        self._due.set()

    # --- what is done

    async def run(self) -> None:
        """Index what comes until :meth:`stop`. Raises NotOwner when the shard is another's."""
        while True:
            await self._wait()
            if self._stopping:
                return
            batch = Batch(self.pending.position)
            self.pending.fill(batch)
            if len(self.pending):
                self._some.set()
            await self._carry_out(batch)

    async def _wait(self) -> None:
        """Until a batch is due: at once if somebody waits, else after the interval."""
        while True:
            try:
                async with asyncio.timeout(BOOKMARK_S):
                    await self._some.wait()
                break
            except TimeoutError:
                if self.pending.position != self.bookmark:
                    return
        if self._stopping:
            return
        left = self._since + self.means.interval - asyncio.get_running_loop().time()
        if left > 0 and not self.pending.due:
            try:
                async with asyncio.timeout(left):
                    await self._due.wait()
            except TimeoutError:
                pass  # the ordinary case: nobody waits
        self._some.clear()
        self._due.clear()

    async def _carry_out(self, batch: Batch) -> None:
        """Write a batch, again and again until it is written, and tell those who wait."""
        attempt, pause = 1, FIRST_PAUSE
        self._busy = batch  # for good, unless it is written: the bookmark must not pass it
        while (results := await self._attempt(batch, attempt)) is None:
            if self._stopping:
                return
            await asyncio.sleep(pause)
            attempt, pause = attempt + 1, min(pause * 2, LAST_PAUSE)
            self.pending.fill(batch)
        self._busy = None
        self.bookmark = batch.position
        self.means.acks.issue(
            (asked, _outcome(asked, results.get(asked.thing_id))) for asked in batch.asked
        )

    async def _attempt(self, batch: Batch, attempt: int) -> dict[str, Result] | None:
        """Write a batch; None if that is not possible for now."""
        try:
            return await self.write(batch)
        except PROBLEMS as problem:
            if attempt == QUICK:
                log.warning("search.not_indexed", shard=self.number, error=str(problem))
            if attempt >= QUICK:
                self._failed(batch)
        return None

    def _failed(self, batch: Batch) -> None:
        """Tell those who wait that it could not be written; it is tried again for the others."""
        self.means.acks.issue((asked, Indexing.FAILED) for asked in batch.asked)
        batch.asked.clear()

    async def write(self, batch: Batch, *, rebuilding: bool = False) -> dict[str, Result]:
        """Bring what a batch names to where it is in the store now; what became of the things.

        The bookmark stays where it is if ``rebuilding``. Raises :data:`PROBLEMS`, NotOwner.
        """
        async with self.turn:
            if self._gap:
                await self._store_gap()
            found = await self.source.read(batch)
            results = await self.means.writer.apply(
                self.number,
                self.fence,
                None if rebuilding else batch.position.decode(),
                found.changes,
                found.policies,
                mark=self.mark,
            )
            self.source.written(found.policies)
        counts = self.means.counts
        counts["batches"] += 1
        for thing_id, result in results.items():
            counts[result.status.value] += 1
            if result.status is Status.FAILED:
                log.error("search.thing_not_indexed", thing_id=thing_id, reason=result.reason)
        return results

    async def _store_gap(self) -> None:
        """Store that a rebuild is wanted, before the bookmark leaves the place where that shows."""
        now = self.means.database.dialect.now_ms
        await self.store(
            "rebuild_wanted = "
            f"CASE WHEN rebuild_wanted > rebuild_done THEN rebuild_wanted ELSE {now} END"
        )
        self._gap = False

    async def store(self, changes: str, *values: object, returning: str = "shard") -> Row:
        """Change the shard's row, if it is still ours: ``changes`` is SQL, ``values`` is for it.

        Raises NotOwner, IndexUnavailable, IndexBusy.
        """
        [[row]] = await self.means.database.write(
            [
                Write(
                    f"UPDATE shard SET {changes} WHERE shard = ? AND fence = ? "
                    f"RETURNING {returning}",
                    (*values, self.number, self.fence),
                    guard=True,
                )
            ]
        )
        return row

    # --- a new owner

    async def begin(self) -> None:
        """Find out where to go on, and whether what is indexed can be trusted (:attr:`rebuild`).

        Raises :data:`PROBLEMS`.
        """
        end = await last_entry(self.means.redis, self.key)
        start = self.bookmark
        if not self.bookmark:
            self.distrust()
            start = end
        elif not await self.complete_after(self.bookmark):
            log.warning("search.journal_incomplete", shard=self.number, end=end.decode())
            self.distrust()
            start = end
        # Who still waits is told after a commit of ours: the owner before us may have died between
        # its commit and its acks, and without a bookmark to trust nothing was committed at all.
        waiting = await self._waiting(end)
        if waiting:
            start = min(start, before(waiting[0].position), key=read_position)
        self.bookmark = start
        self.pending = Pending(start)

    async def complete_after(self, position: bytes) -> bool:
        """Whether all entries after ``position`` are surely there; to be asked after reading them.

        ``position`` is that of an entry, or just before one. The oldest are trimmed first, so none
        later is missing if that one is there. If it is not, entries were trimmed, or the store has
        lost its newest ones and has written others since.
        """
        if await self.means.redis.call("XRANGE", self.key, position, after(position), "COUNT", 1):
            return True
        facts = await stream_facts(self.means.redis, self.key)
        if facts.get(b"last-generated-id", b"0-0") == position:
            return True  # it was trimmed itself, and nothing has been written since
        return position == b"0-0" and facts.get(b"entries-added") == facts[b"length"]

    async def _waiting(self, until: bytes) -> list[Entry]:
        """Entries up to ``until`` that somebody may still wait for, in their order."""
        now = now_ms()
        command = ("XREVRANGE", self.key, until, now - LOOK_BACK_MS, "COUNT", LOOK_BACK)
        waiting = []
        for position, fields in entries_of(await self.means.redis.call(*command)):
            try:
                entry = read_entry(position, fields)
            except (KeyError, ValueError):
                continue  # it is reported when it is read
            if entry is not None and entry.asked is not None and entry.asked.deadline > now:
                waiting.append(entry)
        return waiting[::-1]

    async def close(self) -> None:
        """Store how far it is, if that has not been done. Raises what a write raises."""
        position = self.pending.position
        if self._busy is None and not len(self.pending) and position != self.bookmark:
            await self.store("bookmark = ?", position.decode())


def _outcome(asked: Asked, result: Result | None) -> Indexing:
    if result is None:
        return Indexing.FAILED
    return indexing_of(asked, _INDEXING[result.status], result.before or 0, result.after)
