"""HTTP push: publishes by requests to an HTTP server; consumes nothing (spec websocket-... 4.5).

Addresses are ``METHOD:/path``; the path is appended to that of the uri. ``specificConfig``:
``parallelism`` (requests at once, 1), ``idleTimeout`` (of a connection that is kept, 60 s),
``omitRequestBody`` (methods that are sent without a body, ``GET,DELETE``).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import zlib
from collections.abc import Iterable
from http.cookiejar import DefaultCookiePolicy
from typing import Any, ClassVar
from urllib.parse import quote

import httpx
import orjson
from typing_extensions import override

from acks.errors import GatewayError
from acks.headers import parse_duration_ms
from acks.settlement import Settlement
from connections.driver import (
    Delivery,
    Driver,
    Limits,
    OnDelivery,
    OnLost,
    OnStatus,
    OpenError,
    Publication,
    Published,
)
from connections.http_push.tokens import Tokens
from connections.model import HTTP_METHODS, Connection
from connections.tls import refused, tls_context, trusting

_MOST_PARALLEL = 256
_PATH, _QUERY = "http.path", "http.query"  # headers that overrule the address
# What belongs to one hop or to the client's own framing.
_OURS = frozenset(
    {
        *("connection", "content-length", "content-type", "expect", "host", "keep-alive"),
        *("proxy-authenticate", "proxy-authorization", "proxy-connection"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
    }
)
_SAFE = "/%:@!$&'()*+,;=~-._"  # in a path, escapes included
_THEIRS = frozenset(
    [
        "accept-ranges",
        "age",
        "allow",
        "alt-svc",
        "authentication-info",
        "cache-control",
        "connection",
        "content-encoding",
        "content-length",
        "date",
        "expires",
        "keep-alive",
        "last-modified",
        "server",
        "set-cookie",
        "set-cookie2",
        "strict-transport-security",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "vary",
        "via",
        "www-authenticate",
        "requested-acks",
        "response-required",
    ]
)
"""Headers of a response that are about the transport, its sender, or that are ours to give."""
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")
_JSON = re.compile(r"application/(?:[\w.-]+\+)?json", re.ASCII)
_PLACEHOLDER = "{{"


class HttpPushDriver(Driver):
    """One client of an HTTP server, with ``parallelism`` connections that are kept alive.

    Publications with the same key (without one: of the same address) are sent one after the
    other, so they keep their order whatever the parallelism.
    """

    settles_redelivery: ClassVar[bool] = False

    def __init__(
        self, connection: Connection, client: int, generation: int, limits: Limits
    ) -> None:
        self._connection = connection
        self._limits = limits
        self._client: httpx.AsyncClient | None = None
        self._tokens: Tokens | None = None
        self._lanes: list[asyncio.Lock] = []
        self._bodiless: frozenset[str] = frozenset()
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._on_status: OnStatus | None = None
        self._well = True
        self._stale = 0

    @property
    @override
    def stale(self) -> int:
        return self._stale

    @property
    @override
    def withheld(self) -> int:
        return 0  # there are no messages to settle

    @override
    async def open(self, on_delivery: OnDelivery, on_lost: OnLost, on_status: OnStatus) -> None:
        """Check the document, and that the server can be reached; requests follow."""
        connection = self._connection
        for target in connection.targets:
            if _PLACEHOLDER not in target.address.partition(":")[0]:  # else it is known later
                _checked(target.address)
        parallel = _number(connection, "parallelism", 1)
        idle = _seconds(connection, "idleTimeout", "60s")
        tls = tls_context(connection)
        kind = connection.credentials.get("type")
        if kind not in (None, "client-cert", "oauth-client-credentials", "plain", "user-pass"):
            raise OpenError("misconfigured", f"Credentials <{kind}> do not fit HTTP push.")
        await self._reach(tls)
        if kind == "oauth-client-credentials":
            await self._first_token()
        self._bodiless = _methods(connection.specific.get("omitRequestBody", "GET,DELETE"))
        self._lanes = [asyncio.Lock() for _ in range(parallel)]
        self._client = httpx.AsyncClient(
            verify=tls or False,
            trust_env=False,  # no proxies and passwords of whoever runs the process
            follow_redirects=False,  # a redirect would take bodies and passwords elsewhere
            timeout=None,  # noqa: S113 - each request has the deadline of its publication
            auth=_basic(connection),
            headers={"user-agent": "ackgate", "accept-encoding": "identity"},
            limits=httpx.Limits(
                max_connections=parallel,
                max_keepalive_connections=parallel,
                keepalive_expiry=idle,
            ),
        )
        self._client.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        self._on_status = on_status

    @override
    def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        """Nothing is consumed, so there is nothing to settle."""
        self._stale += 1

    @override
    async def publish(self, publication: Publication, deadline_s: float) -> Published:
        client = self._client
        if client is None:
            return _failed(503, "The connection is closed.", "Open it, then send again.")
        if self._running >= self._limits.publishing:
            return _failed(503, "Too many messages wait for the HTTP server.", "Send less at once.")
        try:
            method, url = self._place(publication)
        except OpenError as problem:
            return _failed(400, str(problem), "Check the address of the target.")
        self._running += 1
        self._idle.clear()
        try:
            async with asyncio.timeout(deadline_s), self._lane(publication):
                return await self._send(client, method, url, publication)
        except TimeoutError:
            self._tell(False, text := f"No response arrived within {deadline_s:g} s.")
            return _failed(408, text, "The request may have been handled all the same.")
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    @override
    async def close(self, grace_s: float) -> None:
        """Requests that are under way have ``grace_s`` to be answered."""
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self._idle.wait()
            await client.aclose()
        if self._tokens is not None:
            await self._tokens.close()

    async def _reach(self, tls: Any) -> None:
        """Make a connection and end it; raises OpenError."""
        uri = self._connection.uri
        try:
            _, writer = await asyncio.open_connection(uri.host, uri.port, ssl=tls)
        except (OSError, ValueError) as problem:
            raise refused(problem, uri.host) from problem
        writer.transport.abort()  # nothing was sent, so nothing is lost

    async def _first_token(self) -> None:
        """Have a token before anything is published; raises OpenError."""
        self._tokens = Tokens(self._connection.credentials, trusting(self._connection))
        try:
            await self._tokens.token()
        except BaseException:
            await self._tokens.close()
            raise

    def _lane(self, publication: Publication) -> asyncio.Lock:
        key = publication.key or publication.address
        return self._lanes[zlib.crc32(key.encode(errors="replace")) % len(self._lanes)]

    def _place(self, publication: Publication) -> tuple[str, httpx.URL]:
        """Method and URL of a publication; OpenError for an address that is none."""
        method, rest = _checked(publication.address)
        uri, headers = self._connection.uri, publication.headers
        path, _, query = rest.partition("?")
        path = uri.path.rstrip("/") + path
        if _PATH in headers:
            path = "/" + quote(headers[_PATH].lstrip("/"), safe=_SAFE, errors="replace")
        query = headers.get(_QUERY, query).lstrip("?")
        full = f"{path}?{query}" if query else path
        # There are no fragments in requests: a # can only come out of a placeholder.
        text = f"{uri.scheme}://{uri.authority}{full.replace('#', '%23')}"
        try:
            return method, httpx.URL(text)
        except (httpx.InvalidURL, ValueError) as problem:
            raise OpenError("misconfigured", f"The address is no path: {problem}") from problem

    async def _send(
        self, client: httpx.AsyncClient, method: str, url: httpx.URL, publication: Publication
    ) -> Published:
        headers = _request_headers(publication)
        token: str | None = None
        try:
            if self._tokens is not None:
                token = await self._tokens.token()
                headers = [one for one in headers if one[0].lower() != b"authorization"]
                headers.append((b"authorization", f"Bearer {token}".encode(errors="replace")))
            body = None if method in self._bodiless else publication.payload
            request = client.build_request(method, url, headers=headers, content=body)
            response = await client.send(request, stream=True)
            try:
                answer = await self._answer(response)
            finally:
                await response.aclose()
        except (httpx.HTTPError, httpx.StreamError, RuntimeError) as problem:
            # RuntimeError: the client was closed before the request had its turn.
            self._tell(False, text := str(problem) or type(problem).__name__)
            return _failed(500, f"Encountered <{type(problem).__name__}>.", text)
        except OpenError as problem:
            self._tell(False, str(problem))
            return _failed(503, str(problem), "Without a token no request is sent.")
        if token is not None and answer.status == 401 and self._tokens is not None:
            self._tokens.refuse(token)
        self._tell(True, "")
        return answer

    async def _answer(self, response: httpx.Response) -> Published:
        """The response as an ack, its body bounded (spec websocket-... 4.5)."""
        body = bytearray()
        async for part in response.aiter_raw():
            body += part
            if len(body) > self._limits.message_bytes:
                most = self._limits.message_bytes
                return _failed(500, "The response is too large.", f"It has more than {most} bytes.")
        status = response.status_code
        headers = _response_headers(response.headers.items())
        if not 100 <= status <= 599:
            return _failed(503, f"The HTTP status <{status}> is unknown.", "It has no meaning.")
        kind = response.headers.get("content-type")
        raw = bytes(body)
        return Published(status, _payload(raw, kind), headers, body=raw, content_type=kind)

    def _tell(self, well: bool, text: str) -> None:
        """All targets are at one server: they are well or ill together."""
        if well == self._well or self._on_status is None:
            return
        self._well = well
        for target in self._connection.targets:
            self._on_status("target", target.address, well, text)


def _checked(address: str) -> tuple[str, str]:
    """Method and path of an address; OpenError if it has none."""
    method, colon, path = address.partition(":")
    if not colon or method not in HTTP_METHODS:
        names = ", ".join(HTTP_METHODS)
        raise OpenError(
            "misconfigured", f"The address <{address}> is not <method>:<path> with {names}."
        )
    return method, path if path.startswith("/") else f"/{path}"


def _number(connection: Connection, name: str, default: int) -> int:
    text = connection.specific.get(name, str(default))
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= _MOST_PARALLEL):
        raise OpenError("misconfigured", f"<{name}> has to be a number from 1 to {_MOST_PARALLEL}.")
    return int(text)


def _seconds(connection: Connection, name: str, default: str) -> float:
    try:
        return parse_duration_ms(connection.specific.get(name, default)) / 1000
    except GatewayError as problem:
        raise OpenError("misconfigured", f"<{name}> has to be a duration such as 60s.") from problem


def _methods(text: str) -> frozenset[str]:
    return frozenset(name.strip().upper() for name in text.split(",") if name.strip())


def _basic(connection: Connection) -> httpx.BasicAuth | None:
    user, password = connection.login
    return None if user is None else httpx.BasicAuth(user, password or "")


def _request_headers(publication: Publication) -> list[tuple[bytes, bytes]]:
    """Headers as bytes; those that no HTTP message can have are left out, as Ditto does."""
    made = [
        (name.encode(), value.strip().encode(errors="replace"))
        for name, value in publication.headers.items()
        if name.lower() not in _OURS
        and name not in (_PATH, _QUERY)
        and _NAME.fullmatch(name)
        and _VALUE.fullmatch(value)
    ]
    kind = publication.content_type
    if kind is not None and _VALUE.fullmatch(kind):
        made.append((b"content-type", kind.strip().encode(errors="replace")))
    return made


def _response_headers(items: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Headers of a response that its ack has: none of the connection, none that mean us."""
    return {
        name: value
        for name, value in items
        if name not in _THEIRS and not name.startswith(("ditto-", "proxy-", "access-control-"))
    }


def _payload(body: bytes, content_type: str | None) -> Any:
    """A body as the payload of an ack: JSON as it is, text as a string, the rest as base64."""
    if not body:
        return None
    kind = (content_type or "").partition(";")[0].strip().lower()
    is_json = _JSON.fullmatch(kind)
    if is_json:
        with contextlib.suppress(ValueError):
            return orjson.loads(body)
    if is_json or kind.startswith("text/"):
        with contextlib.suppress(ValueError, LookupError):  # the latter: no such charset
            return body.decode(_charset(content_type))
    return base64.b64encode(body).decode()


def _charset(content_type: str | None) -> str:
    found = re.search(r"charset=\"?([\w.:-]+)", content_type or "", re.IGNORECASE)
    return found[1] if found else "utf-8"


def _failed(status: int, message: str, description: str) -> Published:
    return Published(status, {"message": message, "description": description})
