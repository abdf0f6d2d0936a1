"""What every driver has to do, whatever its broker: the same tests, run against the real broker.

A broker's test module gives a :class:`Peer` by a fixture of that name and inherits the tests::

    class TestMqtt(ConsumingContract, PublishingContract): ...

What a broker cannot do is missing from ``Peer.can``; such a test is skipped and says so.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

import pytest

from acks.settlement import Settlement
from connections.driver import Delivery, Driver, DriverFactory, Limits, OpenError, Publication
from connections.model import Connection, Source, Target, Uri
from tests.servers import free_port, wait_for

ACCEPT, REDELIVER, DISCARD = Settlement.ACCEPT, Settlement.REDELIVER, Settlement.DISCARD
DEADLINE = 30.0  # of everything that is waited for, in seconds
SUBJECT = "integration:contract"

Capability = Literal[
    "headers",  # messages have headers
    "content-type",  # ... and a content type
    "redeliver",  # a message can be given back while the connection stays open
    "confirm",  # the broker says that it has a publication
    "invalid address",  # some addresses cannot be published to: Peer.invalid
    "credentials",  # Peer.refused is turned away
    "tls",  # Peer.tls
    "restart",  # Peer.restart, and what was unsettled is still there
    "bounded",  # the driver can bound what it gives out
]


@dataclass(frozen=True, slots=True)
class Received:
    """A message as the other side sees it."""

    payload: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str | None = None


@dataclass(frozen=True, slots=True)
class Tls:
    """A listener with TLS, whose certificate ``ca`` (PEM) has signed and ``stranger`` has not."""

    uri: Uri
    ca: str
    stranger: str


class Peer(ABC):
    """A broker, and whoever else talks to it."""

    can: frozenset[Capability]
    factory: DriverFactory
    uri: Uri
    refused: Uri  # with credentials that the broker refuses
    invalid: str = ""  # an address that nothing can be published to
    tls: Tls | None = None

    @abstractmethod
    def connection(
        self,
        sources: Sequence[str] = (),
        targets: Sequence[str] = (),
        *,
        uri: Uri | None = None,
        ca: str | None = None,
        **specific: str,
    ) -> Connection:
        """A connection with a source per address and a target per address.

        The same arguments give the same connection, so that one client can follow another.
        """

    @abstractmethod
    async def address(self, name: str) -> str:
        """A new address that can be consumed and published to, made as far as it has to be."""

    @abstractmethod
    async def send(
        self,
        address: str,
        payload: bytes,
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
    ) -> None:
        """Publish, and return when the broker has it."""

    @abstractmethod
    async def receive(self, address: str) -> Received:
        """The next message that was published to an address; AssertionError at DEADLINE."""

    @abstractmethod
    async def unsettled(self, address: str) -> int:
        """How many messages the broker would give to the next client. No driver is open.

        Counting may take them.
        """

    async def restart(self) -> None:
        """Stop the broker and start it on the same data and ports."""
        raise NotImplementedError

    def needs(self, *capabilities: Capability) -> None:
        """Skip the test that this broker cannot pass."""
        for capability in capabilities:
            if capability not in self.can:
                pytest.skip(f"this broker has no {capability}")


def connection_of(
    kind: Literal["amqp-091", "amqp-10", "mqtt", "mqtt-5", "kafka", "http-push"],
    uri: Uri,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    qos: int | None = None,
    ca: str | None = None,
    specific: Mapping[str, str] | None = None,
) -> Connection:
    """A connection as :meth:`Peer.connection` returns it."""
    return Connection(
        id="contract",
        kind=kind,
        open=True,
        uri=uri,
        sources=tuple(
            Source(index=at, addresses=(address,), subjects=(SUBJECT,), qos=qos)
            for at, address in enumerate(sources)
        ),
        targets=tuple(
            Target(index=at, address=address, topics=(), subjects=(SUBJECT,), qos=qos)
            for at, address in enumerate(targets)
        ),
        ca=ca,
        specific=dict(specific or {}),
    )


class Client:
    """An open driver, and all that it has told."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.deliveries: list[Delivery] = []
        self.lost: list[str] = []
        self.statuses: list[tuple[str, str, bool, str]] = []
        self._taken = 0

    async def open(self) -> None:
        """Open the driver; its errors, and TimeoutError."""
        async with asyncio.timeout(DEADLINE):
            await self.driver.open(
                self.deliveries.append,
                self.lost.append,
                lambda *status: self.statuses.append(status),
            )

    async def next(self) -> Delivery:
        """The next delivery that was not taken yet."""
        await wait_for(lambda: len(self.deliveries) > self._taken, DEADLINE, "a delivery")
        self._taken += 1
        return self.deliveries[self._taken - 1]

    async def take(self, count: int) -> list[Delivery]:
        """The next ``count`` deliveries."""
        return [await self.next() for _ in range(count)]

    def settle(self, delivery: Delivery, settlement: Settlement = ACCEPT) -> None:
        """As the driver's."""
        self.driver.settle(delivery, settlement)


@asynccontextmanager
async def client(
    peer: Peer, connection: Connection, *, generation: int = 1, limits: Limits | None = None
) -> AsyncIterator[Client]:
    """An open driver; it is closed afterwards."""
    one = Client(peer.factory(connection, 0, generation, limits or Limits()))
    try:
        await one.open()
        yield one
    finally:
        async with asyncio.timeout(DEADLINE):
            await one.driver.close(5)


async def send_all(peer: Peer, address: str, payloads: Sequence[bytes]) -> None:
    """Publish one after the other."""
    for payload in payloads:
        await peer.send(address, payload)


async def all_settled(peer: Peer, address: str) -> None:
    """The broker keeps nothing for the next client."""
    assert await peer.unsettled(address) == 0


class ConsumingContract:
    """Of drivers with sources."""

    async def test_a_message_is_delivered(self, peer: Peer) -> None:
        address = await peer.address("in")
        async with client(peer, peer.connection([address])) as one:
            await peer.send(address, b'{"a": 1}')
            delivery = await one.next()
            assert delivery.payload == b'{"a": 1}'
            assert (delivery.source, delivery.address) == (0, address)
            assert delivery.generation == 1
            assert delivery.settles
            assert delivery.identity
            one.settle(delivery)
        await all_settled(peer, address)

    async def test_headers_and_content_type_are_delivered(self, peer: Peer) -> None:
        peer.needs("headers", "content-type")
        address = await peer.address("in")
        async with client(peer, peer.connection([address])) as one:
            await peer.send(address, b"x", {"device-id": "a b ö"}, "application/x-own")
            delivery = await one.next()
            assert delivery.headers["device-id"] == "a b ö"
            assert delivery.content_type == "application/x-own"
            one.settle(delivery)

    async def test_an_empty_payload_is_delivered(self, peer: Peer) -> None:
        address = await peer.address("in")
        async with client(peer, peer.connection([address])) as one:
            await peer.send(address, b"")
            delivery = await one.next()
            assert delivery.payload == b""
            one.settle(delivery)

    @pytest.mark.parametrize("settlement", [ACCEPT, DISCARD])
    async def test_what_is_settled_for_good_does_not_come_again(
        self, peer: Peer, settlement: Settlement
    ) -> None:
        address = await peer.address("in")
        async with client(peer, peer.connection([address])) as one:
            await peer.send(address, b"x")
            one.settle(await one.next(), settlement)
            await peer.send(address, b"y")  # whatever comes again would come before it, or with it
            delivery = await one.next()
            assert delivery.payload == b"y"
            one.settle(delivery)
        await all_settled(peer, address)

    async def test_what_is_given_back_comes_again(self, peer: Peer) -> None:
        peer.needs("redeliver")
        address = await peer.address("in")
        async with client(peer, peer.connection([address])) as one:
            await peer.send(address, b"x")
            first = await one.next()
            one.settle(first, REDELIVER)
            again = await one.next()
            assert (again.payload, again.generation) == (b"x", first.generation)
            one.settle(again)
            assert one.lost == []
        await all_settled(peer, address)

    async def test_a_redelivered_message_has_the_same_identity(self, peer: Peer) -> None:
        peer.needs("redeliver")
        address = await peer.address("in")
        async with client(peer, peer.connection([address])) as one:
            await send_all(peer, address, [b"x", b"y"])
            first, other = await one.take(2)
            assert first.identity != other.identity
            one.settle(other)
            one.settle(first, REDELIVER)
            again = await one.next()
            assert again.identity == first.identity
            one.settle(again)

    async def test_what_is_unsettled_at_close_comes_again(self, peer: Peer) -> None:
        address = await peer.address("in")
        connection = peer.connection([address])
        async with client(peer, connection) as one:
            await peer.send(address, b"x")
            await one.next()
        async with client(peer, connection, generation=2) as two:
            delivery = await two.next()
            assert (delivery.payload, delivery.generation) == (b"x", 2)
            two.settle(delivery)
        await all_settled(peer, address)

    async def test_messages_sent_while_nobody_is_connected_come_later(self, peer: Peer) -> None:
        address = await peer.address("in")
        connection = peer.connection([address])
        async with client(peer, connection):
            pass
        await send_all(peer, address, [b"0", b"1", b"2"])
        async with client(peer, connection, generation=2) as two:
            deliveries = await two.take(3)
            assert [each.payload for each in deliveries] == [b"0", b"1", b"2"]
            for each in deliveries:
                two.settle(each)
        await all_settled(peer, address)

    async def test_settled_out_of_order_nothing_is_lost(self, peer: Peer) -> None:
        address = await peer.address("in")
        connection = peer.connection([address])
        payloads = [str(n).encode() for n in range(10)]
        kept = [b"3", b"6"]
        async with client(peer, connection) as one:
            await send_all(peer, address, payloads)
            for delivery in reversed(await one.take(10)):
                if delivery.payload not in kept:
                    one.settle(delivery)
        async with client(peer, connection, generation=2) as two:
            # A broker that settles up to a position only gives later ones again, too.
            await peer.send(address, b"last")
            seen: set[bytes] = set()
            while not seen.issuperset([*kept, b"last"]):
                delivery = await two.next()
                two.settle(delivery)
                seen.add(delivery.payload)
        await all_settled(peer, address)

    async def test_no_later_success_hides_an_earlier_failure(self, peer: Peer) -> None:
        address = await peer.address("in")
        connection = peer.connection([address])
        async with client(peer, connection) as one:
            await send_all(peer, address, [b"bad", b"good", b"good"])
            bad, *good = await one.take(3)
            for each in good:
                one.settle(each)
            one.settle(bad, REDELIVER)
        async with client(peer, connection, generation=2) as two:
            delivery = await two.next()
            assert delivery.payload == b"bad"
            two.settle(delivery)
            await peer.send(address, b"last")
            while (delivery := await two.next()).payload != b"last":
                two.settle(delivery)
            two.settle(delivery)
        await all_settled(peer, address)

    async def test_a_delivery_of_another_generation_is_ignored(self, peer: Peer) -> None:
        address = await peer.address("in")
        connection = peer.connection([address])
        async with client(peer, connection) as one:
            await peer.send(address, b"x")
            delivery = await one.next()
            one.settle(replace(delivery, generation=delivery.generation - 1))
            assert one.driver.stale == 1
        async with client(peer, connection, generation=2) as two:
            again = await two.next()
            two.settle(delivery)
            assert two.driver.stale == 1
            two.settle(again)
            assert two.driver.stale == 1
        await all_settled(peer, address)

    async def test_a_second_settlement_is_ignored(self, peer: Peer) -> None:
        address = await peer.address("in")
        async with client(peer, peer.connection([address])) as one:
            await peer.send(address, b"x")
            delivery = await one.next()
            one.settle(delivery)
            one.settle(delivery, REDELIVER)
            one.settle(delivery)
            assert one.driver.stale == 2
            await peer.send(address, b"y")
            one.settle(await one.next())
        await all_settled(peer, address)

    async def test_a_settlement_after_close_is_ignored(self, peer: Peer) -> None:
        address = await peer.address("in")
        connection = peer.connection([address])
        async with client(peer, connection) as one:
            await peer.send(address, b"x")
            delivery = await one.next()
        one.settle(delivery)
        assert one.driver.stale == 1
        async with client(peer, connection, generation=2) as two:
            two.settle(await two.next())
        await all_settled(peer, address)

    async def test_no_more_is_given_out_than_may_be_in_flight(self, peer: Peer) -> None:
        peer.needs("bounded")
        address = await peer.address("in")
        async with client(peer, peer.connection([address]), limits=Limits(in_flight=5)) as one:
            await send_all(peer, address, [str(n).encode() for n in range(20)])
            for done in range(20):
                delivery = await one.next()
                assert delivery.payload == str(done).encode()
                await peer.send(await peer.address("other"), b"")  # gives the driver time for more
                assert len(one.deliveries) <= done + 5
                one.settle(delivery)
        await all_settled(peer, address)

    async def test_two_sources_of_one_connection(self, peer: Peer) -> None:
        addresses = [await peer.address("in-a"), await peer.address("in-b")]
        async with client(peer, peer.connection(addresses)) as one:
            for address in addresses:
                await peer.send(address, address.encode())
            deliveries = await one.take(2)
            for delivery in deliveries:
                assert delivery.address == addresses[delivery.source]
                assert delivery.payload == delivery.address.encode()
                one.settle(delivery)
            assert {delivery.source for delivery in deliveries} == {0, 1}
        for address in addresses:
            await all_settled(peer, address)

    async def test_a_broker_that_restarts_is_lost_once_and_loses_nothing(self, peer: Peer) -> None:
        peer.needs("restart")
        address = await peer.address("in")
        connection = peer.connection([address])
        async with client(peer, connection) as one:
            await send_all(peer, address, [b"0", b"1", b"2"])
            await one.take(3)
            await peer.restart()
            await wait_for(lambda: one.lost, DEADLINE, "the loss is told")
            one.settle(one.deliveries[0])
        assert len(one.lost) == 1
        seen: set[bytes] = set()
        async with client(peer, connection, generation=2) as two:
            while len(seen) < 3:
                delivery = await two.next()
                seen.add(delivery.payload)
                two.settle(delivery)
            assert two.lost == []
        assert seen == {b"0", b"1", b"2"}
        await all_settled(peer, address)

    async def test_a_thousand_random_settlements_leave_nothing_unsettled(self, peer: Peer) -> None:
        chance = random.Random(1)
        address = await peer.address("in")
        connection = peer.connection([address])
        payloads = [str(n).encode() for n in range(1000)]
        waiting: list[Delivery] = []
        done: set[bytes] = set()
        async with client(peer, connection) as one:
            sending = asyncio.create_task(send_all(peer, address, payloads))
            while len(done) < len(payloads):
                come = len(one.deliveries) > len(done) + len(waiting)
                if not waiting or (come and chance.random() < 0.5):
                    waiting.append(await one.next())
                    continue
                delivery = waiting.pop(chance.randrange(len(waiting)))
                one.settle(delivery, chance.choice((ACCEPT, ACCEPT, ACCEPT, DISCARD)))
                done.add(delivery.payload)
            await sending
            assert one.driver.stale == 0
            assert one.lost == []
        assert done == set(payloads)
        await all_settled(peer, address)


class PublishingContract:
    """Of drivers with targets."""

    async def test_a_publication_is_confirmed(self, peer: Peer) -> None:
        address = await peer.address("out")
        async with client(peer, peer.connection(targets=[address])) as one:
            publication = Publication(address, b'{"a": 1}', None, qos=1)
            published = await one.driver.publish(publication, DEADLINE)
            assert 200 <= published.status < 300
            assert not published.lost
            assert (await peer.receive(address)).payload == b'{"a": 1}'

    async def test_headers_and_content_type_are_published(self, peer: Peer) -> None:
        peer.needs("headers", "content-type")
        address = await peer.address("out")
        async with client(peer, peer.connection(targets=[address])) as one:
            headers = {"device-id": "a b"}
            await one.driver.publish(Publication(address, b"x", "text/x-own", headers, 1), DEADLINE)
            received = await peer.receive(address)
            assert received.headers["device-id"] == "a b"
            assert received.content_type == "text/x-own"

    async def test_publications_of_an_address_keep_their_order(self, peer: Peer) -> None:
        address = await peer.address("out")
        async with client(peer, peer.connection(targets=[address])) as one:
            payloads = [str(n).encode() for n in range(50)]
            answers = await asyncio.gather(
                *(
                    one.driver.publish(Publication(address, each, None, qos=1, key="k"), DEADLINE)
                    for each in payloads
                )
            )
            assert {answer.status // 100 for answer in answers} == {2}
            assert [(await peer.receive(address)).payload for _ in payloads] == payloads

    async def test_an_invalid_address_is_answered_not_raised(self, peer: Peer) -> None:
        peer.needs("invalid address")
        address = await peer.address("out")
        async with client(peer, peer.connection(targets=[address])) as one:
            published = await one.driver.publish(
                Publication(peer.invalid, b"x", None, qos=1), DEADLINE
            )
            assert published.status >= 400
            assert published.payload is not None
            published = await one.driver.publish(Publication(address, b"y", None, qos=1), DEADLINE)
            assert published.status < 300

    async def test_publishing_after_close_is_answered_not_raised(self, peer: Peer) -> None:
        address = await peer.address("out")
        async with client(peer, peer.connection(targets=[address])) as one:
            pass
        published = await one.driver.publish(Publication(address, b"x", None, qos=1), DEADLINE)
        assert published.status >= 400

    async def test_publishing_to_a_broker_that_restarts_is_answered_and_goes_on(
        self, peer: Peer
    ) -> None:
        peer.needs("restart")
        address = await peer.address("out")
        connection = peer.connection(targets=[address])
        async with client(peer, connection) as one:
            await peer.restart()
            await wait_for(lambda: one.lost, DEADLINE, "the loss is told")
            published = await one.driver.publish(Publication(address, b"x", None, qos=1), 5)
            assert published.status >= 400
        async with client(peer, connection, generation=2) as two:
            published = await two.driver.publish(Publication(address, b"y", None, qos=1), DEADLINE)
            assert published.status < 300


class OpeningContract:
    """Of all drivers."""

    async def _refused(self, peer: Peer, connection: Connection) -> OpenError:
        one = Client(peer.factory(connection, 0, 1, Limits()))
        with pytest.raises(OpenError) as refusal:
            await one.open()
        await one.driver.close(1)
        assert one.lost == []
        return refusal.value

    async def test_wrong_credentials_are_called_so(self, peer: Peer) -> None:
        peer.needs("credentials")
        address = await peer.address("out")
        error = await self._refused(peer, peer.connection(targets=[address], uri=peer.refused))
        assert error.cause == "credentials"
        assert str(error)
        assert peer.refused.password
        assert peer.refused.password not in str(error)

    async def test_an_unreachable_broker_is_called_temporary(self, peer: Peer) -> None:
        nowhere = replace(peer.uri, port=free_port())
        address = await peer.address("out")
        error = await self._refused(peer, peer.connection(targets=[address], uri=nowhere))
        assert error.cause == "temporary"
        assert str(error)

    async def test_closing_twice_and_without_opening(self, peer: Peer) -> None:
        address = await peer.address("out")
        connection = peer.connection(targets=[address])
        async with client(peer, connection) as one:
            await one.driver.close(5)
            await one.driver.close(5)
        assert one.lost == []
        await peer.factory(connection, 0, 1, Limits()).close(1)

    async def test_opening_can_be_cancelled(self, peer: Peer) -> None:
        address = await peer.address("out")
        connection = peer.connection(targets=[address])
        one = Client(peer.factory(connection, 0, 1, Limits()))
        opening = asyncio.create_task(one.open())
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await one.driver.close(1)
        assert one.lost == []
        async with client(peer, connection, generation=2) as two:
            published = await two.driver.publish(Publication(address, b"x", None, qos=1), DEADLINE)
            assert published.status < 300

    async def test_tls_by_an_authority_of_its_own(self, peer: Peer) -> None:
        peer.needs("tls")
        assert peer.tls is not None
        address = await peer.address("out")
        connection = peer.connection(targets=[address], uri=peer.tls.uri, ca=peer.tls.ca)
        async with client(peer, connection) as one:
            published = await one.driver.publish(Publication(address, b"x", None, qos=1), DEADLINE)
            assert published.status < 300

    @pytest.mark.parametrize("trusted", ["a stranger", "nobody in particular"])
    async def test_tls_by_a_strange_authority_is_refused(self, peer: Peer, trusted: str) -> None:
        peer.needs("tls")
        assert peer.tls is not None
        address = await peer.address("out")
        ca = peer.tls.stranger if trusted == "a stranger" else None
        connection = peer.connection(targets=[address], uri=peer.tls.uri, ca=ca)
        error = await self._refused(peer, connection)
        assert error.cause == "misconfigured"
        assert str(error)
