"""Server-sent events on the wire: their text, and the answer that carries them.

Source: WHATWG HTML, 9.2; spec websocket-... 3.
"""

from __future__ import annotations

import asyncio
import re

from app.api.http import Receive, RequestHead, Scope, Send

WRITE_S = 10.0
"""Longest wait for a client that does not read, s."""
CHUNK = 64 * 1024
"""Bytes that are written at once, about."""
_LINE_END = re.compile(rb"\r\n|\r|\n")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_HEADERS = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)


def wants_stream(head: RequestHead) -> bool:
    """Whether the client asks for events by name: ``*/*`` does not."""
    accept = head.known.get("accept")
    return accept is not None and "text/event-stream" in names(accept)


def names(value: str) -> list[str]:
    """The names in a list of ``name``, ``name=value`` and ``name;parameter``, in lower case."""
    items = _QUOTED.sub("", value).split(",")
    return [item.partition(";")[0].partition("=")[0].strip().lower() for item in items]


def event(data: bytes, kind: str = "", mark: str = "") -> bytes:
    """An event of type ``kind``, none for the usual one.

    ``mark`` is what a client sends as ``Last-Event-ID`` after it; it must be one plain line.
    """
    lines = []
    if kind:
        lines.append(b"event: " + b" ".join(_LINE_END.split(kind.encode("utf-8", "replace"))))
    if mark:
        lines.append(b"id: " + mark.encode())
    lines += (b"data: " + line for line in _LINE_END.split(data))
    return b"\n".join(lines) + b"\n\n"


def comment(text: str, mark: str = "") -> bytes:
    """What no client shows: a sign of life, or a word to people. ``mark`` as for an event."""
    line = b": " + text.encode() if text else b":"
    return b"%b\nid: %b\n\n" % (line, mark.encode()) if mark else line + b"\n\n"


class Wire:
    """The answer to one request for events."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._transport = scope.get("extensions", {}).get("ackgate")
        self._receive = receive
        self._send = send
        self._clock = asyncio.get_running_loop().time
        self._written = 0.0

    @property
    def silence(self) -> float:
        """How long nothing has been written, s."""
        return self._clock() - self._written

    async def begin(self, correlation_id: str, first: bytes) -> None:
        """Send the head, and ``first`` so that the client sees it at once."""
        given = (b"correlation-id", correlation_id.encode("latin-1", "replace"))
        start = {"type": "http.response.start", "status": 200, "headers": [*_HEADERS, given]}
        await self._send(start)
        await self.write(first)

    async def write(self, data: bytes) -> None:
        """Write events; raises TimeoutError if the client does not read."""
        await self._put(data, more=True)

    async def end(self, last: bytes = b"") -> None:
        """Write ``last`` and end the answer; raises as :meth:`write`."""
        await self._put(last, more=False)

    async def abort(self) -> None:
        """Drop the connection of a client that does not read: nothing more will reach it."""
        if self._transport is not None:
            self._transport.abort()
            await asyncio.sleep(0)  # so that the server knows before it misses the answer's end

    async def client_gone(self) -> None:
        """Return when the client has left."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _put(self, data: bytes, *, more: bool) -> None:
        self._written = self._clock()
        async with asyncio.timeout(WRITE_S):
            await self._send({"type": "http.response.body", "body": data, "more_body": more})
