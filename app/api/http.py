"""HTTP at its barest: read a request of an ASGI scope, send an answer. Shared by all endpoints.

Hot endpoints are plain ASGI callables (measured: a framework route costs several times the work of
the whole gateway), so this module takes the place of a framework's request and response objects.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from functools import lru_cache
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

import orjson

from acks.aggregator import Answer
from acks.document import check_json, invalid_json
from acks.errors import GatewayError, error
from acks.headers import QUERY_AS_HEADERS, HeaderDefaults, invalid_header, travels
from acks.payloads import JSON_TYPE
from app.api.presented import ACCESS_TOKEN, PRE_AUTHENTICATED, Evidence, Presented

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_BODILESS = (202, 204, 304)
_SHOWN = {
    name: name.encode()
    for name in (
        "correlation-id", "response-required", "dry-run", "channel", "requested-acks", "timeout",
        "location", "traceparent", "tracestate", "etag", "ditto-originator", "ditto-metadata",
        "ditto-weak-ack", "live-channel-condition-matched", "historical-headers",
        "entity-revision", "www-authenticate", "retry-after", "preference-applied",
        "allow", "link", "ditto-connection-id", "diverted-response-from-connection",
    )
}  # fmt: skip
"""Headers that an HTTP answer may carry (spec acks-and-http 1.8: only known ones)."""


class Rules(NamedTuple):
    """How ack headers are completed and bounded: the settings' part of :func:`http_options`."""

    defaults: HeaderDefaults
    max_timeout_ms: int
    default_timeout_ms: int


class RequestHead:
    """What a signal needs of a request's headers and query.

    ``known`` holds interpreted headers by lower-case name, ``carried`` those that travel on with
    the signal; neither is to be changed. ``given`` is the correlation-id that came, if any.
    ``authorization`` is what the authenticator wants to see.
    """

    __slots__ = ("authorization", "carried", "correlation_id", "given", "known")

    def __init__(self, scope: Scope, limit: int) -> None:
        """Read the head; ``limit`` bounds the characters of query and headers taken in.

        Raises ``gateway:duplicate.header.field``, ``headers.too.large``.
        """
        self.known: dict[str, str] = {}
        self.carried: dict[str, str] = {}
        self.authorization: Evidence = None
        size = 0
        known = self.known
        for raw_name, raw_value in scope["headers"]:
            size += len(raw_name) + len(raw_value)
            name = _INTERPRETED.get(raw_name)
            if name is not None:
                if name not in known:
                    known[name] = raw_value.decode("latin-1")
                elif name in _LISTS:
                    known[name] += f", {raw_value.decode('latin-1')}"
                else:
                    raise error("gateway:duplicate.header.field", header=name)
            elif raw_name == b"authorization":
                if self.authorization is not None:
                    raise error("gateway:duplicate.header.field", header="authorization")
                self.authorization = raw_value
                size -= len(raw_name) + len(raw_value)
            else:
                name = raw_name.decode("latin-1")
                if travels(name):
                    self._carry(name, raw_value.decode("latin-1"))
        query = scope["query_string"]
        if query:
            size += len(query) - self._read_query(query, scope)
        if PRE_AUTHENTICATED in known:
            subjects = _as_utf8(known.pop(PRE_AUTHENTICATED))
            self.authorization = self._presented(scope)._replace(subjects=subjects)
        if size > limit:
            raise error("headers.too.large", limit=limit)
        given = known.get("x-correlation-id") or known.get("correlation-id")
        if given and not _can_be_repeated(given):
            raise invalid_header("correlation-id", given, "correlation-id")
        self.given = given
        self.correlation_id = given or new_correlation_id()

    def again(self) -> RequestHead:
        """The head of another request with the same headers and query."""
        head = object.__new__(RequestHead)
        head.known, head.carried = self.known, self.carried
        head.authorization, head.given = self.authorization, self.given
        head.correlation_id = self.given or new_correlation_id()
        return head

    def _carry(self, name: str, value: str) -> None:
        """Take in a header that travels; a second one would be lost, so it is refused (1.5)."""
        if name in self.carried:
            raise error("gateway:duplicate.header.field", header=name)
        self.carried[name] = value

    def _read_query(self, query: bytes, scope: Scope) -> int:
        """Take in the query; returns how many characters of it are a token, which do not count."""
        uncounted = 0
        for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
            if name in QUERY_AS_HEADERS:
                if self.known.get(name, value) != value:
                    raise error(
                        "gateway:duplicate.header.field",
                        message=f"<{name}> was provided as header as well as query parameter with "
                        f"divergent values!",
                    )
                self.known[name] = value
            elif name == PRE_AUTHENTICATED:
                shown = self._presented(scope)
                _check_first(shown.query_subjects, name)
                self.authorization = shown._replace(query_subjects=value)
            elif name == ACCESS_TOKEN and scope["type"] == "websocket":
                shown = self._presented(scope)
                _check_first(shown.access_token, name)
                self.authorization = shown._replace(access_token=value)
                uncounted += len(value)
        return uncounted

    def _presented(self, scope: Scope) -> Presented:
        """What is shown, with room for more than the header ``Authorization``."""
        shown = self.authorization
        if isinstance(shown, Presented):
            return shown
        client = scope.get("client")
        return Presented(shown, None, None, None, client[0] if client else None)


_INTERPRETED = {
    name.encode(): name
    for name in QUERY_AS_HEADERS
    | {
        "x-correlation-id",
        "content-type",
        "host",
        "if-match",
        "if-none-match",
        "if-equal",
        "prefer",
        "merge-thing-patch-conditions",
        "put-metadata",
        "delete-metadata",
        PRE_AUTHENTICATED,
    }
}
_LISTS = frozenset({"accept", "prefer"})
"""Headers whose value is a list, which may be spread over several fields (RFC 9110, 5.3)."""


def _check_first(present: str | None, name: str) -> None:
    if present is not None:
        raise error("gateway:duplicate.header.field", header=name)


def _as_utf8(text: str) -> str:
    """A header's value, read as Latin-1, as the UTF-8 that it may be."""
    try:
        return text.encode("latin-1").decode()
    except UnicodeDecodeError:
        return text


_pool: list[str] = []


def new_correlation_id() -> str:
    """A random UUID (version 4).

    Its digits come from a pool: the library asks the kernel for every single one, and a system
    call is a tenth of what a request costs us.
    """
    if not _pool:
        digits = os.urandom(16 * 256).hex()
        _pool.extend(digits[at : at + 32] for at in range(0, len(digits), 32))
    digits = _pool.pop()
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


def correlation_id_of(scope: Scope) -> str:
    """The correlation-id a request brought, or a new one; for answers to unreadable heads."""
    for name, value in scope["headers"]:
        if name in (b"x-correlation-id", b"correlation-id") and len(value) <= 256:
            given: str = value.decode("latin-1")
            if given.isprintable():
                return given
    return new_correlation_id()


def _can_be_repeated(text: str) -> bool:
    """Whether an answer's header can carry ``text`` as it is (control characters would end it)."""
    return text.isprintable() and (text.isascii() or max(text) <= "\xff") and text.strip() == text


def query_items(scope: Scope) -> list[tuple[str, str]]:
    """The query parameters in their order, decoded."""
    return parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)


def split_path(path: str) -> list[str]:
    """A path's segments, percent-decoded one by one, so that ``%2F`` stays inside its segment."""
    return [unquote(segment) for segment in path.split("/")[1:]]


def raw_path(scope: Scope) -> str:
    """The path as it was sent, without the query."""
    path: bytes = scope["raw_path"]
    return path.partition(b"?")[0].decode("latin-1")


def base_url(scope: Scope, head: RequestHead) -> str:
    """Scheme and authority as the client addressed us, e.g. ``http://127.0.0.1:8080``."""
    host = head.known.get("host")
    if not host:
        server = scope.get("server") or ("localhost", None)
        host = server[0] if server[1] is None else f"{server[0]}:{server[1]}"
    return f"{scope['scheme']}://{host}"


async def read_body(receive: Receive, limit: int) -> bytes:
    """Read the whole body, at most ``limit`` bytes; raises ``request.toolarge``.

    Raises ConnectionResetError if the client goes away meanwhile.
    """
    message = await receive()
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        if message["type"] == "http.disconnect":
            raise ConnectionResetError
        if len(body) > limit:
            raise error("request.toolarge", limit=limit)
        return body
    parts, size = [body], len(body)
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionResetError
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise error("request.toolarge", limit=limit)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def parse_json(body: bytes) -> Any:
    """Parse a JSON body; raises ``json.invalid`` (also for what twins cannot hold)."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as problem:
        shown = body[:200].decode("utf-8", "replace")
        raise invalid_json(shown, f"It is not valid JSON: {problem}.") from None
    check_json(value, body)
    return value


def _header_text(value: Any) -> str:
    """A header's value in one line. An ack's headers are a subscriber's words: any JSON.

    Control characters become blanks: a line end would begin a header, or the body.
    """
    text = value if type(value) is str else orjson.dumps(value).decode()
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " for char in text)


def _encode_headers(headers: Mapping[str, Any]) -> list[tuple[bytes, bytes]]:
    encoded: list[tuple[bytes, bytes]] = []
    for name, value in headers.items():
        key = _SHOWN.get(name)
        if key is None:
            continue
        encoded.append((key, _header_text(value).encode("latin-1", "replace")))
    return encoded


def shown_headers(headers: Mapping[str, Any]) -> dict[str, str]:
    """The headers that an answer with these ones would carry, as text."""
    return {name: _header_text(value) for name, value in headers.items() if name in _SHOWN}


def _encode_body(body: Any) -> bytes:
    return body if type(body) is bytes else orjson.dumps(body)


async def send_answer(
    send: Send,
    status: int,
    body: Any,
    headers: Mapping[str, Any],
    content_type: str = JSON_TYPE,
) -> None:
    """Send an answer; ``body`` is a JSON value or bytes, None means none.

    Only known headers are shown.
    """
    encoded = _encode_headers(headers)
    payload = b"" if body is None or status in (204, 304) else _encode_body(body)
    if status not in _BODILESS or payload:
        if payload:
            encoded.append((b"content-type", content_type.encode("latin-1", "replace")))
        encoded.append((b"content-length", str(len(payload)).encode()))
    elif status == 202:
        encoded.append((b"content-length", b"0"))
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": payload})


def error_answer(problem: GatewayError, correlation_id: str) -> Answer:
    """An error of the catalogue as an answer."""
    headers = {"correlation-id": correlation_id, "response-required": "false", **problem.headers}
    if problem.status in (429, 503):
        headers["retry-after"] = "1"
    return Answer(problem.status, problem.to_json(), headers)


async def send_error(send: Send, problem: GatewayError, correlation_id: str) -> None:
    """Send an error of the catalogue as its JSON."""
    await send_answer(send, *error_answer(problem, correlation_id))


def wire_answer(answer: Answer, date: bytes, keep_alive: bool) -> bytes:
    """A whole HTTP/1.1 answer as bytes; ``date`` are further header lines, each with its CRLF."""
    status, body, headers, content_type = answer
    lines = [f"HTTP/1.1 {status} {_phrase(status)}\r\n"]
    for name, value in headers.items():
        if name in _SHOWN:
            kind = type(value)
            if kind is int or (kind is str and value.isprintable()):
                lines.append(f"{name}: {value}\r\n")
            else:
                lines.append(f"{name}: {_header_text(value)}\r\n")
    payload = b"" if body is None or status in (204, 304) else _encode_body(body)
    if payload:
        lines.append(f"content-type: {content_type}\r\ncontent-length: {len(payload)}\r\n")
    elif status not in (204, 304):
        lines.append("content-length: 0\r\n")
    if not keep_alive:
        lines.append("connection: close\r\n")
    return b"%b%b\r\n%b" % ("".join(lines).encode("latin-1", "replace"), date, payload)


@lru_cache(maxsize=512)
def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Status"
