"""Replay: the journal from some point in the past on, for one subscriber at its own pace."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

import structlog

from acks.bookmark import START, Position, Positions, entry_id, read_position
from acks.errors import error
from acks.journal import journal_key
from app.store.redis_client import Redis, RedisAddress, Reply, StoreError, StoreUnavailable
from app.store.streams import entries_of

log = structlog.get_logger(__name__)

PAGE_BYTES = 256 * 1024
"""Bytes of a page of one shard, about."""
PAGE_ENTRIES = (16, 500)
"""Entries of the first page, and of a page at most."""
CONNECT_S = 5.0
PATIENCE_S = 30.0
"""How long a replay waits for a store that is away, s."""
AGAIN_S = 0.2
"""Pause before a page is asked for again, s."""


class Entry(NamedTuple):
    """An entry of the journal as the store has it."""

    shard: int
    entry_id: bytes
    fields: list[Reply]


class Gap(NamedTuple):
    """Entries may be missing: those written after ``after`` and before ``before``, ms.

    ``after`` is 0 if that is not known.
    """

    after: int
    before: int


class Replay:
    """Reads the journal for those who begin somewhere in the past, over a connection of its own.

    ``live()`` are the positions up to which entries have been handed to the sessions.
    """

    def __init__(
        self,
        address: RedisAddress,
        *,
        prefix: str,
        shards: int,
        node: str,
        live: Callable[[], Positions],
    ) -> None:
        self.live = live
        self.shards = shards
        self._address = address
        self._name = f"ackgate-replay-{node}"
        self._keys = [journal_key(prefix, shard) for shard in range(shards)]
        self._redis: Redis | None = None  # there once somebody has asked
        self._starting = asyncio.Lock()

    async def close(self) -> None:
        """Disconnect from the store."""
        redis, self._redis = self._redis, None
        if redis is not None:
            await redis.close()

    async def begin(self, after: Positions) -> tuple[Positions, Gap | None]:
        """Where a replay after ``after`` begins, and what is missing before that.

        Positions beyond the journal's end, which has lost its newest entries then, are moved to
        the end. Raises ``gateway:service.unavailable``.
        """
        try:
            redis = await self._connected()
            ends = await asyncio.gather(
                *(redis.call("XREVRANGE", key, "+", "-", "COUNT", 1) for key in self._keys)
            )
        except (StoreUnavailable, StoreError) as problem:
            raise error("gateway:service.unavailable", reason=str(problem)) from problem
        last = tuple(_entries(page)[0][0] if page else START for page in ends)
        ahead = [shard for shard, end in enumerate(last) if after[shard] > end]
        if not ahead:
            return after, None
        log.warning("replay.ahead_of_journal", shards=ahead)
        gap = Gap(min(last[s][0] for s in ahead), max(after[s][0] for s in ahead))
        return tuple(map(min, after, last)), gap

    async def entries(self, after: Positions, until: Positions) -> AsyncIterator[Entry | Gap]:
        """What was written after ``after`` up to ``until``, oldest first, in order per shard.

        A gap comes before the entries that follow it. Raises StoreUnavailable if the store is away
        for too long, StoreError.
        """
        pages = [_Pages(start, end) for start, end in zip(after, until, strict=True)]
        while True:
            hungry = [shard for shard, page in enumerate(pages) if page.hungry]
            if hungry:
                gaps = await asyncio.gather(*(self._read(shard, pages[shard]) for shard in hungry))
                found = [gap for gap in gaps if gap is not None]
                if found:
                    yield Gap(min(gap.after for gap in found), max(gap.before for gap in found))
            ready = [
                (page.waiting[0][0], shard) for shard, page in enumerate(pages) if page.waiting
            ]
            if not ready:
                return
            shard = min(ready)[1]
            position, fields = pages[shard].waiting.popleft()
            yield Entry(shard, entry_id(position).encode(), fields)

    async def _read(self, shard: int, pages: _Pages) -> Gap | None:
        """Read the next page of a shard; whether entries may be missing before it."""
        key, start = self._keys[shard], pages.read
        page, before = await self._patiently(
            ("XRANGE", key, f"({entry_id(start)}", entry_id(pages.until), "COUNT", pages.count),
            # Asked after reading: what is trimmed between the two is not missed.
            ("XREVRANGE", key, entry_id(start), "-", "COUNT", 1),
        )
        pages.take(_entries(page))
        # The oldest entries are trimmed first: while the one before is there, none is missing.
        if before or (start == START and not await self._trimmed(key)):
            return None
        return Gap(start[0], pages.waiting[0][0][0] if pages.waiting else pages.until[0])

    async def _trimmed(self, key: str) -> bool:
        """Whether the stream once had more entries than it has; True if that is not known."""
        try:
            (reply,) = await self._patiently(("XINFO", "STREAM", key))
        except StoreError:
            return False  # there is no such stream: nothing has ever been written to it
        assert isinstance(reply, list)
        facts = dict(zip(reply[::2], reply[1::2], strict=True))
        return facts.get(b"entries-added") != facts[b"length"]

    async def _patiently(self, *commands: tuple[str | int, ...]) -> list[Reply]:
        """Send commands in their order; wait for a store that is away, but not for ever."""
        end = asyncio.get_running_loop().time() + PATIENCE_S
        while True:
            try:
                redis = await self._connected()
                return await asyncio.gather(*(redis.call(*command) for command in commands))
            except StoreUnavailable:
                if asyncio.get_running_loop().time() > end:
                    raise
            await asyncio.sleep(AGAIN_S)

    async def _connected(self) -> Redis:
        async with self._starting:
            if self._redis is None:
                redis = Redis(self._address, name=self._name)
                await redis.start(CONNECT_S)
                self._redis = redis
            return self._redis


class _Pages:
    """What has been read of one shard and has not been handed out."""

    def __init__(self, start: Position, until: Position) -> None:
        self.read = start
        self.until = until
        self.count = PAGE_ENTRIES[0]
        self.waiting: deque[tuple[Position, list[Reply]]] = deque()

    @property
    def hungry(self) -> bool:
        """Whether the next page is needed."""
        return not self.waiting and self.read < self.until

    def take(self, entries: list[tuple[Position, list[Reply]]]) -> None:
        """Take a page, and choose the size of the next one."""
        if len(entries) < self.count:
            self.read = self.until
        else:
            self.read = entries[-1][0]
            size = sum(map(size_of, (fields for _, fields in entries)))
            fitting = PAGE_BYTES * len(entries) // max(size, 1)
            self.count = min(max(fitting, 1), PAGE_ENTRIES[1])
        self.waiting.extend(entries)


def size_of(fields: list[Reply]) -> int:
    """What an entry's fields take, bytes."""
    return sum(len(text) for text in fields if isinstance(text, bytes))


def _entries(page: Reply) -> list[tuple[Position, list[Reply]]]:
    """The entries of a page, with their positions."""
    return [(read_position(name), fields) for name, fields in entries_of(page)]
