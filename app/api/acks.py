"""Accepted requests over HTTP: what ``Prefer: respond-async`` (RFC 7240) is answered with.

``GET /api/2/acks/{correlation-id}`` shows the acks so far and the outcome, as JSON or, for
``Accept: text/event-stream``, as a stream of events that ends with the outcome.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any
from urllib.parse import quote, unquote

import orjson

from acks.accepted import Accepted, Event
from acks.aggregator import Answer, http_answer
from acks.errors import GatewayError, error
from acks.headers import invalid_header
from acks.signals import Command, Live
from app.api.auth import Authenticator
from app.api.http import (
    Receive,
    RequestHead,
    Scope,
    Send,
    base_url,
    error_answer,
    raw_path,
    send_answer,
    shown_headers,
)
from app.gateway import Gateway
from app.store.requests import RequestStore

ACKS = "/api/2/acks/"
POLL_S = 0.2
"""How often a stream looks for something new, s."""
KEEP_ALIVE_S = 15.0
"""Longest silence of a stream, s: intermediaries give silent connections up."""
WRITE_S = 10.0
"""Longest wait for a client that does not read, s."""
GRACE_S = 30.0
"""How long a stream outlives its request's deadline while the store cannot be asked, s."""


_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')


def prefers_async(head: RequestHead) -> bool:
    """Whether the client wants to be answered at once (RFC 7240, 4.1)."""
    prefer = head.known.get("prefer")
    return prefer is not None and "respond-async" in _names(prefer)


def accepted_answer(scope: Scope, head: RequestHead, signal: Command | Live) -> Answer:
    """The answer to an accepted request: 202, and where to look for what became of it."""
    return Answer(
        202,
        None,
        {
            "correlation-id": signal.correlation_id,
            "location": base_url(scope, head) + ACKS + quote(signal.correlation_id, safe=""),
            "preference-applied": "respond-async",
        },
    )


class Acks:
    """The resource of one accepted request; ``max_streams`` bounds the open streams."""

    def __init__(
        self,
        gateway: Gateway,
        authenticator: Authenticator,
        *,
        max_headers: int,
        max_streams: int,
    ) -> None:
        self.streams = 0
        self._gateway = gateway
        self._authenticator = authenticator
        self._max_headers = max_headers
        self._max_streams = max_streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> int:
        """Serve one request, return its status; raises GatewayError, which the caller renders."""
        head = RequestHead(scope, self._max_headers)
        scope["correlation_id"] = head.correlation_id
        principal = await self._authenticator.check(head.authorization)
        path = raw_path(scope)
        if len(path) > self._max_headers:
            raise error("headers.too.large", limit=self._max_headers)
        correlation_id = unquote(path.removeprefix(ACKS))
        if not correlation_id or "/" in path.removeprefix(ACKS):
            raise error("gateway:resource.notfound", path=path)
        if scope["method"] != "GET":
            method = scope["method"]
            raise error("gateway:method.notallowed", method=method, path=path, allowed="GET")
        requests = self._gateway.accepting.requests
        found = await requests.find(correlation_id)
        if found is None or not found[0].readable_by(principal.subjects):
            raise error("acknowledgement:request.notfound", correlation_id=correlation_id)
        request, now_ms = found
        if _wants_stream(head.known.get("accept", "")):
            after = _last_event(head.carried.get("last-event-id"))
            return await self._stream(request, now_ms, after, head, receive, send)
        body = state(request, now_ms)
        headers = {"correlation-id": head.correlation_id, "response-required": "false"}
        if body["state"] == "pending":
            headers["retry-after"] = "1"
        await send_answer(send, 200, body, headers)
        return 200

    async def _stream(
        self,
        request: Accepted,
        now_ms: int,
        after: int,
        head: RequestHead,
        receive: Receive,
        send: Send,
    ) -> int:
        events = request.events(now_ms, after)
        if not events and request.outcome(now_ms) is not None:
            # 204 is how a client that has seen everything is told not to connect again.
            await send_answer(send, 204, None, {"correlation-id": head.correlation_id})
            return 204
        if self.streams >= self._max_streams or self._gateway.draining:
            raise error("gateway:service.unavailable", reason="Too many streams are open.")
        # No client can know of more than there is.
        after = min(after, request.came[-1].number if request.came else 0)
        self.streams += 1
        gone = asyncio.create_task(_gone(receive), name="acks-stream-client")
        stream = _Stream(self._gateway, request, now_ms, after, send)
        try:
            await stream.run(events, head.correlation_id, gone)
        finally:
            self.streams -= 1
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
        return 200


class _Stream:
    """One open stream of events; ``after`` is the number of the last one its client has."""

    def __init__(
        self, gateway: Gateway, request: Accepted, now_ms: int, after: int, send: Send
    ) -> None:
        self._gateway = gateway
        self._requests: RequestStore = gateway.accepting.requests
        self._request = request
        self._after = after
        self._send = send
        self._clock = asyncio.get_running_loop().time
        left = max(0, request.deadline_ms - now_ms) / 1000
        self._deadline = self._clock() + left  # of the request, about: two clocks
        self._written = 0.0

    async def run(self, events: list[Event], correlation_id: str, gone: asyncio.Task[None]) -> None:
        """Send what there is and what comes, until the outcome or the client's end.

        A stream that ends without an outcome is one that the client may open again elsewhere.
        """
        try:
            await self._begin(correlation_id)
            while not (gone.done() or self._gateway.draining):
                await self._write(events)
                if (events and events[-1].kind == "outcome") or (
                    self._clock() > self._deadline + GRACE_S
                ):
                    break
                await asyncio.wait((gone,), timeout=POLL_S)
                events = await self._look()
            if not gone.done():
                await self._put(b"", more=False)
        except TimeoutError:
            pass  # the client does not read; its connection ends with this request

    async def _look(self) -> list[Event]:
        """What has happened since the last look; nothing too while the store is away."""
        request = self._request
        known = request.came[-1].number if request.came else 0
        try:
            news = await self._requests.changes(request) != known
            found = None
            if news or self._clock() > self._deadline:
                found = await self._requests.again(request)
        except GatewayError:
            return []
        if found is None:
            return []
        self._request, now_ms = found
        return self._request.events(now_ms, self._after)

    async def _begin(self, correlation_id: str) -> None:
        headers = [
            (b"content-type", b"text/event-stream"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
            (b"correlation-id", correlation_id.encode("latin-1", "replace")),
        ]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._put(b": acknowledgements\n\n")

    async def _write(self, events: list[Event]) -> None:
        if events:
            self._after = events[-1].number
            await self._put(b"".join(map(_event_text, events)))
        elif self._clock() - self._written > KEEP_ALIVE_S:
            await self._put(b": still waiting\n\n")

    async def _put(self, data: bytes, *, more: bool = True) -> None:
        self._written = self._clock()
        async with asyncio.timeout(WRITE_S):
            await self._send({"type": "http.response.body", "body": data, "more_body": more})


def state(request: Accepted, now_ms: int) -> dict[str, Any]:
    """The resource as JSON: the facts, and the outcome as the answer it would have been."""
    body = request.to_json(now_ms)
    outcome = request.outcome(now_ms)
    if outcome is None:
        return body
    given = dict(request.given)
    if outcome.error is not None:
        answer = error_answer(outcome.error, request.correlation_id)
        headers = {**answer.headers, **given}
    else:
        command = {"correlation-id": request.correlation_id, "response-required": "false", **given}
        answer = http_answer(outcome, request.response_required, command)
        headers = dict(answer.headers)
        if answer.status == 201 and request.location:
            headers["location"] = request.location
    shown: dict[str, Any] = {"status": answer.status}
    if answer.body is not None:
        # What is text or binary in an answer of its own stands here as in an envelope.
        plain = isinstance(answer.body, bytes)
        shown["body"] = outcome.acks[0].payload if plain else answer.body
    shown["headers"] = shown_headers(headers)
    if answer.body is not None:
        shown["headers"]["content-type"] = answer.content_type
    body["outcome"] = shown
    return body


def _event_text(event: Event) -> bytes:
    data = orjson.dumps(state(event.request, event.at_ms))
    return b"event: %b\nid: %d\ndata: %b\n\n" % (event.kind.encode(), event.number, data)


async def _gone(receive: Receive) -> None:
    """Return when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _names(value: str) -> list[str]:
    """The names in a list of ``name``, ``name=value`` and ``name;parameter``, in lower case."""
    items = _QUOTED.sub("", value).split(",")
    return [item.partition(";")[0].partition("=")[0].strip().lower() for item in items]


def _wants_stream(accept: str) -> bool:
    return "text/event-stream" in _names(accept)


def _last_event(text: str | None) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise invalid_header("last-event-id", text, "number")
    return int(text)
