"""AMQP 0.9.1 as aiormq has it, in the words of the driver seam: connections, headers, errors."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

from aiormq.abc import ExceptionType, TimeoutType
from aiormq.connection import Connection as Wire
from aiormq.connection import TransportFactory
from aiormq.exceptions import (
    AMQPConnectionError,
    AMQPError,
    AuthenticationError,
    InvalidFrameError,
    ProbableAuthenticationError,
)
from pamqp.commands import Basic
from pamqp.common import FieldTable
from typing_extensions import override
from yarl import URL

from connections.driver import OpenError, Publication
from connections.model import Uri
from connections.texts import text_of
from connections.tls import refused

HEARTBEAT_S = 10
"""A broker that is silent is given up after about three of them."""
MAX_HEADER_BYTES = 100_000
"""Headers travel in one frame of 128 KiB: a larger one would end the whole connection."""
MAX_NAME_BYTES = 128
MAX_ADDRESS_BYTES = 255
"""Of the name of an exchange or a queue, and of a routing key (AMQP 0.9.1, shortstr)."""
FRAMES = 10_000
"""Frames that may wait to be written: more than publications and settlements under way, so that
nobody has to wait between looking at a channel and writing to it."""
MAX_BACKLOG = 16 * 1024 * 1024
SILENT = "the broker was silent for too long"
PERSISTENT = 2

# What it says of losses and refusals is told by the seam, without tracebacks.
logging.getLogger("aiormq").setLevel(logging.CRITICAL)

_NOTHING: Mapping[str, Any] = {}


class _Wire(Wire):
    FRAME_BUFFER_SIZE = FRAMES

    @override
    async def close(self, exc: ExceptionType | None = None, timeout: TimeoutType = None) -> None:
        """As the library's, but whoever waits for an answer is told by an AMQPError.

        The library cancels them, and a task that was cancelled by nobody would end for good.
        Before it is open there is only who opens it, and may have been cancelled indeed.
        """
        if self.connected.is_set() and not isinstance(exc, AMQPError):
            why = reason(exc if isinstance(exc, Exception) else None)
            exc = AMQPConnectionError(SILENT if self.is_connection_was_stuck else why)
        await super().close(exc, timeout)


class Transport(TransportFactory):
    """The socket of a connection. :meth:`abort` ends it at once, whatever the library does."""

    def __init__(self, uri: Uri, context: ssl.SSLContext | None) -> None:
        self._uri = uri
        self._context = context
        self._writer: asyncio.StreamWriter | None = None

    async def create(
        self, url: URL, **kwargs: Any
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Called by the library. Raises OSError."""
        reader, self._writer = await asyncio.open_connection(
            self._uri.host, self._uri.port, ssl=self._context
        )
        return reader, self._writer

    @property
    def backlog(self) -> int:
        """Bytes that the broker has not read."""
        return 0 if self._writer is None else self._writer.transport.get_write_buffer_size()

    def abort(self) -> None:
        """Drop the socket without a word."""
        if self._writer is not None:
            self._writer.transport.abort()


class Link:
    """A connection to the broker that is closed in bounded time."""

    def __init__(self, wire: Wire, transport: Transport) -> None:
        self.wire = wire
        self._transport = transport

    @property
    def full(self) -> bool:
        """Whether so much waits to be read by the broker that no more may be sent.

        A broker that is short of memory reads nothing from who publishes.
        """
        return self._transport.backlog > MAX_BACKLOG

    async def close(self, grace_s: float) -> None:
        """Say goodbye, at most ``grace_s`` seconds long."""
        try:
            async with asyncio.timeout(grace_s):
                await self.wire.close()
        except TimeoutError:
            pass
        finally:
            self._transport.abort()


async def connected(uri: Uri, name: str, context: ssl.SSLContext | None) -> Link:
    """A new connection, shown as ``name`` by the broker. Raises OpenError."""
    transport = Transport(uri, context)
    wire = _Wire(_url(uri, name), transport_factory=transport)
    try:
        await wire.connect()
    except AMQPError as problem:  # some of them are OSErrors, too
        transport.abort()
        raise _open_error(problem, uri) from problem
    except (OSError, ValueError) as problem:
        transport.abort()
        raise refused(problem, uri.host) from problem
    except BaseException:
        transport.abort()
        raise
    return Link(wire, transport)


def _url(uri: Uri, name: str) -> str:
    user, password = quote(uri.user or "guest", safe=""), quote(uri.password or "guest", safe="")
    query = f"heartbeat={HEARTBEAT_S}&name={quote(name, safe='')}"
    path = quote(virtual_host(uri), safe="")
    return f"amqp://{user}:{password}@{uri.authority}/{path}?{query}"


def virtual_host(uri: Uri) -> str:
    """The virtual host that a uri names: its path without the first slash, ``/`` if there is none.

    ``/%2F`` is ``/`` as well.
    """
    return unquote(uri.path.removeprefix("/")) or "/"


def _open_error(problem: Exception, uri: Uri) -> OpenError:
    if isinstance(problem, ProbableAuthenticationError | AuthenticationError):
        return OpenError("credentials", f"The broker refused the credentials: {reason(problem)}")
    if isinstance(problem, InvalidFrameError):
        if "Connection.OpenOk" in str(problem):
            text = "does not exist, or this user may not use it"
            return OpenError("misconfigured", f"The virtual host '{virtual_host(uri)}' {text}.")
        return OpenError("misconfigured", f"This is no AMQP 0.9.1: {reason(problem)}")
    return OpenError("temporary", f"The broker cannot be reached: {reason(problem)}")


def reason(problem: BaseException | None) -> str:
    """What an error of the library says, for people."""
    if problem is None:
        return "closed"
    if isinstance(problem, RuntimeError):
        return "The channel to the broker is closed."
    texts = [str(part) for part in problem.args if part is not None]
    return " ".join(texts) or type(problem).__name__


def text_headers(properties: Basic.Properties) -> dict[str, str]:
    """The headers of a consumed message, names in lower case, values as texts.

    Those of the application, and the properties that have a meaning here: ``correlation-id``,
    ``reply-to``, ``content-type`` and ``message-id``.
    """
    headers = {
        name.lower(): text_of(value)
        for name, value in (properties.headers or _NOTHING).items()
        if value is not None
    }
    known = {
        "correlation-id": properties.correlation_id,
        "reply-to": properties.reply_to,
        "content-type": properties.content_type,
        "message-id": properties.message_id,
    }
    return headers | {name: given for name, given in known.items() if given}


def split_address(address: str) -> tuple[str, str]:
    """Exchange and routing key of ``exchange/routingKey``; no exchange is the default exchange.

    Raises ValueError.
    """
    exchange, slash, key = address.partition("/")
    if not slash or not key:
        raise ValueError(
            f"The target address '{address}' must be specified in the format 'exchange/routingKey'."
        )
    check_name(exchange)
    check_name(key)
    return exchange, key


def check_name(name: str) -> None:
    """Raises ValueError for the name of an exchange or a queue that is too long for the protocol.

    Only the library would see it, when it has opened a channel for it.
    """
    if len(name.encode()) > MAX_ADDRESS_BYTES:
        raise ValueError(f"'{name[:50]}...' has more than {MAX_ADDRESS_BYTES} bytes.")


def properties_of(publication: Publication) -> Basic.Properties:
    """What a publication says beside its payload. Raises ValueError if that is too much."""
    headers = publication.headers
    size = sum(len(name) + len(value.encode()) for name, value in headers.items())
    if size > MAX_HEADER_BYTES:
        raise ValueError(f"The headers have {size} bytes, more than {MAX_HEADER_BYTES}.")
    if any(len(name.encode()) > MAX_NAME_BYTES for name in headers):  # the library would cut it
        raise ValueError(f"The name of a header has more than {MAX_NAME_BYTES} bytes.")
    table: FieldTable = dict(headers)
    # The message id is the library's: it finds returned messages by it.
    return Basic.Properties(
        content_type=publication.content_type or headers.get("content-type"),
        correlation_id=headers.get("correlation-id"),
        reply_to=headers.get("reply-to"),
        headers=table,
        delivery_mode=PERSISTENT,
    )
