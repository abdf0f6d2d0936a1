"""An indexer in the hands of a test, which says what has become of a change; and real ones."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson

from acks.journal import journal_key, shard_of
from acks.search_acks import Asked, Indexing, asked_by
from app.search.acks import SearchAcks
from app.store.redis_client import Redis, RedisAddress
from tests.gateways import Gateway
from tests.servers import RedisServer

SHARDS = 8


class Indexer:
    """Finds in the journal who asks for ``search-persisted``, and issues what the test wants."""

    def __init__(self, redis: Redis, acks: SearchAcks, prefix: str) -> None:
        self.redis = redis
        self.acks = acks
        self._prefix = prefix

    @classmethod
    @asynccontextmanager
    async def of(
        cls, store: RedisServer, prefix: str, link: str = "auto"
    ) -> AsyncIterator[Indexer]:
        """One for the gateways with this prefix, which have no indexer of their own."""
        address = RedisAddress.parse(store.url)
        redis = Redis(address, name="test-indexer")
        await redis.start()
        node = uuid.uuid4().hex[:16]
        acks = SearchAcks(redis, address, prefix=prefix, shards=SHARDS, node=node, link=link)
        await acks.start()
        try:
            yield cls(redis, acks, prefix)
        finally:
            await acks.close()
            await redis.close()

    async def metas(self, thing_id: str) -> list[Any]:
        """The facts of the journal's entries about a thing, the oldest first."""
        key = journal_key(self._prefix, shard_of(thing_id, SHARDS))
        entries: Any = await self.redis.call("XRANGE", key, "-", "+")
        metas = [orjson.loads(fields[1 + fields.index(b"m")]) for _, fields in entries]
        return [meta for meta in metas if meta["id"] == thing_id]

    async def asked(self, thing_id: str, count: int = 1) -> list[Asked]:
        """Who asks about a thing, the oldest first, once there are as many."""
        async with asyncio.timeout(10):
            while True:
                found = [asked_by(meta) for meta in await self.metas(thing_id)]
                asking = [one for one in found if one is not None]
                if len(asking) >= count:
                    return asking
                await asyncio.sleep(0.005)

    async def answer(self, thing_id: str, indexing: Indexing, count: int = 1) -> Asked:
        """Issue the ack of the ``count``-th change of a thing that asks for it."""
        asked = (await self.asked(thing_id, count))[count - 1]
        self.acks.issue([(asked, indexing)])
        return asked


def kill_indexer(gateway: Gateway) -> bool:
    """End a gateway's indexer without warning; False if it has none now."""
    pid = gateway.indexer_pid()
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
    return pid is not None
