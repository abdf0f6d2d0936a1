"""A lean WebSocket subscriber that acknowledges every event asked for.

``python -m benchmarks.subscriber HOST PORT LABEL`` with ``BENCH_USER`` and ``BENCH_PASSWORD``.
Prints ``ready`` once events flow. Raw frames (RFC 6455) with an all-zero masking key, which makes
masking free, so that the subscriber's share of the machine stays small. The same client serves
every system that speaks the Ditto Protocol.
"""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import sys
from typing import cast

import orjson
import uvloop
from typing_extensions import override

CONNECT_S = 10.0


def frame(payload: bytes, opcode: int = 0x1) -> bytes:
    """One masked client frame: RFC 6455, section 5.2. Payloads up to 65,535 bytes."""
    length = len(payload)
    if length < 126:
        head = bytes((0x80 | opcode, 0x80 | length))
    else:
        head = bytes((0x80 | opcode, 0x80 | 126)) + length.to_bytes(2, "big")
    return head + b"\0\0\0\0" + payload


def take_frame(data: bytes, at: int) -> tuple[int, bytes, int] | None:
    """The server frame that starts at ``at``: (opcode, payload, end); None if it is not whole."""
    if len(data) < at + 2:
        return None
    opcode, length, start = data[at] & 0x0F, data[at + 1], at + 2
    if length == 126:
        start = at + 4
        length = int.from_bytes(data[at + 2 : at + 4], "big")
    elif length == 127:
        start = at + 10
        length = int.from_bytes(data[at + 2 : at + 10], "big")
    end = start + length
    if len(data) < start or len(data) < end:
        return None
    return opcode, data[start:end], end


class Subscriber(asyncio.Protocol):
    """Handshake, ``START-SEND-EVENTS``, then one ack for each event that asks for our label."""

    def __init__(self, host: str, port: int, label: str) -> None:
        """``label``: the label to declare and to acknowledge."""
        self._target = (host, port)
        self._label = label
        self._rest = b""
        self._upgraded = False
        self._transport: asyncio.Transport | None = None
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[str] = loop.create_future()

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the upgrade."""
        # uvloop's transports are none of asyncio's classes, so isinstance cannot tell.
        self._transport = cast(asyncio.Transport, transport)
        credentials = f"{os.environ['BENCH_USER']}:{os.environ['BENCH_PASSWORD']}".encode()
        host, port = self._target
        self._transport.write(
            (
                f"GET /ws/2?declared-acks={self._label} HTTP/1.1\r\n"
                f"Host: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}\r\n"
                "Sec-WebSocket-Version: 13\r\n"
                f"Authorization: Basic {base64.b64encode(credentials).decode()}\r\n\r\n"
            ).encode()
        )

    @override
    def data_received(self, data: bytes) -> None:
        """Take every whole frame; all acks of one read go out in one write."""
        data = self._rest + data if self._rest else data
        at = 0
        assert self._transport is not None
        if not self._upgraded:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._rest = data
                return
            if not data.startswith(b"HTTP/1.1 101"):
                self._close("refused: " + data[:300].decode(errors="replace"))
                return
            self._upgraded, at = True, end + 4
            self._transport.write(frame(b"START-SEND-EVENTS"))
        out: list[bytes] = []
        while (taken := take_frame(data, at)) is not None:
            opcode, payload, at = taken
            self._take(opcode, payload, out)
        self._rest = data[at:]
        if out:
            self._transport.write(b"".join(out))

    def _take(self, opcode: int, payload: bytes, out: list[bytes]) -> None:
        if opcode == 0x1:
            if payload[:1] == b"{":
                self._take_event(payload, out)
            elif payload == b"START-SEND-EVENTS:ACK" and not self.ready.done():
                self.ready.set_result(None)
        elif opcode == 0x9:
            out.append(frame(payload, 0xA))
        elif opcode == 0x8:
            self._close("closed by the server: " + payload[2:].decode(errors="replace"))
        elif opcode == 0x0:
            self._close("fragmented frames are not supported")

    def _take_event(self, payload: bytes, out: list[bytes]) -> None:
        event = orjson.loads(payload)
        headers = event.get("headers", {})
        if self._label not in headers.get("requested-acks", ()):
            if "status" in event and event["status"] >= 400:
                print(f"subscriber: {payload.decode()}", file=sys.stderr, flush=True)
            return
        namespace, name, _ = event["topic"].split("/", 2)
        ack = {
            "topic": f"{namespace}/{name}/things/twin/acks/{self._label}",
            "headers": {"correlation-id": headers["correlation-id"]},
            "path": "/",
            "value": {"seen": True},
            "status": 200,
        }
        out.append(frame(orjson.dumps(ack)))

    @override
    def connection_lost(self, error: Exception | None) -> None:
        """The end of the connection is the end of the process."""
        self._close(f"connection lost: {error}")

    def _close(self, reason: str) -> None:
        if not self.closed.done():
            self.closed.set_result(reason)
        if self._transport is not None:
            self._transport.close()


async def run(host: str, port: int, label: str) -> str | None:
    """Subscribe until SIGTERM (None) or until the connection ends (the reason)."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    _, subscriber = await asyncio.wait_for(
        loop.create_connection(lambda: Subscriber(host, port, label), host, port), CONNECT_S
    )
    first: tuple[asyncio.Future[None], asyncio.Future[str]] = (subscriber.ready, subscriber.closed)
    await asyncio.wait(first, timeout=CONNECT_S, return_when=asyncio.FIRST_COMPLETED)
    if not subscriber.ready.done():
        return subscriber.closed.result() if subscriber.closed.done() else "no answer in time"
    print("ready", flush=True)
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait((stopped, subscriber.closed), return_when=asyncio.FIRST_COMPLETED)
    return None if stop.is_set() else subscriber.closed.result()


def main() -> None:
    """Entry point of the subscriber process; ends with 1 if the connection ended by itself."""
    host, port, label = sys.argv[1:4]
    reason = uvloop.run(run(host, int(port), label))
    if reason is not None:
        sys.exit(f"subscriber: {reason}")


if __name__ == "__main__":
    main()
