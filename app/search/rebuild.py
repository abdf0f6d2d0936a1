"""Building a shard of the index anew from the things themselves.

Meanwhile the shard's journal is indexed as ever: what comes is not held up by more than one batch
of old things. Everything that is written or seen is marked, and what has no mark in the end is not
in the store any more.
"""

from __future__ import annotations

import asyncio
from typing import NoReturn

import structlog

from acks.journal import shard_of, twin_key
from app.search.batches import Batch
from app.search.shards import PROBLEMS, Shard

log = structlog.get_logger(__name__)

SCAN = 1_000
"""Keys that the store looks at in one go."""
CHUNK = 50
"""Things of a batch: others, who wait for an ack, wait for it."""
PAGE = 500
"""Policies of a page."""
REST = 0.25
"""Pause after a batch, as a share of the time that it took: other processes write, too."""
PROGRESS_S = 0.5
"""How often the progress is stored, s."""
AGAIN_S = 1.0
"""Pause before a rebuild that was interrupted begins again, s."""


class Rebuild:
    """Rebuilds one shard whenever it has to be. It ends with its task."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._means = shard.means
        self._seen = 0
        self._stored_at = 0.0

    async def run(self) -> NoReturn:
        """Wait until the shard has to be rebuilt, do that, and again. Raises NotOwner."""
        shard = self._shard
        while True:
            await shard.rebuild.wait()
            shard.rebuild.clear()
            self._means.rebuilds += 1
            try:
                await self._rebuild()
            except PROBLEMS as problem:
                log.warning("search.rebuild_interrupted", shard=shard.number, error=str(problem))
                shard.rebuild.set()
                await asyncio.sleep(AGAIN_S)
            finally:
                self._means.rebuilds -= 1

    async def _rebuild(self) -> None:
        shard, loop = self._shard, asyncio.get_running_loop()
        began = loop.time()
        wanted = await self._begin()
        log.info("search.rebuild_started", shard=shard.number)
        await self._policies()
        await self._things()
        removed = await self._remove_unseen()
        await shard.store("rebuild_done = ?, rebuild_seen = rebuild_total", wanted)
        shard.mark = 0
        self._means.counts["rebuilds"] += 1
        log.info(
            "search.rebuild_finished",
            shard=shard.number, things=self._seen, removed=removed,
            seconds=round(loop.time() - began, 2),
        )  # fmt: skip

    async def _remove_unseen(self) -> int:
        """Remove what is not in the store; returns how much that was."""
        shard, means, removed = self._shard, self._means, 0
        while True:
            async with means.rebuilding, shard.turn:
                count = await means.writer.remove_unseen(
                    shard.number, shard.fence, shard.mark, limit=CHUNK
                )
            removed += count
            if not count:
                break
            await asyncio.sleep(0)
        if means.rebuilds == 1:  # the last one does it for all
            await means.writer.analyze()
        return removed

    async def _begin(self) -> int:
        """Choose the mark; when the rebuild was wanted that this is. It goes on after a crash.

        What is written from now on has the mark, or is done again from the bookmark.
        """
        shard, now = self._shard, self._means.database.dialect.now_ms
        total = await self._means.redis.call("DBSIZE")
        self._seen, self._stored_at = 0, 0.0
        async with shard.turn:
            shard.mark, wanted = await shard.store(
                "rebuild_mark = rebuild_mark + 1, rebuild_seen = 0, rebuild_total = ?, "
                "bookmark = ?, rebuild_wanted = "
                f"CASE WHEN rebuild_wanted > rebuild_done THEN rebuild_wanted ELSE {now} END",
                total, shard.bookmark.decode(),
                returning="rebuild_mark, rebuild_wanted",
            )  # fmt: skip
            shard.trust()
        shard.wanted = wanted
        return shard.wanted

    async def _policies(self) -> None:
        """Look at all policies of the shard that the index knows."""
        shard, means, last = self._shard, self._means, ""
        while True:
            rows = await means.database.read(
                "SELECT policy_id FROM policy WHERE policy_id > ? ORDER BY policy_id LIMIT ?",
                (last, PAGE),
            )
            if not rows:
                return
            last = rows[-1][0]
            names = [row[0] for row in rows if shard_of(row[0], means.shards) == shard.number]
            if not names:
                continue
            async with means.rebuilding, shard.turn:
                changes = await shard.source.own(names)
                await means.writer.apply(
                    shard.number, shard.fence, None, [], changes, mark=shard.mark
                )
                shard.source.written(changes)

    async def _things(self) -> None:
        """Look at all things of the shard in the store."""
        shard, means, cursor, looked = self._shard, self._means, b"0", 0
        head = twin_key(means.prefix, shard.number, "")
        connections = means.redis.connections
        while True:
            reply = await means.redis.call("SCAN", cursor, "MATCH", f"{head}*", "COUNT", SCAN)
            assert isinstance(reply, list)
            cursor, keys = reply  # type: ignore[assignment]
            assert isinstance(keys, list)
            names = [key.decode()[len(head) :] for key in keys if isinstance(key, bytes)]
            looked += SCAN
            for start in range(0, len(names), CHUNK):
                await self._chunk(names[start : start + CHUNK])
            await self._progress(looked)
            if means.redis.connections != connections:
                # A cursor means nothing to a server that was started anew.
                connections, cursor, looked = means.redis.connections, b"0", 0
            elif cursor == b"0":
                return

    async def _chunk(self, names: list[str]) -> None:
        """Index some things, one batch at a time in this process."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with self._means.rebuilding:
            await self._shard.write(Batch(b"", things=dict.fromkeys(names)), rebuilding=True)
        self._seen += len(names)
        await asyncio.sleep((loop.time() - began) * REST)

    async def _progress(self, looked: int) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._stored_at >= PROGRESS_S:
            self._stored_at = now
            await self._shard.store("rebuild_seen = ?", looked)
