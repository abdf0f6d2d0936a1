"""Searches as a client sees them: things that are indexed, pages, counts, streams."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Mapping
from typing import Any

import httpx

from tests.gateways import Json, thing

SEARCH = "/api/2/search/things"
COUNT = f"{SEARCH}/count"
STREAM = {"accept": "text/event-stream"}
INDEXED = {"requested-acks": "twin-persisted,search-persisted", "timeout": "20s"}


def new_namespace() -> str:
    """A namespace nobody has used: what a test finds is its own."""
    return f"n{uuid.uuid4().hex[:12]}"


async def put(client: httpx.AsyncClient, thing_id: str, body: Json | None = None) -> str:
    """Store a thing, wait until a search finds it; its id."""
    answer = await client.put(thing(thing_id), json=body or {}, params=INDEXED)
    assert answer.status_code == 200, answer.text
    # 200 if the index has had it already, from a rebuild.
    assert answer.json()["search-persisted"]["status"] in (200, 204), answer.text
    return thing_id


async def put_all(
    client: httpx.AsyncClient, namespace: str, things: Mapping[str, Json]
) -> list[str]:
    """Store things ``name -> body`` and wait until a search finds them; their ids."""
    names = [put(client, f"{namespace}:{name}", body) for name, body in things.items()]
    return await asyncio.gather(*names)


async def delete(client: httpx.AsyncClient, thing_id: str) -> None:
    """Delete a thing and wait until no search finds it."""
    answer = await client.delete(thing(thing_id), params=INDEXED)
    assert answer.status_code == 200, answer.text


async def search(client: httpx.AsyncClient, **params: str | list[str]) -> Json:
    """The page that a GET answers with; AssertionError if it is an error."""
    answer = await client.get(SEARCH, params=params)
    assert answer.status_code == 200, answer.text
    body: Json = answer.json()
    return body


async def ids(client: httpx.AsyncClient, **params: str | list[str]) -> list[str]:
    """The names, without their namespaces, of what a page has."""
    return [one["thingId"].partition(":")[2] for one in (await search(client, **params))["items"]]


async def streamed(
    client: httpx.AsyncClient, last: str = "", **params: str
) -> list[tuple[str, Any]]:
    """What a stream says until its end: (id, data)."""
    headers = {**STREAM, **({"last-event-id": last} if last else {})}
    answer = await client.get(SEARCH, params=params, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/event-stream"
    return [told for part in answer.text.split("\n\n") if (told := _told(part)) is not None]


def _told(part: str) -> tuple[str, Any] | None:
    fields = dict(line.split(": ", 1) for line in part.splitlines() if not line.startswith(":"))
    return (fields.get("id", ""), json.loads(fields["data"])) if "data" in fields else None
