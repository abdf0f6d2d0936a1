"""The light channel by which acks reach the node that waits for them.

Acks of one event-loop tick that go to the same node leave as one message: over a link to that node
if there is one, else by pub/sub (one channel a node). A message that is lost (connection gone at
that moment) means a request that runs into its timeout: its sender tries again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import orjson
import structlog

from acks.journal import ack_channel
from acks.signals import Acknowledgement
from app.links import Links
from app.store.redis_client import Redis, RedisAddress, Reply, Subscriber

GATHER_S = 0.001
"""Shortest time between two messages, s: under load many acks share one, else none waits."""

log = structlog.get_logger(__name__)


class AckBus:
    """Sends acks to other nodes and hands the received ones to ``on_ack``.

    ``links`` are somebody else's to start and close; their frames come here.
    """

    def __init__(
        self,
        redis: Redis,
        address: RedisAddress,
        links: Links,
        *,
        prefix: str,
        node: str,
        on_ack: Callable[[Acknowledgement], None],
    ) -> None:
        self._redis = redis
        self._links = links
        links.on_frame = self._take
        self._prefix = prefix
        self._on_ack = on_ack
        self._subscriber = Subscriber(
            address, [ack_channel(prefix, node)], self._received, name=f"ackgate-acks-{node}"
        )
        self._outgoing: dict[str, list[list[Any]]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._flushed = 0.0
        self.lost = 0
        self.sent_by_link = 0
        self.sent_by_pubsub = 0

    @property
    def connected(self) -> bool:
        """Whether acks from other nodes can arrive."""
        return self._subscriber.connected

    async def start(self, deadline: float) -> None:
        """Subscribe; raises StoreUnavailable after ``deadline`` seconds."""
        await self._subscriber.start(deadline)

    async def close(self) -> None:
        """Send what is left and close."""
        self._flush()
        await self._subscriber.close()

    def send(self, node: str, ack: Acknowledgement) -> None:
        """Send an ack to ``node``: at once, or with others :data:`GATHER_S` after the last ones."""
        if not self._outgoing:
            loop = self._loop
            if loop is None:
                # Asking for it every time is a system call in CPython 3.11.
                self._loop = loop = asyncio.get_running_loop()
            if loop.time() - self._flushed < GATHER_S:
                loop.call_later(GATHER_S, self._flush)
            else:
                loop.call_soon(self._flush)
        record = [ack.correlation_id, ack.label, ack.thing_id, ack.status, ack.headers or None]
        if ack.payload is not None:
            record.append(ack.payload)
        self._outgoing.setdefault(node, []).append(record)

    def _flush(self) -> None:
        if self._loop is not None:
            self._flushed = self._loop.time()
        outgoing, self._outgoing = self._outgoing, {}
        for node, records in outgoing.items():
            content = orjson.dumps(records)
            if self._links.send(node, content):
                self.sent_by_link += len(records)
            else:
                self.sent_by_pubsub += len(records)
                message = ("PUBLISH", ack_channel(self._prefix, node), content)
                self._redis.send(message, self._sent)

    def _sent(self, reply: Reply | Exception) -> None:
        if reply == 0 or isinstance(reply, Exception):
            self.lost += 1
            # One line for each would drown the log when a node dies; the metric shows it.
            log.debug("acks.undelivered", reason=str(reply) if reply else "the node is gone")

    def _received(self, channel: bytes, payload: bytes) -> None:
        self._take(payload)

    def _take(self, content: bytes | memoryview) -> bool:
        try:
            records = orjson.loads(content)
            acks = [_read(record) for record in records]
        except (ValueError, TypeError, IndexError) as problem:
            log.error("acks.unreadable", error=str(problem))
            return False
        for ack in acks:
            self._on_ack(ack)
        return True


def _read(record: list[Any]) -> Acknowledgement:
    correlation_id, label, thing_id, status, headers = record[:5]
    if type(status) is not int or not isinstance(correlation_id, str):
        raise TypeError("a record has a status and a correlation-id")
    payload = record[5] if len(record) > 5 else None
    return Acknowledgement(label, thing_id, correlation_id, status, payload, headers or {})
