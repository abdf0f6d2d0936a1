"""A gateway whose connections push to an HTTP server, for tests from one end to the other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from tests.brokers.http_server import HttpServer, http_server
from tests.brokers.scenes import Operator, new_thing
from tests.connected import target
from tests.gateways import Gateway, Json, http, thing

LABEL = "{{connection:id}}:pushed"


@dataclass
class Scene:
    """Clients of a gateway, and a server that its connections push to."""

    operator: Operator
    client: httpx.AsyncClient
    server: HttpServer
    thing_id: str  # there before any connection, so its creation is not pushed

    def document(self, *targets: Json, **fields: Any) -> Json:
        return {
            "connectionType": "http-push",
            "connectionStatus": "open",
            "uri": f"http://127.0.0.1:{self.server.port}",
            "targets": targets or [target("POST:/in", issuedAcknowledgementLabel=LABEL)],
            **fields,
        }

    @asynccontextmanager
    async def pushing(self, *targets: Json, wait: bool = True, **fields: Any) -> AsyncIterator[str]:
        """A connection; its id."""
        made = await self.operator.create(self.document(*targets, **fields), wait=wait)
        try:
            yield made
        finally:
            await self.operator.client.delete(f"/api/2/connections/{made}")

    async def change(
        self,
        connection: str,
        value: Any = 1,
        timeout: str = "20s",
        thing_id: str | None = None,
        **more: str,
    ) -> tuple[int, Json]:
        """Set ``n`` and wait for the server: the answer's status, and the target's ack."""
        acks = {"requested-acks": f"twin-persisted,{connection}:pushed", "timeout": timeout}
        path = thing(thing_id or self.thing_id, "/attributes/n")
        answer = await self.client.put(path, json=value, headers={**acks, **more})
        return answer.status_code, answer.json()[f"{connection}:pushed"]

    async def target_status(self, connection: str) -> set[str]:
        status = await self.operator.view(connection, "status")
        return {entry["status"] for entry in status["targetStatus"]}


async def push_scene(gateway: Gateway) -> AsyncIterator[Scene]:
    """For a fixture: clients of the gateway, a server, and a thing."""
    async with Operator(gateway) as operator, http(gateway) as client, http_server() as server:
        yield Scene(operator, client, server, await new_thing(client))
