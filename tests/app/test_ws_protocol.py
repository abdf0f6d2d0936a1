"""Frames are cut from the connection in their order, and can be told to wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from typing import Any

import pytest
from uvicorn.config import Config
from uvicorn.server import ServerState

from app.api.ws_protocol import HELD_BYTES, SLICE, WebSocketProtocol
from app.session import Session
from tests.servers import wait_for

MAX_SIZE = 100_000


class Endpoint:
    """An ASGI application that collects what comes: at once, or by the ordinary way."""

    def __init__(self, slow: Callable[[str], bool]) -> None:
        self.wire: WebSocketProtocol | None = None
        self.seen: list[str] = []
        self.gate = asyncio.Event()  # opens for what takes the ordinary way
        self.ended = asyncio.Event()
        self._slow = slow

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        self.wire = scope["extensions"]["ackgate"]
        self.wire.attach(self._sink)
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                self.ended.set()
                return
            await self.gate.wait()
            self.seen.append(message.get("text") or "binary")
            self.wire.release()

    def _sink(self, text: str) -> bool:
        if self._slow(text):
            return False
        self.seen.append(text)
        return True


def frame(payload: bytes, first: int = 0x81) -> bytes:
    """A masked frame (RFC 6455, 5.2); the mask is 1, 2, 3, 4."""
    length = len(payload)
    if length < 126:
        head = bytes((first, 0x80 | length))
    else:
        head = bytes((first, 0x80 | 126)) + length.to_bytes(2, "big")
    masked = bytes(byte ^ (1, 2, 3, 4)[at % 4] for at, byte in enumerate(payload))
    return head + b"\1\2\3\4" + masked


def texts(*payloads: str) -> bytes:
    return b"".join(frame(payload.encode()) for payload in payloads)


@asynccontextmanager
async def connected(
    slow: Callable[[str], bool] = lambda text: text.startswith("slow"),
) -> AsyncIterator[tuple[Endpoint, asyncio.StreamWriter, asyncio.StreamReader]]:
    """A client that has been upgraded, and the endpoint that it talks to."""
    endpoint = Endpoint(slow)
    config = Config(endpoint, ws_max_size=MAX_SIZE, ws_per_message_deflate=False, log_config=None)
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: WebSocketProtocol(config, state, {}), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(
        b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
    )
    await reader.readuntil(b"\r\n\r\n")
    await wait_for(lambda: endpoint.wire is not None)
    try:
        yield endpoint, writer, reader
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        endpoint.gate.set()
        await asyncio.wait_for(endpoint.ended.wait(), 5)
        server.close()
        await server.wait_closed()


async def test_frames_are_handled_in_their_order() -> None:
    async with connected() as (endpoint, writer, _):
        endpoint.gate.set()
        writer.write(texts("a", "slow 1", "b") + frame(b"\0", 0x82) + texts("c"))
        # In two fragments, with a ping between them.
        writer.write(frame(b"sl", 0x01) + frame(b"", 0x89) + frame(b"ow 2", 0x80) + texts("d"))
        await wait_for(lambda: len(endpoint.seen) == 7)
        assert endpoint.seen == ["a", "slow 1", "b", "binary", "c", "slow 2", "d"]


@pytest.mark.parametrize("chunk", [1, 2, 7, 1000])
async def test_frames_may_come_in_pieces(chunk: int) -> None:
    sent = ["", "x", "ü" * 40, "y" * 130, "z" * 5000]
    data = texts(*sent)
    async with connected() as (endpoint, writer, _):
        for at in range(0, len(data), chunk):
            writer.write(data[at : at + chunk])
            if at % 50 == 0:
                await writer.drain()
        await wait_for(lambda: len(endpoint.seen) == len(sent))
        assert endpoint.seen == sent


async def test_nothing_is_handled_while_something_waits_for_its_reader() -> None:
    async with connected() as (endpoint, writer, reader):
        writer.write(texts("a", "slow", "b") + frame(b"", 0x89))
        await wait_for(lambda: endpoint.seen == ["a"])
        writer.write(texts("c"))
        endpoint.gate.set()
        await wait_for(lambda: endpoint.seen == ["a", "slow", "b", "c"])
        assert await reader.readexactly(2) == b"\x8a\0"  # the ping has had its turn, too


async def test_a_held_connection_reads_little_and_goes_on() -> None:
    async with connected() as (endpoint, writer, _):
        wire = endpoint.wire
        assert wire is not None
        wire.hold()
        wire.hold()
        many = [f"{n:09}" for n in range(100_000)]
        writer.write(texts(*many))
        await wait_for(lambda: not wire.transport.is_reading())
        assert HELD_BYTES < len(wire._rest) < HELD_BYTES + 2**18 + 2**16
        wire.release()
        assert endpoint.seen == []
        wire.release()
        await wait_for(lambda: len(endpoint.seen) == len(many), 30)
        assert endpoint.seen == many


async def test_the_end_of_a_held_connection_is_noticed() -> None:
    async with connected() as (endpoint, writer, _):
        assert endpoint.wire is not None
        endpoint.wire.hold()
        writer.write(texts("never handled"))
        await writer.drain()
        writer.transport.abort()
        endpoint.gate.set()
        await asyncio.wait_for(endpoint.ended.wait(), 5)
        endpoint.wire.release()
        assert endpoint.seen == []


async def test_others_have_their_turn_between_many_frames() -> None:
    async with connected() as (endpoint, writer, _):
        sizes: list[int] = []

        async def others() -> None:
            while len(endpoint.seen) < 5000:
                sizes.append(len(endpoint.seen))
                await asyncio.sleep(0)

        writer.write(texts(*["x"] * 5000))
        await asyncio.wait_for(others(), 10)
        steps = [after - before for before, after in pairwise(sizes)]
        assert 0 < max(steps) <= SLICE


async def test_a_detached_connection_is_closed_in_peace() -> None:
    async with connected() as (endpoint, writer, reader):
        wire = endpoint.wire
        assert wire is not None
        wire.hold()
        writer.write(texts(*[f"{n:09}" for n in range(100_000)]))
        await wait_for(lambda: not wire.transport.is_reading())
        wire.detach()
        await wire.send({"type": "websocket.close", "code": 1000, "reason": ""})
        assert await reader.readexactly(2) == b"\x88\x02"
        writer.write(frame(b"\x03\xe8", 0x88))
        assert await reader.read() == b"\x03\xe8"
        assert endpoint.seen == []


async def test_a_frame_that_is_too_large() -> None:
    async with connected() as (endpoint, writer, reader):
        head = bytes((0x81, 0xFF)) + (MAX_SIZE + 1).to_bytes(8, "big") + b"\0\0\0\0"
        writer.write(texts("a") + head)
        closing = await reader.read(4)
        assert (closing[0], int.from_bytes(closing[2:4], "big")) == (0x88, 1009)
        assert endpoint.seen == ["a"]


async def test_what_is_sent_at_once_and_what_had_to_wait_comes_in_order() -> None:
    """The client does not read for a while, so that both ways are taken, and again afterwards."""
    async with connected() as (endpoint, _, reader):
        wire = endpoint.wire
        assert wire is not None
        session = Session(("nginx:ditto",), (), outbox_bytes=10**8)
        session.send_soon = wire.send_soon

        async def write() -> None:
            while session.closing is None:
                await wire.send_texts(await session.frames())

        writer = asyncio.create_task(write())
        sent, rounds, padding = 0, 0, b"x" * 900
        while rounds < 2_000 or wire.writable.is_set():
            for _ in range(10):
                assert session.put(b"%08d" % sent + padding)
                sent += 1
            rounds += 1
            assert rounds < 20_000
            await asyncio.sleep(0)
        read = 0
        async with asyncio.timeout(20):
            while read < sent:
                if read % 97 == 0:  # more comes while what has waited goes out
                    assert session.put(b"%08d" % sent + padding)
                    sent += 1
                head = await reader.readexactly(4)
                text = await reader.readexactly(int.from_bytes(head[2:], "big"))
                assert int(text[:8]) == read
                read += 1
        session.close(1000, "")
        await asyncio.wait_for(writer, 5)
