"""Publishing by AMQP 0.9.1: confirmed by the broker, and in order (spec websocket-... 4.5).

The broker answers a wrong exchange by closing the channel, and what was under way on it is unknown
then. So every exchange has a channel of its own, a :class:`Lane`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from aiormq.channel import Channel
from aiormq.connection import Connection as Wire
from aiormq.exceptions import AMQPChannelError, AMQPError, ChannelInvalidStateError, DeliveryError
from pamqp.commands import Basic

from acks.errors import error
from connections.amqp.wire import Link, properties_of, reason, split_address
from connections.driver import Publication, Published
from connections.publishing import failed, not_sent

MAX_LANES = 16
"""Idle channels beyond it are closed."""
NO_CONFIRMS = (
    "The external broker does not support RabbitMQ publisher confirms. "
    "Acknowledgement is not possible."
)
OnExchange = Callable[[str, bool, str], None]
"""(exchange, can it be published to, details) when that changes."""


class Lane:
    """The channel to one exchange, opened when it is needed, and again if it has closed."""

    def __init__(self, wire: Wire, exchange: str, on_exchange: OnExchange) -> None:
        self.busy = 0
        self._wire = wire
        self._exchange = exchange
        self._on_exchange = on_exchange
        self._well: bool | None = None
        self._channel: Channel | None = None
        self._proven: Channel | None = None  # the exchange took something by it
        self._turn = asyncio.Lock()

    async def send(
        self, key: str, body: bytes, properties: Basic.Properties, deadline_s: float
    ) -> Published:
        """Publish and wait for the confirmation.

        Raises AMQPError, RuntimeError, ValueError, and TimeoutError if it was not even sent.
        """
        end = asyncio.get_running_loop().time() + deadline_s
        sending: asyncio.Task[Any] | None = None
        try:
            async with asyncio.timeout_at(end):
                async with self._turn:
                    channel = await self._opened()
                    # A task, so that the turn ends here. Tasks begin in the order they are made.
                    sending = asyncio.create_task(self._publish(channel, key, body, properties))
                    if self._proven is not channel:
                        # The broker may close the channel for it: nobody else is to be hit.
                        await asyncio.wait({sending})
                await asyncio.wait({sending})
            return self._outcome(sending, channel)
        except TimeoutError:
            if sending is None:
                raise
            return Published(408, "No publisher confirm arrived.")
        finally:
            if sending is not None:
                sending.cancel()

    async def check(self) -> None:
        """Find out whether the exchange is there. Raises AMQPError, RuntimeError."""
        async with self._turn:
            await self._opened()
        self._tell(True)

    async def close(self) -> None:
        """Give the channel back; nothing may be under way."""
        if self._channel is not None:
            with suppress(AMQPError, RuntimeError, OSError, TimeoutError):
                await self._channel.close()

    async def _opened(self) -> Channel:
        if self._channel is not None and not self._channel.is_closed:
            return self._channel
        self._channel = None
        confirms = bool(self._wire.publisher_confirms)
        channel = await self._wire.channel(publisher_confirms=confirms)
        assert isinstance(channel, Channel)
        if self._exchange:  # the default exchange is always there, and may not be asked for
            try:
                await channel.exchange_declare(self._exchange, passive=True)
            except AMQPChannelError as problem:
                self._tell(False, reason(problem))
                raise
        self._channel = channel
        return channel

    def _tell(self, well: bool, details: str = "") -> None:
        if well is not self._well:
            self._well = well
            self._on_exchange(self._exchange, well, details)

    async def _publish(
        self, channel: Channel, key: str, body: bytes, properties: Basic.Properties
    ) -> None:
        # A frame for a channel that the broker has closed would end the whole connection. The
        # library knows of that a few steps before it says so. From here to its write queue it makes
        # no pause: the queue has room (wire.FRAMES), and its lock is never held while waiting
        # for the socket (wait=False; Link.full bounds what waits there).
        if channel.is_closed or channel._close_exception is not None:
            raise ChannelInvalidStateError("The broker has closed the channel.")
        await channel.basic_publish(
            body,
            exchange=self._exchange,
            routing_key=key,
            properties=properties,
            mandatory=True,
            wait=False,
        )

    def _outcome(self, sending: asyncio.Task[Any], channel: Channel) -> Published:
        if sending.cancelled():
            return not_sent("The connection was closed before the broker confirmed it.")
        problem = sending.exception()
        if problem is None:
            self._proven = channel
            self._tell(True)
            return Published(200) if self._wire.publisher_confirms else Published(400, NO_CONFIRMS)
        if isinstance(problem, DeliveryError):
            self._proven = channel
            self._tell(True)
            return Published(503, _refusal(problem))
        if isinstance(problem, AMQPChannelError):
            self._tell(False, reason(problem))
        raise problem


def _invalid(why: str) -> Published:
    return failed(error("connectivity:connection.configuration.invalid", reason=why))


def _refusal(problem: DeliveryError) -> str:
    frame = problem.frame
    if isinstance(frame, Basic.Return):
        text = f"{frame.reply_code} {frame.reply_text}"
        return f"Received basic.return from the external broker: {text}"
    return "Received negative confirm from the external broker."


class Lanes:
    """All that is published over one connection; at most ``bound`` publications at a time."""

    def __init__(self, link: Link, bound: int, on_exchange: OnExchange) -> None:
        self._link = link
        self._bound = bound
        self._on_exchange = on_exchange
        self._lanes: OrderedDict[str, Lane] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()
        self._busy = 0

    async def check(self, exchanges: set[str]) -> None:
        """Look whether these are there; those that are not are told as such."""
        for exchange in sorted(exchanges):
            # What is wrong was told already. A connection that is gone is seen elsewhere.
            with suppress(AMQPError, RuntimeError):
                await self._lane(exchange).check()

    async def publish(self, publication: Publication, deadline_s: float) -> Published:
        """As :meth:`connections.driver.Driver.publish`."""
        try:
            exchange, key = split_address(publication.address)
            properties = properties_of(publication)
        except ValueError as problem:
            return _invalid(str(problem))
        if self._busy >= self._bound:
            return not_sent(f"{self._bound} messages wait for the broker already.")
        if self._link.full:
            return not_sent("The broker does not read what is sent.")
        lane = self._lane(exchange)
        self._busy += 1
        lane.busy += 1
        try:
            return await lane.send(key, publication.payload, properties, deadline_s)
        except TimeoutError:
            return not_sent("No channel available.")
        except (AMQPError, RuntimeError) as problem:
            return not_sent(reason(problem))
        except (ValueError, TypeError, UnicodeError) as problem:
            return _invalid(reason(problem))
        finally:
            self._busy -= 1
            lane.busy -= 1

    def stop(self) -> None:
        """Forget the channels; the connection takes them with it."""
        for task in self._closing:
            task.cancel()

    def _lane(self, exchange: str) -> Lane:
        lane = self._lanes.get(exchange)
        if lane is None:
            self._make_room()
            lane = self._lanes[exchange] = Lane(self._link.wire, exchange, self._on_exchange)
        self._lanes.move_to_end(exchange)
        return lane

    def _make_room(self) -> None:
        if len(self._lanes) < MAX_LANES:
            return
        idle = next((name for name, lane in self._lanes.items() if not lane.busy), None)
        if idle is not None:
            task = asyncio.create_task(self._lanes.pop(idle).close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
