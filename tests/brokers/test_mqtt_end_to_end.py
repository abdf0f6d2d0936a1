"""MQTT through real gateway processes: what fails on the way is neither lost nor stuck."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.brokers.mosquitto import MqttPeer, mqtt_peer
from tests.brokers.scenes import has, new_thing, until
from tests.connected import Broker, Connection, connected, gateway_of, modify, source, target
from tests.gateways import Gateway, Json, Subscriber, http, new_id, new_label, running, thing
from tests.servers import RedisServer, wait_for

DEADLINE = 60.0
BOTH = pytest.mark.parametrize("peer", ["mqtt", "mqtt-5"], indirect=True)
REDELIVERY = {"reconnectForRedelivery": "true", "reconnectForRedeliveryDelay": "1s"}

# MQTT 5 where a test does not say otherwise: the drivers' contract is tested with both.
peer = pytest.fixture(mqtt_peer)


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with http(gateway) as client:
        yield client


@asynccontextmanager
async def opened(
    gateway: Gateway,
    peer: MqttPeer,
    sources: Sequence[Mapping[str, Any]] = (),
    targets: Sequence[Mapping[str, Any]] = (),
    **specific: str,
) -> AsyncIterator[Connection]:
    async with connected(
        gateway,
        Broker(peer),
        sources,
        targets,
        connectionType=peer.kind,
        specificConfig={"clientId": peer.client_id, **REDELIVERY, **specific},
    ) as connection:
        yield connection


async def nothing_unsettled(
    connection: Connection, peer: MqttPeer, consumed: int | None = None
) -> None:
    """Close the connection; the broker has nothing for the next client.

    With ``consumed``: when it says that it has so many messages, redelivered ones too, and that
    none of them is unsettled.
    """

    async def settled() -> bool:
        counts = (await connection.ask("metrics"))["connectionMetrics"]["inbound"]["consumed"]
        entries = (await connection.ask("status"))["clientStatus"]
        done = [entry.get("unsettled") for entry in entries] == [0]
        return done and counts["success"]["PT1H"] >= (consumed or 0)

    await until(settled, "nothing is unsettled", DEADLINE)
    await connection.close()
    assert await peer.unsettled("") == 0


def command(thing_id: str, value: Any, **headers: Any) -> bytes:
    return json.dumps(modify(thing_id, value, **headers)).encode()


async def test_the_example_of_the_documentation(
    gateway: Gateway, peer: MqttPeer, client: httpx.AsyncClient
) -> None:
    page = Path(__file__).parents[2] / "docs" / "connections" / "mqtt.md"
    document = json.loads(page.read_text().split("```json\n")[1].split("```")[0])
    assert document["connectionType"] == "mqtt-5"
    takes, gives = document["sources"][0], document["targets"][0]
    base = await peer.address("example")
    moved = json.loads(
        json.dumps([takes, gives]).replace("devices/", f"{base}/").replace("twins/", f"{base}/")
    )
    thing_id = new_id("org.example")
    async with opened(
        gateway, peer, [moved[0]], [moved[1]], **document["specificConfig"]
    ) as connection:
        thing_path = thing_id.partition(":")[2]
        create = {
            "topic": f"org.example/{thing_path}/things/twin/commands/create",
            "headers": {"correlation-id": "c-1"},
            "path": "/",
            "value": {"thingId": thing_id},
        }
        address = moved[0]["addresses"][0].replace("+", thing_path)
        await peer.send(address, json.dumps(create).encode())
        reply_to = moved[0]["replyTarget"]["address"].replace("{{ thing:id }}", thing_id)
        reply = json.loads((await peer.receive(reply_to)).payload)
        assert (reply["status"], reply["headers"]["correlation-id"]) == (201, "c-1")
        acks = {"requested-acks": f"twin-persisted,{connection.id}:published"}
        path = thing(thing_id, "/attributes/colour")
        answer = await client.put(path, json="red", headers=acks)
        assert answer.status_code == 200, answer.text
        given = moved[1]["address"].replace("{{ thing:id }}", thing_id)
        # What came in by the connection does not go out by it.
        assert json.loads((await peer.receive(given)).payload)["value"] == "red"
        await nothing_unsettled(connection, peer)


@BOTH
async def test_a_broker_that_restarts_loses_no_message(
    gateway: Gateway, peer: MqttPeer, client: httpx.AsyncClient
) -> None:
    take, give = await peer.address("in"), await peer.address("out")
    thing_id = await new_thing(client, n=-1)
    targets = [target(give, issuedAcknowledgementLabel="{{connection:id}}:out")]
    async with opened(gateway, peer, [source(take)], targets) as connection:
        for number in range(150):
            await peer.send(take, command(thing_id, number))
        await peer.restart()
        for number in range(150, 200):
            await peer.send(take, command(thing_id, number))
        await has(client, thing_id, "n", 199)
        acks = {"requested-acks": f"twin-persisted,{connection.id}:out"}
        answer = await client.put(thing(thing_id, "/attributes/n"), json=200, headers=acks)
        assert answer.status_code == 200, answer.text
        await nothing_unsettled(connection, peer)


@dataclass
class Owner:
    """Of a label: answers each message so often with a failure before it succeeds."""

    failures: int
    seen: Counter[str]
    silent: bool = False

    def __call__(self, event: Json, label: str) -> Json | None:
        self.seen[event["value"]] += 1
        if self.silent:
            return None
        return {"status": 503 if self.seen[event["value"]] <= self.failures else 200, "value": 1}


async def test_a_gateway_that_is_killed_before_it_settles_has_the_message_again(
    store: RedisServer, peer: MqttPeer, tmp_path: Path
) -> None:
    gateway = gateway_of(tmp_path, store, "killed", connection_lease="1s")
    other = gateway_of(tmp_path, store, "killed", connections="false")
    take, label = await peer.address("in"), new_label()
    owner = Owner(0, Counter(), silent=True)
    asks = {"includes": ["twin-persisted", label]}
    with running(gateway, other):
        async with http(other) as client:
            thing_id = await new_thing(client)
        async with (
            Subscriber.open(other, label, ack=owner),
            opened(gateway, peer, [source(take, acknowledgementRequests=asks)]) as connection,
        ):
            await peer.send(take, command(thing_id, "x"))
            await wait_for(lambda: owner.seen["x"], DEADLINE, "the event")
            gateway.kill9()
            owner.silent = False
            gateway.start()
            await wait_for(lambda: owner.seen["x"] >= 2, DEADLINE, "the event again")
            await nothing_unsettled(connection, peer)


async def test_a_store_that_is_killed_loses_no_message(
    gateway: Gateway, store: RedisServer, peer: MqttPeer, client: httpx.AsyncClient
) -> None:
    take = await peer.address("in")
    thing_id = await new_thing(client, n=-1)
    async with opened(gateway, peer, [source(take)]) as connection:
        await peer.send(take, command(thing_id, 0))
        await has(client, thing_id, "n", 0)
        store.kill9()
        for number in range(1, 30):
            await peer.send(take, command(thing_id, number))
        store.start()
        await has(client, thing_id, "n", 29)
        await nothing_unsettled(connection, peer)


async def test_a_poisonous_message_does_not_block(
    gateway: Gateway, peer: MqttPeer, client: httpx.AsyncClient
) -> None:
    take, dead, label = await peer.address("in"), await peer.address("dead"), new_label()
    thing_id = await new_thing(client)
    limits = {"maxRedeliveries": "2", "deadLetterAddress": dead}
    async with opened(gateway, peer, [source(take)], [target(dead)], **limits) as connection:
        owner = Owner(1000, Counter())
        async with Subscriber.open(gateway, label, ack=owner):
            poison = command(thing_id, "poison", requested_acks=["twin-persisted", label])
            for payload in (poison, b"{no JSON", command("org.example:not-there", 1)):
                await peer.send(take, payload)
            for number in range(20):
                await peer.send(take, command(thing_id, number))
            await has(client, thing_id, "n", 19)
            while (await peer.receive(dead)).payload != poison:
                pass  # events go there, too
            assert owner.seen["poison"] == 3
        await nothing_unsettled(connection, peer)


@BOTH
@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_ten_thousand_messages_with_random_outcomes_leave_nothing_unsettled(
    gateway: Gateway, peer: MqttPeer, client: httpx.AsyncClient
) -> None:
    messages = 10_000 if peer.kind == "mqtt-5" else 1_500  # the same code settles both
    chance = random.Random(7)
    take, label = await peer.address("in"), new_label()
    things = [await new_thing(client) for _ in range(20)]
    asks = {"includes": ["twin-persisted"], "filter": "fn:filter(header:mqtt.qos,'ne','0')"}
    wanted: set[str] = set()
    failing = 0
    owner = Owner(1, Counter())
    async with (
        opened(gateway, peer, [source(take, acknowledgementRequests=asks)]) as connection,
        Subscriber.open(gateway, label, ack=owner) as subscriber,
    ):
        for number in range(messages):
            thing_id, value = chance.choice(things), f"v{number}"
            kind = chance.random()
            if kind < 0.15:
                payload = command("org.example:not-there", value)
            elif kind < 0.25:
                payload = command(thing_id, value, if_match='"rev:999999"')
            elif kind < 0.35:
                payload = b"{no JSON"
            elif kind < 0.355 and failing < 8:
                failing += 1
                acks = ["twin-persisted", label]
                payload = command(thing_id, value, requested_acks=acks)
                wanted.add(value)
            else:
                payload = command(thing_id, value)
                wanted.add(value)
            await peer.send(take, payload)

        def come() -> bool:
            return wanted <= {event["value"] for event in subscriber.events}

        await wait_for(come, 200, "all events")
        await wait_for(lambda: len(owner.seen) == failing, DEADLINE, "the failing ones")
        await wait_for(
            lambda: all(times >= 2 for times in owner.seen.values()), DEADLINE, "them again"
        )
        await nothing_unsettled(connection, peer, messages + failing)
