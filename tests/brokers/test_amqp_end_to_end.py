"""AMQP 0.9.1 through real gateway processes: what fails on the way is neither lost nor stuck."""

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
from pamqp.commands import Basic

from tests.brokers.rabbitmq import RabbitServer
from tests.brokers.scenes import DITTO, SUBJECT, Operator, has, modify, until
from tests.brokers.test_amqp import RabbitPeer
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
    one = gateway_of(tmp_path_factory.mktemp("gateway"), store, "amqp")
    with running(one):
        yield one


@dataclass
class Scene:
    """A gateway, a broker with queues, and a connection between them."""

    gateway: Gateway
    peer: RabbitPeer
    operator: Operator
    client: httpx.AsyncClient
    commands: str  # the queue that is consumed
    events: str  # where events go
    replies: str
    rejected: str  # what the broker keeps of discarded messages
    dead: str  # what has failed too often
    connection: str = ""

    @property
    def label(self) -> str:
        """The label that the connection's target issues."""
        return f"{self.connection}:out"

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
            "name": "rabbit",
            "connectionType": "amqp-091",
            "connectionStatus": "open",
            "uri": self.peer.server.url(),
            "sources": [source],
            "targets": [target],
            "specificConfig": {"maxRedeliveries": "3", "deadLetterAddress": self.dead},
            **changes,
        }

    async def open(self, **changes: Any) -> None:
        self.connection = await self.operator.create(self.document(**changes))

    async def send(self, payload: bytes, headers: Json | None = None) -> None:
        await self.peer.send(self.commands, payload, headers, DITTO)

    async def make(self, **attributes: Any) -> str:
        """A thing of the connection's subject."""
        thing_id = new_id()
        answer = await self.client.put(thing(thing_id), json={"attributes": attributes})
        assert answer.status_code == 201, answer.text
        return thing_id

    async def ready(self, queue: str) -> int:
        """How many messages of a queue nobody has."""
        return await self.peer.unsettled(queue)

    async def take_all(self, queue: str) -> list[bytes]:
        """Everything in a queue."""
        channel = await self.peer.channel()
        taken = []
        while isinstance(
            (message := await channel.basic_get(queue, no_ack=True)).delivery, Basic.GetOk
        ):
            taken.append(message.body)
        return taken

    async def nothing_unsettled(self) -> None:
        """Close the connection; the broker has nothing for the next client."""
        await self.operator.close(self.connection)
        assert await self.ready(self.commands) == 0


@pytest.fixture
async def scene(gateway: Gateway, rabbit: RabbitServer) -> AsyncIterator[Scene]:
    peer = RabbitPeer(rabbit)
    rejected = await peer.queue("rejected")
    commands = await peer.queue(
        "commands", **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": rejected}
    )
    events, replies, dead = [await peer.queue(name) for name in ("events", "replies", "dead")]
    async with Operator(gateway) as operator, http(gateway) as client:
        one = Scene(gateway, peer, operator, client, commands, events, replies, rejected, dead)
        yield one
        if one.connection:
            await operator.client.delete(f"/api/2/connections/{one.connection}")
    await peer.close()


async def acknowledged(operator: Operator, connection: str) -> int:
    """How many consumed messages were settled positively, as its metrics say."""
    metrics = await operator.view(connection, "metrics")
    inbound = metrics["connectionMetrics"]["inbound"]
    return int(inbound.get("acknowledged", {}).get("success", {}).get("PT1H", 0))


async def test_a_command_is_carried_out_answered_and_settled(scene: Scene) -> None:
    await scene.open()
    thing_id = await scene.make()
    command = modify(thing_id, "/attributes/a", 1, {"correlation-id": "c-1"})
    await scene.send(command, {"device": "d"})
    reply = await scene.peer.message(scene.replies)
    assert reply.header.properties.correlation_id == "c-1"
    body = json.loads(reply.body)
    assert (body["status"], body["path"]) == (201, "/attributes/a")
    await has(scene.client, thing_id, "a", 1)
    await scene.nothing_unsettled()


async def test_a_request_waits_until_the_broker_has_confirmed_its_event(scene: Scene) -> None:
    await scene.open()
    thing_id = await scene.make()
    acks = {"requested-acks": f'["twin-persisted","{scene.label}"]'}
    answer = await scene.client.put(thing(thing_id, "/attributes/out"), json=1, headers=acks)
    assert answer.status_code == 200, answer.text
    assert answer.json()[scene.label]["status"] == 200
    event = json.loads((await scene.peer.receive(scene.events)).payload)
    assert (event["path"], event["value"]) == ("/attributes/out", 1)
    # The event is filtered out: nobody is to confirm it.
    answer = await scene.client.put(thing(thing_id, "/attributes/in"), json=1, headers=acks)
    assert answer.json()[scene.label]["headers"]["ditto-weak-ack"] is True


async def test_a_request_is_told_what_the_broker_did_not_take(scene: Scene) -> None:
    document = scene.document()
    exchange = scene.events.partition("/")[0]
    document["targets"][0]["address"] = f"{exchange}/nowhere"
    await scene.open(targets=document["targets"])
    thing_id = await scene.make()
    acks = {"requested-acks": f'["twin-persisted","{scene.label}"]'}
    answer = await scene.client.put(thing(thing_id, "/attributes/out"), json=1, headers=acks)
    assert answer.status_code == 424
    ack = answer.json()[scene.label]
    assert ack["status"] == 503
    assert ack["payload"] == "Received basic.return from the external broker: 312 NO_ROUTE"


async def test_a_missing_queue_is_shown_and_harms_no_other_source(scene: Scene) -> None:
    sources = scene.document()["sources"]
    missing = "no-such-queue"
    await scene.open(sources=[{**sources[0], "addresses": [missing]}, *sources])
    thing_id = await scene.make()
    await scene.send(modify(thing_id, "/attributes/a", 1))
    await has(scene.client, thing_id, "a", 1)

    async def shown() -> bool:
        status = await scene.operator.view(scene.connection, "status")
        told = {entry["address"]: entry for entry in status["sourceStatus"]}
        return (
            told[missing]["status"] in ("failed", "misconfigured")
            and missing in told[missing]["statusDetails"]
            and told[scene.commands]["status"] == "open"
        )

    await until(shown, "the status of both sources", DEADLINE)


async def test_a_poisonous_message_does_not_block(scene: Scene) -> None:
    await scene.open()
    thing_id = await scene.make()
    label = f"test:{thing_id.partition(':')[2]}"
    poison = modify(
        thing_id, "/attributes/poison", 1, {"requested-acks": ["twin-persisted", label]}
    )
    wrong = [
        b"{this is no JSON",
        modify("org.example:not-there", "/attributes/a", 1),
    ]

    def fails(_: Json, __: str) -> Json:
        return {"status": 503, "value": None}

    async with Subscriber.open(scene.gateway, label, ack=fails):
        for payload in [poison, *wrong]:
            await scene.send(payload)
        for number in range(20):
            await scene.send(modify(thing_id, "/attributes/a", number))
        await has(scene.client, thing_id, "a", 19)
        assert (await scene.peer.receive(scene.dead)).payload == poison
    await scene.nothing_unsettled()
    assert await scene.take_all(scene.rejected) == [wrong[-1]]


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
    thing_id = things[0]
    acks = {"requested-acks": f'["twin-persisted","{scene.label}"]'}
    answer = await scene.client.put(thing(thing_id, "/attributes/out"), json=1, headers=acks)
    assert answer.json()[scene.label]["status"] == 200
    await scene.nothing_unsettled()
    assert await scene.take_all(scene.rejected) == []
    assert await scene.take_all(scene.dead) == []


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
    await scene.nothing_unsettled()
    assert await scene.take_all(scene.rejected) == []
    assert await scene.take_all(scene.dead) == []


async def test_a_gateway_that_is_killed_before_it_settles(
    rabbit: RabbitServer, store: RedisServer, tmp_path: Path
) -> None:
    one = gateway_of(tmp_path, store, "amqp-killed")
    peer = RabbitPeer(rabbit)
    commands = await peer.queue("commands")
    label = f"test:{new_id().partition(':')[2]}"
    with running(one):
        async with Operator(one) as operator, http(one) as client:
            source = {"addresses": [commands], "authorizationContext": [SUBJECT]}
            connection = await operator.create(
                {
                    "connectionType": "amqp-091",
                    "connectionStatus": "open",
                    "uri": rabbit.url(),
                    "sources": [source],
                }
            )
            thing_id = new_id()
            await client.put(thing(thing_id), json={})
            async with Subscriber.open(one, label) as silent:
                acks = {"requested-acks": ["twin-persisted", label], "timeout": "5s"}
                await peer.send(commands, modify(thing_id, "/attributes/a", 1, acks), None, DITTO)
                await silent.event()  # consumed and carried out, and not settled
                one.kill9()
        await one.start_async()
        async with Operator(one) as operator:

            async def free() -> bool:
                """Whether the dead process does not hold the label any more."""
                found = await operator.client.get("/api/2/acks/labels", params={"label": label})
                return bool(found.json()["labels"] == [])

            await until(free, f"{label} is free", DEADLINE)
            async with Subscriber.open(one, label, ack=lambda *_: {"status": 200}) as helpful:
                await helpful.event(deadline=DEADLINE)
                await operator.is_live(connection)

                async def settled() -> bool:
                    return await acknowledged(operator, connection) == 1

                await until(settled, "the message is settled", DEADLINE)
            await operator.close(connection)
    assert await peer.unsettled(commands) == 0
    await peer.close()


async def test_a_thousand_random_outcomes_leave_nothing_unsettled(scene: Scene) -> None:
    chance = random.Random(6)
    await scene.open(
        sources=[{**scene.document()["sources"][0], "consumerCount": 2, "replyTarget": None}]
    )
    things = [await scene.make(known=True) for _ in range(20)]
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
        if kind == "condition":
            headers["condition"] = "exists(attributes/nothing)"
        if kind in ("good", "bad", "later", "never"):
            headers["requested-acks"] = ["twin-persisted", label]
        return modify(thing_id, f"/attributes/n{number}", f"{kind} {number}", headers)

    kinds = chance.choices(
        ["plain", "good", "bad", "later", "never", "garbage", "missing", "condition"],
        [40, 20, 5, 5, 2, 5, 5, 5],
        k=1000,
    )
    async with Subscriber.open(scene.gateway, label, ack=outcome):
        for number, kind in enumerate(kinds):
            await scene.send(message(kind, number))

        expected = Counter(kinds)
        discarded = expected["bad"] + expected["missing"]

        async def all_done() -> bool:
            return (
                await acknowledged(scene.operator, scene.connection) == len(kinds) - discarded
                and await scene.ready(scene.rejected) == discarded
                and await scene.ready(scene.dead) == expected["never"]
            )

        await until(all_done, lambda: f"all of {expected}: {len(tries)} acked", 2 * DEADLINE)
    await scene.nothing_unsettled()
    assert all(tries[str(number)] == 3 for number, kind in enumerate(kinds) if kind == "later")


async def test_the_example_of_the_documentation(
    rabbit: RabbitServer, gateway: Gateway, tmp_path: Path
) -> None:
    page = (ROOT / "docs/connections/rabbitmq.md").read_text()
    declare, send = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    document = json.loads(re.findall(r"```json\n(.*?)```", page, re.DOTALL)[0])
    document["uri"] = rabbit.url()

    async def run(program: str) -> str:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            program,
            env={**os.environ, "BROKER": rabbit.url()},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        output, _ = await asyncio.wait_for(process.communicate(), DEADLINE)
        assert process.returncode == 0, output.decode()
        return output.decode()

    await run(declare)
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
        await operator.close(connection)
        await operator.client.delete(f"/api/2/connections/{connection}")
