"""The indexer: takes its share of the shards, indexes them, and says how it is."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

import structlog

from app.search.leases import LEASE_S, Leases, Taken, View
from app.search.reading import Reader
from app.search.rebuild import Rebuild
from app.search.shards import PROBLEMS, Means, Shard
from app.store.sql.database import NotOwner

log = structlog.get_logger(__name__)

LOOK_S = LEASE_S / 4
"""How often leases are renewed, s."""
SOON_S = 0.1
"""How often it is looked for free shards while we have less than our share, s."""
SWEEP_S, STEP_S = 600.0, 1.0
"""Pause between two rounds in which what nobody uses is removed, and between steps of one, s."""
FINISH_S = 1.5
"""How long a shard may take to finish its batch before it is given back, s."""


class Indexer:
    """All shards of this process, from :meth:`run` to :meth:`close`."""

    def __init__(self, means: Means, leases: Leases, reader: Reader) -> None:
        self._means = means
        self._leases = leases
        self._reader = reader
        self._shards: dict[int, Shard] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._problem = ""

    async def run(self) -> NoReturn:
        """Index for ever."""
        tasks = (
            asyncio.create_task(self._reader.run(), name="search-reader"),
            asyncio.create_task(self._sweep(), name="search-sweeper"),
        )
        try:
            while True:
                await asyncio.sleep(await self._look())
                for task in tasks:
                    if task.done():
                        task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Finish what is under way, and give everything back."""
        await asyncio.gather(*(self._leave(shard) for shard in list(self._shards.values())))
        try:
            await self._leases.leave()
        except PROBLEMS as problem:
            log.warning("search.leases_not_released", error=str(problem))

    def says(self) -> dict[str, Any]:
        """How it is: counters, the lag of each shard in s, what is wrong with it."""
        means = self._means
        return {
            "counts": dict(means.counts),
            "acks": {status.name.lower(): n for status, n in means.acks.issued.items()},
            "acks_lost": means.acks.lost,
            "lag": {str(number): round(one.lag_s(), 3) for number, one in self._shards.items()},
            "rebuilding": means.rebuilds,
            "problem": self._problem,
        }

    async def _sweep(self) -> NoReturn:
        """Remove what nobody uses, now and then; of several processes one: who has the first shard.

        Not while a rebuild is going on, which makes much of it anew.
        """
        pause = SWEEP_S
        while True:
            await asyncio.sleep(pause)
            if 0 not in self._shards or self._means.rebuilds:
                continue
            try:
                pause = SWEEP_S if await self._means.writer.sweep() else STEP_S
            except PROBLEMS as problem:
                log.warning("search.not_swept", error=str(problem))
                pause = SWEEP_S

    # --- leases

    async def _look(self) -> float:
        """Renew the leases, take and give back; after how many seconds to look again."""
        try:
            view = await self._leases.renew(list(self._shards))
            self._compare(view)
            spare = len(self._shards) - view.fair
            if spare > 0:
                chosen = list(self._shards.values())[-spare:]
                await asyncio.gather(*(self._give_back(shard) for shard in chosen))
            elif spare < 0:
                await self._take(view)
            self._problem = ""
            return SOON_S if len(self._shards) < view.fair - 1 else LOOK_S
        except PROBLEMS as problem:
            if not self._problem:  # once for an outage, not once a second
                log.warning("search.index_unavailable", error=str(problem))
            self._problem = str(problem)
            return LOOK_S

    def _compare(self, view: View) -> None:
        """Let go of what is somebody else's, and hear of rebuilds that are wanted."""
        for number, shard in list(self._shards.items()):
            fence, wanted = view.ours.get(number, (0, 0))
            if fence != shard.fence:
                log.warning("search.shard_lost", shard=number)
                self._forget(shard)
            elif wanted > shard.wanted:
                shard.wanted = wanted
                shard.rebuild.set()

    async def _take(self, view: View) -> None:
        # Those that are ours by name are of the process that was here before us.
        ours = [number for number in view.ours if number not in self._shards]
        room = view.fair - len(self._shards)
        for taken in await self._leases.take((ours + list(view.free))[:room]):
            self._begin(taken)
        for number in ours[room:]:
            await self._leases.release(number, view.ours[number][0])

    def _begin(self, taken: Taken) -> None:
        shard = Shard(taken.shard, taken.fence, taken.bookmark.encode(), self._means)
        shard.wanted = taken.wanted
        if taken.wanted > taken.done:
            shard.rebuild.set()
        self._shards[shard.number] = shard
        self._means.counts["taken"] += 1
        log.info("search.shard_taken", shard=shard.number, bookmark=taken.bookmark)
        self._tasks[shard.number] = asyncio.create_task(
            self._own(shard), name=f"search-shard-{shard.number}"
        )

    async def _own(self, shard: Shard) -> None:
        """Index a shard until it is lost or given back."""
        rebuild: asyncio.Task[NoReturn] | None = None
        try:
            while True:
                try:
                    await shard.begin()
                    break
                except PROBLEMS as problem:
                    log.warning("search.shard_waits", shard=shard.number, error=str(problem))
                    await asyncio.sleep(LOOK_S)
            rebuild = asyncio.create_task(
                Rebuild(shard).run(), name=f"search-rebuild-{shard.number}"
            )
            self._reader.add(shard)
            indexing = asyncio.create_task(shard.run(), name=f"search-index-{shard.number}")
            try:
                await asyncio.wait((indexing, rebuild), return_when=asyncio.FIRST_COMPLETED)
                for task in (indexing, rebuild):
                    if task.done():
                        task.result()
            finally:
                indexing.cancel()
                await asyncio.gather(indexing, return_exceptions=True)
        except NotOwner:
            log.warning("search.shard_lost", shard=shard.number)
        except Exception:
            log.exception("search.shard_failed", shard=shard.number)
        finally:
            if rebuild is not None:
                rebuild.cancel()
                await asyncio.gather(rebuild, return_exceptions=True)
            self._drop(shard)

    def _drop(self, shard: Shard) -> None:
        self._reader.remove(shard)
        if self._shards.get(shard.number) is shard:
            del self._shards[shard.number]
            self._tasks.pop(shard.number, None)

    def _forget(self, shard: Shard) -> None:
        """Index it no more: it is lost."""
        task = self._tasks.get(shard.number)
        if task is not None:
            task.cancel()
        self._drop(shard)

    async def _leave(self, shard: Shard) -> None:
        """Index it no more, after the batch that it is at."""
        self._reader.remove(shard)
        shard.stop()
        task = self._tasks.get(shard.number)
        if task is None:
            return
        _, late = await asyncio.wait((task,), timeout=FINISH_S)
        if late:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        try:
            await shard.close()
        except (NotOwner, *PROBLEMS) as problem:
            log.warning("search.bookmark_not_stored", shard=shard.number, error=str(problem))

    async def _give_back(self, shard: Shard) -> None:
        """Leave a shard to others: we have more than our share."""
        await self._leave(shard)
        await self._leases.release(shard.number, shard.fence)
        log.info("search.shard_given_back", shard=shard.number)
