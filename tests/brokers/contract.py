"""What every driver has to do, whatever its broker: the same tests, run against the real broker.

A broker's test module gives a :class:`tests.brokers.peers.Peer` by the fixture ``peer``, and
inherits the tests::

    class TestMqtt(ConsumingContract, PublishingContract): ...

What a broker cannot do is missing from ``Peer.can``; such a test is skipped and says so.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from acks.settlement import Settlement
from connections.driver import Delivery, Limits, Publication
from tests.brokers.peers import (
    ACCEPT,
    DEADLINE,
    DISCARD,
    REDELIVER,
    Client,
    Peer,
    all_settled,
    client,
    refusal,
    send_all,
)
from tests.servers import free_port, wait_for


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

    async def test_only_what_is_discarded_is_dead_lettered(self, peer: Peer) -> None:
        peer.needs("dead letters", "redeliver")
        address, letters = await peer.with_letters("in")
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
                if not waiting or (one.more and chance.random() < 0.5):
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

    async def test_wrong_credentials_are_called_so(self, peer: Peer) -> None:
        peer.needs("credentials")
        address = await peer.address("out")
        error = await refusal(peer.factory, peer.connection(targets=[address], uri=peer.refused))
        assert error.cause == "credentials"
        assert str(error)
        assert peer.refused.password
        assert peer.refused.password not in str(error)

    async def test_an_unreachable_broker_is_called_temporary(self, peer: Peer) -> None:
        nowhere = replace(peer.uri, port=free_port())
        address = await peer.address("out")
        error = await refusal(peer.factory, peer.connection(targets=[address], uri=nowhere))
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
        error = await refusal(peer.factory, connection)
        assert error.cause == "misconfigured"
        assert str(error)
