"""Kafka: consumes in a group, publishes with confirmations (spec websocket-... 4.4 and 4.5).

A source with QoS 1 is consumed at least once: the offset that is committed for a partition is that
of its first message which is not settled. A message that is given back is read again from Kafka
after 100 ms, doubling up to 60 s; other messages go on meanwhile, and do not come again with it.
What was settled beyond the first unsettled message does come again after a crash, or when the
group gives the partition to another client. With any other QoS (or none) a message is committed
before it is given out: at most once. Messages whose ``creation-time`` and ``ttl`` are over are
committed without being given out.

All addresses of a connection are read by one consumer, which fetches from all brokers at the same
time; ``consumerCount`` changes nothing. Clients of one group share the partitions.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

from confluent_kafka import KafkaException
from typing_extensions import override

from acks.settlement import Settlement
from connections.driver import (
    Delivery,
    Driver,
    Limits,
    OnDelivery,
    OnLost,
    OnStatus,
    OpenError,
    Publication,
    Published,
)
from connections.kafka import options
from connections.kafka.consumer import Reader
from connections.kafka.partition import Token
from connections.kafka.producer import Writer
from connections.kafka.reach import error_of
from connections.model import Connection
from connections.publishing import not_sent

_SEND_S = 60.0  # for which a message is tried to be sent


class KafkaDriver(Driver):
    """One client: a consumer if the connection has sources, and a producer."""

    settles_redelivery: ClassVar[bool] = True

    def __init__(
        self, connection: Connection, client: int, generation: int, limits: Limits
    ) -> None:
        self._connection = connection
        self._client = client
        self._generation = generation
        self._limits = limits
        self._reader: Reader | None = None
        self._writer: Writer | None = None
        self._on_lost: OnLost | None = None
        self._over = False  # lost or closed: nothing is told any more
        self._closed = False
        self._stale = 0

    @property
    @override
    def stale(self) -> int:
        return self._stale + (0 if self._reader is None else self._reader.late)

    @property
    @override
    def withheld(self) -> int:
        return 0 if self._reader is None or self._over else self._reader.withheld

    @override
    async def open(self, on_delivery: OnDelivery, on_lost: OnLost, on_status: OnStatus) -> None:
        """See the seam. A topic that is missing is told by ``on_status`` and waited for."""
        self._on_lost = on_lost
        try:
            await self._start(on_delivery, on_status)
        except BaseException:
            self._stop(0)
            raise

    async def _start(self, on_delivery: OnDelivery, on_status: OnStatus) -> None:
        try:
            waited = self._clients(on_delivery, on_status)
        except KafkaException as problem:  # what only librdkafka finds wrong
            raise OpenError("misconfigured", f"{error_of(problem).str()}.") from None
        failed = [
            each
            for each in await asyncio.gather(*waited, return_exceptions=True)
            if isinstance(each, BaseException)
        ]
        # Of two reasons the one that says more: time does not heal the others.
        failed.sort(key=lambda each: isinstance(each, OpenError) and each.cause == "temporary")
        if failed:
            raise failed[0]

    def _clients(self, on_delivery: OnDelivery, on_status: OnStatus) -> list[asyncio.Future[None]]:
        """Make and start what there is; returns what to wait for."""
        connection, limits = self._connection, self._limits
        common = options.common(connection, self._client)
        topics = options.sources(connection)
        reading = common | options.consuming(connection, limits)
        sending = common | options.publishing(limits, _SEND_S)
        debug = connection.specific.get("debugEnabled", "").lower() == "true"
        self._writer = Writer(sending, limits.publishing, debug, self._lose)
        if topics:
            tell = (on_delivery, self._lose, on_status)
            self._reader = Reader(reading, topics, self._generation, limits, tell)
        waited: list[asyncio.Future[None]] = []
        for each in (self._writer, self._reader):
            if each is not None:
                each.start()
                waited.append(each.opened)
        return waited

    def _lose(self, reason: str) -> None:
        if self._over or self._on_lost is None:
            return
        self._over = True
        if self._writer is not None:
            self._writer.give_up("The connection is lost.")
        self._on_lost(reason)

    @override
    def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        token, reader = delivery.token, self._reader
        if (
            self._closed
            or reader is None
            or delivery.generation != self._generation
            or not isinstance(token, Token)
            or token.settled
        ):
            self._stale += 1
            return
        token.settled = True
        reader.settle(token, settlement)

    @override
    async def publish(self, publication: Publication, deadline_s: float) -> Published:
        """See the seam. A message goes to the partition of its address, its key or thing.

        Answers 204, or 200 with where the message went if ``debugEnabled``; 500 if sending it
        again may help, 400 if not, 503 if it was not tried at all.
        """
        if self._writer is None:
            return not_sent("The connection is not open.")
        return await self._writer.publish(publication, deadline_s)

    @override
    async def close(self, grace_s: float) -> None:
        """See the seam. What takes longer than the grace ends by itself, told to nobody."""
        self._stop(grace_s)
        ends = [each.ended for each in (self._reader, self._writer) if each is not None]
        if ends:
            await asyncio.wait(ends, timeout=grace_s)

    def _stop(self, grace_s: float) -> None:
        self._over = self._closed = True
        if self._reader is not None:
            self._reader.stop(grace_s)
        if self._writer is not None:
            self._writer.stop(grace_s)
