"""The AMQP 1.0 protocol engine of Qpid Proton on asyncio.

The library's engine takes and gives bytes and does no input or output of its own. Here it meets a
socket of the event loop (TLS is the loop's, too), and its heartbeats meet the loop's clock.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, cast

import proton
import structlog
from typing_extensions import override

from connections.driver import OpenError
from connections.model import Connection, Uri
from connections.tls import refused

log = structlog.get_logger(__name__)

HEARTBEAT_S = 20.0
"""A broker that is silent for so long is given up; it hears from us twice as often."""
_FRAME_BYTES = 64 * 1024
_CREDENTIALS = frozenset({"amqp:unauthorized-access"})
_TEMPORARY = frozenset(
    {"amqp:internal-error", "amqp:connection:forced", "amqp:resource-limit-exceeded"}
)

OnEvent = Callable[[Any], None]
"""An event of the library."""


class Engine(asyncio.Protocol):
    """One connection to a broker. Use :func:`connected`; what is written waits for :meth:`flush`.

    ``wire`` is the library's connection. A socket that does not take any more stops the engine's
    output, so what waits is bounded by who makes it.
    """

    def __init__(self, connection: Connection, client: int, on_event: OnEvent) -> None:
        self.wire = proton.Connection()
        self.gone: asyncio.Future[OpenError] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._on_event = on_event
        self._events = proton.Collector()
        self._frames = proton.Transport()
        self._socket: asyncio.Transport | None = None
        self._paused = self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._prepare(connection, client)

    def _prepare(self, connection: Connection, client: int) -> None:
        uri = connection.uri
        self.wire.collect(self._events)
        self.wire.container = f"ackgate-{connection.id}-{client}"
        self.wire.hostname = uri.path.strip("/") or uri.host
        sasl = self._frames.sasl()
        sasl.allow_insecure_mechs = True  # the engine does not see that the socket has TLS
        if uri.user is not None:
            self.wire.user, self.wire.password = uri.user, uri.password or ""
            sasl.allowed_mechs("PLAIN")
        elif connection.credentials.get("type") == "client-cert":
            sasl.allowed_mechs("EXTERNAL")
        else:
            sasl.allowed_mechs("ANONYMOUS")
        self._frames.idle_timeout = HEARTBEAT_S
        self._frames.max_frame_size = _FRAME_BYTES
        self._frames.bind(self.wire)
        self.wire.open()

    def flush(self) -> None:
        """Have what was done to the library's objects written, soon."""
        if not self._scheduled and not self.gone.done():
            self._scheduled = True
            self._loop.call_soon(self._pump)

    def abort(self) -> None:
        """Drop the socket without a word."""
        if self._socket is not None:
            self._socket.abort()
        self._end(OpenError("temporary", "The connection was closed."))

    # ------------------------------------------------------------------- asyncio.Protocol

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast(asyncio.Transport, transport)  # uvloop's has another base class
        self._pump()

    @override
    def data_received(self, data: bytes) -> None:
        try:
            while data and (room := self._frames.capacity()) > 0:
                self._frames.push(data[:room])
                data = data[room:]
                self._dispatch()
        except proton.ProtonException as problem:
            self._end(OpenError("temporary", f"The broker does not speak AMQP 1.0: {problem}"))
        self._pump()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self.gone.done():
            self._dispatch()
        self._end(OpenError("temporary", f"The broker closed the connection{_because(exc)}."))

    @override
    def pause_writing(self) -> None:
        self._paused = True

    @override
    def resume_writing(self) -> None:
        self._paused = False
        self._pump()

    # ---------------------------------------------------------------------------- the engine

    def _pump(self) -> None:
        self._scheduled = False
        if self.gone.done() or self._socket is None:
            return
        self._dispatch()
        self._tick()
        self._dispatch()
        while not self._paused and not self.gone.done():
            size = self._frames.pending()
            if size < 0:  # the engine has written its last
                self._socket.close()
                return
            if size == 0:
                return
            self._socket.write(self._frames.peek(size))
            self._frames.pop(size)
            self._dispatch()

    def _tick(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._frames.tick(self._loop.time())
        if due:
            self._timer = self._loop.call_at(due, self._pump)

    def _dispatch(self) -> None:
        while not self.gone.done() and (event := self._events.peek()) is not None:
            try:
                self._handle(event)
            except Exception as problem:
                # Left where it is, the event would come again for ever, and nobody would know.
                log.exception("amqp10.defect", kind=str(event.type))
                self._end(OpenError("temporary", f"Encountered <{type(problem).__name__}>."))
            self._events.pop()

    def _handle(self, event: Any) -> None:
        kind = event.type
        if kind is proton.Event.TRANSPORT_ERROR:
            self._end(_transport_error(event.transport))
        elif kind is proton.Event.CONNECTION_REMOTE_CLOSE:
            self._closed(event.connection)
        else:
            self._on_event(event)

    def _closed(self, wire: Any) -> None:
        wire.close()  # an answer, unless it is one
        self._flush_rest()
        self._end(condition_error(wire.remote_condition, "The broker closed the connection"))

    def _flush_rest(self) -> None:
        size = self._frames.pending()
        if self._socket is not None and size > 0:
            self._socket.write(self._frames.peek(size))
            self._frames.pop(size)
            self._socket.close()

    def _end(self, why: OpenError) -> None:
        if not self.gone.done():
            self.gone.set_result(why)
            if self._timer is not None:
                self._timer.cancel()
            if self._socket is not None:
                self._socket.close()


def _because(problem: BaseException | None) -> str:
    if problem is None:
        return ""
    if isinstance(problem, ssl.SSLError):
        return f": {problem.reason or problem}"
    return f": {getattr(problem, 'strerror', None) or problem}"


def _transport_error(frames: Any) -> OpenError:
    """A failed login, a broken frame, or a silence that was too long."""
    if frames.sasl().outcome == proton.SASL.AUTH:
        return OpenError("credentials", "The broker refused the credentials.")
    condition = frames.condition
    if condition is not None and "SASL layer" in (condition.description or ""):
        # The protocol's way to say so: the broker answers with the header that it wants.
        return OpenError("credentials", "The broker refused the login.")
    return condition_error(condition, "The connection failed", "temporary")


def condition_error(condition: Any, what: str, cause: str = "misconfigured") -> OpenError:
    """An error of the protocol; ``cause`` is that of conditions that say no more."""
    if condition is None:
        return OpenError("temporary", f"{what}.")
    text = f"{what}: {condition.description or condition.name} ({condition.name})"
    if condition.name in _CREDENTIALS:
        return OpenError("credentials", text)
    if condition.name in _TEMPORARY or cause == "temporary":
        return OpenError("temporary", text)
    return OpenError("misconfigured", text)


async def connected(
    connection: Connection, client: int, tls: ssl.SSLContext | None, on_event: OnEvent
) -> Engine:
    """An engine with a socket; the login is under way. Raises OpenError."""
    uri: Uri = connection.uri
    engine = Engine(connection, client, on_event)
    try:
        await asyncio.get_running_loop().create_connection(
            lambda: engine, uri.host, uri.port, ssl=tls
        )
    except (OSError, ValueError) as problem:
        raise refused(problem, uri.host) from problem
    return engine
