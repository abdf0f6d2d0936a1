"""Kafka through real gateway processes: what fails on the way is neither lost nor stuck."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.brokers.kafka import KafkaPeer, kafka_peer
from tests.brokers.scenes import DITTO, SUBJECT, Operator, has, modify, until
from tests.connected import gateway_of
from tests.gateways import ROOT, Gateway, Json, Subscriber, http, new_id, running, thing
from tests.servers import RedisServer, redis_server

DEADLINE = 60.0


@pytest.fixture(scope="module")
def store() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture(scope="module")
def gateway(store: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    one = gateway_of(tmp_path_factory.mktemp("gateway"), store, "kafka")
    with running(one):
        yield one


@pytest.fixture(scope="module")
def peer() -> Iterator[KafkaPeer]:
    with kafka_peer() as one:
        yield one


@dataclass
class Scene:
    """A gateway, a broker with topics, and a connection between them."""

    gateway: Gateway
    peer: KafkaPeer
    operator: Operator
    client: httpx.AsyncClient
    commands: str
    events: str
    replies: str
    dead: str
    connection: str = ""

    @property
    def label(self) -> str:
        """The label that the connection's target issues."""
        return f"{self.connection}:out"

    def document(self, **changes: Any) -> Json:
        source = {
            "addresses": [self.commands],
            "qos": 1,
            "authorizationContext": [SUBJECT],
            "headerMapping": {"correlation-id": "{{header:correlation-id}}"},
            "replyTarget": {
                "enabled": True,
                "address": self.replies,
                "headerMapping": {"correlation-id": "{{header:correlation-id}}"},
                "expectedResponseTypes": ["response", "error", "nack"],
            },
        }
        target = {
            "address": f"{self.events}/{{{{ thing:id }}}}",
            "topics": ["_/_/things/twin/events?filter=like(resource:path,'/attributes/out*')"],
            "authorizationContext": [SUBJECT],
            "issuedAcknowledgementLabel": "{{connection:id}}:out",
        }
        return {
            "name": "kafka",
            "connectionType": "kafka",
            "connectionStatus": "open",
            "uri": f"tcp://127.0.0.1:{self.peer.server.port}",
            "sources": [source],
            "targets": [target],
            "specificConfig": {
                "bootstrapServers": f"127.0.0.1:{self.peer.server.port}",
                "sessionTimeout": "2s",
                "maxRedeliveries": "3",
                "deadLetterAddress": self.dead,
            },
            **changes,
        }

    async def open(self, **changes: Any) -> None:
        self.connection = await self.operator.create(self.document(**changes))

    async def send(self, payload: bytes, headers: Json | None = None, **more: Any) -> None:
        pairs = {"content-type": DITTO, **(headers or {})}
        await asyncio.to_thread(self.peer.produce, self.commands, payload, pairs, **more)

    async def make(self) -> str:
        """A thing of the connection's subject."""
        thing_id = new_id()
        answer = await self.client.put(thing(thing_id), json={"attributes": {"known": True}})
        assert answer.status_code == 201, answer.text
        return thing_id

    async def receive(self, topic: str) -> bytes:
        """The next message of a topic."""
        message = await asyncio.to_thread(self.peer.receive_message, topic)
        return message.value() or b""

    async def unsettled(self) -> int:
        """How many commands the group has not committed."""
        offsets = await asyncio.to_thread(self.peer.offsets, self.commands, self.connection)
        return sum(high - done for high, done in offsets)

    async def all_settled(self) -> None:
        async def look() -> bool:
            return await self.unsettled() == 0

        await until(look, "everything is committed", DEADLINE)

    def failed(self) -> int:
        """How many messages went to the dead letter address."""
        return sum(high for high, _ in self.peer.offsets(self.dead))


@pytest.fixture
async def scene(gateway: Gateway, peer: KafkaPeer) -> AsyncIterator[Scene]:
    commands = peer.make("commands", partitions=3)
    events, replies, dead = [peer.make(name) for name in ("events", "replies", "dead")]
    async with Operator(gateway) as operator, http(gateway) as client:
        one = Scene(gateway, peer, operator, client, commands, events, replies, dead)
        yield one
        if one.connection:
            await operator.client.delete(f"/api/2/connections/{one.connection}")


async def test_a_command_is_carried_out_answered_and_committed(scene: Scene) -> None:
    await scene.open()
    thing_id = await scene.make()
    await scene.send(modify(thing_id, "/attributes/a", 1), {"correlation-id": "c-1"})
    message = await asyncio.to_thread(scene.peer.receive_message, scene.replies)
    assert dict(message.headers() or [])["correlation-id"] == b"c-1"
    body = json.loads(message.value() or b"")
    assert (body["status"], body["path"]) == (201, "/attributes/a")
    await has(scene.client, thing_id, "a", 1)
    await scene.all_settled()


async def test_a_request_waits_until_the_broker_has_stored_its_event(scene: Scene) -> None:
    await scene.open()
    thing_id = await scene.make()
    acks = {"requested-acks": f'["twin-persisted","{scene.label}"]'}
    answer = await scene.client.put(thing(thing_id, "/attributes/out"), json=1, headers=acks)
    assert answer.status_code == 200, answer.text
    assert answer.json()[scene.label]["status"] == 204
    message = await asyncio.to_thread(scene.peer.receive_message, scene.events)
    assert message.key() == thing_id.encode()
    event = json.loads(message.value() or b"")
    assert (event["path"], event["value"]) == ("/attributes/out", 1)


async def test_a_request_is_told_what_the_broker_did_not_store(scene: Scene) -> None:
    document = scene.document()
    document["targets"][0]["address"] = f"{scene.events}#9"
    await scene.open(targets=document["targets"])
    thing_id = await scene.make()
    acks = {"requested-acks": f'["twin-persisted","{scene.label}"]'}
    answer = await scene.client.put(thing(thing_id, "/attributes/out"), json=1, headers=acks)
    assert answer.status_code == 424
    ack = answer.json()[scene.label]
    assert ack["status"] == 400
    assert ack["payload"]["error"] == "connectivity:message.sending.failed"


async def test_a_poisonous_message_does_not_block(scene: Scene) -> None:
    await scene.open()
    thing_id = await scene.make()
    label = f"test:{thing_id.partition(':')[2]}"
    acks = {"requested-acks": ["twin-persisted", label]}
    poison = modify(thing_id, "/attributes/poison", 1, acks)
    wrong = [b"{this is no JSON", modify("org.example:not-there", "/attributes/a", 1)]

    def fails(_: Json, __: str) -> Json:
        return {"status": 503, "value": None}

    async with Subscriber.open(scene.gateway, label, ack=fails):
        for payload in (poison, *wrong):
            await scene.send(payload, partition=0)
        for number in range(20):
            await scene.send(modify(thing_id, f"/attributes/a{number}", number), partition=0)
        await has(scene.client, thing_id, "a19", 19)
        assert await scene.receive(scene.dead) == poison
        await scene.all_settled()
    assert scene.failed() == 1


async def test_a_broker_that_restarts_loses_no_message(scene: Scene) -> None:
    await scene.open()
    things = [await scene.make() for _ in range(4)]
    for number in range(200):
        await scene.send(modify(things[number % 4], f"/attributes/n{number}", number))
    await scene.peer.restart()
    for number in range(200, 300):
        await scene.send(modify(things[number % 4], f"/attributes/n{number}", number))
    for number in range(300):
        await has(scene.client, things[number % 4], f"n{number}", number)
    await scene.operator.is_live(scene.connection)
    acks = {"requested-acks": f'["twin-persisted","{scene.label}"]'}
    path = thing(things[0], "/attributes/out")
    answer = await scene.client.put(path, json=1, headers=acks)
    assert answer.json()[scene.label]["status"] == 204, answer.text
    await scene.all_settled()
    assert scene.failed() == 0


async def test_a_store_that_is_killed_loses_no_message(scene: Scene, store: RedisServer) -> None:
    await scene.open()
    things = [await scene.make() for _ in range(4)]
    for number in range(100):
        await scene.send(modify(things[number % 4], f"/attributes/n{number}", number))
    store.kill9()
    for number in range(100, 150):
        await scene.send(modify(things[number % 4], f"/attributes/n{number}", number))
    store.start()
    for number in range(150):
        await has(scene.client, things[number % 4], f"n{number}", number)
    await scene.all_settled()
    assert scene.failed() == 0


async def test_a_gateway_that_is_killed_before_it_settles(
    peer: KafkaPeer, store: RedisServer, tmp_path: Path
) -> None:
    one = gateway_of(tmp_path, store, "kafka-killed")
    commands = peer.make("commands")
    label = f"test:{new_id().partition(':')[2]}"
    document = {
        "connectionType": "kafka",
        "connectionStatus": "open",
        "uri": f"tcp://127.0.0.1:{peer.server.port}",
        "sources": [{"addresses": [commands], "qos": 1, "authorizationContext": [SUBJECT]}],
        "specificConfig": {
            "bootstrapServers": f"127.0.0.1:{peer.server.port}",
            "sessionTimeout": "2s",
        },
    }
    with running(one):
        async with Operator(one) as operator, http(one) as client:
            connection = await operator.create(document)
            thing_id = new_id()
            await client.put(thing(thing_id), json={})
            async with Subscriber.open(one, label) as silent:
                acks = {"requested-acks": ["twin-persisted", label], "timeout": "50s"}
                command = modify(thing_id, "/attributes/a", 1, acks)
                peer.produce(commands, command, {"content-type": DITTO})
                await silent.event()  # consumed and carried out, and not settled
                one.kill9()
        assert peer.offsets(commands, connection) == [(1, 0)]
        await one.start_async()
        async with Operator(one) as operator:

            async def free() -> bool:
                """Whether the dead process does not hold the label any more."""
                found = await operator.client.get("/api/2/acks/labels", params={"label": label})
                return bool(found.json()["labels"] == [])

            await until(free, f"{label} is free", DEADLINE)
            async with Subscriber.open(one, label, ack=lambda *_: {"status": 200}) as helpful:
                await helpful.event(deadline=DEADLINE)

                async def committed() -> bool:
                    return peer.offsets(commands, connection) == [(1, 1)]

                await until(committed, "the message is committed", DEADLINE)


async def test_a_thousand_random_outcomes_leave_nothing_uncommitted(scene: Scene) -> None:
    chance = random.Random(6)
    await scene.open(sources=[{**scene.document()["sources"][0], "replyTarget": None}])
    things = [await scene.make() for _ in range(20)]
    label = f"test:{things[0].partition(':')[2]}"
    tries: Counter[str] = Counter()

    def outcome(event: Json, _: str) -> Json:
        kind, _, number = str(event["value"]).partition(" ")
        tries[number] += 1
        late = kind == "later" and tries[number] > 2
        return {"status": {"bad": 400, "later": 200 if late else 503, "never": 503}.get(kind, 200)}

    def message(kind: str, number: int) -> bytes:
        headers: Json = {}
        thing_id = chance.choice(things)
        if kind == "garbage":
            return f"garbage {number}".encode()
        if kind == "missing":
            thing_id = "org.example:missing"
        if kind in ("good", "bad", "later", "never"):
            headers["requested-acks"] = ["twin-persisted", label]
        return modify(thing_id, f"/attributes/n{number}", f"{kind} {number}", headers)

    names = ["plain", "good", "bad", "later", "never", "garbage", "missing"]
    kinds = chance.choices(names, [40, 20, 5, 5, 2, 5, 5], k=1000)
    async with Subscriber.open(scene.gateway, label, ack=outcome):
        for number, kind in enumerate(kinds):
            await scene.send(message(kind, number), partition=number % 3)
        await scene.all_settled()
    assert scene.failed() == kinds.count("never")
    by_kind = {
        kind: {tries[str(at)] for at, each in enumerate(kinds) if each == kind} for kind in names
    }
    assert by_kind["good"] == by_kind["bad"] == {1}
    assert by_kind["later"] == {3}
    assert by_kind["never"] == {4}


async def test_the_example_of_the_documentation(
    peer: KafkaPeer, gateway: Gateway, tmp_path: Path
) -> None:
    page = (ROOT / "docs/connections/kafka.md").read_text()
    declare, send = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    document = json.loads(re.findall(r"```json\n(.*?)```", page, re.DOTALL)[0])
    server = f"127.0.0.1:{peer.server.port}"
    document["uri"] = f"tcp://{server}"
    document["specificConfig"]["bootstrapServers"] = server

    async def run(program: str) -> str:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            program,
            env={**os.environ, "BROKER": server},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        output, _ = await asyncio.wait_for(process.communicate(), DEADLINE)
        assert process.returncode == 0, output.decode()
        return output.decode()

    for topic in ("commands", "replies", "events", "failed"):
        peer.server.topic(topic)  # the simulated cluster cannot be asked to make them
    assert "NewTopic" in declare
    async with Operator(gateway) as operator, http(gateway) as client:
        tried = await operator.client.post(
            "/api/2/connections", json=document, params={"dry-run": "true"}
        )
        assert tried.status_code == 200, tried.text
        connection = await operator.create(document)
        lamp = thing("org.example:lamp-1")
        await client.put(lamp, json={"attributes": {"color": "red"}})
        printed = await run(send)
        assert printed.startswith("command-1 ")
        assert '"status":204' in printed
        answer = await client.put(
            f"{lamp}/attributes/color",
            json="green",
            headers={"requested-acks": f'["twin-persisted","{connection}:events"]'},
        )
        assert answer.status_code == 200, answer.text
        assert answer.json()[f"{connection}:events"]["status"] == 204
        await operator.close(connection)
        await operator.client.delete(f"/api/2/connections/{connection}")
