"""Accepted requests over HTTP: what ``Prefer: respond-async`` (RFC 7240) is answered with.

``GET /api/2/acks/{correlation-id}`` shows the acks so far and the outcome, as JSON or, for
``Accept: text/event-stream``, as a stream of events that ends with the outcome. In the place of a
correlation-id, ``labels`` and ``report`` are resources of their own (labels.py, report.py).
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote, unquote

import orjson

from acks.accepted import LABELS, REPORT, Accepted, Event
from acks.aggregator import Answer, http_answer
from acks.errors import GatewayError, error
from acks.headers import invalid_header
from acks.signals import Command, Live
from app.api.http import (
    Receive,
    RequestHead,
    Scope,
    Send,
    base_url,
    error_answer,
    send_answer,
    shown_headers,
)
from app.api.labels import Labels
from app.api.reception import Reception, allow
from app.api.report import Report
from app.api.sse import Wire, comment, event, names, wants_stream
from app.gateway import Gateway
from app.store.requests import RequestStore

ACKS = "/api/2/acks/"
POLL_S = 0.2
"""How often a stream looks for something new, s."""
KEEP_ALIVE_S = 15.0
"""Longest silence of a stream, s: intermediaries give silent connections up."""
GRACE_S = 30.0
"""How long a stream outlives its request's deadline while the store cannot be asked, s."""


def prefers_async(head: RequestHead) -> bool:
    """Whether the client wants to be answered at once (RFC 7240, 4.1)."""
    prefer = head.known.get("prefer")
    return prefer is not None and "respond-async" in names(prefer)


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
        reception: Reception,
        labels: Labels,
        report: Report,
        *,
        max_streams: int,
    ) -> None:
        self.streams = 0
        self._labels = labels
        self._report = report
        self._gateway = gateway
        self._reception = reception
        self._max_streams = max_streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> int:
        """Serve one request, return its status; raises GatewayError, which the caller renders."""
        head, principal = await self._reception.open(scope)
        path = self._reception.path(scope)
        correlation_id = unquote(path.removeprefix(ACKS))
        if correlation_id == LABELS:
            return await self._labels.answer(scope, head, principal, path, send)
        if correlation_id == REPORT:
            return await self._report.answer(scope, head, principal, path, send)
        if not correlation_id or "/" in path.removeprefix(ACKS):
            raise error("gateway:resource.notfound", path=path)
        allow(scope["method"], path, "GET")
        requests = self._gateway.accepting.requests
        found = await requests.find(correlation_id)
        if found is None or not found[0].readable_by(principal.subjects):
            raise error("acknowledgement:request.notfound", correlation_id=correlation_id)
        request, now_ms = found
        if wants_stream(head):
            after = _last_event(head.carried.get("last-event-id"))
            return await self._stream(request, now_ms, after, head, scope, receive, send)
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
        scope: Scope,
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
        wire = Wire(scope, receive, send)
        gone = asyncio.create_task(wire.client_gone(), name="acks-stream-client")
        stream = _Stream(self._gateway, request, now_ms, after, wire)
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
        self, gateway: Gateway, request: Accepted, now_ms: int, after: int, wire: Wire
    ) -> None:
        self._gateway = gateway
        self._requests: RequestStore = gateway.accepting.requests
        self._request = request
        self._after = after
        self._wire = wire
        self._clock = asyncio.get_running_loop().time
        left = max(0, request.deadline_ms - now_ms) / 1000
        self._deadline = self._clock() + left  # of the request, about: two clocks

    async def run(self, events: list[Event], correlation_id: str, gone: asyncio.Task[None]) -> None:
        """Send what there is and what comes, until the outcome or the client's end.

        A stream that ends without an outcome is one that the client may open again elsewhere.
        """
        try:
            await self._wire.begin(correlation_id, comment("acknowledgements"))
            while not (gone.done() or self._gateway.draining):
                await self._write(events)
                if (events and events[-1].kind == "outcome") or (
                    self._clock() > self._deadline + GRACE_S
                ):
                    break
                await asyncio.wait((gone,), timeout=POLL_S)
                events = await self._look()
            if not gone.done():
                await self._wire.end()
        except TimeoutError:
            await self._wire.abort()

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

    async def _write(self, events: list[Event]) -> None:
        if events:
            self._after = events[-1].number
            await self._wire.write(b"".join(map(_event_text, events)))
        elif self._wire.silence > KEEP_ALIVE_S:
            await self._wire.write(comment("still waiting"))


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


def _event_text(one: Event) -> bytes:
    return event(orjson.dumps(state(one.request, one.at_ms)), one.kind, str(one.number))


def _last_event(text: str | None) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise invalid_header("last-event-id", text, "number")
    return int(text)
