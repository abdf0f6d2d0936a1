"""Reads the journal of all shards that a process indexes, with one command that waits for them."""

from __future__ import annotations

import asyncio
from typing import NoReturn

import structlog

from acks.bookmark import read_position
from app.search.reads import last_entry
from app.search.shards import Shard
from app.store.redis_client import Redis, RedisAddress, StoreError, StoreUnavailable
from app.store.streams import entries_of

log = structlog.get_logger(__name__)

BLOCK_MS, FULL_MS = 1_000, 50
"""Longest wait for entries, ms; the second while a shard has no room, to look soon again."""
PAGE = 200
"""Entries of a shard in one read: they are handled in one go."""
GATHER_S, CALM_S = 0.001, 0.02
"""Shortest time between two reads, s: under load many entries share one, else none waits.

The longer one holds while nobody waits: fewer reads leave more of the store to others.
"""
WAITED_S = 1.0
"""How long it counts that somebody has waited for an entry, s."""
AGAIN_S = 0.05
"""Pause while the store is away, s."""


class Reader:
    """Hands every entry to its shard, over a connection of its own.

    A shard that has as much as it can take is left out until it has room.
    """

    def __init__(self, redis: Redis, address: RedisAddress, *, name: str) -> None:
        self._commands = redis
        self._redis = Redis(address, name=name, reply_timeout=BLOCK_MS / 1000 + 5.0)
        self._shards: dict[str, Shard] = {}  # by the key of the journal
        self._wake = asyncio.Event()
        self._connection = 0  # the one that `_client` belongs to
        self._client: int | None = None

    async def start(self, deadline: float) -> None:
        """Connect; raises StoreUnavailable after ``deadline`` seconds."""
        await self._redis.start(deadline)

    async def close(self) -> None:
        """Disconnect."""
        await self._redis.close()

    def add(self, shard: Shard) -> None:
        """Read the journal of a shard, from where it is."""
        self._shards[shard.key] = shard
        self.look()

    def remove(self, shard: Shard) -> None:
        """Read it no more; idempotent."""
        if self._shards.get(shard.key) is shard:
            del self._shards[shard.key]

    def look(self) -> None:
        """Look again at once which shards are to be read."""
        self._wake.set()
        if self._client is not None and self._redis.connections == self._connection:
            self._commands.send(("CLIENT", "UNBLOCK", self._client), lambda _: None)

    async def run(self) -> NoReturn:
        """Read for ever."""
        loop = asyncio.get_running_loop()
        last = waited = 0.0
        while True:
            self._wake.clear()
            shards = [shard for shard in self._shards.values() if not shard.pending.full]
            if not shards:
                await self._rest()
                continue
            try:
                if self._redis.connections != self._connection:
                    await self._connected()
                await self._read(shards, BLOCK_MS if len(shards) == len(self._shards) else FULL_MS)
            except StoreUnavailable:
                await asyncio.sleep(AGAIN_S)
            except StoreError as problem:
                log.error("search.journal_unreadable", error=str(problem))
                await asyncio.sleep(1.0)
            now = loop.time()
            if any(shard.pending.waiting for shard in shards):
                waited = now
            pause = GATHER_S if now - waited < WAITED_S else CALM_S
            if now - last < pause:
                await asyncio.sleep(pause)
            last = loop.time()

    async def _rest(self) -> None:
        """Wait until there is something to read, or room for it."""
        try:
            async with asyncio.timeout(FULL_MS / 1000 if self._shards else None):
                await self._wake.wait()
        except TimeoutError:
            return  # there may be room by now

    async def _connected(self) -> None:
        """Make sure, on a new connection, that the store has not lost what we have read."""
        connection = self._redis.connections
        try:
            found = await self._redis.call("CLIENT", "ID")
            self._client = found if isinstance(found, int) else None
        except StoreError:
            self._client = None  # a restricted user: then a new shard waits for the next read
        for shard in list(self._shards.values()):
            position = shard.pending.position
            if await shard.complete_after(position):
                continue
            end = await last_entry(self._redis, shard.key)
            shard.went_back(min(position, end, key=read_position))
        self._connection = connection

    async def _read(self, shards: list[Shard], block_ms: int) -> None:
        starts = {shard.key.encode(): (shard, shard.pending.position) for shard in shards}
        reply = await self._redis.call(
            "XREAD", "COUNT", PAGE, "BLOCK", block_ms, "STREAMS",
            *starts, *(position for _, position in starts.values()),
        )  # fmt: skip
        if not isinstance(reply, list):
            return
        for stream in reply:
            assert isinstance(stream, list)
            key, entries = stream
            assert isinstance(key, bytes)
            shard, start = starts[key]
            page = entries_of(entries)
            if self._shards.get(shard.key) is not shard or shard.pending.position != start:
                continue  # given back meanwhile, or it goes on somewhere else
            if len(page) == PAGE and not await shard.complete_after(start):
                log.warning("search.left_behind", shard=shard.number, after=start.decode())
                shard.distrust()
            shard.take(page)
