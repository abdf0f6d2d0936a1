"""The driver of AMQP 1.0 against RabbitMQ with its plugin."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

pytest.importorskip(
    "proton", reason="AMQP 1.0 needs the extra amqp10 (python-qpid-proton, built by a C compiler)"
)

from connections.amqp10.driver import Amqp10Driver
from connections.driver import Limits, Publication
from connections.model import Connection, Source
from tests.brokers.amqp10_peer import Amqp10Peer, amqp10_peer
from tests.brokers.amqp_peer import names
from tests.brokers.contract import ConsumingContract, OpeningContract, PublishingContract
from tests.brokers.peers import DEADLINE, REDELIVER, all_settled, client, refusal, send_all
from tests.servers import wait_for

peer = pytest.fixture(amqp10_peer)


class TestAmqp10(ConsumingContract, PublishingContract, OpeningContract):
    """The contract of all drivers."""


# ---------------------------------------------------------------------- consuming


def consuming(peer: Amqp10Peer, *addresses: str, consumers: int = 1) -> Connection:
    """A connection with one source."""
    source = Source(index=0, addresses=addresses, subjects=("me",), consumers=consumers)
    return replace(peer.connection(addresses), sources=(source,))


async def test_the_broker_says_whether_it_is_a_redelivery(peer: Amqp10Peer) -> None:
    address = await peer.queue("in")
    async with client(peer, peer.connection([address])) as one:
        await peer.send(address, b"x")
        first = await one.next()
        one.settle(first, REDELIVER)
        again = await one.next()
        one.settle(again)
    assert (first.redeliveries, again.redeliveries) == (0, None)


async def test_consumers_share_the_bound(peer: Amqp10Peer) -> None:
    addresses = [await peer.queue("a"), await peer.queue("b")]
    connection = consuming(peer, *addresses, consumers=2)
    async with client(peer, connection, limits=Limits(in_flight=9)) as one:
        for address in addresses:
            await send_all(peer, address, [b"x"] * 20)
        await one.take(8)  # four links with a credit of two
        one.settle(one.deliveries[0])
        await one.next()
        assert len(one.deliveries) == 9
        for delivery in one.deliveries[1:]:
            one.settle(delivery)
        for _ in range(40 - 9):
            one.settle(await one.next())
        assert len(one.deliveries) == 40
    for address in addresses:
        await all_settled(peer, address)


async def test_a_message_of_many_frames(peer: Amqp10Peer) -> None:
    address = await peer.queue("big")
    payload = bytes(range(256)) * 2000
    async with client(peer, peer.connection([address], [address])) as one:
        assert (await one.driver.publish(Publication(address, payload, None), 20)).status == 200
        delivery = await one.next()
        assert delivery.payload == payload
        one.settle(delivery)
    await all_settled(peer, address)


async def test_a_message_that_is_too_large_is_rejected(peer: Amqp10Peer) -> None:
    address, letters = await peer.with_letters("in")
    limits = Limits(in_flight=1, message_bytes=200_000)
    async with client(peer, peer.connection([address]), limits=limits) as one:
        await send_all(peer, address, [b"x" * 300_000, b"y" * 199_000])
        delivery = await one.next()
        assert delivery.payload[:1] == b"y"
        one.settle(delivery)
        assert len((await peer.receive(letters)).payload) == 300_000
    assert "200000 bytes" in one.statuses[0][3]
    await all_settled(peer, address)


async def test_properties_and_annotations_pass_through_the_broker(peer: Amqp10Peer) -> None:
    address = await peer.queue("both")
    headers = {
        "message-id": "m",
        "correlation-id": "c",
        "reply-to": "r",
        "subject": "s",
        "device": "d",
        "amqp.application.property:to": "x",
        "amqp.message.annotation:x-own": "n",
    }
    async with client(peer, peer.connection([address], [address])) as one:
        publication = Publication(address, b"x", "a/b", headers)
        assert (await one.driver.publish(publication, DEADLINE)).status == 200
        delivery = await one.next()
        one.settle(delivery)
    # The plugin of 3.10 does not pass on every property.
    names = {"message-id", "correlation-id", "reply-to", "device", "amqp.application.property:to"}
    assert {name: delivery.headers.get(name) for name in names} == {n: headers[n] for n in names}
    assert delivery.content_type == "a/b"
    assert delivery.identity.startswith(f"{address} ")


# ------------------------------------------------------------------ sources in trouble


async def test_a_source_that_is_not_there_does_not_stop_the_others(
    peer: Amqp10Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connections.amqp10.driver.FIRST_RETRY_S", 0.05)
    there, missing = await peer.queue("there"), f"/amq/queue/one-{next(names)}-missing"
    async with client(peer, peer.connection([missing, there])) as one:
        ((kind, address, well, text),) = one.statuses
        assert (kind, address, well) == ("source", missing, False)
        assert "not" in text
        await peer.send(there, b"x")
        one.settle(await one.next())
        channel = await peer.channel()
        await channel.queue_declare(peer.queue_of(missing), durable=True)
        await wait_for(lambda: one.statuses[-1] == ("source", missing, True, ""), DEADLINE)
        await peer.send(missing, b"y")
        delivery = await one.next()
        assert (delivery.source, delivery.payload) == (0, b"y")
        one.settle(delivery)
        assert one.lost == []
    await all_settled(peer, there)
    await all_settled(peer, missing)


async def test_no_source_is_there(peer: Amqp10Peer) -> None:
    error = await refusal(Amqp10Driver, peer.connection(["/amq/queue/none-such"]))
    assert error.cause == "misconfigured"


# --------------------------------------------------------------------- publishing


async def test_prefixes_of_jms(peer: Amqp10Peer) -> None:
    address = f"queue://{await peer.queue('jms')}"
    async with client(peer, peer.connection([address], [address])) as one:
        assert (await one.driver.publish(Publication(address, b"x", None), 20)).status == 200
        delivery = await one.next()
        assert (delivery.address, delivery.payload) == (address, b"x")
        one.settle(delivery)


async def test_a_target_in_trouble_is_told_once(peer: Amqp10Peer) -> None:
    exchange = f"one-x{next(names)}"
    address = f"/exchange/{exchange}/key"
    async with client(peer, peer.connection(targets=[address])) as one:
        for _ in range(2):
            published = await one.driver.publish(Publication(address, b"x", None), DEADLINE)
            assert published.status == 503
            assert published.payload["error"] == "connectivity:message.sending.failed"
            assert exchange in published.payload["message"] + published.payload["description"]
        channel = await peer.channel()
        await channel.exchange_declare(exchange, durable=True)
        queue = await peer.queue("bound")
        await channel.queue_bind(peer.queue_of(queue), exchange, "key")
        published = await one.driver.publish(Publication(address, b"y", None), DEADLINE)
        assert published.status == 200
        assert (await peer.receive(queue)).payload == b"y"
    assert [status[:3] for status in one.statuses] == [
        ("target", address, False),
        ("target", address, True),
    ]


async def test_more_addresses_than_links(peer: Amqp10Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connections.amqp10.outlets.MOST_OUTLETS", 2)
    addresses = [await peer.queue(f"out-{n}") for n in range(4)]
    async with client(peer, peer.connection(targets=addresses)) as one:
        for address in (*addresses, *addresses):
            published = await one.driver.publish(Publication(address, b"x", None), DEADLINE)
            assert published.status == 200
        for address in addresses:
            assert [(await peer.receive(address)).payload for _ in range(2)] == [b"x", b"x"]
        both = [Publication(address, b"y", None) for address in addresses[:2]]
        third = Publication(addresses[2], b"y", None)
        answers = await asyncio.gather(
            *(one.driver.publish(each, DEADLINE) for each in (*both, third))
        )
        assert [answer.status for answer in answers] == [200, 200, 503]


async def test_too_many_publications_at_once(peer: Amqp10Peer) -> None:
    address = await peer.queue("out")
    limits = Limits(publishing=3)
    async with client(peer, peer.connection(targets=[address]), limits=limits) as one:
        publication = Publication(address, b"x", None)
        answers = await asyncio.gather(
            *(one.driver.publish(publication, DEADLINE) for _ in range(5))
        )
        assert [answer.status for answer in answers] == [200, 200, 200, 503, 503]
        assert (await one.driver.publish(publication, DEADLINE)).status == 200


async def test_what_cannot_be_a_message(peer: Amqp10Peer) -> None:
    address = await peer.queue("out")
    async with client(peer, peer.connection(targets=[address])) as one:
        publication = Publication(address, b"x", None, {"creation-time": "soon"})
        published = await one.driver.publish(publication, DEADLINE)
        assert published.status == 400
        assert "creation-time" in published.payload["message"]


# ------------------------------------------------------------------- the connection


async def test_a_broker_that_is_silent_is_given_up(
    peer: Amqp10Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connections.amqp10.engine.HEARTBEAT_S", 1.0)
    address = await peer.queue("in")
    async with client(peer, peer.connection([address], [address])) as one:
        peer.server.pause()
        try:
            late = await one.driver.publish(Publication(address, b"x", None), 0.05)
            waiting = asyncio.create_task(
                one.driver.publish(Publication(address, b"x", None), DEADLINE)
            )
            await wait_for(lambda: one.lost, DEADLINE, "the loss is told")
            assert (await waiting).status == late.status == 503
        finally:
            peer.server.resume()
    assert len(one.lost) == 1


async def test_a_quiet_connection_lives_on(
    peer: Amqp10Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connections.amqp10.engine.HEARTBEAT_S", 2.0)
    address = await peer.queue("in")
    async with client(peer, peer.connection([address])) as one:
        await asyncio.sleep(3)  # heartbeats have to go out and come in: time is the matter here
        assert one.lost == []
        await peer.send(address, b"x")
        one.settle(await one.next())
    await all_settled(peer, address)


async def test_the_path_is_the_virtual_host(peer: Amqp10Peer) -> None:
    for path, cause in (("/vhost:a/b", None), ("/vhost:forbidden", "credentials")):
        connection = peer.connection(targets=["/queue/made-here"], uri=replace(peer.uri, path=path))
        if cause is None:
            async with client(peer, connection) as one:
                publication = Publication("/queue/made-here", b"x", None)
                assert (await one.driver.publish(publication, DEADLINE)).status == 200
        else:
            assert (await refusal(Amqp10Driver, connection)).cause == cause


async def test_a_connection_without_a_user_is_anonymous(peer: Amqp10Peer) -> None:
    uri = replace(peer.uri, user=None, password=None)
    error = await refusal(Amqp10Driver, peer.connection(targets=["/queue/x"], uri=uri))
    assert error.cause == "credentials"  # the node has no user guest


@pytest.mark.parametrize(
    "said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"AMQP\x00\x00\x09\x01", b""]
)
async def test_a_server_that_is_no_broker(peer: Amqp10Peer, said: bytes) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    try:
        uri = replace(peer.uri, port=server.sockets[0].getsockname()[1])
        error = await refusal(Amqp10Driver, peer.connection(["x"], uri=uri))
        assert error.cause == "temporary"
        assert str(error)
    finally:
        server.close()


async def test_a_broker_that_is_killed(peer: Amqp10Peer) -> None:
    address = await peer.queue("in")
    await peer.close()
    async with client(peer, peer.connection([address], [address])) as one:
        peer.server.kill9()
        await wait_for(lambda: one.lost, DEADLINE, "the loss is told")
        assert (await one.driver.publish(Publication(address, b"x", None), 5)).status == 503
        peer.server.start()
    assert len(one.lost) == 1
