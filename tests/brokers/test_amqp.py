"""The driver of AMQP 0.9.1 against a RabbitMQ node."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import aiormq
import pytest
from aiormq.abc import AbstractChannel, ChannelFrame
from pamqp.body import ContentBody
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from connections.amqp import wire as amqp_wire
from connections.amqp.driver import AmqpDriver
from connections.amqp.publishing import MAX_LANES
from connections.driver import Limits, OpenError, Publication, Published
from connections.model import Connection, Source, Uri
from tests.brokers.authority import Authority
from tests.brokers.contract import (
    ACCEPT,
    DEADLINE,
    DISCARD,
    REDELIVER,
    Client,
    ConsumingContract,
    OpeningContract,
    Peer,
    PublishingContract,
    Received,
    Tls,
    all_settled,
    client,
    connection_of,
    send_all,
)
from tests.brokers.rabbitmq import USERS, RabbitServer
from tests.brokers.scenes import until
from tests.servers import wait_for

_names = itertools.count()


class RabbitPeer(Peer):
    """A node. An address names a queue, and an exchange and a routing key that lead there."""

    can = frozenset(
        {
            "headers",
            "content-type",
            "redeliver",
            "confirm",
            "invalid address",
            "credentials",
            "tls",
            "restart",
            "bounded",
        }
    )
    factory = AmqpDriver
    invalid = "no-such-exchange/key"

    tls: Tls

    def __init__(self, server: RabbitServer) -> None:
        self.server = server
        self.uri = Uri("amqp", "localhost", server.port, "", "ackgate", USERS["ackgate"])
        self.refused = replace(self.uri, password="wr0ng-secret")
        secure = replace(self.uri, scheme="amqps", port=server.tls_port)
        self.tls = Tls(secure, server.authority.pem, Authority().pem)
        self._wire: aiormq.Connection | None = None
        self._channel: AbstractChannel | None = None

    def connection(
        self,
        sources: Sequence[str] = (),
        targets: Sequence[str] = (),
        *,
        uri: Uri | None = None,
        ca: str | None = None,
        **specific: str,
    ) -> Connection:
        return connection_of(
            "amqp-091", uri or self.uri, sources, targets, ca=ca, specific=specific
        )

    async def channel(self) -> AbstractChannel:
        """A channel of the other side; a new one after trouble."""
        if self._channel is None or self._channel.is_closed:
            if self._wire is None or self._wire.is_closed:
                self._wire = await aiormq.connect(self.server.url())
            self._channel = await self._wire.channel()
        return self._channel

    async def address(self, name: str) -> str:
        return await self.queue(name)

    async def queue(self, name: str, **arguments: Any) -> str:
        """An exchange of its own, and a queue that is named as their address."""
        exchange = f"x{next(_names)}"
        address = f"{exchange}/{name}"
        channel = await self.channel()
        await channel.exchange_declare(exchange, exchange_type="direct", durable=True)
        await channel.queue_declare(address, durable=True, arguments=arguments)
        await channel.queue_bind(address, exchange, name)
        return address

    async def send(
        self,
        address: str,
        payload: bytes,
        headers: Mapping[str, Any] | None = None,
        content_type: str | None = None,
        **properties: Any,
    ) -> None:
        given = Basic.Properties(
            content_type=content_type,
            headers=dict(headers or {}),
            delivery_mode=2,
            **properties,
        )
        channel = await self.channel()
        await channel.basic_publish(payload, routing_key=address, properties=given)

    async def send_nameless(self, address: str, payload: bytes) -> None:
        """As :meth:`send`, without the message id that the library gives."""
        channel = await self.channel()
        frames: list[Any] = [
            Basic.Publish(routing_key=address),
            ContentHeader(body_size=len(payload), properties=Basic.Properties(delivery_mode=2)),
            ContentBody(payload),
        ]
        plain: Any = await channel.connection.channel(publisher_confirms=False)
        await plain.write_queue.put(ChannelFrame.marshall(plain.number, frames))
        await plain.close()

    async def receive(self, address: str) -> Received:
        message = await self.message(address)
        properties = message.header.properties
        headers = {name: str(value) for name, value in (properties.headers or {}).items()}
        return Received(message.body, headers, properties.content_type or None)

    async def message(self, address: str) -> aiormq.abc.DeliveredMessage:
        """The next message of a queue as it is; AssertionError at DEADLINE."""
        channel = await self.channel()
        async with asyncio.timeout(DEADLINE):
            while True:
                message = await channel.basic_get(address, no_ack=True)
                if isinstance(message.delivery, Basic.GetOk):
                    return message
                await asyncio.sleep(0.01)

    async def unsettled(self, address: str) -> int:
        channel = await self.channel()
        declared = await channel.queue_declare(address, passive=True)
        assert declared.message_count is not None
        return declared.message_count

    async def restart(self) -> None:
        await self.close()
        await asyncio.to_thread(self.server.halt)
        self.server.start()

    async def close(self) -> None:
        """Say goodbye to the broker."""
        if self._wire is not None:
            await self._wire.close()
            self._wire = None


@pytest.fixture
async def peer(rabbit: RabbitServer) -> AsyncIterator[RabbitPeer]:
    one = RabbitPeer(rabbit)
    yield one
    await one.close()


# ---------------------------------------------------------------------- contract


class TestAmqp(ConsumingContract, PublishingContract, OpeningContract):
    """The contract of all drivers."""


# ---------------------------------------------------------------------- consuming


async def test_only_what_is_discarded_is_dead_lettered(peer: RabbitPeer) -> None:
    letters = await peer.queue("letters")
    address = await peer.queue(
        "in", **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": letters}
    )
    async with client(peer, peer.connection([address])) as one:
        await send_all(peer, address, [b"good", b"again", b"bad"])
        good, again, bad = await one.take(3)
        one.settle(good, ACCEPT)
        one.settle(again, REDELIVER)
        one.settle(bad, DISCARD)
        assert (await peer.receive(letters)).payload == b"bad"
        one.settle(await one.next())
    assert one.deliveries[3].payload == b"again"
    await all_settled(peer, address)
    await all_settled(peer, letters)


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
    there, missing = await peer.queue("in"), f"not-yet-{next(_names)}"
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
    one = Client(AmqpDriver(peer.connection(["nope-1", "nope-2"]), 0, 1, Limits()))
    with pytest.raises(OpenError, match="no queue 'nope-1'") as refusal:
        await one.open()
    assert refusal.value.cause == "misconfigured"
    await one.driver.close(1)
    assert one.lost == []


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
    letters = await peer.queue("letters")
    address = await peer.queue(
        "in", **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": letters}
    )
    limits = Limits(message_bytes=1000)
    async with client(peer, peer.connection([address]), limits=limits) as one:
        await send_all(peer, address, [b"x" * 1001, b"y" * 1000])
        delivery = await one.next()
        assert delivery.payload == b"y" * 1000
        one.settle(delivery)
        assert len((await peer.receive(letters)).payload) == 1001
        assert "1001 bytes" in one.statuses[-1][3]
    await all_settled(peer, address)


# ---------------------------------------------------------------------- publishing


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
    queue = f"plain-{next(_names)}"
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
    address, missing = await peer.queue("out"), f"no-exchange-{next(_names)}/key"
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
    one = Client(AmqpDriver(peer.connection(targets=["a/b"], uri=uri), 0, 1, Limits()))
    with pytest.raises(OpenError, match=f"virtual host '{path[1:]}'") as refusal:
        await one.open()
    assert refusal.value.cause == "misconfigured"


@pytest.mark.parametrize("path", ["", "/", "/%2F", "/a%2Fb"])
async def test_a_virtual_host_is_the_path_of_the_uri(peer: RabbitPeer, path: str) -> None:
    uri = replace(peer.uri, path=path)
    async with client(peer, peer.connection(targets=["/q"], uri=uri)) as one:
        published = await one.driver.publish(Publication("/nowhere", b"", None), DEADLINE)
        assert "NO_ROUTE" in published.payload


@pytest.mark.parametrize("secure", [True, False])
async def test_plain_towards_tls_and_tls_towards_plain(peer: RabbitPeer, secure: bool) -> None:
    wrong = replace(peer.uri if secure else peer.tls.uri, scheme="amqps" if secure else "amqp")
    one = Client(AmqpDriver(peer.connection(targets=["a/b"], uri=wrong), 0, 1, Limits()))
    with pytest.raises(OpenError) as refusal:
        await one.open()
    assert refusal.value.cause == "temporary"
    assert str(refusal.value)
