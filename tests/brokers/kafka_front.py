"""TLS and SASL before a broker that knows neither: what a test needs of a guarded Kafka.

Takes connections, asks for TLS and for a user where told to, and hands everything else through.
Only what librdkafka sends is understood: ApiVersions 0, SaslHandshake 1, SaslAuthenticate 0.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import os
import ssl
import struct
from dataclasses import dataclass, field

API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE = 18, 17, 36
UNSUPPORTED_VERSION, UNSUPPORTED_MECHANISM, AUTHENTICATION_FAILED = 35, 33, 58
ROUNDS = 4096


@dataclass(frozen=True)
class Guard:
    """What is asked of a client. Files are in PEM."""

    certificate: str | None = None
    key: str | None = None
    client_ca: str | None = None  # a certificate of this authority has to be shown
    mechanisms: list[str] = field(default_factory=list)  # no SASL without one
    user: str = ""
    password: str = ""

    def context(self) -> ssl.SSLContext | None:
        """TLS as it is asked for."""
        if self.certificate is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        if self.client_ca:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.client_ca)
        return context


class Front:
    """Listens on a free port of 127.0.0.1 and talks to the broker behind it."""

    def __init__(self, broker: int, guard: Guard) -> None:
        self._broker = broker
        self._guard = guard

    async def start(self) -> int:
        """Begin to listen; returns the port."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._guard.context())
        port: int = server.sockets[0].getsockname()[1]
        return port

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._broker)
        except OSError:
            writer.close()
            return
        try:
            if self._guard.mechanisms:
                await self._admit(reader, writer, inner_reader, inner_writer)
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(_pump(reader, inner_writer))
                pumps.create_task(_pump(inner_reader, writer))
        except (OSError, asyncio.IncompleteReadError, PermissionError):
            pass  # either side is gone, or the user was refused
        finally:
            writer.close()
            inner_writer.close()

    async def _admit(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        inner_reader: asyncio.StreamReader,
        inner_writer: asyncio.StreamWriter,
    ) -> None:
        """Answer requests until the user has been recognised."""
        exchange: _Exchange | None = None
        while exchange is None or not exchange.done:
            request = await _frame(reader)
            api, version, correlation = struct.unpack_from(">hhi", request)
            head = struct.pack(">i", correlation)
            if api == API_VERSIONS and version:
                own = struct.pack(">hihhh", UNSUPPORTED_VERSION, 1, API_VERSIONS, 0, 0)
                _send(writer, head + own)
            elif api == API_VERSIONS:
                _send(inner_writer, request)
                _send(writer, _with_sasl(await _frame(inner_reader)))
            elif api == SASL_HANDSHAKE:
                mechanism = _text(request, _body(request))
                known = mechanism in self._guard.mechanisms
                exchange = _Exchange(self._guard, mechanism) if known else None
                error = 0 if known else UNSUPPORTED_MECHANISM
                _send(writer, head + struct.pack(">hi", error, 0))
            elif api == SASL_AUTHENTICATE and exchange is not None:
                at = _body(request)
                size = struct.unpack_from(">i", request, at)[0]
                answer = exchange.answer(request[at + 4 : at + 4 + size])
                if answer is None:
                    refusal = b"no such user or password"
                    reason = struct.pack(">hh", AUTHENTICATION_FAILED, len(refusal)) + refusal
                    _send(writer, head + reason + struct.pack(">i", 0))
                    await writer.drain()
                    raise PermissionError
                _send(writer, head + struct.pack(">hhi", 0, -1, len(answer)) + answer)
            else:
                raise PermissionError


class _Exchange:
    """One user's SASL exchange: PLAIN, or SCRAM (RFC 5802) with SHA-256 or SHA-512."""

    def __init__(self, guard: Guard, mechanism: str) -> None:
        self.done = False
        self._guard = guard
        self._digest = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}.get(mechanism)
        self._said = b""
        self._nonce = b""

    def answer(self, data: bytes) -> bytes | None:
        """What the server says to the client's message; None refuses."""
        if self._digest is None:
            _, user, password = data.split(b"\0")
            known = (self._guard.user.encode(), self._guard.password.encode())
            self.done = (user, password) == known
            return b"" if self.done else None
        return self._proven(data, self._digest) if self._said else self._challenged(data)

    def _challenged(self, data: bytes) -> bytes | None:
        bare = data.split(b",", 2)[2]
        user, nonce = (part[2:] for part in bare.split(b",")[:2])
        if user != self._guard.user.encode():
            return None
        self._nonce = nonce + base64.b64encode(os.urandom(12))
        first = b"r=%b,s=%b,i=%d" % (self._nonce, base64.b64encode(b"salt"), ROUNDS)
        self._said = bare + b"," + first
        return first

    def _proven(self, data: bytes, digest: str) -> bytes | None:
        bare, _, proof = data.rpartition(b",p=")
        salted = hashlib.pbkdf2_hmac(digest, self._guard.password.encode(), b"salt", ROUNDS)
        client = hmac.digest(salted, b"Client Key", digest)
        stored = hashlib.new(digest, client).digest()
        message = self._said + b"," + bare
        signature = hmac.digest(stored, message, digest)
        expected = bytes(one ^ other for one, other in zip(client, signature, strict=True))
        if b"r=" + self._nonce not in bare or base64.b64decode(proof) != expected:
            return None
        self.done = True
        server = hmac.digest(salted, b"Server Key", digest)
        return b"v=" + base64.b64encode(hmac.digest(server, message, digest))


def _with_sasl(answer: bytes) -> bytes:
    """An answer to ApiVersions 0 that names the two requests of SASL too."""
    count = struct.unpack_from(">i", answer, 6)[0]
    more = struct.pack(">hhhhhh", SASL_HANDSHAKE, 0, 1, SASL_AUTHENTICATE, 0, 0)
    return answer[:6] + struct.pack(">i", count + 2) + answer[10:] + more


def _body(request: bytes) -> int:
    """Where a request's body begins: after the client's name."""
    size: int = struct.unpack_from(">h", request, 8)[0]
    return 10 + max(size, 0)


def _text(request: bytes, at: int) -> str:
    size = struct.unpack_from(">h", request, at)[0]
    return request[at + 2 : at + 2 + size].decode()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])


def _send(writer: asyncio.StreamWriter, frame: bytes) -> None:
    writer.write(struct.pack(">i", len(frame)) + frame)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
