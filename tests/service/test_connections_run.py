"""Connections at work: a gateway process between a broker and twins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from tests.brokers.scenes import attribute, new_thing, until
from tests.connected import (
    MESSAGES,
    Broker,
    ack_of,
    connected,
    gateway_of,
    modify,
    mqtt_broker,
    peer_process,
    source,
    target,
)
from tests.gateways import Gateway, Subscriber, http, new_id, running, thing
from tests.servers import RedisServer, wait_for

peer = pytest.fixture(scope="module")(peer_process)
broker = pytest.fixture(mqtt_broker)


@pytest.fixture(scope="module")
def gateway(store: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    place = tmp_path_factory.mktemp("connected")
    one = gateway_of(place, store, "connected")
    with running(one):
        yield one


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with http(gateway) as client:
        yield client


@pytest.fixture
async def thing_id(client: httpx.AsyncClient) -> str:
    """A thing that is there."""
    return await new_thing(client, n=0)


async def test_from_the_broker_to_the_twin_and_back(
    gateway: Gateway, broker: Broker, client: httpx.AsyncClient, thing_id: str
) -> None:
    take, reply, give = [await broker.peer.address(name) for name in ("in", "reply", "out")]
    sources = [source(take, replyTarget={"enabled": True, "address": reply})]
    targets = [target(give, issuedAcknowledgementLabel="{{connection:id}}:out")]
    async with connected(gateway, broker, sources, targets) as connection:
        await broker.send(take, modify(thing_id, 1, correlation_id="first"))
        answer = await broker.receive(reply)
        assert (answer["status"], answer["headers"]["correlation-id"]) == (204, "first")
        assert await attribute(client, thing_id, "n") == 1

        label = f"{connection.id}:out"
        done = await client.put(
            thing(thing_id, "/attributes/n"),
            json=2,
            headers={"requested-acks": f"{label},twin-persisted"},
        )
        assert done.status_code == 200, done.text
        acks = done.json()
        assert acks[label]["status"] == 200
        assert acks[label]["headers"]["ditto-connection-id"] == connection.id
        event = await broker.receive(give)
        assert (event["value"], event["headers"]["requested-acks"]) == (2, [label])
        metrics = await connection.ask("metrics")
        assert metrics["connectionMetrics"]["inbound"]
        text = (await connection.operator.client.get("/metrics")).text
        assert "ackgate_connection_messages_total" in text


async def test_what_it_has_sent_does_not_come_back(
    gateway: Gateway, broker: Broker, client: httpx.AsyncClient, thing_id: str
) -> None:
    take, reply, give = [await broker.peer.address(name) for name in ("in", "reply", "out")]
    sources = [
        source(
            take,
            declaredAcks=["{{connection:id}}:in"],
            replyTarget={"address": reply, "expectedResponseTypes": ["nack"]},
        )
    ]
    async with connected(gateway, broker, sources, [target(give)]) as connection:
        label = f"{connection.id}:in"
        wanted = [label, "twin-persisted"]
        await broker.send(take, modify(thing_id, 1, requested_acks=wanted, timeout="300ms"))
        answer = await broker.receive(reply)
        assert answer["value"][label]["status"] == 408, "nor is there a weak ack"
        assert answer["value"]["twin-persisted"]["status"] == 204
        await client.put(thing(thing_id, "/attributes/n"), json=2)
        assert (await broker.receive(give))["value"] == 2


async def test_an_ack_that_comes_in_on_a_source(
    gateway: Gateway, broker: Broker, client: httpx.AsyncClient, thing_id: str
) -> None:
    take, give, other = [await broker.peer.address(name) for name in ("in", "out", "other")]
    sources = [source(take, declaredAcks=["{{connection:id}}:in"])]
    targets = [target(other, MESSAGES), target(give)]
    async with connected(gateway, broker, sources, targets) as connection:
        label = f"{connection.id}:in"
        asked = asyncio.create_task(
            client.put(thing(thing_id, "/attributes/n"), json=3, headers={"requested-acks": label})
        )
        event = await broker.receive(give)
        assert event["headers"]["requested-acks"] == [label]
        await broker.send(take, ack_of(event, label, value="seen", status=201))
        answer = await asked
        assert (answer.status_code, answer.json()) == (201, "seen")


async def test_a_label_of_somebody_else_is_refused_to_the_reply_target(
    gateway: Gateway, broker: Broker, thing_id: str
) -> None:
    take, reply = [await broker.peer.address(name) for name in ("in", "reply")]
    sources = [source(take, replyTarget={"enabled": True, "address": reply})]
    async with connected(gateway, broker, sources):
        topic = f"{thing_id.replace(':', '/')}/things/twin/acks/not:mine"
        await broker.send(take, {"topic": topic, "headers": {}, "path": "/", "status": 200})
        answer = await broker.receive(reply)
        assert answer["value"]["error"] == "acknowledgement:label.not.declared"


async def test_a_message_is_answered_by_a_source(
    gateway: Gateway, broker: Broker, client: httpx.AsyncClient, thing_id: str
) -> None:
    take, give = [await broker.peer.address(name) for name in ("in", "out")]
    async with connected(gateway, broker, [source(take)], [target(give, MESSAGES)]):
        asked = asyncio.create_task(
            client.post(thing(thing_id, "/inbox/messages/ask"), json="how?")
        )
        message = await broker.receive(give)
        await broker.send(
            take,
            {
                "topic": message["topic"],
                "headers": {"correlation-id": message["headers"]["correlation-id"]},
                "path": message["path"],
                "value": "so",
                "status": 418,
            },
        )
        answer = await asked
        assert (answer.status_code, answer.json()) == (418, "so")


async def test_queries_and_policies_are_answered(
    gateway: Gateway, broker: Broker, thing_id: str
) -> None:
    take, reply = [await broker.peer.address(name) for name in ("in", "reply")]
    sources = [source(take, replyTarget={"enabled": True, "address": reply})]
    name = thing_id.replace(":", "/")
    async with connected(gateway, broker, sources):
        topic = f"{name}/things/twin/commands/retrieve"
        await broker.send(take, {"topic": topic, "headers": {}, "path": "/attributes"})
        answer = await broker.receive(reply)
        assert (answer["status"], answer["value"]) == (200, {"n": 0})
        await broker.send(
            take, {"topic": f"{name}/policies/commands/retrieve", "headers": {}, "path": "/"}
        )
        answer = await broker.receive(reply)
        assert (answer["status"], answer["value"]["policyId"]) == (200, thing_id)
        missing = {"topic": f"{name}/policies/commands/retrieve", "path": "/entries/none"}
        await broker.send(take, {**missing, "headers": {}})
        assert (await broker.receive(reply))["value"]["error"] == "policies:entry.notfound"


async def test_commands_of_one_thing_keep_their_order(
    gateway: Gateway, broker: Broker, client: httpx.AsyncClient, thing_id: str
) -> None:
    take, reply = [await broker.peer.address(name) for name in ("in", "reply")]
    sources = [source(take, replyTarget={"enabled": True, "address": reply})]
    name = thing_id.replace(":", "/")
    async with connected(gateway, broker, sources):
        for number in range(20):
            await broker.send(take, modify(thing_id, number, response_required=False))
            await broker.send(
                take,
                {
                    "topic": f"{name}/things/twin/commands/retrieve",
                    "headers": {},
                    "path": "/attributes/n",
                },
            )
        found = [(await broker.receive(reply))["value"] for _ in range(20)]
        assert found == list(range(20))


async def test_a_change_takes_effect_at_once(
    gateway: Gateway, broker: Broker, client: httpx.AsyncClient, thing_id: str
) -> None:
    one, two = [await broker.peer.address(name) for name in ("one", "two")]
    async with connected(gateway, broker, targets=[target(one)]) as connection:
        await client.put(thing(thing_id, "/attributes/n"), json=1)
        assert (await broker.receive(one))["value"] == 1
        await connection.replace(targets=[target(two)])
        claimed = [
            e for e in gateway.events("connection.claimed") if e["connection"] == connection.id
        ]

        async def turned() -> bool:
            status = await connection.ask("status")
            return [entry["address"] for entry in status["targetStatus"]] == [two]

        await until(turned, "the other target")
        await connection.is_open()
        await client.put(thing(thing_id, "/attributes/n"), json=2)
        assert (await broker.receive(two))["value"] == 2
        assert len(claimed) == 1, "the lease stays"
        await connection.close()
        await connection.command("openConnection")
        await connection.is_open()


async def test_a_label_that_is_taken_comes_later(
    gateway: Gateway, broker: Broker, client: httpx.AsyncClient, thing_id: str
) -> None:
    give = await broker.peer.address("out")
    targets = [target(give, issuedAcknowledgementLabel="{{connection:id}}:out")]
    async with connected(gateway, broker, targets=targets) as connection:
        label = f"{connection.id}:out"
        await connection.command("closeConnection")
        async with Subscriber.open(gateway, label):
            await connection.command("openConnection")
            await wait_for(
                lambda: any(
                    entry["label"] == label for entry in gateway.events("connection.label_taken")
                ),
                10,
                "notice of the label",
            )

            async def shown() -> bool:
                entries = (await connection.ask("status"))["clientStatus"]
                return any(f"'{label}' belongs" in entry["statusDetails"] for entry in entries)

            await until(shown, "the label in the status")
        await connection.is_open()

        async def owned() -> bool:
            answer = await client.put(
                thing(thing_id, "/attributes/n"),
                json=1,
                headers={"requested-acks": label, "timeout": "1s"},
            )
            return answer.status_code == 200

        await until(owned, "the label")


async def test_announcements_of_the_connection(gateway: Gateway, broker: Broker) -> None:
    give = await broker.peer.address("out")
    topic = "_/_/connections/announcements"
    async with connected(gateway, broker, targets=[target(give, topic)]) as connection:
        opened = await broker.receive(give)
        base = f"_/{connection.id}/connections/announcements"
        assert opened["topic"] == f"{base}/opened"
        assert list(opened["value"]) == ["openedAt"]
        await connection.command("closeConnection")
        assert (await broker.receive(give))["topic"] == f"{base}/closed"


@pytest.mark.parametrize("acked", [True, False])
async def test_what_is_pending_is_settled_before_the_end(
    store: RedisServer, broker: Broker, place: Path, acked: bool
) -> None:
    one = gateway_of(place, store, place.name, drain_timeout="2s")
    take = await broker.peer.address("in")
    name, label = new_id(), "worker:done"
    specific = {"clientId": broker.peer.client_id, "reconnectForRedelivery": "true"}
    with running(one):
        async with (
            http(one) as client,
            connected(one, broker, [source(take)], specificConfig=specific),
            Subscriber.open(one, label) as worker,
        ):
            await client.put(thing(name), json={"attributes": {"n": 0}})
            await broker.send(take, modify(name, 1, requested_acks=[label]))
            event = await worker.event(count=2)
            one.terminate()
            await wait_for(lambda: one.events("gateway.draining"), 10, "drain")
            if acked:
                await worker.send(ack_of(event, label))
            assert await one.ended() == 0
    assert await broker.peer.unsettled(take) == (0 if acked else 1)


@pytest.mark.parametrize("missing", ["topic", "path", "value"])
async def test_what_is_no_command_is_settled_and_told(
    gateway: Gateway, broker: Broker, client: httpx.AsyncClient, thing_id: str, missing: str
) -> None:
    take, reply = [await broker.peer.address(name) for name in ("in", "reply")]
    sources = [
        source(
            take,
            acknowledgementRequests={"includes": ["twin-persisted"]},
            replyTarget={"address": reply, "expectedResponseTypes": ["error"]},
        )
    ]
    async with connected(gateway, broker, sources) as connection:
        broken = modify(thing_id, 1)
        del broken[missing]
        await broker.send(take, broken)
        error = await broker.receive(reply)
        assert error["status"] == 400

        async def settled() -> bool:
            counts = (await connection.ask("metrics"))["connectionMetrics"]["inbound"]
            results = counts["acknowledged"]
            assert results["failure"]["PT1H"] == 0
            return bool(results["success"]["PT1H"] == 1 and counts["mapped"]["failure"]["PT1H"])

        await until(settled, "it is settled positively")
        [entry] = [
            one
            for one in (await connection.ask("logs"))["connectionLogs"]
            if one["type"] == "mapped"
        ]
        assert (entry["level"], error["value"]["message"] in entry["message"]) == ("failure", True)


async def test_what_a_filter_keeps_back_is_counted(
    gateway: Gateway, broker: Broker, client: httpx.AsyncClient, thing_id: str
) -> None:
    give = await broker.peer.address("out")
    targets = [target(give, "_/_/things/twin/events?filter=gt(attributes/n,5)")]
    async with connected(gateway, broker, targets=targets) as connection:
        for number in (1, 9):
            await client.put(thing(thing_id, "/attributes/n"), json=number)
        assert (await broker.receive(give))["value"] == 9

        async def counted() -> bool:
            counts = (await connection.ask("metrics"))["connectionMetrics"]["outbound"]
            return bool(counts["filtered"]["success"]["PT1H"] == 1)

        await until(counted, "one that was filtered")
