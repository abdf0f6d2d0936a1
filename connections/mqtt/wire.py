"""paho-mqtt on asyncio: its protocol engine, with our transport and with acks that wait for us.

paho acks a message of QoS 2 (PUBREC) as soon as it has it, also where acks are sent by hand, and
the broker would not send it again. Here the PUBREC waits as the PUBACK of QoS 1 does.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, cast

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from typing_extensions import override

_PACKETS_PER_TURN = 64  # then other tasks have their turn
_NO_SOCKET = -1
MAX_BACKLOG = 16 * 1024 * 1024
"""Bytes: messages of QoS 0 are done as soon as they wait for the network."""

OnMessage = Callable[[paho.MQTTMessage], None]


class Wire(asyncio.Protocol):
    """A connection of asyncio that looks like a socket to paho.

    ``on_readable`` is called when there is something to :meth:`recv`, the end included.
    """

    def __init__(self, on_readable: Callable[[], None]) -> None:
        self._on_readable = on_readable
        self._transport: asyncio.Transport | None = None
        self._inbox = b""
        self._at = 0
        self.ended = False
        self._parted = False  # we have said goodbye
        self._held: list[bytes | bytearray] | None = None
        self.problem: Exception | None = None
        self.gone = asyncio.get_running_loop().create_future()

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    @override
    def data_received(self, data: bytes) -> None:
        if self._parted:
            return
        self._inbox = self._inbox[self._at :] + data if self.readable else data
        self._at = 0
        self._on_readable()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self.ended, self.problem = True, exc
        if not self.gone.done():
            self.gone.set_result(None)
        self._on_readable()

    @property
    def readable(self) -> bool:
        """Whether bytes wait to be read."""
        return self._at < len(self._inbox)

    @property
    def backlog(self) -> int:
        """Bytes that the broker has not read."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def read_no_more(self, paused: bool) -> None:
        """Leave what comes in the network's buffers, or take it again."""
        if self._transport is None or self.ended:
            return
        if paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def hold(self) -> None:
        """Gather what is sent until :meth:`release`."""
        self._held = []

    def release(self) -> None:
        """Send what was gathered, in one go."""
        held, self._held = self._held, None
        if held and self._transport is not None:
            self._transport.write(b"".join(held))

    # What paho wants of a socket.

    def recv(self, size: int) -> bytes:
        """Up to ``size`` bytes; none at the end. BlockingIOError if there are none yet."""
        if not self.readable:
            if self.ended:
                return b""
            raise BlockingIOError
        piece = self._inbox[self._at : self._at + size]
        self._at += len(piece)
        return piece

    def send(self, data: bytes | bytearray) -> int:
        """Take all of ``data``."""
        if self.ended or self._transport is None:
            raise ConnectionError("the connection is closed")
        if self._held is not None:
            self._held.append(data)
        else:
            self._transport.write(bytes(data))
        return len(data)

    def close(self) -> None:
        """Send what is left, take nothing any more, and leave it to the other side to close.

        To close while bytes come would reset the connection, and the broker could lose what it
        has not read, such as acks. Whoever does not want to wait calls :meth:`abort`.
        """
        self._parted = True
        self._inbox, self._at = b"", 0
        if self._transport is None or self.ended:
            return
        if self._held:
            self._transport.write(b"".join(self._held))
            self._held.clear()
        self._transport.resume_reading()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def fileno(self) -> int:
        """None of its own."""
        return _NO_SOCKET

    def setblocking(self, flag: bool) -> None:
        """It never blocks."""


class Engine(paho.Client):
    """paho's client, fed by a :class:`Wire`.

    Callbacks run on the event loop; they must not raise, nor send by themselves: what they queue
    goes out in the next turn of the loop.
    """

    def __init__(self, client_id: str, *, version: int, clean: bool) -> None:
        five = version == MQTTProtocolVersion.MQTTv5
        super().__init__(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            clean_session=None if five else clean,
            protocol=MQTTProtocolVersion(version),
            reconnect_on_failure=False,
            manual_ack=True,
        )
        self._wire: Wire | None = None
        self._turn: asyncio.Handle | None = None
        self.on_socket_register_write = self._queued
        self.broken: Exception | None = None

    async def dial(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        """Make the connection that :meth:`connect` uses then. Raises OSError."""
        loop = asyncio.get_running_loop()
        _, self._wire = await loop.create_connection(
            lambda: Wire(self._readable), host, port, ssl=tls
        )

    @property
    def full(self) -> bool:
        """Whether so much waits to be read by the broker that no more may be sent."""
        return self._wire is not None and self._wire.backlog > MAX_BACKLOG

    @property
    def problem(self) -> Exception | None:
        """Why the connection has ended, if there is more to say than that it has."""
        return self.broken or (self._wire.problem if self._wire is not None else None)

    async def ended(self) -> None:
        """Wait until the connection is gone."""
        if self._wire is not None:
            await asyncio.shield(self._wire.gone)

    def flush(self) -> None:
        """Send what is queued."""
        wire = self._wire
        if wire is None:
            return
        wire.hold()
        try:
            self.loop_write()
        finally:
            wire.release()

    def abort(self) -> None:
        """Close at once, without a word."""
        if self._turn is not None:
            self._turn.cancel()
        if self._wire is not None:
            self._wire.abort()

    def acknowledge(self, mid: int, qos: int) -> None:
        """Tell the broker that a message is settled: PUBACK, or PUBREC as QoS 2 begins to end."""
        if qos == 2:
            super()._send_pubrec(mid)
        else:
            self.ack(mid, qos)

    def at_most(self, publications: int) -> None:
        """Send no more at a time than the broker takes, as it has said when it was connected."""
        self._max_inflight_messages = min(self._max_inflight_messages, publications)

    def _queued(self, client: paho.Client, userdata: Any, sock: Any) -> None:
        asyncio.get_running_loop().call_soon(self.flush)

    def _readable(self) -> None:
        if self._turn is None:
            self._read()

    def _read(self) -> None:
        self._turn = None
        wire = self._wire
        if wire is None:
            return
        try:
            for _ in range(_PACKETS_PER_TURN):
                self.loop_read()
                if not wire.readable:
                    break
            if wire.ended and not wire.readable:
                self.loop_read()  # it sees the end
        except Exception as problem:  # noqa: BLE001 - whatever a broker may send, it is told
            self.broken = problem
            wire.abort()
            return
        wire.read_no_more(wire.readable)
        if wire.readable:
            self._turn = asyncio.get_running_loop().call_soon(self._read)

    # paho's own, changed.

    @override
    def _create_socket(self) -> Any:
        assert self._wire is not None
        return self._wire

    @override
    def _send_pubrec(self, mid: int) -> MQTTErrorCode:
        return MQTTErrorCode.MQTT_ERR_SUCCESS  # acknowledge() sends it

    @override
    def _handle_publish(self) -> MQTTErrorCode:
        code = super()._handle_publish()
        while self._in_messages:
            _, message = self._in_messages.popitem(last=False)
            self._handle_on_message(message)
        return code

    @override
    def _handle_pubrel(self) -> MQTTErrorCode:
        mid = int.from_bytes(self._in_packet["packet"][:2], "big")
        code = super()._handle_pubrel()
        self._send_pubcomp(mid)
        return code
