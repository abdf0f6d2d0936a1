"""AMQP 1.0 through real gateway processes: what fails on the way is neither lost nor stuck."""

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

pytest.importorskip(
    "proton", reason="AMQP 1.0 needs the extra amqp10 (python-qpid-proton, built by a C compiler)"
)

from tests.brokers.amqp10_peer import Amqp10Peer, queue_of
from tests.brokers.rabbitmq import RabbitServer
from tests.brokers.scenes import DITTO, SUBJECT, Operator, has, modify, until
from tests.connected import gateway_of
from tests.gateways import ROOT, Gateway, Json, Subscriber, http, new_id, new_label, running, thing
from tests.servers import RedisServer, redis_server

DEADLINE = 60.0


@pytest.fixture(scope="module")
def store() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture(scope="module")
def gateway(store: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    one = gateway_of(tmp_path_factory.mktemp("gateway"), store, "amqp10")
    with running(one):
        yield one


@dataclass
class Scene:
    """A gateway, a broker with queues, and a connection between them."""

    gateway: Gateway
    peer: Amqp10Peer
    operator: Operator
    client: httpx.AsyncClient
    commands: str
    events: str
    replies: str
    rejected: str
    dead: str
    connection: str = ""
    sent: int = 0

    def document(self, **changes: Any) -> Json:
        source = {
            "addresses": [self.commands],
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
            "address": self.events,
            "topics": ["_/_/things/twin/events?filter=like(resource:path,'/attributes/out*')"],
            "authorizationContext": [SUBJECT],
            "issuedAcknowledgementLabel": "{{connection:id}}:out",
        }
        return {
            "connectionType": "amqp-10",
            "connectionStatus": "open",
            "uri": self.peer.server.url(),
            "sources": [source],
            "targets": [target],
            "specificConfig": {"maxRedeliveries": "3", "deadLetterAddress": self.dead},
            **changes,
        }

    async def open(self, **changes: Any) -> None:
        self.connection = await self.operator.create(self.document(**changes))

    async def send(self, payload: bytes, **properties: Any) -> None:
        self.sent += 1
        name = f"{self.connection}-{self.sent}"
        await self.peer.send(self.commands, payload, None, DITTO, message_id=name, **properties)

    async def make(self) -> str:
        """A thing of the connection's subject."""
        thing_id = new_id()
        answer = await self.client.put(thing(thing_id), json={"attributes": {"known": True}})
        assert answer.status_code == 201, answer.text
        return thing_id

    async def put(self, thing_id: str, value: Any) -> tuple[int, Json]:
        """Change what goes out: the answer's status, and the ack of the target."""
        acks = {"requested-acks": f'["twin-persisted","{self.connection}:out"]'}
        path = thing(thing_id, "/attributes/out")
        answer = await self.client.put(path, json=value, headers=acks)
        return answer.status_code, answer.json()[f"{self.connection}:out"]

    async def many(self, things: list[str], first: int, end: int) -> None:
        for number in range(first, end):
            await self.send(modify(things[number % len(things)], f"/attributes/n{number}", number))

    async def all_there(self, things: list[str], count: int) -> None:
        for number in range(count):
            await has(self.client, things[number % len(things)], f"n{number}", number)

    async def settled(self, *, rejected: int = 0, dead: int = 0) -> None:
        """Close the connection; the broker has nothing of it but what was given up."""
        await self.operator.close(self.connection)
        queues = (self.commands, self.rejected, self.dead)
        assert [await self.peer.unsettled(one) for one in queues] == [0, rejected, dead]


@pytest.fixture
async def scene(gateway: Gateway, rabbit: RabbitServer) -> AsyncIterator[Scene]:
    peer = Amqp10Peer(rabbit)
    rejected = await peer.queue("rejected")
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue_of(rejected)}
    commands = await peer.queue("commands", **letters)
    events, replies, dead = [await peer.queue(name) for name in ("events", "replies", "dead")]
    async with Operator(gateway) as operator, http(gateway) as client:
        one = Scene(gateway, peer, operator, client, commands, events, replies, rejected, dead)
        yield one
        if one.connection:
            await operator.client.delete(f"/api/2/connections/{one.connection}")
    await peer.close()


async def test_a_command_is_carried_out_answered_and_settled(scene: Scene) -> None:
    await scene.open()
    thing_id = await scene.make()
    await scene.send(modify(thing_id, "/attributes/a", 1), correlation_id="c-1")
    reply = await scene.peer.message(scene.replies)
    assert reply.header.properties.correlation_id == "c-1"
    body = json.loads(reply.body)
    assert (body["status"], body["path"]) == (201, "/attributes/a")
    await has(scene.client, thing_id, "a", 1)
    await scene.settled()


async def test_a_request_waits_until_the_broker_has_its_event(scene: Scene) -> None:
    await scene.open()
    thing_id = await scene.make()
    status, ack = await scene.put(thing_id, 1)
    assert (status, ack["status"], "payload" in ack) == (200, 200, False)
    event = json.loads((await scene.peer.receive(scene.events)).payload)
    assert (event["path"], event["value"]) == ("/attributes/out", 1)


async def test_a_request_is_told_what_the_broker_did_not_take(scene: Scene) -> None:
    (target,) = scene.document()["targets"]
    await scene.open(targets=[{**target, "address": scene.peer.invalid}])
    status, ack = await scene.put(await scene.make(), 1)
    assert (status, ack["status"]) == (424, 503)
    assert ack["payload"]["error"] == "connectivity:message.sending.failed"
    assert "there-is-none" in json.dumps(ack["payload"])


async def test_a_poisonous_message_does_not_block(scene: Scene) -> None:
    await scene.open()
    thing_id, label = await scene.make(), new_label()
    acks = {"requested-acks": ["twin-persisted", label]}
    poison = modify(thing_id, "/attributes/poison", 1, acks)
    wrong = [b"{this is no JSON", modify("org.example:not-there", "/attributes/a", 1)]

    def fails(_: Json, __: str) -> Json:
        return {"status": 503, "value": None}

    async with Subscriber.open(scene.gateway, label, ack=fails):
        for payload in [poison, *wrong]:
            await scene.send(payload)
        for number in range(20):
            await scene.send(modify(thing_id, "/attributes/a", number))
        await has(scene.client, thing_id, "a", 19)
        assert (await scene.peer.receive(scene.dead)).payload == poison
    assert (await scene.peer.receive(scene.rejected)).payload == wrong[-1]
    await scene.settled()


async def test_a_broker_that_restarts_loses_no_message(scene: Scene) -> None:
    await scene.open()
    things = [await scene.make() for _ in range(4)]
    await scene.many(things, 0, 200)
    await scene.peer.restart()
    await scene.many(things, 200, 300)
    await scene.all_there(things, 300)
    assert (await scene.put(things[0], 1))[0] == 200
    await scene.settled()


async def test_a_store_that_is_killed_loses_no_message(scene: Scene, store: RedisServer) -> None:
    await scene.open()
    things = [await scene.make() for _ in range(4)]
    await scene.many(things, 0, 100)
    store.kill9()
    await scene.many(things, 100, 150)
    store.start()
    await scene.all_there(things, 150)
    await scene.settled()


async def test_a_gateway_that_is_killed_before_it_settles(
    rabbit: RabbitServer, store: RedisServer, tmp_path: Path
) -> None:
    one = gateway_of(tmp_path, store, "amqp10-killed", connection_lease="1s")
    other = gateway_of(tmp_path, store, "amqp10-killed", connections="false")
    peer, label, thing_id = Amqp10Peer(rabbit), new_label(), new_id()
    commands = await peer.queue("commands")
    silent = [True]

    def owner(event: Json, label: str) -> Json | None:
        return None if silent else {"status": 200}

    source = {"addresses": [commands], "authorizationContext": [SUBJECT]}
    document = {
        "connectionType": "amqp-10",
        "connectionStatus": "open",
        "uri": rabbit.url(),
        "sources": [source],
    }
    with running(one, other):
        async with Operator(one) as operator, http(other) as client:
            connection = await operator.create(document)
            await client.put(thing(thing_id), json={})
        async with Subscriber.open(other, label, ack=owner) as subscriber:
            command = modify(
                thing_id, "/attributes/a", 1, {"requested-acks": ["twin-persisted", label]}
            )
            await peer.send(commands, command, None, DITTO)
            await subscriber.event()  # consumed and carried out, and not settled
            one.kill9()
            silent.clear()
            await one.start_async()
            await subscriber.event(count=2, deadline=DEADLINE)
            async with Operator(one) as operator:
                await operator.is_live(connection)
                await operator.close(connection)
    assert await peer.unsettled(commands) == 0
    await peer.close()


async def test_a_thousand_random_outcomes_leave_nothing_unsettled(scene: Scene) -> None:
    chance = random.Random(6)
    (source,) = scene.document()["sources"]
    await scene.open(sources=[{**source, "consumerCount": 2, "replyTarget": None}])
    things = [await scene.make() for _ in range(20)]
    label = new_label()
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
            await scene.send(message(kind, number))
        given_up = (kinds.count("bad") + kinds.count("missing"), kinds.count("never"))

        async def done() -> bool:
            metrics = await scene.operator.view(scene.connection, "metrics")
            counted = metrics["connectionMetrics"]["inbound"]["acknowledged"]["success"]["PT1H"]
            queues = (scene.rejected, scene.dead)
            ready = tuple([await scene.peer.unsettled(one) for one in queues])
            return bool(counted == len(kinds) - given_up[0] and ready == given_up)

        await until(done, lambda: f"all of {Counter(kinds)}: {len(tries)} acked", DEADLINE)
    await scene.settled(rejected=given_up[0], dead=given_up[1])
    by_kind = {
        kind: {tries[str(at)] for at, each in enumerate(kinds) if each == kind} for kind in names
    }
    assert by_kind["good"] == by_kind["bad"] == {1}
    assert by_kind["later"] == {3}
    assert by_kind["never"] == {4}


async def test_the_example_of_the_documentation(rabbit: RabbitServer, gateway: Gateway) -> None:
    page = (ROOT / "docs/connections/amqp10.md").read_text()
    declare, send = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    document = json.loads(re.findall(r"```json\n(.*?)```", page, re.DOTALL)[0])
    document["uri"] = rabbit.url()

    async def run(program: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", program),
            env={**os.environ, "BROKER": rabbit.url()},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        output, _ = await asyncio.wait_for(process.communicate(), DEADLINE)
        assert process.returncode == 0, output.decode()
        return output.decode()

    await run(declare)
    async with Operator(gateway) as operator, http(gateway) as client:
        dry_run = {"dry-run": "true"}
        tried = await operator.client.post("/api/2/connections", json=document, params=dry_run)
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
        await operator.client.delete(f"/api/2/connections/{connection}")
