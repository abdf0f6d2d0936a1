"""Protocols of uvicorn with a short way for the hot paths (docs/decisions/0006).

A PUT on a thing needs no task: its command is computed when the body is complete, and its answer is
written by the callback that brings the store's reply. WebSocket frames of subscribers likewise go
straight to and from the session. Everything else takes uvicorn's ordinary way through ASGI.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import structlog
from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.speedups import apply_mask

from acks.aggregator import Answer
from acks.errors import GatewayError, error
from app.api.auth import Principal
from app.api.http import RequestHead, error_answer, new_correlation_id, wire_answer

if TYPE_CHECKING:
    from app.api.front import Front

log = structlog.get_logger(__name__)

_THINGS = b"/api/2/things/"
_FINAL_TEXT = 0x81
MAX_HEAD_BYTES = 64 * 1024
"""Bytes of a request's line and headers; more are refused before they are kept."""


class _NoEvent:
    """Stands where uvicorn keeps the event on which an ASGI task would wait."""

    def set(self) -> None:
        """Nobody waits."""


class _Direct:
    """A PUT under way; takes the place of uvicorn's cycle, which the protocol looks at."""

    __slots__ = (
        "disconnected", "head", "keep_alive", "message_event", "more_body", "parts",
        "principal", "response_complete", "scope", "size", "started",
    )  # fmt: skip

    def __init__(
        self, scope: Any, head: RequestHead, principal: Principal, keep_alive: bool
    ) -> None:
        self.scope = scope
        self.head = head
        self.principal = principal
        self.keep_alive = keep_alive
        self.started = time.perf_counter()
        self.parts: list[bytes] = []
        self.size = 0
        self.disconnected = False
        self.response_complete = False
        self.more_body = True
        self.message_event = _NO_EVENT


_NO_EVENT = _NoEvent()


class _Ignored:
    """A request on a connection that is about to end: nobody reads it, nobody answers it."""

    response_complete = True
    disconnected = keep_alive = more_body = False
    message_event = _NO_EVENT


_IGNORED = _Ignored()


class HttpProtocol(HttpToolsProtocol):
    """HTTP/1.1: PUTs on things without a task, everything else as uvicorn does it."""

    _dates: tuple[object, bytes] = (None, b"")

    _seen: tuple[RequestHead, Principal] | None = None
    _seen_headers: list[tuple[bytes, bytes]]
    _seen_query = b""
    _reading = False  # a request has begun and is not complete
    _in_head = False
    _progress = False  # a request began, ended, or got a part of its body
    _idle_bytes = 0

    @override
    def connection_made(self, transport: Any) -> None:
        """asyncio: a client has connected."""
        super().connection_made(transport)
        self._front = cast("Front", self.app)
        self._last_heard = self.loop.time()
        self._watch(self.timeout_keep_alive)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the client has gone."""
        self._stop_watching()
        super().connection_lost(exc)

    @override
    def data_received(self, data: bytes) -> None:
        """asyncio: bytes have come. Heads are bounded, and so is the time between two pieces."""
        self._last_heard = self.loop.time()
        self._progress = False
        super().data_received(data)
        if self._progress:
            self._idle_bytes = 0
        elif self._reading:
            # Bytes that bring neither a request nor its body on: a head, or trailers of chunks.
            self._idle_bytes += len(data)
            if self._idle_bytes > MAX_HEAD_BYTES:
                self._reject(error("headers.too.large", limit=MAX_HEAD_BYTES))

    # One timer a connection that looks when it was last heard of: setting and cancelling one for
    # every request, as uvicorn does, costs more than parsing the request.

    def _watch(self, delay: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(delay, self.timeout_keep_alive_handler)

    def _stop_watching(self) -> None:
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None

    @override
    def _unset_keepalive_if_required(self) -> None:
        """The timer stays, see above."""

    @override
    def timeout_keep_alive_handler(self) -> None:
        """Close the connection if nothing was heard for the keep-alive time while we expect it."""
        self.timeout_keep_alive_task = None
        if self.transport.is_closing():
            return
        left = self._last_heard + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._watch(left)
        elif self._is_busy() and not self._reading:
            self._watch(self.timeout_keep_alive)  # the client waits for us, not we for it
        else:
            self.transport.close()

    @override
    def on_response_complete(self) -> None:
        """An answer has been written: on to the next request of a client that pipelines."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self._last_heard = self.loop.time()
        self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)

    @override
    def handle_websocket_upgrade(self) -> None:
        """The connection becomes a WebSocket, which has pings of its own."""
        self._stop_watching()
        super().handle_websocket_upgrade()

    @override
    def send_400_response(self, msg: str) -> None:
        """Answer to what is not HTTP."""
        self._reject(error("gateway:bad.request"))

    def _reject(self, problem: GatewayError) -> None:
        """Answer a request whose head cannot be read, and close.

        While an earlier request is open its client would take this for the answer to that one.
        """
        if self.transport.is_closing():
            return
        if not self._is_busy() or self.cycle.more_body:
            answer = error_answer(problem, new_correlation_id())
            self.transport.write(wire_answer(answer, self._date(), keep_alive=False))
        self.transport.close()

    @override
    def on_message_begin(self) -> None:
        """httptools: a request begins."""
        super().on_message_begin()
        self._reading = self._in_head = self._progress = True

    @override
    def on_header(self, name: bytes, value: bytes) -> None:
        """httptools: a header. The length of the body is the parser's business alone.

        Trailers come here too, after the head: they are no headers of ours.
        """
        if not self._in_head:
            return
        name = name.lower()
        if name == b"content-length":
            return
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    @override
    def on_headers_complete(self) -> None:
        """httptools: the head is complete; decide which way the request goes."""
        self._in_head = False
        if self.transport.is_closing():
            self.cycle = _IGNORED  # type: ignore[assignment]  # what is read of it is there
            return
        url = self.url
        if (
            not url.startswith(_THINGS)
            or not url.isascii()
            or b"#" in url
            or b"box/" in url  # maybe a message box, which has an endpoint of its own
            or self.parser.get_method() != b"PUT"
            or self.expect_100_continue
            or self.flow.write_paused
            or self._is_busy()
        ):
            super().on_headers_complete()
            return
        raw_path, _, query = url.partition(b"?")
        # Clients send the same headers again and again on a connection.
        known = (
            self._seen is not None
            and self.headers == self._seen_headers
            and query == self._seen_query
        )
        if raw_path == _THINGS or not (
            known or (self.parser.get_http_version() == "1.1" and not self.parser.should_upgrade())
        ):
            super().on_headers_complete()
            return
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]  # a TypedDict being filled
        scope["method"] = "PUT"
        scope["raw_path"] = raw_path
        scope["query_string"] = query
        scope["path"] = raw_path.decode("latin-1")
        if known:
            assert self._seen is not None
            head, principal = self._seen
            head = head.again()
        else:
            found = self._front.things.known(scope)
            if found is None:
                super().on_headers_complete()
                return
            head, principal = found
            self._seen, self._seen_headers, self._seen_query = found, self.headers, query
        direct = _Direct(scope, head, principal, self.parser.should_keep_alive())
        self.cycle = direct  # type: ignore[assignment]  # what the protocol reads of it is there

    def _is_busy(self) -> bool:
        """Whether a request of this connection is still open (the client pipelines)."""
        cycle: object = self.cycle
        return cycle is not None and not self.cycle.response_complete

    @override
    def on_body(self, body: bytes) -> None:
        """httptools: a part of the body."""
        self._progress = True
        direct: object = self.cycle
        if not isinstance(direct, _Direct):
            super().on_body(body)
        elif not direct.response_complete:
            direct.parts.append(body)
            direct.size += len(body)
            limit = self._front.max_body
            if direct.size > limit:
                # The rest of the body is not read: the connection cannot be used again.
                direct.keep_alive = False
                self._refuse(direct, error("request.toolarge", limit=limit))

    @override
    def on_message_complete(self) -> None:
        """httptools: the request is complete."""
        self._reading = False
        self._progress = True
        direct: object = self.cycle
        if not isinstance(direct, _Direct):
            super().on_message_complete()
            return
        if direct.response_complete:
            return
        direct.more_body = False
        parts = direct.parts
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        try:
            self._front.things.submit(
                direct.scope,
                direct.head,
                direct.principal,
                body,
                lambda answer: self._answer(direct, answer),
            )
        except GatewayError as problem:
            self._refuse(direct, problem)
        except Exception:
            log.exception("request.failed", correlation_id=direct.head.correlation_id)
            self._refuse(direct, error("gateway:internalerror"))

    def _refuse(self, direct: _Direct, problem: GatewayError) -> None:
        self._answer(direct, error_answer(problem, direct.head.correlation_id))

    def _answer(self, direct: _Direct, answer: Answer) -> None:
        """Write the answer, unless the client has gone."""
        if direct.response_complete:
            return
        direct.response_complete = True
        self._front.answered(direct.scope, answer.status, time.perf_counter() - direct.started)
        if direct.disconnected or self.transport.is_closing():
            return
        try:
            data = wire_answer(answer, self._date(), direct.keep_alive)
        except Exception:
            # An ack may come from elsewhere (Spark) with a payload that cannot be rendered.
            correlation_id = direct.head.correlation_id
            log.exception("answer.not_rendered", correlation_id=correlation_id)
            failed = error_answer(error("gateway:internalerror"), correlation_id)
            data = wire_answer(failed, self._date(), direct.keep_alive)
        self.transport.write(data)
        if not direct.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def _date(self) -> bytes:
        """Default headers of uvicorn as lines; they change once a second."""
        current = self.server_state.default_headers
        known, lines = HttpProtocol._dates
        if known is not current:
            lines = b"".join(b"%b: %b\r\n" % pair for pair in current)
            HttpProtocol._dates = (current, lines)
        return lines


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """WebSocket whose whole text messages go straight to a sink, and many frames in one write.

    After the handshake frames are cut here. With a sink, a final, masked text frame of a permitted
    size is handled at once; every other frame goes, whole, through the library, which knows the
    rest of RFC 6455. The endpoint finds this object in its scope under ``extensions["ackgate"]``.
    """

    sink: Callable[[str], bool] | None = None
    """Gets every text; returns False for one that has to take the ordinary way."""
    _rest: bytes = b""
    _fragmented = False

    @override
    def data_received(self, data: bytes) -> None:
        """asyncio: bytes have come."""
        if not self.handshake_complete or self.close_sent:
            super().data_received(self._rest + data)
            self._rest = b""
            return
        data = self._rest + data if self._rest else data
        at, end = 0, len(data)
        while end - at >= 6:
            first, second = data[at], data[at + 1]
            length, start = second & 0x7F, at + 6
            if length == 126:
                length, start = int.from_bytes(data[at + 2 : at + 4], "big"), at + 8
            elif length == 127:
                length, start = int.from_bytes(data[at + 2 : at + 10], "big"), at + 14
            if second < 0x80 or length > self.config.ws_max_size:
                # Not masked or too large: the library answers that, and closes.
                super().data_received(data[at:])
                at = end
                break
            stop = start + length
            if stop > end:
                break
            if first == _FINAL_TEXT and self.sink is not None and not self._fragmented:
                self._text(data[at:stop], data[start - 4 : start], data[start:stop])
            else:
                if first & 0x0F < 3:
                    self._fragmented = first < 0x80
                super().data_received(data[at:stop])
            at = stop
            if self._is_closed():
                return
        self._rest = data[at:]

    def _text(self, frame: bytes, mask: bytes, payload: bytes) -> None:
        if mask != b"\0\0\0\0":
            payload = apply_mask(payload, mask)
        try:
            text = payload.decode()
        except UnicodeDecodeError:
            super().data_received(frame)
            return
        assert self.sink is not None
        if not self.sink(text):
            super().data_received(frame)

    @override
    def handle_connect(self, event: Any) -> None:
        """The upgrade request has come."""
        super().handle_connect(event)
        if self.handshake_initiated and not self.handshake_complete:
            extensions = cast("dict[str, Any]", self.scope["extensions"])
            extensions["ackgate"] = self

    @override
    def keepalive_timeout(self) -> None:
        """No pong: say so and close; one who does not even read that is cut off."""
        super().keepalive_timeout()
        self.loop.call_later(self.close_timeout, self.transport.abort)

    def _is_closed(self) -> bool:
        return any((self.disconnected, self.close_sent, self.transport.is_closing()))

    async def send_texts(self, texts: list[bytes]) -> bool:
        """Send text messages (UTF-8) in one write, when the transport takes more.

        False if the connection is closed or closing.
        """
        await self.writable.wait()
        if self._is_closed():
            return False
        frames: list[bytes] = []
        for text in texts:
            frames.append(_frame_head(len(text)))
            frames.append(text)
        self.transport.write(b"".join(frames))
        return True


def _frame_head(length: int) -> bytes:
    """Head of a final, unmasked text frame (RFC 6455, 5.2)."""
    if length < 126:
        return bytes((0x81, length))
    if length < 65_536:
        return b"\x81\x7e" + length.to_bytes(2, "big")
    return b"\x81\x7f" + length.to_bytes(8, "big")
