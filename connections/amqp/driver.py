"""The driver of AMQP 0.9.1 (RabbitMQ).

Sources name queues, targets ``exchange/routingKey``. Every consumer has a channel of its own, so
that a queue that is missing is the trouble of its own source only; such a channel is opened again,
and that is told as the source's status. A connection that is gone is told once and never opened
again: that is the supervisor's work.
Source: spec websocket-... 4.4 (basic.ack, basic.nack), 4.5 (confirms, basic.return).
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Any, ClassVar

import structlog
from aiormq.abc import AbstractChannel, DeliveredMessage
from aiormq.exceptions import AMQPError
from pamqp.commands import Basic

from acks.settlement import Settlement
from connections.amqp.consumers import Consumer, Token, consumers_of
from connections.amqp.identity import Identities, redeliveries
from connections.amqp.publishing import Lanes
from connections.amqp.wire import Link, connected, reason, split_address, text_headers
from connections.driver import (
    Delivery,
    Limits,
    OnDelivery,
    OnLost,
    OnStatus,
    OpenError,
    Publication,
    Published,
)
from connections.model import Connection
from connections.pauses import FIRST_RETRY_S, LAST_RETRY_S, doubling
from connections.publishing import not_sent
from connections.tls import tls_context

log = structlog.get_logger(__name__)

ABORT_S = 1.0
"""For goodbyes after a failure."""
LEAST_GRACE_S = 0.25
"""For each step of closing, however little time there is: settlements are worth that."""
_GONE = (AMQPError, RuntimeError, OSError)
"""What the library raises for a channel or a connection that is closed."""


class AmqpDriver:
    """One client of a connection to RabbitMQ; see :class:`connections.driver.Driver`.

    Consuming and publishing have a connection each: a broker that is short of memory stops reading
    what publishers send, and settlements would be stuck behind it.
    """

    settles_redelivery: ClassVar[bool] = True

    def __init__(
        self, connection: Connection, client: int, generation: int, limits: Limits
    ) -> None:
        self._connection = connection
        self._name = f"ackgate {connection.id} {client}"
        self._generation = generation
        self._limits = limits
        self._identities = Identities(generation)
        self._consumers: list[Consumer] = []
        self._links: list[Link] = []
        self._lanes: Lanes | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._settlements: deque[tuple[Token, Settlement]] = deque()
        self._to_settle = asyncio.Event()
        self._sending = asyncio.Lock()
        self._closing = asyncio.Lock()
        self._taking = False
        self._over = False
        self._stale = 0
        self._on_delivery: OnDelivery = _ignore
        self._on_lost: OnLost = _ignore
        self._on_status: OnStatus = _ignore

    @property
    def stale(self) -> int:
        """Settlements that were ignored: of another generation or channel, or twice."""
        return self._stale

    @property
    def withheld(self) -> int:
        """Settlements that are on their way to the broker."""
        return len(self._settlements)

    # ------------------------------------------------------------------ open and close

    async def open(self, on_delivery: OnDelivery, on_lost: OnLost, on_status: OnStatus) -> None:
        """See the seam. Queues that cannot be consumed are told by ``on_status``.

        Raises OpenError; ``misconfigured`` if there is nothing but such queues.
        """
        self._on_delivery, self._on_lost, self._on_status = on_delivery, on_lost, on_status
        try:
            await self._open()
        except BaseException:
            self._over = True
            self._taking = False
            await self._disconnect(ABORT_S)
            raise

    async def _open(self) -> None:
        connection = self._connection
        self._consumers = consumers_of(connection, self._limits.in_flight)
        context = tls_context(connection)
        inbound = await self._link(context) if self._consumers else None
        if inbound is None or _publishes(connection):
            await self._link(context)
        self._lanes = Lanes(self._links[-1], self._limits.publishing, self._exchange_changed)
        await self._lanes.check(set(self._exchanges()))
        self._taking = True
        if inbound is not None:
            await self._consume_all(inbound)
        for link in self._links:
            if link.wire.is_closed:
                raise OpenError("temporary", "The broker closed the connection.")
            link.wire.closing.add_done_callback(self._closed)
        self._start(self._settle_all())

    async def _link(self, context: Any) -> Link:
        link = await connected(self._connection.uri, self._name, context)
        self._links.append(link)
        return link

    async def close(self, grace_s: float) -> None:
        """See the seam: within ``grace_s`` and half a second."""
        self._taking = False
        async with self._closing:
            self._over = True
            end = asyncio.get_running_loop().time() + max(grace_s, LEAST_GRACE_S)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(end):
                    await self._send_settlements()
                    for consumer in self._consumers:
                        # Its answer says that the broker has read the settlements before it.
                        if consumer.channel is not None:
                            with suppress(*_GONE):
                                await consumer.channel.close()
            left = end - asyncio.get_running_loop().time()
            await self._disconnect(max(left, LEAST_GRACE_S))

    async def _disconnect(self, grace_s: float) -> None:
        current = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not current]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._lanes is not None:
            self._lanes.stop()
        links, self._links = self._links, []
        await asyncio.gather(*(link.close(grace_s) for link in links), return_exceptions=True)

    def _closed(self, future: asyncio.Future[Any]) -> None:
        """A connection has ended; unless that is our own doing, the broker is gone."""
        self._lose(f"The connection to the broker is lost: {_why(future)}")

    def _lose(self, text: str) -> None:
        if self._over:
            return
        self._over = True
        self._taking = False
        self._on_lost(text)
        self._start(self._disconnect(ABORT_S))

    def _start(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A task that fails takes the connection down: without it nothing would go on."""
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            log.error("amqp.defect", exc_info=problem)
            self._lose(f"Encountered <{type(problem).__name__}>.")

    # ------------------------------------------------------------------ consume

    async def _consume_all(self, link: Link) -> None:
        refusals = []
        for consumer in self._consumers:
            try:
                await self._consume(link, consumer)
            except _GONE as problem:
                if link.wire.is_closed:
                    raise OpenError("temporary", reason(problem)) from problem
                consumer.why = reason(problem)
                consumer.ended.set()
                refusals.append(consumer.why)
        if len(refusals) == len(self._consumers) and not self._connection.targets:
            raise OpenError("misconfigured", refusals[0])
        for consumer in self._consumers:
            self._tell(consumer, consumer.why if consumer.ended.is_set() else "")
            self._start(self._keep(link, consumer))

    async def _keep(self, link: Link, consumer: Consumer) -> None:
        """Consume again, after a while, whenever the broker has ended it."""
        tries = 0
        while True:
            await consumer.ended.wait()
            consumer.channel = None
            if link.wire.is_closed:
                return
            self._tell(consumer, consumer.why)
            tries += 1
            await asyncio.sleep(doubling(FIRST_RETRY_S, LAST_RETRY_S, tries))
            try:
                await self._consume(link, consumer)
            except _GONE as problem:
                consumer.why = reason(problem)
                continue
            tries = 0
            self._tell(consumer, "")

    def _tell(self, consumer: Consumer, why: str) -> None:
        """Tell how the source is, when that has changed; ``why``: what is wrong with it."""
        if consumer.told != why:
            consumer.told = why
            self._on_status("source", consumer.address, not why, why)

    async def _consume(self, link: Link, consumer: Consumer) -> None:
        channel = await link.wire.channel(publisher_confirms=False)

        def ended(why: str) -> None:
            if consumer.channel is channel and not consumer.ended.is_set():
                consumer.why = why
                consumer.ended.set()

        async def cancelled(_: Basic.Cancel | Basic.CancelOk) -> None:
            ended("The broker ended the consumer: the queue is gone.")
            # What is unsettled comes again, also if the queue is only elsewhere now.
            self._start(_closed_channel(channel))

        async def take(message: DeliveredMessage) -> None:
            self._take(consumer, channel, message)

        channel.on_consumer_cancel_callbacks.add(cancelled)
        await channel.basic_qos(prefetch_count=consumer.prefetch)
        consumer.channel = channel
        consumer.ended.clear()
        try:
            await channel.basic_consume(consumer.address, take)
        except BaseException:
            consumer.channel = None
            consumer.ended.set()
            raise
        channel.closing.add_done_callback(lambda future: ended(_why(future)))

    def _take(
        self, consumer: Consumer, channel: AbstractChannel, message: DeliveredMessage
    ) -> None:
        tag = message.delivery_tag
        if not self._taking or consumer.channel is not channel or tag is None:
            return
        self._tell(consumer, "")  # the first message may be here before the answer to consuming
        token = Token(consumer, channel, tag)
        size, most = len(message.body), self._limits.message_bytes
        if size > most:
            text = f"A message of {size} bytes, more than {most}, was rejected."
            self._on_status("source", consumer.address, True, text)
            self._settle(token, Settlement.DISCARD)
            return
        properties = message.header.properties
        self._on_delivery(
            Delivery(
                source=consumer.source,
                address=consumer.address,
                payload=message.body,
                headers=text_headers(properties),
                content_type=properties.content_type or None,
                identity=self._identities.of(consumer.address, message),
                token=token,
                generation=self._generation,
                redeliveries=redeliveries(message),
            )
        )

    # ------------------------------------------------------------------ settle

    def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        """See the seam. What came by a channel that is closed by now is ignored, too."""
        token = delivery.token
        if (
            self._over
            or delivery.generation != self._generation
            or not isinstance(token, Token)
            or token.settled
            or token.consumer.channel is not token.channel
        ):
            self._stale += 1
            return
        if settlement is Settlement.REDELIVER:
            message_id = delivery.headers.get("message-id")
            self._identities.given_back(delivery.address, message_id, delivery.identity)
        self._settle(token, settlement)

    def _settle(self, token: Token, settlement: Settlement) -> None:
        token.settled = True
        self._settlements.append((token, settlement))
        self._to_settle.set()

    async def _settle_all(self) -> None:
        while not self._over:
            await self._to_settle.wait()
            self._to_settle.clear()
            await self._send_settlements()

    async def _send_settlements(self) -> None:
        async with self._sending:
            while self._settlements:
                token, settlement = self._settlements.popleft()
                # A channel that has closed meanwhile: the broker delivers the message again.
                with suppress(*_GONE):
                    if settlement is Settlement.ACCEPT:
                        await token.channel.basic_ack(token.tag, wait=False)
                    else:
                        requeue = settlement is Settlement.REDELIVER
                        await token.channel.basic_nack(token.tag, requeue=requeue, wait=False)

    # ------------------------------------------------------------------ publish

    async def publish(self, publication: Publication, deadline_s: float) -> Published:
        """See the seam. Messages are persistent and mandatory."""
        if self._over or self._lanes is None:
            return not_sent("The connection to the broker is not open.")
        return await self._lanes.publish(publication, deadline_s)

    def _exchanges(self) -> dict[str, list[str]]:
        """The targets' addresses by exchange, as far as they are known before a message."""
        found: dict[str, list[str]] = {}
        for target in self._connection.targets:
            with suppress(ValueError):
                exchange = split_address(target.address)[0]
                if "{" not in exchange:
                    found.setdefault(exchange, []).append(target.address)
        return found

    def _exchange_changed(self, exchange: str, well: bool, details: str) -> None:
        if not self._over:
            for address in self._exchanges().get(exchange, ()):
                self._on_status("target", address, well, details)


def _publishes(connection: Connection) -> bool:
    """Whether anything can be sent: to targets, as answers, or as dead letters."""
    replies = any(source.reply for source in connection.sources)
    return bool(connection.targets or replies or connection.specific.get("deadLetterAddress"))


def _why(closing: asyncio.Future[Any]) -> str:
    return reason(None if closing.cancelled() else closing.exception())


async def _closed_channel(channel: AbstractChannel) -> None:
    with suppress(*_GONE):
        await channel.close()


def _ignore(*_: Any) -> None:
    """Nobody listens yet."""
