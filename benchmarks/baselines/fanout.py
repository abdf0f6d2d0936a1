"""The least that brings one event to many WebSockets: no rules, no checks, no Ditto Protocol.

A PUT appends its body to one stream; a reader of that stream writes each entry to every WebSocket.
Run as ``python -m benchmarks.baselines.fanout PORT`` with ``BENCH_REDIS_URL``.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import sys
from typing import Any, cast

import uvloop
from redis.asyncio import Redis
from typing_extensions import override

STREAM = "fanout"
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_SOCKETS: set[asyncio.Transport] = set()
_TASKS: set[asyncio.Task[None]] = set()


def text_frame(payload: bytes) -> bytes:
    """One unmasked text frame: RFC 6455, section 5.2. Payloads up to 65,535 bytes."""
    length = len(payload)
    if length < 126:
        return bytes((0x81, length)) + payload
    return bytes((0x81, 126)) + length.to_bytes(2, "big") + payload


class Connection(asyncio.Protocol):
    """An HTTP connection that takes PUTs, or becomes a WebSocket."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._data = b""

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        # uvloop's transports are none of asyncio's classes, so isinstance cannot tell.
        self._transport = cast(asyncio.Transport, transport)

    @override
    def data_received(self, data: bytes) -> None:
        """A request, or a frame: whoever sends a text wants to know that it has come."""
        if self._transport in _SOCKETS:
            if data[0] == 0x81:
                self._transport.write(text_frame(b"START-SEND-EVENTS:ACK"))
            return
        self._data += data
        head, blank, body = self._data.partition(b"\r\n\r\n")
        if not blank:
            return
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        if head.startswith(b"PUT ") and len(body) < int(fields[b"content-length"]):
            return
        self._data = b""
        if head.startswith(b"PUT "):
            task = asyncio.create_task(self._append(body))
            _TASKS.add(task)
            task.add_done_callback(_TASKS.discard)
        elif b"upgrade" in fields:
            key = head.partition(b"Sec-WebSocket-Key: ")[2].partition(b"\r\n")[0]
            accept = base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest())
            self._transport.write(
                b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
                b"Connection: Upgrade\r\nSec-WebSocket-Accept: " + accept + b"\r\n\r\n"
            )
            _SOCKETS.add(self._transport)
        else:
            self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    async def _append(self, body: bytes) -> None:
        await self._redis.xadd(STREAM, {"v": body})
        self._transport.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    @override
    def connection_lost(self, _error: Exception | None) -> None:
        """The client is gone."""
        _SOCKETS.discard(self._transport)


async def deliver(redis: Redis) -> None:
    """Write every entry of the stream to every WebSocket."""
    last = b"$"
    while True:
        read: Any = await redis.xread({STREAM: last}, block=1_000)
        for _, entries in read or ():
            for entry_id, fields in entries:
                last = entry_id
                frame = text_frame(b'{"value":' + fields[b"v"] + b"}")
                for socket in list(_SOCKETS):
                    socket.write(frame)


async def serve(port: int) -> None:
    """Serve until the process is stopped."""
    url = os.environ["BENCH_REDIS_URL"]
    async with Redis.from_url(url) as commands, Redis.from_url(url) as reading:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: Connection(commands), "127.0.0.1", port, backlog=2_048
        )
        async with server:
            await deliver(reading)


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
