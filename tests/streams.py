"""Accepted requests as a client sees them: the 202, the status resource, its stream of events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from tests.gateways import Json, thing

ASYNC = {"prefer": "respond-async"}
STREAM = {"accept": "text/event-stream"}


async def put_async(
    client: httpx.AsyncClient,
    thing_id: str,
    path: str = "",
    *,
    json: Any = None,
    headers: Mapping[str, str] | None = None,
    **params: str,
) -> str:
    """PUT with ``Prefer: respond-async``; the path of its status resource.

    ``params`` are query parameters with ``_`` for ``-``.
    """
    answer = await client.put(
        thing(thing_id, path),
        json={} if json is None else json,
        params={name.replace("_", "-"): value for name, value in params.items()},
        headers={**ASYNC, **(headers or {})},
    )
    return location(answer)


def location(answer: httpx.Response) -> str:
    """The path of the status resource that a 202 names."""
    assert (answer.status_code, answer.content) == (202, b""), answer.text
    assert answer.headers["preference-applied"] == "respond-async"
    parts = urlsplit(answer.headers["location"])
    assert f"{parts.scheme}://{parts.netloc}" == str(answer.request.url.join("/")).rstrip("/")
    assert parts.path.startswith("/api/2/acks/")
    return parts.path


async def state(client: httpx.AsyncClient, path: str) -> Json:
    """The status resource as it is now."""
    answer = await client.get(path)
    assert answer.status_code == 200, answer.text
    body: Json = answer.json()
    assert ("retry-after" in answer.headers) == (body["state"] == "pending")
    return body


async def reached(client: httpx.AsyncClient, path: str, **wanted: object) -> Json:
    """The status resource once these fields are so."""
    async with asyncio.timeout(15):
        while True:
            body = await state(client, path)
            if all(body[name] == value for name, value in wanted.items()):
                return body
            await asyncio.sleep(0.01)


async def until(condition: Callable[[], Awaitable[bool]], deadline: float = 15.0) -> None:
    """Ask again and again until it is so; TimeoutError after ``deadline`` seconds."""
    async with asyncio.timeout(deadline):
        while not await condition():  # noqa: ASYNC110 - nobody here would set an event
            await asyncio.sleep(0.01)


@dataclass(frozen=True)
class Event:
    """One event of a stream."""

    id: int
    kind: str
    data: Json


class Stream:
    """An open stream; ``next`` waits for its next event, None at its end."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self.comments = 0
        self._lines = answer.aiter_lines()

    async def next(self, deadline: float = 15.0) -> Event | None:
        """The next event, or None if the gateway has ended the stream."""
        fields: dict[str, str] = {}
        async with asyncio.timeout(deadline):
            async for line in self._lines:
                if line.startswith(":"):
                    self.comments += 1
                elif line:
                    name, _, value = line.partition(": ")
                    fields[name] = value
                elif fields:
                    return Event(int(fields["id"]), fields["event"], json.loads(fields["data"]))
        assert not fields
        return None

    async def rest(self) -> list[Event]:
        """All events until the end."""
        events = []
        while (event := await self.next()) is not None:
            events.append(event)
        return events


@asynccontextmanager
async def stream(
    client: httpx.AsyncClient, path: str, last: int | None = None
) -> AsyncIterator[Stream]:
    """Open the stream of a status resource, from after event ``last`` on."""
    headers = STREAM if last is None else {**STREAM, "last-event-id": str(last)}
    async with client.stream("GET", path, headers=headers) as answer:
        yield Stream(answer)
