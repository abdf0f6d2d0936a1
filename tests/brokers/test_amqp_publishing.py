"""Publishing by AMQP 0.9.1: confirms, returns, missing exchanges, brokers that stand still."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from connections.amqp import wire as amqp_wire
from connections.amqp.driver import AmqpDriver
from connections.amqp.publishing import MAX_LANES
from connections.driver import Limits, Publication, Published
from tests.brokers.amqp_peer import RabbitPeer, names, rabbit_peer
from tests.brokers.peers import DEADLINE, client
from tests.brokers.rabbitmq import USERS
from tests.brokers.scenes import until
from tests.servers import wait_for

peer = pytest.fixture(rabbit_peer)


async def test_a_publication_is_persistent_and_has_its_properties(peer: RabbitPeer) -> None:
    address = await peer.queue("out")
    async with client(peer, peer.connection(targets=[address])) as one:
        headers = {"correlation-id": "c-1", "reply-to": "back", "own": "1"}
        published = await one.driver.publish(Publication(address, b"x", "a/b", headers), DEADLINE)
        assert (published.status, published.payload) == (200, None)
        properties = (await peer.message(address)).header.properties
        assert properties.delivery_mode == 2
        assert (properties.correlation_id, properties.reply_to) == ("c-1", "back")
        assert (properties.content_type, properties.headers) == ("a/b", headers)


async def test_no_exchange_is_the_default_exchange(peer: RabbitPeer) -> None:
    queue = f"plain-{next(names)}"
    channel = await peer.channel()
    await channel.queue_declare(queue)
    async with client(peer, peer.connection(targets=[f"/{queue}"])) as one:
        published = await one.driver.publish(Publication(f"/{queue}", b"x", None), DEADLINE)
        assert published.status == 200
    assert (await peer.receive(queue)).payload == b"x"


async def test_what_cannot_be_routed_is_returned(peer: RabbitPeer) -> None:
    address = await peer.queue("out")
    exchange = address.split("/")[0]
    async with client(peer, peer.connection(targets=[address])) as one:
        nowhere = Publication(f"{exchange}/nowhere", b"x", None)
        answers = await asyncio.gather(
            *(
                one.driver.publish(each, DEADLINE)
                for each in [nowhere, Publication(address, b"y", None)] * 5
            )
        )
        assert [answer.status for answer in answers] == [503, 200] * 5
        text = "Received basic.return from the external broker: 312 NO_ROUTE"
        assert answers[0].payload == text


async def test_a_queue_that_refuses_is_a_negative_confirm(peer: RabbitPeer) -> None:
    address = await peer.queue("out", **{"x-max-length": 1, "x-overflow": "reject-publish"})
    async with client(peer, peer.connection(targets=[address])) as one:
        first, second = [
            await one.driver.publish(Publication(address, each, None), DEADLINE)
            for each in (b"1", b"2")
        ]
        assert first.status == 200
        assert second.status == 503
        assert second.payload == "Received negative confirm from the external broker."


async def test_a_missing_exchange_is_the_trouble_of_its_own_target(peer: RabbitPeer) -> None:
    address, missing = await peer.queue("out"), f"no-exchange-{next(names)}/key"
    async with client(peer, peer.connection(targets=[missing, address])) as one:
        told = {status[1]: status for status in one.statuses}
        assert told[address] == ("target", address, True, "")
        assert told[missing][2] is False
        assert "no exchange" in told[missing][3]
        answers = await asyncio.gather(
            *(
                one.driver.publish(Publication(each, b"x", None), DEADLINE)
                for each in [missing, address] * 20
            )
        )
        assert [answer.status for answer in answers] == [503, 200] * 20
        payload = answers[0].payload
        assert payload["error"] == "connectivity:message.sending.failed"
        assert "no exchange" in payload["message"]
        assert "status" not in payload
        assert one.lost == []
        channel = await peer.channel()
        await channel.exchange_declare(missing.split("/", maxsplit=1)[0])
        await one.driver.publish(Publication(missing, b"x", None), DEADLINE)
        assert one.statuses[-1] == ("target", missing, True, "")


async def test_an_exchange_that_is_deleted_and_made_again(peer: RabbitPeer) -> None:
    address = await peer.queue("out")
    exchange = address.split("/")[0]
    async with client(peer, peer.connection(targets=[address])) as one:
        publication = Publication(address, b"x", None)
        assert (await one.driver.publish(publication, DEADLINE)).status == 200
        channel = await peer.channel()
        await channel.exchange_delete(exchange)
        assert (await one.driver.publish(publication, DEADLINE)).status == 503
        assert one.statuses[-1][:3] == ("target", address, False)
        await channel.exchange_declare(exchange, exchange_type="direct", durable=True)
        await channel.queue_bind(address, exchange, "out")
        assert (await one.driver.publish(publication, DEADLINE)).status == 200
        assert one.statuses[-1] == ("target", address, True, "")
        assert one.lost == []


async def test_who_may_not_write_is_told_so(peer: RabbitPeer) -> None:
    address = await peer.queue("out")
    reader = replace(peer.uri, user="reader", password=USERS["reader"])
    async with client(peer, peer.connection(targets=[address], uri=reader)) as one:
        for _ in range(20):
            answers = await asyncio.gather(
                *(one.driver.publish(Publication(address, b"x", None), DEADLINE) for _ in range(10))
            )
            assert {answer.status for answer in answers} == {503}
            assert all("ACCESS_REFUSED" in answer.payload["message"] for answer in answers)
        assert one.statuses[-1][:3] == ("target", address, False)
        assert one.lost == []


async def test_an_exchange_that_is_deleted_while_many_publish(peer: RabbitPeer) -> None:
    address = await peer.queue("out")
    exchange = address.partition("/")[0]
    async with client(peer, peer.connection(targets=[address])) as one:
        statuses: Counter[int] = Counter()

        async def publish() -> None:
            while statuses[503] < 100:
                published = await one.driver.publish(Publication(address, b"x", None), DEADLINE)
                statuses[published.status] += 1

        work = asyncio.gather(*(publish() for _ in range(20)))
        await wait_for(lambda: statuses[200] >= 100, DEADLINE, "publications")
        channel = await peer.channel()
        await channel.exchange_delete(exchange)
        await work
        assert set(statuses) == {200, 503}
        assert one.lost == []


@pytest.mark.parametrize("address", ["no-slash", "exchange/", ""])
async def test_an_address_without_routing_key_is_invalid(peer: RabbitPeer, address: str) -> None:
    async with client(peer, peer.connection(targets=[await peer.queue("out")])) as one:
        published = await one.driver.publish(Publication(address, b"x", None), DEADLINE)
        assert published.status == 400
        assert "exchange/routingKey" in published.payload["message"]


@pytest.mark.parametrize(
    ("key", "headers"),
    [
        ("k" * 256, {}),
        ("key", {"correlation-id": "c" * 256}),
        ("key", {"h" * 256: ""}),
        ("key", {"large": "x" * 200_000}),
    ],
)
async def test_what_amqp_cannot_carry_is_answered_and_harms_nobody(
    peer: RabbitPeer, key: str, headers: dict[str, str]
) -> None:
    address = await peer.queue("out")
    exchange = address.split("/")[0]
    async with client(peer, peer.connection(targets=[address])) as one:
        publication = Publication(f"{exchange}/{key}", b"x", None, headers)
        assert (await one.driver.publish(publication, DEADLINE)).status == 400
        assert (await one.driver.publish(Publication(address, b"y", None), DEADLINE)).status == 200
        assert one.lost == []


async def test_channels_to_many_exchanges_are_bounded(peer: RabbitPeer) -> None:
    addresses = [await peer.queue("out") for _ in range(40)]
    async with client(peer, peer.connection(targets=addresses[:1])) as one:
        for address in addresses:
            published = await one.driver.publish(Publication(address, b"x", None), DEADLINE)
            assert published.status == 200
        assert isinstance(one.driver, AmqpDriver)
        channels = one.driver._links[-1].wire.channels
        await wait_for(lambda: len(channels) <= MAX_LANES, DEADLINE, "channels are closed")


async def test_a_silent_broker_confirms_nothing_and_holds_nobody_up(peer: RabbitPeer) -> None:
    address = await peer.queue("out")
    limits = Limits(publishing=2)
    async with client(peer, peer.connection(targets=[address]), limits=limits) as one:
        publication = Publication(address, b"x", None)
        assert (await one.driver.publish(publication, DEADLINE)).status == 200
        peer.server.pause()
        try:
            answers = await asyncio.gather(
                *(one.driver.publish(publication, 0.2) for _ in range(3)),
                one.driver.publish(replace(publication, address="other/key"), 0.2),
            )
            assert [answer.status for answer in answers] == [408, 408, 503, 503]
            assert answers[0].payload == "No publisher confirm arrived."
            assert "2 messages wait" in answers[2].payload["message"]
            answer = await one.driver.publish(replace(publication, address="other/key"), 0.2)
            assert "No channel available." in answer.payload["message"]
        finally:
            peer.server.resume()
        assert (await one.driver.publish(publication, DEADLINE)).status == 200
        assert one.lost == []


async def test_a_broker_that_reads_nothing_fills_no_memory(
    peer: RabbitPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(amqp_wire, "MAX_BACKLOG", 1_000_000)
    address = await peer.queue("out")
    async with client(peer, peer.connection(targets=[address])) as one:
        publication = Publication(address, b"x" * 100_000, None)
        assert (await one.driver.publish(publication, DEADLINE)).status == 200
        peer.server.pause()
        try:
            answers: list[Published] = []
            while not answers or answers[-1].status == 408:
                assert len(answers) < 500
                answers += await asyncio.gather(
                    *(one.driver.publish(publication, 0.05) for _ in range(50))
                )
            assert "does not read" in answers[-1].payload["message"]
        finally:
            peer.server.resume()

        async def flows() -> bool:
            return (await one.driver.publish(publication, DEADLINE)).status == 200

        await until(flows, "it reads again", DEADLINE)
        assert one.lost == []
