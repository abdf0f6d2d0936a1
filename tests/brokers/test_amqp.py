"""The driver of AMQP 0.9.1 against a RabbitMQ node: consuming and connecting."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from connections.amqp import wire as amqp_wire
from connections.amqp.driver import AmqpDriver
from connections.driver import Limits, Publication
from connections.model import Source
from tests.brokers.amqp_peer import RabbitPeer, names, rabbit_peer
from tests.brokers.contract import ConsumingContract, OpeningContract, PublishingContract
from tests.brokers.peers import DEADLINE, REDELIVER, Client, all_settled, client, refusal, send_all
from tests.servers import wait_for

peer = pytest.fixture(rabbit_peer)


# ---------------------------------------------------------------------- contract


class TestAmqp(ConsumingContract, PublishingContract, OpeningContract):
    """The contract of all drivers."""


# ---------------------------------------------------------------------- consuming


async def test_header_values_of_all_types_become_texts(peer: RabbitPeer) -> None:
    address = await peer.queue("in")
    async with client(peer, peer.connection([address])) as one:
        moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
        given = {
            "Text": "ä",
            "yes": True,
            "int": -7,
            "long": 1 << 40,
            "float": 1.5,
            "decimal": Decimal("1.25"),
            "bytes": bytearray(b"raw"),
            "moment": moment,
            "nothing": None,
            "requested-acks": ["twin-persisted", "a:b"],
            "table": {"on": False, "at": moment},
        }
        await peer.send(
            address, b"", given, "text/plain", correlation_id="c-1", reply_to="r", message_id="m"
        )
        delivery = await one.next()
        assert delivery.headers == {
            "text": "ä",
            "yes": "true",
            "int": "-7",
            "long": "1099511627776",
            "float": "1.5",
            "decimal": "1.25",
            "bytes": "raw",
            "moment": "2026-01-02T03:04:05Z",
            "requested-acks": '["twin-persisted","a:b"]',
            "table": '{"at":"2026-01-02T03:04:05Z","on":false}',
            "correlation-id": "c-1",
            "reply-to": "r",
            "content-type": "text/plain",
            "message-id": "m",
        }
        assert delivery.identity.startswith(f"{address} ")
        one.settle(delivery)


@pytest.mark.parametrize(("kind", "counts"), [("classic", [0, None, None]), ("quorum", [0, 1, 2])])
async def test_redeliveries_are_counted_as_well_as_the_queue_does(
    peer: RabbitPeer, kind: str, counts: list[int | None]
) -> None:
    address = await peer.queue("in", **{"x-queue-type": kind})
    async with client(peer, peer.connection([address])) as one:
        await peer.send(address, b"x")
        for count in counts:
            delivery = await one.next()
            assert delivery.redeliveries == count
            assert delivery.identity == one.deliveries[0].identity
            one.settle(delivery, REDELIVER)
        one.settle(await one.next())
    await all_settled(peer, address)


async def test_a_missing_queue_is_the_trouble_of_its_own_source(peer: RabbitPeer) -> None:
    there, missing = await peer.queue("in"), f"not-yet-{next(names)}"
    async with client(peer, peer.connection([missing, there])) as one:
        assert ("source", there, True, "") in one.statuses
        await wait_for(lambda: len(one.statuses) == 2, DEADLINE, "the status of the other")
        kind, address, well, details = next(s for s in one.statuses if s[1] == missing)
        assert (kind, address, well) == ("source", missing, False)
        assert f"no queue '{missing}'" in details
        await peer.send(there, b"x")
        one.settle(await one.next())
        channel = await peer.channel()
        await channel.queue_declare(missing, durable=True)
        await peer.send(missing, b"y")
        delivery = await one.next()
        assert (delivery.payload, delivery.source) == (b"y", 0)
        one.settle(delivery)
        # The first message may come before the driver has told that it consumes.
        again = ("source", missing, True, "")
        await wait_for(lambda: one.statuses[-1] == again, DEADLINE, "the status of the other")
        assert one.lost == []


async def test_nothing_but_missing_queues_is_misconfigured(peer: RabbitPeer) -> None:
    error = await refusal(AmqpDriver, peer.connection(["nope-1", "nope-2"]))
    assert error.cause == "misconfigured"
    assert "no queue 'nope-1'" in str(error)


async def test_a_queue_that_is_deleted_ends_its_own_source(peer: RabbitPeer) -> None:
    deleted, there = await peer.queue("in-a"), await peer.queue("in-b")
    async with client(peer, peer.connection([deleted, there])) as one:
        await peer.send(deleted, b"x")
        gone = await one.next()
        channel = await peer.channel()
        await channel.queue_delete(deleted)
        await wait_for(lambda: len(one.statuses) > 2, DEADLINE, "the status")
        assert one.statuses[2][:3] == ("source", deleted, False)
        one.settle(gone)
        assert one.driver.stale == 1
        await peer.send(there, b"y")
        one.settle(await one.next())
        assert one.lost == []


async def test_a_source_has_its_number_of_consumers_and_they_share_the_bound(
    peer: RabbitPeer,
) -> None:
    address = await peer.queue("in")
    source = Source(index=0, addresses=(address,), subjects=("a:b",), consumers=3)
    connection = replace(peer.connection(), sources=(source,))
    async with client(peer, connection, limits=Limits(in_flight=7)) as one:
        channel = await peer.channel()
        declared = await channel.queue_declare(address, passive=True)
        assert declared.consumer_count == 3
        await send_all(peer, address, [b"x"] * 12)
        first = await one.take(7)
        await peer.send(await peer.queue("other"), b"")
        assert await peer.unsettled(address) == 5  # they were not given out
        for delivery in first:
            one.settle(delivery)
        for delivery in await one.take(5):
            one.settle(delivery)
    await all_settled(peer, address)


async def test_every_consumer_may_have_a_message(peer: RabbitPeer) -> None:
    addresses = [await peer.queue("in-a"), await peer.queue("in-b")]
    async with client(peer, peer.connection(addresses), limits=Limits(in_flight=1)) as one:
        for address in addresses:
            await send_all(peer, address, [b"x", b"y"])
        for _ in range(4):
            one.settle(await one.next())
    for address in addresses:
        await all_settled(peer, address)


async def test_messages_that_say_the_same_are_told_apart(peer: RabbitPeer) -> None:
    address = await peer.queue("in")
    connection = peer.connection([address])
    async with client(peer, connection) as one:
        for _ in range(3):
            await peer.send_nameless(address, b"same")
        first = await one.take(3)
        assert {each.headers.get("message-id") for each in first} == {None}
        names = [each.identity for each in first]
        assert len(set(names)) == 3
        for each in first:
            one.settle(each, REDELIVER)
        again = await one.take(3)
        assert sorted(each.identity for each in again) == sorted(names)
        for each in again:
            one.settle(each, REDELIVER)
        last = await one.take(3)
        assert sorted(each.identity for each in last) == sorted(names)
    async with client(peer, connection, generation=2) as two:
        for each in await two.take(3):
            two.settle(each)
    await all_settled(peer, address)


async def test_a_message_that_is_too_large_is_rejected(peer: RabbitPeer) -> None:
    address, letters = await peer.with_letters("in")
    limits = Limits(message_bytes=1000)
    async with client(peer, peer.connection([address]), limits=limits) as one:
        await send_all(peer, address, [b"x" * 1001, b"y" * 1000])
        delivery = await one.next()
        assert delivery.payload == b"y" * 1000
        one.settle(delivery)
        assert len((await peer.receive(letters)).payload) == 1001
        assert "1001 bytes" in one.statuses[-1][3]
    await all_settled(peer, address)


# ---------------------------------------------------------------------- connecting


async def test_closing_takes_its_grace_at_most(peer: RabbitPeer) -> None:
    address = await peer.queue("in")
    connection = peer.connection([address], [address])
    others = asyncio.all_tasks()
    async with client(peer, connection) as one:
        await peer.send(address, b"x")
        delivery = await one.next()
        peer.server.pause()
        try:
            one.settle(delivery)
            async with asyncio.timeout(DEADLINE):
                await one.driver.close(0.2)
            await wait_for(lambda: asyncio.all_tasks() <= others, DEADLINE, "the end of all")
        finally:
            peer.server.resume()
    assert one.lost == []


async def test_opening_at_a_silent_broker_can_be_given_up(peer: RabbitPeer) -> None:
    address = await peer.queue("in")
    one = Client(AmqpDriver(peer.connection([address]), 0, 1, Limits()))
    others = asyncio.all_tasks()
    peer.server.pause()
    try:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(one.open(), 0.2)
        await wait_for(lambda: asyncio.all_tasks() <= others, DEADLINE, "the end of all")
    finally:
        peer.server.resume()
    await one.driver.close(1)
    assert one.lost == []


async def test_a_silent_broker_is_lost(peer: RabbitPeer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amqp_wire, "HEARTBEAT_S", 1)
    address = await peer.queue("in")
    async with client(peer, peer.connection([address], [address])) as one:
        peer.server.pause()
        try:
            await wait_for(lambda: one.lost, DEADLINE, "the loss")
        finally:
            peer.server.resume()
    assert one.lost == ["The connection to the broker is lost: the broker was silent for too long"]


async def test_a_broker_that_is_killed_is_lost_once_and_loses_nothing(peer: RabbitPeer) -> None:
    address, out = await peer.queue("in"), await peer.queue("out")
    connection = peer.connection([address], [out])
    async with client(peer, connection) as one:
        await send_all(peer, address, [b"0", b"1", b"2"])
        first, *_ = await one.take(3)
        await peer.close()
        peer.server.kill9()
        waiting = await one.driver.publish(Publication(out, b"x", None), DEADLINE)
        assert waiting.status == 503
        await wait_for(lambda: one.lost, DEADLINE, "the loss")
        one.settle(first)
        assert one.driver.stale == 1
        peer.server.start()
    assert len(one.lost) == 1
    assert {status[2] for status in one.statuses} == {True}
    async with client(peer, connection, generation=2) as two:
        seen = await two.take(3)
        assert {delivery.payload for delivery in seen} == {b"0", b"1", b"2"}
        for delivery in seen:
            two.settle(delivery)
    await all_settled(peer, address)


@pytest.mark.parametrize("path", ["/forbidden", "/no-such-host"])
async def test_a_virtual_host_that_may_not_be_used_is_misconfigured(
    peer: RabbitPeer, path: str
) -> None:
    uri = replace(peer.uri, path=path)
    error = await refusal(AmqpDriver, peer.connection(targets=["a/b"], uri=uri))
    assert error.cause == "misconfigured"
    assert f"virtual host '{path[1:]}'" in str(error)


@pytest.mark.parametrize("path", ["", "/", "/%2F", "/a%2Fb"])
async def test_a_virtual_host_is_the_path_of_the_uri(peer: RabbitPeer, path: str) -> None:
    uri = replace(peer.uri, path=path)
    async with client(peer, peer.connection(targets=["/q"], uri=uri)) as one:
        published = await one.driver.publish(Publication("/nowhere", b"", None), DEADLINE)
        assert "NO_ROUTE" in published.payload


@pytest.mark.parametrize("secure", [True, False])
async def test_plain_towards_tls_and_tls_towards_plain(peer: RabbitPeer, secure: bool) -> None:
    wrong = replace(peer.uri if secure else peer.tls.uri, scheme="amqps" if secure else "amqp")
    error = await refusal(AmqpDriver, peer.connection(targets=["a/b"], uri=wrong))
    assert error.cause == "temporary"
    assert str(error)
