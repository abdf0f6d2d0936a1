"""The indexer's end of search-persisted: tells those who wait that a change is in the index.

It only carries; what counts as indexed is for the indexer to say, after its commit. A node that
waits gets a notice, over a link if there is one, else by pub/sub; a request that nobody waits for
gets the ack into its record (docs/decisions/0007-acks-over-direct-links.md). What is lost on the
way, because a process dies, means a request that runs into its timeout, never an ack too early.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

import orjson
import structlog

from acks.accepted import field_of, value_json
from acks.journal import ASYNC, request_key, shard_of
from acks.search_acks import Asked, Indexing, notice_of, search_ack
from app.links import Links
from app.store.ackbus import AckBus
from app.store.redis_client import Redis, RedisAddress, Reply
from app.store.requests import TAKE

log = structlog.get_logger(__name__)

AGAIN_S = 0.25
"""Pause before an ack is offered again to a store that could not be asked, s."""
OFFERS = 240
"""How often an ack is offered to the store, which knows whether it is late."""
MAX_AGAIN = 10_000
"""Acks that may wait for the store; more are dropped."""

# The record may be that of a later request with the same correlation-id.
_RECORD = f"""{TAKE}
if redis.call('HGET', KEYS[1], 'deadline') ~= ARGV[3] then return 0 end
return take(KEYS[1], ARGV[1], ARGV[2])
"""


class SearchAcks:
    """Sends the acks of one indexer, named ``node``. ``link`` is the setting of that name.

    ``index`` is the name of its index: gateways that search another one wait for theirs. It may be
    set later, before the first ack.

    ``redis`` is somebody else's to start and close. ``issued`` counts acks by what became of the
    change, ``lost`` those that the store would not take.
    """

    def __init__(
        self,
        redis: Redis,
        address: RedisAddress,
        *,
        prefix: str,
        shards: int,
        node: str,
        link: str = "auto",
        index: str = "",
    ) -> None:
        self.issued: Counter[Indexing] = Counter()
        self.lost = 0
        self._redis = redis
        self._prefix = prefix
        self._shards = shards
        self.index = index
        self._links = Links(redis, prefix=prefix, node=node, listen=link, calls_only=True)
        self._bus = AckBus(
            redis, address, self._links, prefix=prefix, node=node, on_ack=lambda _: None
        )
        self._record = redis.register(_RECORD)
        self._again: set[asyncio.TimerHandle] = set()

    async def start(self) -> None:
        """Get ready to send."""
        await self._links.start()

    async def close(self) -> None:
        """Send what is left; acks that the store has not taken are given up. Safe to call twice."""
        for timer in self._again:
            timer.cancel()
        self.lost += len(self._again)
        self._again.clear()
        await self._bus.close()
        await self._links.close()

    def issue(self, results: Iterable[tuple[Asked, Indexing]]) -> None:
        """Tell those who asked. To be called after the commit that ``results`` speak of.

        Never raises and never waits. To issue an ack again is safe: the first one counts.
        """
        for asked, indexing in results:
            self.issued[indexing] += 1
            if asked.origin == ASYNC:
                self._offer(asked, indexing, OFFERS)
            else:
                self._bus.send(asked.origin, notice_of(asked, indexing, self.index))

    def _offer(self, asked: Asked, indexing: Indexing, offers: int) -> None:
        """Add an ack to the record of its request; again if the store cannot be asked."""
        ack = search_ack(asked.thing_id, asked.correlation_id, indexing)
        shard = shard_of(asked.thing_id, self._shards)
        key = request_key(self._prefix, shard, asked.correlation_id)
        arguments = (field_of(ack), orjson.dumps(value_json(ack)), asked.deadline)

        def replied(reply: Reply | Exception) -> None:
            if not isinstance(reply, Exception):
                return
            if offers > 1 and len(self._again) < MAX_AGAIN:
                self._offer_again(asked, indexing, offers - 1)
                return
            self.lost += 1
            log.warning("ack.not_recorded", correlation_id=asked.correlation_id, error=str(reply))

        self._redis.run(self._record, (key,), arguments, replied)

    def _offer_again(self, asked: Asked, indexing: Indexing, offers: int) -> None:
        def due() -> None:
            self._again.discard(timer)
            self._offer(asked, indexing, offers)

        timer = asyncio.get_running_loop().call_later(AGAIN_S, due)
        self._again.add(timer)
