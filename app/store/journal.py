"""The journal's tail: reads every entry of every shard, in order, and hands it on.

It runs only while somebody listens. It keeps its positions over a lost connection, so nothing is
missed; a new listener is told of everything that is written after :meth:`acquire` has returned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from acks.bookmark import Positions, read_position
from acks.journal import journal_key
from app.store.redis_client import Redis, RedisAddress, Reply, StoreError, StoreUnavailable

log = structlog.get_logger(__name__)

BLOCK_MS = 2_000
CONNECT_S = 5.0
PAGE = 200
"""Entries a shard in one read: they are handled in one go and must not hold the loop for long."""

PAUSE_BYTES = 64 * 1024
"""Bytes that are handed on before the event loop gets a turn."""

GATHER_S = 0.001
"""Shortest time between two reads, s: under load many entries share one, else none waits."""

OnEntry = Callable[[int, bytes, list[Reply]], None]


class JournalTail:
    """Follows all shards over a connection of its own.

    ``on_entry(shard, entry id, [field, value, ...])`` is called for every entry; it must not raise
    for bad entries more than it must: an exception is logged and the entry is skipped.
    """

    def __init__(
        self,
        redis: Redis,
        address: RedisAddress,
        *,
        prefix: str,
        shards: int,
        node: str,
        on_entry: OnEntry,
    ) -> None:
        self._commands = redis
        self._address = address
        self._name = f"ackgate-tail-{node}"
        self._redis: Redis | None = None  # there while somebody listens
        self._keys = [journal_key(prefix, shard) for shard in range(shards)]
        self._shard_of = {key.encode(): shard for shard, key in enumerate(self._keys)}
        self._positions: list[bytes] = []
        self._on_entry = on_entry
        self._listeners = 0
        self._task: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self.entries = 0
        self.skipped = 0

    @property
    def connected(self) -> bool:
        """Whether entries are read, if anybody wants them."""
        return self._redis is None or self._redis.connected

    @property
    def positions(self) -> Positions:
        """The last entry of each shard that has been handed on, while somebody listens."""
        return tuple(map(read_position, self._positions))

    async def close(self) -> None:
        """Stop reading and disconnect."""
        self._listeners = 0
        async with self._starting:
            await self._stop()

    async def acquire(self) -> None:
        """Count a listener in; when this returns, every later entry will be handed on.

        Raises StoreUnavailable if the positions cannot be read.
        """
        async with self._starting:
            if self._task is None:
                await self._start()
            self._listeners += 1

    async def release(self) -> None:
        """Count a listener out; the last one ends the reading."""
        self._listeners = max(0, self._listeners - 1)
        async with self._starting:
            if not self._listeners:
                await self._stop()

    async def _start(self) -> None:
        self._positions = await self._ends()
        redis = Redis(self._address, name=self._name, reply_timeout=BLOCK_MS / 1000 + 5.0)
        await redis.start(CONNECT_S)
        self._redis = redis
        self._task = asyncio.create_task(self._follow(redis), name="journal-tail")

    async def _stop(self) -> None:
        task, self._task = self._task, None
        redis, self._redis = self._redis, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if redis is not None:
            # A read that is blocked in the store ends with its connection.
            await redis.close()

    async def _ends(self) -> list[bytes]:
        # Not over the reading connection: a blocked read of an earlier run would hold it up.
        pages = await asyncio.gather(
            *(self._commands.call("XREVRANGE", key, "+", "-", "COUNT", 1) for key in self._keys)
        )
        return [_last_id(page) for page in pages]

    async def _follow(self, redis: Redis) -> None:
        head: tuple[str | bytes | int, ...] = (
            "XREAD",
            "COUNT",
            PAGE,
            "BLOCK",
            BLOCK_MS,
            "STREAMS",
            *self._keys,
        )
        loop = asyncio.get_running_loop()
        last = 0.0
        while True:
            try:
                reply = await redis.call(*head, *self._positions)
            except StoreUnavailable:
                await self._reconnected(redis)
                continue
            except StoreError as problem:
                log.error("journal.unreadable", error=str(problem))
                await asyncio.sleep(1.0)
                continue
            if isinstance(reply, list):
                await self._page(reply)
                now = loop.time()
                if now - last < GATHER_S:
                    await asyncio.sleep(GATHER_S)
                last = now

    async def _reconnected(self, redis: Redis) -> None:
        """Wait for the store, and make sure our positions are not ahead of what it has."""
        while True:
            await asyncio.sleep(0.05)
            if not redis.connected:
                continue
            try:
                ends = await self._ends()
            except (StoreUnavailable, StoreError):
                continue
            for shard, end in enumerate(ends):
                if read_position(self._positions[shard]) > read_position(end):
                    log.warning("journal.went_back", shard=shard, end=end.decode())
                    self._positions[shard] = end
            return

    async def _page(self, streams: list[Reply]) -> None:
        """Hand on what one read brought, with pauses in which subscribers' outboxes can empty.

        Without them a page of large entries would look like a subscriber that is too slow.
        """
        handed = 0
        for stream in streams:
            assert isinstance(stream, list)
            key, entries = stream
            assert isinstance(key, bytes)
            assert isinstance(entries, list)
            for entry in entries:
                assert isinstance(entry, list)
                handed += self._entry(self._shard_of[key], entry)
                if handed >= PAUSE_BYTES:
                    handed = 0
                    await asyncio.sleep(0)

    def _entry(self, shard: int, entry: list[Reply]) -> int:
        """Hand on one entry; returns its size in bytes, about."""
        entry_id, fields = entry
        assert isinstance(entry_id, bytes)
        assert isinstance(fields, list)
        self.entries += 1
        try:
            self._on_entry(shard, entry_id, fields)
        except Exception:
            self.skipped += 1
            log.exception("journal.entry_skipped", shard=shard, entry=entry_id.decode())
        self._positions[shard] = entry_id
        return sum(len(field) for field in fields if isinstance(field, bytes))


def _last_id(page: Reply) -> bytes:
    if isinstance(page, list) and page:
        entry = page[0]
        assert isinstance(entry, list)
        assert isinstance(entry[0], bytes)
        return entry[0]
    return b"0-0"
