"""HTTP at its barest: read a request of an ASGI scope, send an answer. Shared by all endpoints.

Hot endpoints are plain ASGI callables (measured: a framework route costs several times the work of
the whole gateway), so this module takes the place of a framework's request and response objects.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import parse_qsl, unquote

import orjson

from acks.document import check_json, invalid_json
from acks.errors import GatewayError, error
from acks.headers import QUERY_AS_HEADERS, travels

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON = b"application/json"
_BODILESS = (202, 204, 304)
# Answers of the hot path repeat these names; encoding them again each time shows in the profile.
_NAMES: dict[str, bytes] = {}
_SHOWN = frozenset(
    {
        "correlation-id", "response-required", "dry-run", "channel", "requested-acks", "timeout",
        "location", "traceparent", "tracestate", "etag", "ditto-originator", "ditto-metadata",
        "ditto-weak-ack", "live-channel-condition-matched", "historical-headers",
        "entity-revision", "www-authenticate", "retry-after",
    }
)  # fmt: skip
"""Headers that an HTTP answer may carry (spec acks-and-http 1.8: only known ones)."""


class RequestHead:
    """What a signal needs of a request's headers and query.

    ``known`` holds interpreted headers by lower-case name, ``carried`` those that travel on with
    the signal, ``size`` the characters of all of them.
    """

    __slots__ = ("authorization", "carried", "correlation_id", "known")

    def __init__(self, scope: Scope, limit: int) -> None:
        """Read the head; ``limit`` bounds the characters of headers taken in.

        Raises ``gateway:duplicate.header.field``, ``headers.too.large``.
        """
        self.known: dict[str, str] = {}
        self.carried: dict[str, str] = {}
        self.authorization: bytes | None = None
        size = 0
        known = self.known
        for raw_name, raw_value in scope["headers"]:
            size += len(raw_name) + len(raw_value)
            name = _INTERPRETED.get(raw_name)
            if name is not None:
                if name in known and name not in _REPEATABLE:
                    raise error("gateway:duplicate.header.field", header=name)
                known[name] = raw_value.decode("latin-1")
            elif raw_name == b"authorization":
                self.authorization = raw_value
                size -= len(raw_name) + len(raw_value)
            elif raw_name != b"content-length":
                name = raw_name.decode("latin-1")
                if travels(name):
                    self.carried[name] = raw_value.decode("latin-1")
        query = scope["query_string"]
        if query:
            size += len(query)
            self._read_query(query)
        if size > limit:
            raise error("headers.too.large", limit=limit)
        self.correlation_id = (
            known.get("x-correlation-id") or known.get("correlation-id") or new_correlation_id()
        )

    def _read_query(self, query: bytes) -> None:
        for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
            if name in QUERY_AS_HEADERS:
                if self.known.get(name, value) != value:
                    raise error(
                        "gateway:duplicate.header.field",
                        message=f"<{name}> was provided as header as well as query parameter with "
                        f"divergent values!",
                    )
                self.known[name] = value


_INTERPRETED = {
    name.encode(): name
    for name in QUERY_AS_HEADERS
    | {"x-correlation-id", "content-type", "host", "if-match", "if-none-match", "if-equal"}
}
_REPEATABLE = frozenset({"accept", "host"})


def new_correlation_id() -> str:
    """A random UUID (version 4); the library's class takes several times as long."""
    digits = os.urandom(16).hex()
    variant = "89ab"[int(digits[16], 16) & 3]
    return (
        f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"
    )


def correlation_id_of(scope: Scope) -> str:
    """The correlation-id a request brought, or a new one; for answers to unreadable heads."""
    for name, value in scope["headers"]:
        if name in (b"x-correlation-id", b"correlation-id") and len(value) <= 256:
            return str(value.decode("latin-1"))
    return new_correlation_id()


def path_of(scope: Scope) -> list[str]:
    """The path's segments, percent-decoded one by one, so that ``%2F`` stays inside its segment."""
    segments = raw_path(scope).split("/")[1:]
    if b"%" in scope["raw_path"]:
        return [unquote(segment) for segment in segments]
    return segments


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


def _encode_headers(headers: Mapping[str, Any]) -> list[tuple[bytes, bytes]]:
    encoded: list[tuple[bytes, bytes]] = []
    for name, value in headers.items():
        if name not in _SHOWN:
            continue
        key = _NAMES.get(name)
        if key is None:
            _NAMES[name] = key = name.encode("ascii")
        if value is False:
            encoded.append((key, b"false"))
        elif value is True:
            encoded.append((key, b"true"))
        else:
            text = value if isinstance(value, str) else str(value)
            encoded.append((key, text.encode("latin-1", "replace")))
    return encoded


async def send_answer(send: Send, status: int, body: Any, headers: Mapping[str, Any]) -> None:
    """Send an answer; ``body`` is a JSON value, None means none. Only known headers are shown."""
    encoded = _encode_headers(headers)
    payload = b"" if body is None else orjson.dumps(body)
    if status not in _BODILESS or payload:
        if payload:
            encoded.append((b"content-type", JSON))
        encoded.append((b"content-length", str(len(payload)).encode()))
    elif status == 202:
        encoded.append((b"content-length", b"0"))
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": payload})


async def send_error(
    send: Send, problem: GatewayError, correlation_id: str, headers: Mapping[str, str] | None = None
) -> None:
    """Send an error of the catalogue as its JSON."""
    shown: dict[str, Any] = {"correlation-id": correlation_id, "response-required": False}
    if problem.status == 401:
        shown["www-authenticate"] = 'Basic realm="ackgate", charset="UTF-8"'
    if problem.status in (429, 503):
        shown["retry-after"] = "1"
    await send_answer(send, problem.status, problem.to_json(), {**shown, **(headers or {})})
