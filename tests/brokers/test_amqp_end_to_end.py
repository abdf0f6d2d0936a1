"""AMQP 0.9.1 through real gateway processes: what fails on the way is neither lost nor stuck."""

from __future__ import annotations

import json

import pytest

from tests.brokers.amqp_peer import rabbit_peer
from tests.brokers.end_to_end import DEADLINE, EndToEnd, KilledGateway
from tests.brokers.examples import Example
from tests.brokers.rabbit_scene import RabbitScene, rabbit_scene
from tests.brokers.rabbitmq import RabbitServer
from tests.brokers.scenes import has, modify, until
from tests.gateways import Gateway

peer = pytest.fixture(rabbit_peer)
scene = pytest.fixture(rabbit_scene)


class TestAmqp(EndToEnd, KilledGateway):
    """What every connection to a broker has to do."""


async def test_a_command_is_carried_out_answered_and_settled(scene: RabbitScene) -> None:
    await scene.open()
    thing_id = await scene.make()
    command = modify(thing_id, "/attributes/a", 1, {"correlation-id": "c-1"})
    await scene.send(command, headers={"device": "d"})
    reply = await scene.peer.message(scene.replies)
    assert reply.header.properties.correlation_id == "c-1"
    body = json.loads(reply.body)
    assert (body["status"], body["path"]) == (201, "/attributes/a")
    await has(scene.client, thing_id, "a", 1)
    await scene.settled()


async def test_a_request_waits_until_the_broker_has_confirmed_its_event(scene: RabbitScene) -> None:
    await scene.open()
    thing_id = await scene.make()
    status, ack = await scene.put(thing_id, 1)
    assert (status, ack["status"]) == (200, 200)
    event = json.loads(await scene.receive(scene.events))
    assert (event["path"], event["value"]) == ("/attributes/out", 1)
    # The event is filtered out: nobody is to confirm it.
    _, ack = await scene.put(thing_id, 1, "in")
    assert ack["headers"]["ditto-weak-ack"] is True


async def test_a_request_is_told_what_the_broker_did_not_take(scene: RabbitScene) -> None:
    exchange = scene.events.partition("/")[0]
    await scene.open(targets=[{**scene.target(), "address": f"{exchange}/nowhere"}])
    status, ack = await scene.put(await scene.make(), 1)
    assert (status, ack["status"]) == (424, 503)
    assert ack["payload"] == "Received basic.return from the external broker: 312 NO_ROUTE"


async def test_a_missing_queue_is_shown_and_harms_no_other_source(scene: RabbitScene) -> None:
    missing = "no-such-queue"
    await scene.open(sources=[{**scene.source(), "addresses": [missing]}, scene.source()])
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


async def test_the_example_of_the_documentation(rabbit: RabbitServer, gateway: Gateway) -> None:
    example = Example("rabbitmq.md", rabbit.url())
    example.document["uri"] = rabbit.url()
    await example.run(example.declare)
    await example.works(gateway)
