"""Clients that wait, each on a connection of its own: ``python -m benchmarks.crowd '<Crowd>'``.

The argument is a ``Crowd`` as JSON. Prints what ``benchmarks.expiry.measure`` returns.
"""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import sys
from typing import cast

import uvloop
from typing_extensions import override

from benchmarks.bodies import Server, thing, thing_id
from benchmarks.expiry import THINGS, Crowd, Expiry, measure

PORTS = 5_000
"""Connections from one address of the loopback; further ones come from the next address.

Far fewer than there are ports: looking for a free one takes long when most are in use.
"""
CONNECT_S = 20.0
IP_BIND_ADDRESS_NO_PORT = 24
"""Linux, ip(7): the port is chosen by connect, so that every destination has all of them."""
ACKS = "twin-persisted,bench:nobody"


class Client(asyncio.Protocol):
    """One request and its answer."""

    def __init__(self, server: Server, number: int, expiry: Expiry) -> None:
        self._server = server
        self._number = number
        self._expiry: Expiry | None = expiry

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        assert self._expiry is not None
        headers = {
            "requested-acks": ACKS,
            "timeout": f"{self._expiry.timeout_ms()}ms",
            "Content-Type": "application/json",
        }
        number = self._number % THINGS
        path = f"/api/2/things/{thing_id(number)}"
        # uvloop's transports are none of asyncio's classes, so isinstance cannot tell.
        cast(asyncio.Transport, transport).write(
            self._server.request("PUT", path, thing(number), headers)
        )

    @override
    def data_received(self, data: bytes) -> None:
        """The answer: its status is all we want to know."""
        self._answered(data[9:12].decode())

    @override
    def connection_lost(self, error: Exception | None) -> None:
        """A connection without an answer is an error."""
        self._answered("connection lost")

    def _answered(self, status: str) -> None:
        if self._expiry is not None:
            self._expiry.answered(status)
            self._expiry = None


class Clients:
    """All connections of one expiry; they stay open until the next one begins."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._expiry: Expiry | None = None
        self._transports: list[asyncio.BaseTransport] = []

    async def some(self, numbers: range, expiry: Expiry) -> None:
        """Connect and send the requests ``numbers``."""
        if expiry is not self._expiry:
            for transport in self._transports:
                transport.close()
            self._transports.clear()
            self._expiry = expiry
        await asyncio.gather(*(self._one(number, expiry) for number in numbers))

    async def _one(self, number: int, expiry: Expiry) -> None:
        loop = asyncio.get_running_loop()
        connection = socket.socket()
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
        connection.bind((f"127.0.0.{1 + number // PORTS}", 0))
        async with asyncio.timeout(CONNECT_S):
            await loop.sock_connect(connection, (self._server.host, self._server.port))
            transport, _ = await loop.create_connection(
                lambda: Client(self._server, number, expiry), sock=connection
            )
        self._transports.append(transport)


async def run(crowd: Crowd) -> dict[str, dict[str, float]]:
    """Open all requests over HTTP and wait for their answers."""
    gc.disable()
    clients = Clients(Server(crowd.host, crowd.port, crowd.user, crowd.password))
    return await measure(crowd, clients.some)


def main() -> None:
    """Entry point of the process."""
    print(json.dumps(uvloop.run(run(Crowd(**json.loads(sys.argv[1]))))), flush=True)


if __name__ == "__main__":
    main()
