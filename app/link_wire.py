"""The two ends of a link: who they are, then frames, in one direction.

Handshake, each side proving that it knows the secret of the listening process before the other
takes or sends anything (MAC: HMAC-SHA256 over the role and both nonces)::

    listener -> caller: MAGIC, nonce of the listener
    caller -> listener: MAGIC, nonce of the caller, MAC("client", nonces)
    listener -> caller: MAC("server", nonces)

From then on the caller sends frames: length (4 bytes, big-endian), then as many bytes.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
from collections.abc import Callable
from typing import TypeAlias, cast

import structlog
from typing_extensions import override

MAGIC = b"ackgate-link-1\n\0"
NONCE = MAC = SECRET = 32  # bytes
STEP = 2.0
"""Longest wait for one step of a peer, s."""
MAX_FRAME = 16 * 2**20
"""Largest frame, bytes without its length."""
MAX_UNSENT = 2**20
"""Unsent bytes of a link at which it takes no more frames."""

OnFrame: TypeAlias = "Callable[[memoryview], bool]"
"""Takes the content of a frame, valid during the call only; False if it cannot be read."""

_HEAD = len(MAGIC) + NONCE

log = structlog.get_logger(__name__)


class LinkRefused(Exception):
    """The peer is not who it must be, or does not speak as it must."""


def parse_listen(value: str) -> tuple[str, int] | None:
    """The setting ``link``: None for ``auto`` and ``off``, else host and port. Raises ValueError.

    Other machines are told this host, so it is one of this machine's, and no wildcard.
    """
    if value in ("auto", "off"):
        return None
    host, _, port = value.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError("auto, off, or host:port")
    if host in ("0.0.0.0", "::", "*"):  # noqa: S104 - it is refused
        raise ValueError("name the address that other machines reach, not a wildcard")
    return host, int(port)


def _mac(secret: bytes, role: bytes, listener: bytes, caller: bytes) -> bytes:
    return hmac.digest(secret, role + listener + caller, hashlib.sha256)


class _End(asyncio.Protocol):
    """What both ends have: a transport and a future that says when it is gone."""

    def __init__(self, secret: bytes) -> None:
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._secret = secret
        self._transport: asyncio.Transport | None = None
        self._nonce = os.urandom(NONCE)
        self._rest = bytearray()

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the socket is open."""
        self._transport = cast("asyncio.Transport", transport)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the socket is gone."""
        self._rest.clear()
        if not self.gone.done():
            self.gone.set_result(None)

    def close(self) -> None:
        """Close once everything is written."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def _write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)


class Incoming(_End):
    """The listening end: takes frames from one caller that has proved that it knows the secret."""

    def __init__(self, secret: bytes, on_frame: OnFrame, links: set[Incoming], limit: int) -> None:
        super().__init__(secret)
        self._on_frame = on_frame
        self._links = links
        self._limit = limit
        self._known = False
        self._closing = False
        self._needed = 4
        self._timer: asyncio.TimerHandle | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: somebody called."""
        super().connection_made(transport)
        if len(self._links) >= self._limit:
            self._closing = True
            self.abort()
            return
        self._links.add(self)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(STEP, self._refuse, "no handshake in time")
        self._write(MAGIC + self._nonce)

    @override
    def data_received(self, data: bytes) -> None:
        """asyncio: bytes, cut anywhere."""
        if self._closing:
            return
        if self._known:
            self._frames(data)
        else:
            self._greeting(data)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the socket is gone."""
        super().connection_lost(exc)
        self._closing = True
        self._links.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    def _greeting(self, data: bytes) -> None:
        rest = self._rest
        rest += data
        head = bytes(rest[: len(MAGIC)])
        if head != MAGIC[: len(head)] or len(rest) > _HEAD + MAC:
            self._refuse("it does not speak as a gateway")
            return
        if len(rest) < _HEAD + MAC:
            return
        caller, proof = bytes(rest[len(MAGIC) : _HEAD]), bytes(rest[_HEAD:])
        rest.clear()
        if not hmac.compare_digest(proof, _mac(self._secret, b"client", self._nonce, caller)):
            self._refuse("it does not know the secret")
            return
        self._known = True
        if self._timer is not None:
            self._timer.cancel()
        self._write(_mac(self._secret, b"server", self._nonce, caller))

    def _frames(self, data: bytes) -> None:
        rest = self._rest
        if rest:
            rest += data
            if len(rest) < self._needed:
                return
            data = bytes(rest)
            rest.clear()
        start, size, view = 0, len(data), memoryview(data)
        self._needed = 4
        while size - start >= 4:
            length = int.from_bytes(data[start : start + 4], "big")
            if length > MAX_FRAME:
                self._break(f"a frame of {length} bytes, more than {MAX_FRAME}")
                return
            end = start + 4 + length
            if end > size:
                self._needed = end - start
                break
            if not self._on_frame(view[start + 4 : end]):
                self._break("a frame that cannot be read")
                return
            start = end
        if start < size:
            rest += view[start:]

    def _refuse(self, reason: str) -> None:
        log.warning("links.refused", reason=reason)
        self._closing = True
        self.abort()

    def _break(self, reason: str) -> None:
        log.error("links.broken", reason=reason)
        self._closing = True
        self.abort()


class Outgoing(_End):
    """The calling end: ``ready`` is done when the peer has proved itself, then frames go out.

    ``ready`` fails with LinkRefused if it does not. ``on_end()`` is called once, when the link,
    once ready, ends for whatever reason.
    """

    def __init__(self, secret: bytes, on_end: Callable[[Outgoing], None]) -> None:
        super().__init__(secret)
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.used = True
        self.idle = 0
        self._on_end: Callable[[Outgoing], None] | None = on_end
        self._expected = b""

    @property
    def alive(self) -> bool:
        """Whether frames may be sent."""
        return self._on_end is not None and self.ready.done()

    def send(self, content: bytes) -> bool:
        """Send one frame; False if it must go another way."""
        transport = self._transport
        if (
            transport is None
            or transport.is_closing()
            or transport.get_write_buffer_size() > MAX_UNSENT
            or len(content) > MAX_FRAME
        ):
            return False
        transport.write(len(content).to_bytes(4, "big") + content)
        self.used = True
        return True

    @override
    def data_received(self, data: bytes) -> None:
        """asyncio: bytes of the handshake; nothing may follow it."""
        if self.ready.done():
            self._fail("it sent something after the handshake")
            return
        rest = self._rest
        rest += data
        if self._expected:
            self._confirm()
        elif len(rest) > _HEAD or not rest.startswith(MAGIC[: len(rest)]):
            self._fail("it does not speak as a gateway")
        elif len(rest) == _HEAD:
            listener = bytes(rest[len(MAGIC) :])
            rest.clear()
            self._expected = _mac(self._secret, b"server", listener, self._nonce)
            proof = _mac(self._secret, b"client", listener, self._nonce)
            self._write(MAGIC + self._nonce + proof)

    def _confirm(self) -> None:
        if len(self._rest) < MAC:
            return
        if hmac.compare_digest(bytes(self._rest), self._expected):
            self._rest.clear()
            self.ready.set_result(None)
        else:
            self._fail("it does not know the secret")

    @override
    def eof_received(self) -> None:
        """asyncio: the peer is gone or wants no more."""
        self._end("the peer closed the link")

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the socket is gone."""
        super().connection_lost(exc)
        self._end(f"the link was lost: {exc}" if exc else "the link was closed")

    @override
    def close(self) -> None:
        """Take no more frames, and close once everything is written."""
        super().close()
        self._end("the link was closed")

    def _fail(self, reason: str) -> None:
        self.abort()
        self._end(reason)

    def _end(self, reason: str) -> None:
        on_end, self._on_end = self._on_end, None
        if not self.ready.done():
            self.ready.set_exception(LinkRefused(reason))
            self.ready.exception()  # seen: whoever waits gets it, and nobody has to
        elif on_end is not None:
            on_end(self)
