"""Connections in real gateway processes, for tests from one end to the other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Self

import httpx

from tests.gateways import Gateway, Json, http, new_id, thing

SUBJECT = "nginx:ditto"
"""Whose things they are: the user of :func:`tests.gateways.http`."""
LIVE_WAIT = 30.0
"""Seconds for what takes a second if all is well."""
DITTO = "application/vnd.eclipse.ditto+json"


class Operator:
    """An operator of a gateway: manages connections."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.client = http(gateway, "devops")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.client.aclose()

    async def create(self, document: Mapping[str, Any], *, wait: bool = True) -> str:
        """Create a connection; returns its id when it is open."""
        answer = await self.client.post("/api/2/connections", json=dict(document))
        assert answer.status_code == 201, answer.text
        connection_id: str = answer.json()["id"]
        if wait:
            await self.is_live(connection_id)
        return connection_id

    async def command(self, connection_id: str, name: str) -> None:
        """E.g. ``openConnection``."""
        answer = await self.client.post(
            f"/api/2/connections/{connection_id}/command",
            content=f"connectivity.commands:{name}",
            headers={"content-type": "text/plain"},
        )
        assert answer.status_code == 200, answer.text

    async def view(self, connection_id: str, what: str) -> Json:
        """``status``, ``metrics`` or ``logs``."""
        answer = await self.client.get(f"/api/2/connections/{connection_id}/{what}")
        assert answer.status_code == 200, answer.text
        body: Json = answer.json()
        return body

    async def is_live(self, connection_id: str, status: str = "open") -> None:
        """Wait until its live status is this one."""
        seen: Json = {}

        async def look() -> bool:
            seen.update(await self.view(connection_id, "status"))
            return bool(seen.get("liveStatus") == status)

        await until(look, lambda: f"{status}: {json.dumps(seen)[:2000]}", LIVE_WAIT)

    async def close(self, connection_id: str) -> None:
        """Close it, and wait until nobody runs it any more."""
        await self.command(connection_id, "closeConnection")
        await self.is_live(connection_id, "closed")


async def until(
    look: Callable[[], Awaitable[object]], what: str | Callable[[], str], deadline: float = 20.0
) -> None:
    """Ask ``look`` until it says yes; AssertionError with ``what`` after ``deadline`` seconds."""
    end = asyncio.get_running_loop().time() + deadline
    while not await look():
        if asyncio.get_running_loop().time() > end:
            said = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {deadline:g} s: {said}")
        await asyncio.sleep(0.05)  # a look is a request: the server has other work, too


async def new_thing(client: httpx.AsyncClient, **attributes: Any) -> str:
    """The id of a thing that was made just now."""
    thing_id = new_id()
    fields = {"attributes": attributes} if attributes else {}
    answer = await client.put(thing(thing_id), json=fields)
    assert answer.status_code == 201, answer.text
    return thing_id


def modify(thing_id: str, path: str, value: Any, headers: Mapping[str, Any] | None = None) -> bytes:
    """A modify command of the Ditto Protocol."""
    namespace, _, name = thing_id.partition(":")
    return json.dumps(
        {
            "topic": f"{namespace}/{name}/things/twin/commands/modify",
            "headers": dict(headers or {}),
            "path": path,
            "value": value,
        }
    ).encode()


async def attribute(client: httpx.AsyncClient, thing_id: str, name: str) -> Any:
    """An attribute of a thing, None if it is not there."""
    answer = await client.get(f"/api/2/things/{thing_id}/attributes/{name}")
    return answer.json() if answer.status_code == 200 else None


async def has(client: httpx.AsyncClient, thing_id: str, name: str, value: Any) -> None:
    """Wait until an attribute has this value."""

    async def look() -> bool:
        return bool(await attribute(client, thing_id, name) == value)

    await until(look, f"{thing_id} {name} = {value}", LIVE_WAIT)
