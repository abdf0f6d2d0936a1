"""MQTT 3.1.1 and 5: consumes topics, publishes to them (spec websocket-... 4.4, 4.5).

A message of QoS 1 or 2 is acked when it is settled, in the order of the messages, also if it is
discarded. One that is to come again is acked, too, unless ``reconnectForRedelivery`` is set: then
the client that consumes connects anew after ``reconnectForRedeliveryDelay``, for the broker sends
a message again only then. QoS 0 needs no settlement.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import ClassVar

from paho.mqtt.reasoncodes import ReasonCode
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
from connections.model import Connection
from connections.mqtt.inbox import Inbox, Incoming, Routes
from connections.mqtt.link import FAILURE, Bounds, Link, Place, Unsent
from connections.mqtt.message import Message, message_of
from connections.mqtt.options import Options, options
from connections.publishing import not_sent
from connections.tls import tls_context

_TOPIC_INVALID = 0x90
_DEFAULT_QOS = 1
_RECONNECT_S = 30.0  # for reconnecting in order to have messages again
_GOODBYE_S = 2.0


class MqttDriver(Driver):
    """One client; with ``separatePublisherClient`` two: one consumes, one publishes."""

    settles_redelivery: ClassVar[bool] = True

    def __init__(
        self, connection: Connection, client: int, generation: int, limits: Limits
    ) -> None:
        self._connection = connection
        self._client = client
        self._generation = generation
        self._limits = limits
        self._options: Options | None = None
        self._place: Place | None = None
        self._routes = Routes(connection.sources)
        self._inbox: Inbox | None = None
        self._consuming: Link | None = None
        self._publishing: Link | None = None
        self._on_lost: OnLost | None = None
        self._on_status: OnStatus | None = None
        self._ready = asyncio.Event()
        self._turn = asyncio.Lock()  # publications keep their order
        self._waiting = 0
        self._again: asyncio.Task[None] | None = None
        self._opened = False
        self._ended = False  # lost or closed
        self._stale = 0  # before there was an inbox

    @property
    @override
    def stale(self) -> int:
        return self._stale + (self._inbox.stale if self._inbox is not None else 0)

    @property
    @override
    def withheld(self) -> int:
        return 0 if self._inbox is None else self._inbox.withheld

    # ------------------------------------------------------------------------- open and close

    @override
    async def open(self, on_delivery: OnDelivery, on_lost: OnLost, on_status: OnStatus) -> None:
        self._on_status, self._on_lost = on_status, on_lost
        try:
            wanted = self._options = options(self._connection, self._client)
            self._place = _place(self._connection)
            self._inbox = Inbox(
                self._routes,
                self._limits,
                self._generation,
                # Without a session that stays, the broker would forget what is not acked.
                redelivers=wanted.redelivers and not wanted.clean,
                ack=self._ack,
                on_delivery=on_delivery,
            )
            await self._open_links(wanted, self._place)
            if self._ended:
                raise OpenError("temporary", "The broker has closed the connection.")
        except BaseException:
            self._end()
            for link in self._links():
                link.abort()
            raise
        self._opened = True
        self._ready.set()

    async def _open_links(self, wanted: Options, place: Place) -> None:
        consumes = bool(self._routes.qos)
        if consumes:
            self._consuming = self._link(wanted.client_id)
            await self._consuming.open(place)
            await self._subscribe(self._consuming)
        if wanted.apart or not consumes:
            name = wanted.publisher_id if wanted.apart else wanted.client_id
            self._publishing = self._link(name)
            await self._publishing.open(place)
        else:
            self._publishing = self._consuming

    def _link(self, client_id: str) -> Link:
        assert self._options is not None
        assert self._inbox is not None
        return Link(
            client_id,
            self._options,
            Bounds(self._limits.in_flight, self._limits.publishing),
            partial(self._incoming, self._inbox, self._inbox.round),
            self._lost,
        )

    def _links(self) -> set[Link]:
        return {link for link in (self._consuming, self._publishing) if link is not None}

    async def _subscribe(self, link: Link) -> None:
        try:
            answers = await link.subscribe(self._routes.qos)
        except ValueError as problem:
            raise OpenError("misconfigured", f"Cannot subscribe: {problem}") from problem
        for address, code in answers.items():
            well = code.value < FAILURE
            self._tell(address, well, f"{'Subscribed' if well else 'Refused'}: {code}.")
        if all(code.value >= FAILURE for code in answers.values()):
            reasons = ", ".join(f"{address}: {code}" for address, code in answers.items())
            raise OpenError("misconfigured", f"The broker refuses the subscriptions: {reasons}.")

    def _tell(self, address: str, well: bool, text: str) -> None:
        if self._on_status is not None:
            self._on_status("source", address, well, text)

    def _lost(self, reason: str) -> None:
        ended = self._ended
        self._end()
        if self._opened and not ended and self._on_lost is not None:
            self._on_lost(reason)

    def _end(self) -> None:
        self._ended = True
        self._ready.set()  # whoever waits to publish is told
        if self._inbox is not None:
            self._inbox.closed = True

    @override
    async def close(self, grace_s: float) -> None:
        self._end()
        task, self._again = self._again, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await asyncio.gather(*(link.close(grace_s) for link in self._links()))

    # ------------------------------------------------------------------------------ consuming

    def _incoming(self, inbox: Inbox, of: int, incoming: Incoming) -> None:
        if self._ended or of != inbox.round:
            return  # the broker keeps it for the next client
        if len(incoming.payload) > self._limits.message_bytes:
            length = len(incoming.payload)
            text = f"Discarded a message that is too long: {length} bytes, topic {incoming.topic}."
            for address in inbox.discard(incoming):
                self._tell(address, True, text)
        else:
            inbox.take(incoming)

    def _ack(self, mid: int, qos: int) -> None:
        if self._consuming is not None:
            self._consuming.ack(mid, qos)

    @override
    def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        if self._inbox is None:
            self._stale += 1
            return
        self._inbox.settle(delivery, settlement)
        self._plan_reconnect()

    def _plan_reconnect(self) -> None:
        assert self._inbox is not None
        if self._again is None and not self._ended and self._inbox.held:
            self._again = asyncio.create_task(self._reconnect(), name="mqtt redelivery")
            self._again.add_done_callback(self._reconnected)

    def _reconnected(self, task: asyncio.Task[None]) -> None:
        self._again = None
        if task.cancelled():
            return
        if (problem := task.exception()) is not None:
            self._lost(f"Reconnecting for redelivery failed: {str(problem) or 'no answer'}")
        else:
            self._plan_reconnect()  # for what is held since

    async def _reconnect(self) -> None:
        """Have the broker send again what is held; once for all that is held by then.

        Publications of the same client wait meanwhile; those on their way are confirmed before.
        """
        assert self._options is not None
        assert self._place is not None
        assert self._inbox is not None
        assert self._consuming is not None
        await asyncio.sleep(self._options.delay_s)
        if self._ended or not self._inbox.held:
            return
        old = self._consuming
        both = self._publishing is old
        async with asyncio.timeout(_RECONNECT_S):
            if both:
                self._ready.clear()
                await old.idle()
            self._inbox.begin_round()
            await old.close(_GOODBYE_S)
            self._consuming = self._link(self._options.client_id)
            if both:
                self._publishing = self._consuming
            kept = await self._consuming.open(self._place)
        if not kept:
            raise OpenError("temporary", "The broker has lost the session.")
        self._ready.set()

    # ----------------------------------------------------------------------------- publishing

    @override
    async def publish(self, publication: Publication, deadline_s: float) -> Published:
        try:
            message = self._message(publication)
        except ValueError as problem:
            return not_sent(str(problem), 400)
        if self._waiting >= self._limits.publishing:
            return not_sent("Too many messages wait to be sent.")
        self._waiting += 1
        try:
            async with asyncio.timeout(deadline_s):
                async with self._turn:
                    await self._ready.wait()
                    answer = self._send(message)
                return _published(await answer)
        except ValueError as problem:
            return not_sent(str(problem), 400)
        except Unsent as problem:
            return not_sent(str(problem))
        except TimeoutError:
            return not_sent(f"The broker did not confirm within {deadline_s:g} s.")
        finally:
            self._waiting -= 1

    def _message(self, publication: Publication) -> Message:
        five = self._connection.kind == "mqtt-5"
        return message_of(publication, _DEFAULT_QOS, five=five)

    def _send(self, message: Message) -> asyncio.Future[ReasonCode]:
        if self._ended or self._publishing is None:
            raise Unsent("The connection is not open.")
        return self._publishing.publish(message)


def _published(code: ReasonCode) -> Published:
    """What the broker's answer means for the issued ack (spec 4.5)."""
    if code.value < FAILURE:
        return Published(200)
    if code.value == _TOPIC_INVALID:
        return not_sent(f"The broker refuses the topic: {code}.", 400)
    return replace(not_sent(f"The broker refuses the message: {code}."), lost=True)


def _place(connection: Connection) -> Place:
    uri = connection.uri
    if uri.scheme in ("ws", "wss"):
        raise OpenError("misconfigured", "MQTT over WebSocket is not supported.")
    return Place(uri.host, uri.port, tls_context(connection), *connection.login)
