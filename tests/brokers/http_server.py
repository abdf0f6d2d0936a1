"""An HTTP/1.1 server for tests: keeps what was asked, answers what the test says."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import h11


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, and the number of the connection that it came over."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    connection: int


@dataclass(frozen=True, slots=True)
class Answer:
    """A response; of ``cut`` the connection ends in the middle of the body."""

    status: int = 200
    body: bytes = b""
    content_type: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False


Answers = Callable[[Asked], Awaitable[Answer | None]]
"""None: the connection is closed without an answer."""


async def _fine(asked: Asked) -> Answer:
    return Answer()


class HttpServer:
    """On a free port of 127.0.0.1; ``answers`` may be replaced at any time."""

    def __init__(self) -> None:
        self.answers: Answers = _fine
        self.asked: list[Asked] = []
        self.connections = 0  # that were ever made
        self.port = 0
        self._readers: set[asyncio.StreamReader] = set()

    @property
    def open(self) -> int:
        """Connections whose client is still there."""
        return sum(not reader.at_eof() for reader in self._readers)

    def of(self, path: str) -> list[Asked]:
        """The requests whose path begins with this."""
        return [asked for asked in self.asked if asked.target.startswith(path)]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        self.connections += 1
        self._readers.add(reader)
        number, wire = self.connections, h11.Connection(h11.SERVER)
        try:
            while (asked := await _read(wire, reader, number)) is not None:
                self.asked.append(asked)
                answer = await self.answers(asked)
                if answer is None or not await _write(wire, writer, answer):
                    break
                wire.start_next_cycle()
        except (ConnectionError, h11.RemoteProtocolError):
            pass  # the client went away
        finally:
            self._readers.discard(reader)
            writer.close()
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()


async def _read(wire: h11.Connection, reader: asyncio.StreamReader, number: int) -> Asked | None:
    request: h11.Request | None = None
    body = b""
    while True:
        event = wire.next_event()
        if event is h11.NEED_DATA:
            wire.receive_data(await reader.read(65536))
        elif isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage) and request is not None:
            headers = {name.decode(): value.decode() for name, value in request.headers}
            method, target = request.method.decode(), request.target.decode()
            return Asked(method, target, headers, body, number)
        else:
            return None


async def _write(wire: h11.Connection, writer: asyncio.StreamWriter, answer: Answer) -> bool:
    """Whether the connection can go on."""
    headers = {"content-length": str(len(answer.body)), **answer.headers}
    if answer.content_type is not None:
        headers["content-type"] = answer.content_type
    data = wire.send(h11.Response(status_code=answer.status, headers=list(headers.items())))
    assert data is not None
    writer.write(data)
    if answer.cut:
        writer.write(answer.body[:1])
        await writer.drain()
        return False
    writer.write(wire.send(h11.Data(data=answer.body)) or b"")
    writer.write(wire.send(h11.EndOfMessage()) or b"")
    await writer.drain()
    return wire.our_state is h11.DONE and wire.their_state is h11.DONE


@asynccontextmanager
async def http_server(
    tls: ssl.SSLContext | None = None, port: int = 0
) -> AsyncIterator[HttpServer]:
    """A running server, on a free port unless told; its connections end with it."""
    one = HttpServer()
    running: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        task.add_done_callback(running.discard)
        with contextlib.suppress(asyncio.CancelledError):  # the test is over
            await one.serve(reader, writer)

    server = await asyncio.start_server(connected, "127.0.0.1", port, ssl=tls)
    one.port = server.sockets[0].getsockname()[1]
    try:
        yield one
    finally:
        server.close()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
