"""How the search index is, for operators: its shards, how far behind they are, its rebuilds."""

from __future__ import annotations

import asyncio
from typing import Any

from acks.bookmark import read_position
from acks.journal import journal_key
from acks.signals import JsonObject
from app.search.index import GatewayIndex
from app.search.leases import want_rebuild
from app.store.instant import instant, now_ms
from app.store.redis_client import Redis, StoreError, StoreUnavailable
from app.store.sql.database import IndexBusy, IndexOff, IndexUnavailable, Row
from app.store.streams import entries_of

_SHARDS = (
    "SELECT shard, owner, lease_until > {now}, bookmark, rebuild_wanted, rebuild_done, "
    "rebuild_seen, rebuild_total, indexed FROM shard ORDER BY shard"
)


class Overview:
    """Looks at the index, and has it rebuilt."""

    def __init__(self, index: GatewayIndex, redis: Redis, prefix: str, shards: int) -> None:
        self._index = index
        self._redis = redis
        self._prefix = prefix
        self._shards = shards

    async def status(self) -> JsonObject:
        """The index as JSON; ``state`` is ``off``, ``unavailable``, ``incomplete`` or ``complete``.

        Incomplete: a shard has not been built, or nobody works on it.
        """
        try:
            database = await self._index.opened()
            now = database.dialect.now_ms
            rows = await database.read(_SHARDS.format(now=now))
            ((things,),) = await database.read("SELECT count(*) FROM thing")
            ((indexers,),) = await database.read(
                f"SELECT count(*) FROM indexer WHERE alive_until > {now}"
            )
            lags = await asyncio.gather(*(self._lag(row) for row in rows))
        except IndexOff:
            return {"state": "off"}
        except (IndexUnavailable, IndexBusy, StoreUnavailable, StoreError) as problem:
            return {"state": "unavailable", "reason": str(problem)}
        shards = [_shard(row, lag) for row, lag in zip(rows, lags, strict=True)]
        complete = all(one["owner"] and one["rebuild"]["state"] == "done" for one in shards)
        return {
            "state": "complete" if shards and complete else "incomplete",
            "database": database.dialect.name,
            "things": things,
            "indexers": indexers,
            "lagMs": max(lags, default=0),
            "rebuild": _together(shards),
            "shards": shards,
        }

    async def rebuild(self) -> None:
        """Have all shards built anew. Raises IndexOff, IndexUnavailable, IndexBusy."""
        store = await self._index.store()
        await want_rebuild(await self._index.unchecked(), store, self._shards)

    async def _lag(self, row: Row) -> int:
        """How old the first entry is that is behind the bookmark, ms."""
        key = journal_key(self._prefix, row[0])
        page = await self._redis.call("XRANGE", key, f"({row[3] or '0-0'}", "+", "COUNT", 1)
        found = entries_of(page)
        return max(0, now_ms() - read_position(found[0][0])[0]) if found else 0


def _shard(row: Row, lag_ms: int) -> dict[str, Any]:
    shard, owner, held, bookmark, wanted, done, seen, total, written = row
    if wanted > done:
        rebuild = {"state": "running" if held and total else "wanted", "since": instant(wanted)}
    else:
        rebuild = {"state": "done" if done or bookmark else "wanted"}
    rebuild["seen"], rebuild["total"] = min(seen, total), total
    return {
        "shard": shard,
        "owner": owner if held else None,
        "bookmark": bookmark,
        "lagMs": lag_ms,
        "written": written,
        "rebuild": rebuild,
    }


def _together(shards: list[dict[str, Any]]) -> dict[str, Any]:
    """How far the rebuilds of all shards are."""
    under_way = [one["rebuild"] for one in shards if one["rebuild"]["state"] != "done"]
    seen = sum(one["rebuild"]["seen"] for one in shards)
    total = sum(one["rebuild"]["total"] for one in shards)
    return {"shards": len(under_way), "seen": seen, "total": total}
