"""A server for HTTP push, and what its tests share."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from typing_extensions import override

from connections.driver import Publication, Published
from connections.http_push.driver import HttpPushDriver
from connections.model import Connection, Uri
from tests.brokers.authority import Authority
from tests.brokers.http_server import Answer, Asked, HttpServer, http_server
from tests.brokers.peers import DEADLINE, Client, Peer, Received, Tls, client, connection_of
from tests.servers import wait_for


def server_tls(directory: Path, authority: Authority, clients: str = "") -> ssl.SSLContext:
    """Of a server; ``clients``: the authority that its clients have to show."""
    files = authority.issue(directory)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    if clients:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=clients)
    return context


class HttpPeer(Peer):
    """A server without TLS and one with it."""

    kind = "http-push"
    factory = HttpPushDriver
    can = frozenset({"headers", "content-type", "confirm", "invalid address", "tls"})
    invalid = "no method/at/all"

    def __init__(self, plain: HttpServer, secure: HttpServer, authority: Authority) -> None:
        self.server = plain
        self.uri = Uri("http", "127.0.0.1", plain.port)
        secure_uri = Uri("https", "localhost", secure.port)
        self.tls = Tls(secure_uri, authority.pem, Authority().pem)
        self._received = 0

    @override
    async def address(self, name: str) -> str:
        return f"POST:/{name}"

    @override
    async def send(
        self,
        address: str,
        payload: bytes,
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
    ) -> None:
        raise NotImplementedError("HTTP push consumes nothing")

    @override
    async def receive(self, address: str) -> Received:
        await wait_for(lambda: len(self.server.asked) > self._received, DEADLINE, "a request")
        asked = self.server.asked[self._received]
        self._received += 1
        return Received(asked.body, asked.headers, asked.headers.get("content-type"))

    @override
    async def unsettled(self, address: str) -> int:
        return 0


async def http_peer(tmp_path: Path, authority: Authority) -> AsyncIterator[HttpPeer]:
    """For a fixture."""
    async with http_server() as plain, http_server(server_tls(tmp_path, authority)) as secure:
        yield HttpPeer(plain, secure, authority)


def document(server: HttpServer, **specific: str) -> Connection:
    """A connection with one target, POST:/in."""
    uri = Uri("http", "127.0.0.1", server.port)
    return connection_of("http-push", uri, (), ("POST:/in",), specific=specific)


async def push(one: Client, publication: Publication, deadline_s: float = DEADLINE) -> Published:
    return await one.driver.publish(publication, deadline_s)


async def pushed(
    peer: HttpPeer, publication: Publication, connection: Connection | None = None
) -> tuple[Published, Asked]:
    """What became of a publication, and what the server was asked for."""
    async with client(peer, connection or document(peer.server)) as one:
        published = await push(one, publication)
    return published, peer.server.asked[-1]


def answering(server: HttpServer, *answers: Answer | None) -> None:
    """Let it answer these, one after the other."""
    left = iter(answers)

    async def answer(asked: Asked) -> Answer | None:
        return next(left)

    server.answers = answer
