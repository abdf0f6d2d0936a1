"""Connections that gateway processes run with a real MQTT broker."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from tests.brokers.mosquitto import PASSWORD, USER, MqttPeer, mosquitto
from tests.brokers.scenes import SUBJECT, Operator, until
from tests.gateways import Gateway, Json
from tests.servers import RedisServer

EVENTS, MESSAGES = "_/_/things/twin/events", "_/_/things/live/messages"


def gateway_of(place: Path, store: RedisServer, prefix: str, **settings: str) -> Gateway:
    """A gateway that does not wait for long."""
    quick = {"connection_retry": "200ms", "connection_retry_max": "1s", **settings}
    return Gateway(place, redis_url=store.url, prefix=prefix, **quick)  # type: ignore[arg-type]  # all of them are settings


class Broker:
    """A broker and a client of it."""

    def __init__(self, peer: MqttPeer) -> None:
        self.peer = peer
        self.uri = f"tcp://{USER}:{PASSWORD.replace(' ', '%20')}@127.0.0.1:{peer.broker.port}"

    async def send(self, address: str, envelope: Json) -> None:
        """Publish a Ditto Protocol message."""
        await self.peer.send(address, json.dumps(envelope).encode())

    async def receive(self, address: str) -> Json:
        """The next Ditto Protocol message that was published to an address."""
        found: Json = json.loads((await self.peer.receive(address)).payload)
        return found


def peer_process() -> Iterator[MqttPeer]:
    """For a fixture: a broker; the test is skipped where there is none."""
    with mosquitto() as process:
        yield MqttPeer(process, "mqtt-5")


async def mqtt_broker(peer: MqttPeer) -> AsyncIterator[Broker]:
    """For a fixture: a connected client of the broker."""
    async with peer:
        yield Broker(peer)


def modify(thing_id: str, value: Any, **headers: Any) -> Json:
    """A command that sets the attribute ``n``; ``headers`` with underscores for dashes."""
    topic = f"{thing_id.replace(':', '/')}/things/twin/commands/modify"
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return {"topic": topic, "headers": named, "path": "/attributes/n", "value": value}


def ack_of(event: Json, label: str, **fields: Any) -> Json:
    """The ack for an event that a target has published."""
    topic = "/".join((*event["topic"].split("/")[:4], "acks", label))
    headers = {"correlation-id": event["headers"]["correlation-id"]}
    return {"topic": topic, "headers": headers, "path": "/", "status": 200, **fields}


def source(*addresses: str, **fields: Any) -> Json:
    """A source that asks for nothing but what its messages ask for."""
    return {"addresses": addresses, "qos": 1, "authorizationContext": [SUBJECT], **fields}


def target(address: str, *topics: str, **fields: Any) -> Json:
    """A target for events, if there are no other ``topics``."""
    wanted = topics or (EVENTS,)
    return {"address": address, "topics": wanted, "authorizationContext": [SUBJECT], **fields}


class Connection:
    """A connection that was created over HTTP."""

    def __init__(self, operator: Operator, document: Json) -> None:
        self.operator = operator
        self.document = document
        self.id: str = document["id"]
        self.path = f"/api/2/connections/{self.id}"

    async def ask(self, part: str) -> Json:
        """One of its views: status, metrics, logs."""
        return await self.operator.view(self.id, part)

    async def clients(self) -> dict[int, str]:
        """The status of each client that says something, by its number."""
        status = await self.ask("status")
        found = {}
        for entry in status["clientStatus"]:
            number = entry["client"].rpartition("/")[2]
            found[int(number) if number.isdigit() else -1] = entry["status"]
        return found

    async def is_open(self, clients: int = 1) -> None:
        """Wait until all of its clients are open."""
        states: list[dict[int, str]] = []

        async def look() -> bool:
            states.append(await self.clients())
            return [state for state in states[-1].values() if state == "open"] == ["open"] * clients

        await until(look, f"{clients} open clients")

    async def command(self, name: str) -> None:
        """Give a command."""
        await self.operator.command(self.id, name)

    async def close(self) -> None:
        """Close it, and wait until no client is open."""
        await self.command("closeConnection")

        async def closed() -> bool:
            return "open" not in (await self.clients()).values()

        await until(closed, "end of the connection")

    async def replace(self, **fields: Any) -> None:
        """Store another document."""
        uri = fields.pop("uri", self.document["uri"])
        self.document = {**self.document, **fields, "uri": uri}
        answer = await self.operator.client.put(self.path, json=self.document)
        assert answer.status_code == 204, answer.text


@asynccontextmanager
async def connected(
    gateway: Gateway,
    broker: Broker,
    sources: Sequence[Mapping[str, Any]] = (),
    targets: Sequence[Mapping[str, Any]] = (),
    **fields: Any,
) -> AsyncIterator[Connection]:
    """A connection that is open; deleted at the end."""
    specific = {"clientId": f"it-{uuid4().hex[:12]}", **fields.pop("specificConfig", {})}
    document = {
        "connectionType": "mqtt-5",
        "connectionStatus": "open",
        "uri": broker.uri,
        "sources": sources,
        "targets": targets,
        "specificConfig": specific,
        **fields,
    }
    async with Operator(gateway) as operator:
        answer = await operator.client.post("/api/2/connections", json=document)
        assert answer.status_code == 201, answer.text
        connection = Connection(operator, {**answer.json(), "uri": broker.uri})
        try:
            await connection.is_open(fields.get("clientCount", 1))
            yield connection
        finally:
            with suppress(httpx.TransportError):  # a test may have ended the gateway
                await operator.client.delete(connection.path)
