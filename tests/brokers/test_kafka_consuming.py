"""Consuming from Kafka: offsets, groups, expiry, outages."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
from confluent_kafka import KafkaError

from connections.driver import Delivery, Limits, Publication
from connections.kafka import consumer as kafka_consumer
from connections.kafka.driver import KafkaDriver
from connections.model import Connection
from tests.brokers.kafka import OFFSET_COMMIT, KafkaPeer, kafka_peer, told_otherwise
from tests.brokers.peers import ACCEPT, DEADLINE, DISCARD, REDELIVER, Client, client, send_all
from tests.brokers.scenes import until
from tests.servers import free_port, wait_for

peer = pytest.fixture(scope="module")(kafka_peer)


def _at_most_once(connection: Connection) -> Connection:
    return replace(connection, sources=tuple(replace(s, qos=0) for s in connection.sources))


# --- consuming


async def test_a_message_brings_its_topic_key_and_time(peer: KafkaPeer) -> None:
    topic = peer.make("in")
    async with client(peer, peer.connection([topic])) as one:
        headers: dict[str, str | bytes] = {"Device-ID": "one", "binary": b"\xff"}
        peer.produce(topic, b"x", headers, key=b"k", timestamp=1_700_000_000_123)
        delivery = await one.next()
        assert delivery.headers == {
            "device-id": "one",
            "binary": "\ufffd",
            "kafka.topic": topic,
            "kafka.key": "k",
            "kafka.timestamp": "1700000000123",
        }
        assert delivery.content_type is None
        assert delivery.redeliveries is None
        one.settle(delivery)


async def test_without_qos_a_message_is_consumed_at_least_once(peer: KafkaPeer) -> None:
    topic = peer.make("in")
    connection = peer.connection([topic])
    unsaid = tuple(replace(one, qos=None) for one in connection.sources)
    async with client(peer, replace(connection, sources=unsaid)) as one:
        peer.produce(topic, b"x", {})
        first = await one.next()
        assert first.settles
        one.settle(first, REDELIVER)
        one.settle(await one.next())


async def test_at_most_once_is_committed_before_it_is_given_out(peer: KafkaPeer) -> None:
    topic = peer.make("in")
    connection = _at_most_once(peer.connection([topic]))
    committed: list[int] = []

    def take(delivery: Delivery) -> None:
        committed.append(peer.offsets(topic)[0][1])
        deliveries.append(delivery)

    deliveries: list[Delivery] = []
    driver = KafkaDriver(connection, 0, 1, Limits(in_flight=3))
    await driver.open(take, pytest.fail, lambda *_: None)
    try:
        await send_all(peer, topic, [b"0", b"1", b"2", b"3", b"4"])
        await wait_for(lambda: len(deliveries) == 5, DEADLINE)
        assert all(count > at for at, count in enumerate(committed))
        assert not any(each.settles for each in deliveries)
        driver.settle(deliveries[0], REDELIVER)
        assert driver.stale == 1
    finally:
        await driver.close(5)
    assert len(deliveries) == 5
    assert await peer.unsettled(topic) == 0


async def test_at_most_once_gives_out_nothing_that_could_not_be_committed(peer: KafkaPeer) -> None:
    topic = peer.make("in")
    connection = _at_most_once(peer.connection([topic]))
    async with client(peer, connection) as one:
        peer.server.tell("errors", OFFSET_COMMIT, [KafkaError.TOPIC_AUTHORIZATION_FAILED])
        await peer.send(topic, b"x")
        await wait_for(lambda: one.lost, DEADLINE)
    assert one.deliveries == []
    async with client(peer, connection, generation=2) as two:
        assert (await two.next()).payload == b"x"


async def test_an_expired_message_is_committed_and_not_given_out(peer: KafkaPeer) -> None:
    topic = peer.make("in")
    now = int(time.time() * 1000)
    async with client(peer, peer.connection([topic])) as one:
        peer.produce(topic, b"late", {"creation-time": str(now - 1_000), "ttl": "1000"})
        peer.produce(topic, b"alive", {"creation-time": str(now), "ttl": "600000"})
        peer.produce(topic, b"no number", {"creation-time": "yesterday", "ttl": "1"})
        peer.produce(topic, b"no ttl", {"creation-time": "1"})
        deliveries = await one.take(3)
        assert [each.payload for each in deliveries] == [b"alive", b"no number", b"no ttl"]
        await wait_for(lambda: peer.offsets(topic)[0][1] == 1, DEADLINE, "a commit of the first")
        for each in deliveries:
            one.settle(each)
    assert await peer.unsettled(topic) == 0


async def test_a_message_that_is_too_large_is_left_out_and_told(peer: KafkaPeer) -> None:
    topic = peer.make("in")
    async with client(peer, peer.connection([topic]), limits=Limits(message_bytes=100)) as one:
        await send_all(peer, topic, [b"x" * 101, b"x" * 100])
        delivery = await one.next()
        assert len(delivery.payload) == 100
        one.settle(delivery)
        assert [status[:3] for status in one.statuses] == [("source", topic, True)]
        assert "101 bytes" in one.statuses[0][3]
    assert await peer.unsettled(topic) == 0


async def test_the_offset_that_is_committed_has_nothing_unsettled_below(peer: KafkaPeer) -> None:
    topic = peer.make("in")
    async with client(peer, peer.connection([topic])) as one:
        await send_all(peer, topic, [b"0", b"1", b"2", b"3"])
        deliveries = await one.take(4)
        one.settle(deliveries[0])
        one.settle(deliveries[2])
        one.settle(deliveries[3])
        await wait_for(lambda: peer.offsets(topic) == [(4, 1)], DEADLINE)
        one.settle(deliveries[1])
        await wait_for(lambda: peer.offsets(topic) == [(4, 4)], DEADLINE)


async def test_a_failing_commit_is_tried_again(peer: KafkaPeer) -> None:
    topic = peer.make("in")
    async with client(peer, peer.connection([topic])) as one:
        await peer.send(topic, b"x")
        delivery = await one.next()
        peer.server.tell("errors", OFFSET_COMMIT, [KafkaError.UNKNOWN] * 3)
        one.settle(delivery)
        await wait_for(lambda: peer.offsets(topic) == [(1, 1)], DEADLINE)
        assert one.lost == []


async def test_a_message_that_fails_for_ever_does_not_block_others(peer: KafkaPeer) -> None:
    topic = peer.make("in")
    async with client(peer, peer.connection([topic])) as one:
        await send_all(peer, topic, [b"poison", b"0", b"1", b"2"])
        tries = 0
        seen: Counter[bytes] = Counter()
        while tries < 4:
            delivery = await one.next()
            seen[delivery.payload] += 1
            if delivery.payload == b"poison":
                tries += 1
                one.settle(delivery, REDELIVER if tries < 4 else DISCARD)
                await peer.send(topic, b"after %d" % tries)
            else:
                one.settle(delivery)
        while seen[b"after 4"] == 0:
            delivery = await one.next()
            seen[delivery.payload] += 1
            one.settle(delivery)
        assert seen.pop(b"poison") == 4
        assert set(seen.values()) == {1}, "what was settled does not come again with the other"
    assert await peer.unsettled(topic) == 0


async def test_messages_beyond_one_that_is_not_settled_are_bounded(peer: KafkaPeer) -> None:
    topic = peer.make("in")
    window = 2 * kafka_consumer.WINDOW
    payloads = [b"%d" % n for n in range(2 * window)]
    async with client(peer, peer.connection([topic]), limits=Limits(in_flight=2)) as one:
        await send_all(peer, topic, payloads)
        first = await one.next()
        for _ in range(window - 1):
            one.settle(await one.next())
        one.settle(first, REDELIVER)
        again = await one.next()
        assert again.identity == first.identity
        assert len(one.deliveries) == window + 1
        one.settle(again)
        rest: list[bytes] = []
        while len(rest) < window:
            delivery = await one.next()
            rest.append(delivery.payload)
            one.settle(delivery)
        assert rest == payloads[window:]
    assert await peer.unsettled(topic) == 0


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_random_settlements_over_partitions(peer: KafkaPeer, seed: int) -> None:
    chance = random.Random(seed)
    topic = peer.make("in", partitions=3)
    payloads = [b"%d" % n for n in range(300)]
    given: Counter[bytes] = Counter()
    backs: Counter[bytes] = Counter()
    done: set[bytes] = set()
    waiting: list[Delivery] = []
    async with client(peer, peer.connection([topic]), limits=Limits(in_flight=20)) as one:
        for at, payload in enumerate(payloads):
            peer.produce(topic, payload, {}, partition=at % 3)
        while len(done) < len(payloads):
            if not waiting or (one.more and chance.random() < 0.5):
                waiting.append(await one.next())
                given[waiting[-1].payload] += 1
                continue
            delivery = waiting.pop(chance.randrange(len(waiting)))
            if chance.random() < 0.1:
                backs[delivery.payload] += 1
                one.settle(delivery, REDELIVER)
            else:
                one.settle(delivery, chance.choice((ACCEPT, DISCARD)))
                done.add(delivery.payload)
        assert one.driver.stale == 0
        assert one.lost == []
    assert sum(backs.values()) > 10
    assert all(given[payload] == 1 + backs[payload] for payload in payloads)
    assert await peer.unsettled(topic) == 0


# --- the group


async def test_partitions_that_are_taken_away_settle_nothing_any_more(peer: KafkaPeer) -> None:
    topic = peer.make("in", partitions=4)
    connection = peer.connection([topic])
    async with client(peer, connection) as one:
        for part in range(4):
            peer.produce(topic, b"%d" % part, {}, partition=part)
        held = {each.payload: each for each in await one.take(4)}
        async with client(peer, connection, generation=7) as two:
            moved = await two.take(2)
            assert {each.generation for each in moved} == {7}
            for each in held.values():
                one.settle(each)
            await wait_for(lambda: one.driver.stale == 2, DEADLINE)
            for each in moved:
                two.settle(each)
        assert two.driver.stale == 0
    assert await peer.unsettled(topic) == 0


async def test_partitions_move_while_there_is_no_room(peer: KafkaPeer) -> None:
    topic = peer.make("in", partitions=2)
    connection = peer.connection([topic])
    async with client(peer, connection, limits=Limits(in_flight=1)) as one:
        for part in range(2):
            peer.produce(topic, b"%d" % part, {}, partition=part)
        first = await one.next()
        async with client(peer, connection, limits=Limits(in_flight=1)) as two:
            other = await two.next()
            one.settle(first)
            two.settle(other)
            seen = {first.payload, other.payload}
            while seen != {b"0", b"1"}:  # what came to both comes to one of them once more
                await wait_for(lambda: one.more or two.more, DEADLINE)
                for each in (one, two):
                    if each.more:
                        delivery = await each.next()
                        seen.add(delivery.payload)
                        each.settle(delivery)
    assert await peer.unsettled(topic) == 0


async def test_clients_that_come_and_go_lose_nothing(peer: KafkaPeer) -> None:
    topic = peer.make("in", partitions=4)
    connection = peer.connection([topic])
    sent: set[bytes] = set()
    done: set[bytes] = set()

    async def come_to(one: Client) -> bool:
        """Send to every partition; whether any of it has come to this client."""
        for part in range(4):
            sent.add(payload := b"%d" % len(sent))
            peer.produce(topic, payload, {}, partition=part)
        return bool(one.deliveries)

    async def work(one: Client) -> None:
        while True:
            delivery = await one.next()
            one.settle(delivery)
            done.add(delivery.payload)

    async with client(peer, connection, limits=Limits(in_flight=5)) as one:
        workers = [asyncio.create_task(work(one))]
        for generation in (2, 3):
            async with client(peer, connection, generation=generation) as two:
                workers.append(asyncio.create_task(work(two)))
                await until(partial(come_to, two), "a partition of its own", DEADLINE)
                await wait_for(lambda: done == sent, DEADLINE, "all come")
                workers[-1].cancel()
        workers[0].cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    assert done == sent
    async with client(peer, connection, generation=4) as last:  # what came to two of them
        worker = asyncio.create_task(work(last))
        ends = [(high, high) for high, _ in peer.offsets(topic)]
        await wait_for(lambda: peer.offsets(topic) == ends, DEADLINE, "everything is settled")
        worker.cancel()


async def test_the_group_has_the_name_that_is_configured(peer: KafkaPeer) -> None:
    topic = peer.make("in")
    async with client(peer, peer.connection([topic], groupId="a group of its own")) as one:
        await peer.send(topic, b"x")
        one.settle(await one.next())
    assert peer.offsets(topic, "a group of its own") == [(1, 1)]
    assert peer.offsets(topic) == [(1, 0)]


async def test_a_topic_that_is_missing_is_told_and_waited_for(
    peer: KafkaPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, missing = peer.make("in"), f"missing-{free_port()}"
    told_otherwise(monkeypatch, "consuming", {"topic.metadata.refresh.interval.ms": 500})
    async with client(peer, peer.connection([there, missing])) as one:
        await wait_for(lambda: one.statuses, DEADLINE)
        assert one.statuses[0][:3] == ("source", missing, False)
        await peer.send(there, b"x")
        one.settle(await one.next())
        peer.server.topic(missing)
        await peer.send(missing, b"y")
        delivery = await one.next()
        assert (delivery.payload, delivery.source) == (b"y", 1)
        one.settle(delivery)
        again = ("source", missing, True, "")
        await wait_for(lambda: one.statuses[-1] == again, DEADLINE, "the status")
        assert one.lost == []


async def test_a_short_outage_is_no_loss(peer: KafkaPeer) -> None:
    topic = peer.make("in")
    async with client(peer, peer.connection([topic], [topic])) as one:
        await peer.send(topic, b"before")
        before = await one.next()
        await peer.server.outage(0.5)
        one.settle(before)
        published = await one.driver.publish(Publication(topic, b"after", None), DEADLINE)
        assert published.status == 204
        after = await one.next()
        assert after.payload == b"after"
        one.settle(after)
        assert one.lost == []
        assert one.driver.stale == 0
    assert await peer.unsettled(topic) == 0
