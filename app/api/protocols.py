"""HTTP of uvicorn with a short way for the hot path (docs/decisions/0006).

A PUT on a thing needs no task: its command is computed when the body is complete, and its answer is
written by the callback that brings the store's reply. Everything else takes uvicorn's ordinary way
through ASGI.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

import httptools
import structlog
from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from websockets.http11 import MAX_LINE_LENGTH, MAX_NUM_HEADERS

from acks.aggregator import Answer
from acks.errors import GatewayError, error
from app.api.auth import Principal
from app.api.http import RequestHead, error_answer, new_correlation_id, wire_answer

if TYPE_CHECKING:
    from app.api.front import Front

log = structlog.get_logger(__name__)

_THINGS = b"/api/2/things/"
MAX_HEAD_BYTES = 64 * 1024
"""Bytes of a request's line and headers; more are refused before they are kept."""
_NOT_HTTP = "Invalid HTTP request received."
_OF_UPGRADES = (b"upgrade", b"http2-settings")
"""Headers that mean nothing once an upgrade is ignored."""


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
    _length: bytes | None = None  # the content-length given
    _upgrading = False  # the request's head asks for another protocol

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
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.send_400_response(_NOT_HTTP)
        except httptools.HttpParserUpgrade as upgrade:
            self._go_on(memoryview(data), upgrade.args[0])
        if self._progress:
            self._idle_bytes = 0
        elif self._reading:
            # Bytes that bring neither a request nor its body on: a head, or trailers of chunks.
            self._idle_bytes += len(data)
            if self._idle_bytes > MAX_HEAD_BYTES:
                self._reject(error("headers.too.large", limit=MAX_HEAD_BYTES))

    def _go_on(self, data: memoryview, at: int) -> None:
        """Go on after a head that asks for another protocol, and that ends ``at`` in ``data``.

        WebSocket is served. Other protocols are ignored (RFC 9110, 7.8): the parser has skipped
        the body, as it would not be HTTP, so a new one reads that request without the wish.
        """
        while not self.transport.is_closing():
            self._upgrading = False
            data = data[at:]
            wanted = self._should_upgrade()
            method: bytes = self.parser.get_method()
            if method == b"CONNECT" or (wanted and self._is_busy()):
                self._reject(error("gateway:bad.request"))
                return
            if wanted:
                self.handle_websocket_upgrade()
                return
            head = self._head_without_upgrade(method)
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            try:
                self.parser.feed_data(head)
                self.parser.feed_data(data)
                return
            except httptools.HttpParserError:
                self.send_400_response(_NOT_HTTP)
                return
            except httptools.HttpParserUpgrade as upgrade:
                at = upgrade.args[0]

    def _head_without_upgrade(self, method: bytes) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (method, self.url, version)]
        lines += [b"%b: %b" % pair for pair in self.headers if pair[0] not in _OF_UPGRADES]
        if self._length is not None:
            lines.append(b"content-length: " + self._length)
        return b"\r\n".join(lines) + b"\r\n\r\n"

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
        taken = getattr(self.transport.get_protocol(), "handshake_initiated", True)
        if not taken and not self.transport.is_closing():
            # The library has not taken the head, and would leave the client without an answer.
            answer = error_answer(self._upgrade_problem(), new_correlation_id())
            self.transport.write(wire_answer(answer, self._date(), keep_alive=False))
            self.transport.close()

    def _upgrade_problem(self) -> GatewayError:
        longest = max(len(name) + len(value) for name, value in [(b"GET", self.url), *self.headers])
        if longest > MAX_LINE_LENGTH - 16 or len(self.headers) > MAX_NUM_HEADERS:
            return error("headers.too.large", limit=MAX_LINE_LENGTH)
        return error("gateway:bad.request")

    @override
    def send_400_response(self, msg: str) -> None:
        """Answer to what is not HTTP."""
        self.logger.warning(msg)
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
        self._length = None

    @override
    def on_header(self, name: bytes, value: bytes) -> None:
        """httptools: a header. The length of the body is the parser's business alone.

        Trailers come here too, after the head: they are no headers of ours.
        """
        if not self._in_head:
            return
        name = name.lower()
        if name == b"content-length":
            self._length = value
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
            self._take_ordinary_way()
            return
        raw_path, _, query = url.partition(b"?")
        # Clients send the same headers again and again on a connection.
        known = (
            self._seen is not None
            and self.headers == self._seen_headers
            and query == self._seen_query
            and (self._seen[1].until is None or self._seen[1].is_known())
        )
        if raw_path == _THINGS or not (
            known or (self.parser.get_http_version() == "1.1" and not self.parser.should_upgrade())
        ):
            self._take_ordinary_way()
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

    def _take_ordinary_way(self) -> None:
        # For answers that end in the middle because their client does not read (app/api/sse.py).
        cast("dict[str, Any]", self.scope)["extensions"] = {"ackgate": self.transport}
        if self.parser.should_upgrade():
            self._upgrading = True
            if not self._should_upgrade():
                return  # it is read again, see _go_on
        super().on_headers_complete()

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
        if self._upgrading:
            return  # only its head is, and nothing has been made of it
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
