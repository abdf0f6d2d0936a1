"""What is MQTT's own: redelivery by reconnecting, QoS, properties."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from connections.driver import Limits, Publication
from tests.brokers.mosquitto import FORBIDDEN, Mosquitto, MqttPeer, mqtt_peer
from tests.brokers.peers import DEADLINE, DISCARD, REDELIVER, client, send_all
from tests.servers import wait_for

peer = pytest.fixture(params=["mqtt", "mqtt-5"])(mqtt_peer)
five = pytest.fixture(mqtt_peer)


# ------------------------------------------------------------------------------------ redelivery


async def test_reconnecting_gives_out_only_what_is_to_come_again(peer: MqttPeer) -> None:
    address = await peer.address("in")
    async with client(peer, peer.connection([address])) as one:
        await send_all(peer, address, [b"done", b"again", b"done later", b"slow"])
        done, again, later, slow = await one.take(4)
        one.settle(done)
        one.settle(again, REDELIVER)
        one.settle(later)
        second = await one.next()
        assert second.payload == b"again"
        await peer.send(address, b"last")  # would come after all that came again
        last = await one.next()
        assert last.payload == b"last"
        for delivery in (last, slow, second):
            one.settle(delivery)
        assert one.driver.stale == 0
        assert one.lost == []
    assert await peer.unsettled(address) == 0


async def test_what_fails_all_the_time_comes_all_the_time(peer: MqttPeer) -> None:
    address = await peer.address("in")
    async with client(peer, peer.connection([address])) as one:
        await peer.send(address, b"x")
        for _ in range(3):
            one.settle(await one.next(), REDELIVER)
        one.settle(await one.next())
    assert await peer.unsettled(address) == 0


@pytest.mark.parametrize(
    "specific",
    [{"reconnectForRedelivery": "false"}, {"cleanSession": "true"}],
    ids=["not wanted", "the session would be gone"],
)
async def test_without_reconnecting_redelivery_is_an_ack(
    peer: MqttPeer, specific: dict[str, Any]
) -> None:
    address = await peer.address("in")
    connection = peer.connection([address], **specific)
    async with client(peer, connection, limits=Limits(in_flight=1)) as one:
        await send_all(peer, address, [b"x", b"y"])
        one.settle(await one.next(), REDELIVER)
        one.settle(await one.next(), DISCARD)
        assert [delivery.payload for delivery in one.deliveries] == [b"x", b"y"]
    assert await peer.unsettled(address) == 0


@pytest.mark.parametrize("apart", ["true", "false"])
async def test_publications_get_through_while_it_reconnects(peer: MqttPeer, apart: str) -> None:
    address, out = await peer.address("in"), await peer.address("out")
    connection = peer.connection([address], [out], separatePublisherClient=apart)
    async with client(peer, connection) as one:
        await peer.send(address, b"x")
        one.settle(await one.next(), REDELIVER)
        sent = 0
        while len(one.deliveries) < 2:
            answer = await one.driver.publish(Publication(out, str(sent).encode(), None), DEADLINE)
            assert answer.status == 200
            sent += 1
        one.settle(one.deliveries[1])
        received = [(await peer.receive(out)).payload for _ in range(sent)]
        assert received == [str(n).encode() for n in range(sent)]
        assert one.lost == []


async def test_a_session_that_is_lost_while_it_reconnects_is_told(peer: MqttPeer) -> None:
    address = await peer.address("in")
    async with client(peer, peer.connection([address])) as one:
        await peer.send(address, b"x")
        one.settle(await one.next(), REDELIVER)
        await peer.forget_session()
        await wait_for(lambda: one.lost, DEADLINE, "the loss is told")
    assert len(one.lost) == 1


# ------------------------------------------------------------------------------- QoS and sources


async def test_qos_0_needs_no_settlement(peer: MqttPeer) -> None:
    address = await peer.address("in")
    async with client(peer, peer.connection([address]), limits=Limits(in_flight=1)) as one:
        for payload in (b"0", b"1", b"2"):
            await peer.publish(address, payload, qos=0)
        for delivery in await one.take(3):
            assert not delivery.settles
            assert delivery.headers["mqtt.qos"] == "0"
            one.settle(delivery, REDELIVER)
        assert one.driver.stale == 0


async def test_the_messages_of_wildcards_and_shared_subscriptions(five: MqttPeer) -> None:
    base = await five.address("w")
    wanted = [f"{base}/+/a", f"$share/group/{base}/deep/#"]
    async with client(five, five.connection(wanted)) as one:
        await five.publish(f"{base}/1/a", b"0")
        await five.publish(f"{base}/1/b", b"nobody's")
        await five.publish(f"{base}/deep", b"1")
        await five.publish(f"{base}/deep/er/still", b"2")
        deliveries = await one.take(3)
        assert [(each.source, each.payload) for each in deliveries] == [
            (0, b"0"),
            (1, b"1"),
            (1, b"2"),
        ]
        assert deliveries[0].headers["mqtt.topic"] == f"{base}/1/a"
        assert deliveries[0].address == wanted[0]
        for delivery in deliveries:
            one.settle(delivery)
    assert await five.unsettled(base) == 0


async def test_a_message_of_two_sources_is_acked_when_both_have_settled(peer: MqttPeer) -> None:
    address = await peer.address("in")
    connection = peer.connection([address, address])
    async with client(peer, connection) as one:
        await peer.send(address, b"x")
        first, second = await one.take(2)
        assert (first.source, second.source) == (0, 1)
        one.settle(second)
    async with client(peer, connection, generation=2) as two:
        for delivery in await two.take(2):
            two.settle(delivery)
    assert await peer.unsettled(address) == 0


async def test_messages_of_a_source_that_is_gone_are_acked(peer: MqttPeer) -> None:
    address, other = await peer.address("in"), await peer.address("other")
    async with client(peer, peer.connection([address])):
        pass
    await peer.send(address, b"nobody wants it any more")
    async with client(peer, peer.connection([other]), generation=2) as two:
        await peer.send(other, b"x")
        delivery = await two.next()
        assert delivery.payload == b"x"
        two.settle(delivery)
    assert await peer.unsettled(address) == 0


async def test_a_message_that_is_too_long_is_discarded_and_told(peer: MqttPeer) -> None:
    address = await peer.address("in")
    async with client(peer, peer.connection([address]), limits=Limits(message_bytes=100)) as one:
        await send_all(peer, address, [b"x" * 101, b"y" * 100])
        delivery = await one.next()
        assert delivery.payload == b"y" * 100
        one.settle(delivery)
        assert [text for _, at, _, text in one.statuses if at == address and "101 bytes" in text]
    assert await peer.unsettled(address) == 0


async def test_large_messages_by_tls(peer: MqttPeer) -> None:
    assert peer.tls is not None
    address = await peer.address("in")
    connection = peer.connection([address], [address], uri=peer.tls.uri, ca=peer.tls.ca)
    async with client(peer, connection) as one:
        payload = bytes(range(256)) * 3000
        assert (await one.driver.publish(Publication(address, payload, None), 20)).status == 200
        delivery = await one.next()
        assert delivery.payload == payload
        one.settle(delivery)
    assert await peer.unsettled(address) == 0


async def test_a_flood_without_settlement_leaves_turns_to_others(peer: MqttPeer) -> None:
    address = await peer.address("in")
    connection = peer.connection([address], [address])
    async with client(peer, connection, limits=Limits(publishing=5000)) as one:
        publication = Publication(address, b"x" * 100, None, qos=0)
        answers = await asyncio.gather(*(one.driver.publish(publication, 20) for _ in range(2000)))
        assert {answer.status for answer in answers} == {200}
        turns: list[int] = []
        while len(one.deliveries) < 2000:
            turns.append(len(one.deliveries))
            await asyncio.sleep(0)
        assert max(after - before for before, after in pairwise(turns)) <= 64


# ----------------------------------------------------------------------------------- properties


async def test_properties_become_headers(five: MqttPeer) -> None:
    address = await five.address("in")
    properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    properties.ResponseTopic = "answers/here"
    properties.CorrelationData = b"c-1"
    async with client(five, five.connection([address])) as one:
        await five.publish(address, b"x", {"Device": "d"}, "text/plain", properties=properties)
        delivery = await one.next()
        assert dict(delivery.headers) == {
            "device": "d",
            "content-type": "text/plain",
            "reply-to": "answers/here",
            "correlation-id": "c-1",
            "mqtt.topic": address,
            "mqtt.qos": "1",
            "mqtt.retain": "false",
        }
        one.settle(delivery)


async def test_headers_become_properties(five: MqttPeer) -> None:
    address = await five.address("out")
    async with client(five, five.connection(targets=[address])) as one:
        headers = {"device": "d", "reply-to": "answers/here", "correlation-id": "c-1"}
        await one.driver.publish(Publication(address, b"x", "text/plain", headers), DEADLINE)
        received = await five.receive(address)
        assert received.content_type == "text/plain"
        assert {name: received.headers[name] for name in headers} == headers


async def test_headers_overrule_the_target(peer: MqttPeer) -> None:
    address = await peer.address("out")
    async with client(peer, peer.connection(targets=["elsewhere"])) as one:
        headers = {"mqtt.topic": address, "mqtt.qos": "2", "mqtt.retain": "true"}
        publication = Publication("elsewhere", b"kept", None, headers, qos=0)
        assert (await one.driver.publish(publication, DEADLINE)).status == 200
        assert (await peer.receive(address)).headers["mqtt.qos"] == "2"
    async with client(peer, peer.connection([address]), generation=2) as two:
        delivery = await two.next()
        assert (delivery.payload, delivery.headers["mqtt.retain"]) == (b"kept", "true")
        two.settle(delivery)


@pytest.mark.parametrize(
    ("address", "headers"),
    [
        ("", {}),
        ("a/+/b", {}),
        ("a\0b", {}),
        ("x" * 65_536, {}),
        ("lone \ud800", {}),
        ("a", {"mqtt.qos": "3"}),
        ("a", {"mqtt.retain": "perhaps"}),
        ("a", {"mqtt.topic": "#"}),
        ("a", {"reply-to": "#"}),
        ("a", {"own": "\0"}),
    ],
)
async def test_what_cannot_be_sent_is_a_400(
    five: MqttPeer, address: str, headers: dict[str, str]
) -> None:
    out = await five.address("out")
    async with client(five, five.connection(targets=[out])) as one:
        answer = await one.driver.publish(Publication(address, b"x", None, headers), DEADLINE)
        assert (answer.status, answer.lost) == (400, False)
        assert answer.payload["error"] == "connectivity:message.sending.failed"
        assert "status" not in answer.payload
        assert (await one.driver.publish(Publication(out, b"x", None), DEADLINE)).status == 200


async def test_a_refused_publication_is_a_503_and_takes_the_connection_down(five: MqttPeer) -> None:
    async with client(five, five.connection(targets=[FORBIDDEN])) as one:
        answer = await one.driver.publish(Publication(FORBIDDEN, b"x", None), DEADLINE)
        assert (answer.status, answer.lost) == (503, True)
        assert "Not authorized" in answer.payload["message"]


async def test_more_publications_than_may_wait_are_a_503(peer: MqttPeer, mqtt: Mosquitto) -> None:
    out = await peer.address("out")
    async with client(peer, peer.connection(targets=[out]), limits=Limits(publishing=2)) as one:
        publication = Publication(out, b"x", None)
        answers = await asyncio.gather(*(one.driver.publish(publication, 20) for _ in range(3)))
        assert [answer.status for answer in answers] == [200, 200, 503]
        mqtt.pause()
        try:
            answer = await one.driver.publish(publication, 0.1)
            assert answer.status == 503
            assert "did not confirm" in answer.payload["message"]
        finally:
            mqtt.resume()
