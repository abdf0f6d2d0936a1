"""Pub/sub of Redis: a connection of its own that hears what is published on its channels."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from typing_extensions import override

from app.store.redis_address import RedisAddress
from app.store.redis_link import Link
from app.store.redis_wire import GRACE, Reply, Wire, settle

PING_INTERVAL = 5.0  # seconds


class Subscriber(Link):
    """A connection in subscribe mode; subscribes again by itself after every connect.

    ``on_message(channel, payload)`` gets each message. Messages published while there is no
    connection are lost: that is the nature of pub/sub. A PING every ``ping_interval`` seconds
    finds a dead peer.
    """

    def __init__(
        self,
        address: RedisAddress,
        channels: Sequence[str],
        on_message: Callable[[bytes, bytes], None],
        *,
        name: str,
        ping_interval: float = PING_INTERVAL,
    ) -> None:
        super().__init__(address, name)
        self._channels = tuple(channels)
        self._on_message = on_message
        self._interval = ping_interval
        self._timer: asyncio.TimerHandle | None = None
        self._heard = True
        self._suspect = False

    @override
    async def _handshake(self, wire: Wire) -> None:
        await super()._handshake(wire)
        ready: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        open_channels = {name.encode() for name in self._channels}

        def pushed(reply: Reply | Exception) -> None:
            self._heard = True
            if isinstance(reply, Exception):
                settle(ready, reply)
                wire.drop(f"the store refused a subscription: {reply}")
            elif isinstance(reply, list) and len(reply) == 3:
                kind, channel, content = reply
                if not isinstance(channel, bytes):
                    wire.drop("the store sent a push without a channel")
                elif kind == b"message" and isinstance(content, bytes):
                    self._on_message(channel, content)
                elif kind == b"subscribe":
                    open_channels.discard(channel)
                    if not open_channels:
                        settle(ready, None)

        wire.on_push = pushed
        wire.write("SUBSCRIBE", *self._channels)
        await ready

    @override
    def _up(self, wire: Wire, first: asyncio.Future[None]) -> None:
        self._heard = True
        self._suspect = False
        self._watch(wire)
        super()._up(wire, first)

    def _watch(self, wire: Wire) -> None:
        if wire.closed:
            return
        loop, delay = asyncio.get_running_loop(), self._interval
        if self._heard:
            self._heard = self._suspect = False
            wire.write("PING")
        elif not self._suspect:
            self._suspect, delay = True, GRACE
        else:
            wire.drop(f"no sign of life from the store for {self._interval:g} s")
            return
        self._timer = loop.call_later(delay, self._watch, wire)

    @override
    def _down(self, reason: str) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        super()._down(reason)
