"""AMQP 1.0 through real gateway processes: what fails on the way is neither lost nor stuck."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip(
    "proton", reason="AMQP 1.0 needs the extra amqp10 (python-qpid-proton, built by a C compiler)"
)

from tests.brokers.amqp10_peer import amqp10_peer
from tests.brokers.end_to_end import DEADLINE, EndToEnd
from tests.brokers.examples import Example
from tests.brokers.rabbit_scene import RabbitScene, rabbit_scene
from tests.brokers.rabbitmq import RabbitServer
from tests.brokers.scenes import has, modify
from tests.connected import gateway_of
from tests.gateways import Gateway, Json, Subscriber, new_label, running
from tests.servers import RedisServer

peer = pytest.fixture(amqp10_peer)
scene = pytest.fixture(rabbit_scene)


class TestAmqp10(EndToEnd):
    """What every connection to a broker has to do."""


async def test_a_command_is_carried_out_answered_and_settled(scene: RabbitScene) -> None:
    await scene.open()
    thing_id = await scene.make(known=True)
    await scene.send(modify(thing_id, "/attributes/a", 1), correlation_id="c-1")
    reply = await scene.peer.message(scene.replies)
    assert reply.header.properties.correlation_id == "c-1"
    body = json.loads(reply.body)
    assert (body["status"], body["path"]) == (201, "/attributes/a")
    await has(scene.client, thing_id, "a", 1)
    await scene.settled()


async def test_a_request_waits_until_the_broker_has_its_event(scene: RabbitScene) -> None:
    await scene.open()
    status, ack = await scene.put(await scene.make(known=True), 1)
    assert (status, ack["status"], "payload" in ack) == (200, 200, False)
    event = json.loads(await scene.receive(scene.events))
    assert (event["path"], event["value"]) == ("/attributes/out", 1)


async def test_a_request_is_told_what_the_broker_did_not_take(scene: RabbitScene) -> None:
    await scene.open(targets=[{**scene.target(), "address": scene.peer.invalid}])
    status, ack = await scene.put(await scene.make(known=True), 1)
    assert (status, ack["status"]) == (424, 503)
    assert ack["payload"]["error"] == "connectivity:message.sending.failed"
    assert "there-is-none" in json.dumps(ack["payload"])


async def test_a_gateway_that_is_killed_before_it_settles(
    scene: RabbitScene, store: RedisServer, tmp_path: Path
) -> None:
    one = gateway_of(tmp_path, store, "killed", connection_lease="1s")
    other = gateway_of(tmp_path, store, "killed", connections="false")
    label, silent = new_label(), [True]

    def owner(event: Json, label: str) -> Json | None:
        return None if silent else {"status": 200}

    with running(one, other):
        async with (
            scene.elsewhere(one) as own,
            Subscriber.open(other, label, ack=owner) as subscriber,
        ):
            await own.open(sources=[own.plain()], targets=[])
            acks = {"requested-acks": ["twin-persisted", label]}
            await own.send(modify(await own.make(), "/attributes/a", 1, acks))
            await subscriber.event()  # consumed and carried out, and not settled
            one.kill9()
            silent.clear()
            await one.start_async()
            await subscriber.event(count=2, deadline=DEADLINE)
            await own.operator.is_live(own.connection)
            await own.settled()


async def test_the_example_of_the_documentation(rabbit: RabbitServer, gateway: Gateway) -> None:
    example = Example("amqp10.md", rabbit.url())
    example.document["uri"] = rabbit.url()
    await example.run(example.declare)
    await example.works(gateway)
