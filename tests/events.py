"""Streams of server-sent events on things and messages, as a client sees them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from tests.gateways import new_id, thing
from tests.servers import wait_for

STREAM = {"accept": "text/event-stream"}
THINGS = "/api/2/things"


@dataclass(frozen=True)
class Told:
    """One event of a stream, with the bookmark after it."""

    kind: str
    text: str
    mark: str

    @property
    def data(self) -> Any:
        """Its data as JSON."""
        return json.loads(self.text)


class EventStream:
    """An open stream that collects its events as a browser would; ``mark`` is the last id."""

    def __init__(self, answer: httpx.Response, mark: str) -> None:
        self.answer = answer
        self.mark = mark
        self.told: list[Told] = []
        self.comments: list[str] = []
        self.ended = False
        self._fields: dict[str, list[str]] = {}
        self.reader = asyncio.create_task(self._read(), name="test-event-stream")

    @property
    def things(self) -> list[Any]:
        """The data of the usual events."""
        return [one.data for one in self.told if not one.kind]

    async def event(self, index: int = -1, count: int = 1, deadline: float = 15.0) -> Told:
        """The event at ``index`` once there are at least ``count``."""
        await wait_for(lambda: len(self.told) >= count, deadline, f"{count} of {self.told}")
        return self.told[index]

    async def heartbeat(self) -> None:
        """Wait for a sign of life: there is nothing to tell at that moment."""
        before = len(self.comments)
        await wait_for(lambda: len(self.comments) > before, 10, "a heartbeat")

    async def closed(self, deadline: float = 15.0) -> None:
        """Wait for the end of the answer, in peace or not."""
        async with asyncio.timeout(deadline):
            await asyncio.wait((self.reader,))

    async def _read(self) -> None:
        try:
            async for line in self.answer.aiter_lines():
                self._line(line)
            self.ended = True
        except httpx.HTTPError:
            pass

    def _line(self, line: str) -> None:
        if line.startswith(":"):
            self.comments.append(line.removeprefix(":").strip())
            return
        if line:
            name, _, value = line.partition(":")
            self._fields.setdefault(name, []).append(value.removeprefix(" "))
            return
        fields, self._fields = self._fields, {}
        self.mark = fields.get("id", [self.mark])[-1]
        if "data" in fields:
            kind = fields.get("event", [""])[-1]
            self.told.append(Told(kind, "\n".join(fields["data"]), self.mark))


@asynccontextmanager
async def events(
    client: httpx.AsyncClient, path: str = THINGS, last: str = "", **params: str
) -> AsyncIterator[EventStream]:
    """Open a stream, from after the bookmark ``last`` if given.

    It is ready: what is written from now on will come.
    """
    headers = {**STREAM, "last-event-id": last} if last else STREAM
    async with client.stream("GET", path, headers=headers, params=params or None) as answer:
        if answer.status_code != 200:
            await answer.aread()
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "text/event-stream"
        stream = EventStream(answer, last)
        try:
            await wait_for(lambda: stream.mark, 15, "the first bookmark")
            yield stream
        finally:
            stream.reader.cancel()
            await asyncio.gather(stream.reader, return_exceptions=True)


async def mark_now(client: httpx.AsyncClient) -> str:
    """A bookmark of this moment."""
    async with events(client, ids=new_id()) as stream:
        return stream.mark


async def put(client: httpx.AsyncClient, thing_id: str, value: Any, path: str = "") -> None:
    """Store a thing or a part of it."""
    answer = await client.put(thing(thing_id, path), json=value)
    assert answer.status_code in (201, 204), answer.text
