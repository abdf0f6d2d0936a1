"""What is MQTT's own: redelivery by reconnecting, properties, sessions, wills, odd brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import pairwise

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from connections.driver import Limits, OpenError, Publication
from connections.model import Connection, Uri
from connections.mqtt.driver import MqttDriver
from tests.brokers.contract import ACCEPT, DEADLINE, DISCARD, REDELIVER, Client, client, send_all
from tests.brokers.mosquitto import FORBIDDEN, PASSWORD, USER, Mosquitto, MqttPeer, mosquitto
from tests.servers import wait_for


@pytest.fixture(scope="module")
def broker() -> Iterator[Mosquitto]:
    with mosquitto() as running:
        yield running


@pytest.fixture(params=["mqtt", "mqtt-5"])
async def peer(broker: Mosquitto, request: pytest.FixtureRequest) -> AsyncIterator[MqttPeer]:
    peer = MqttPeer(broker, request.param)
    await peer.start()
    try:
        yield peer
    finally:
        await peer.close()


@pytest.fixture
async def five(broker: Mosquitto) -> AsyncIterator[MqttPeer]:
    peer = MqttPeer(broker, "mqtt-5")
    await peer.start()
    try:
        yield peer
    finally:
        await peer.close()


def with_options(connection: Connection, specific: dict[str, str]) -> Connection:
    return replace(connection, specific={**connection.specific, **specific})


class Way:
    """A way to the broker that can be cut."""

    def __init__(self, broker: int) -> None:
        self._broker = broker
        self._writers: list[asyncio.StreamWriter] = []
        self.server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        assert self.server is not None
        port: int = self.server.sockets[0].getsockname()[1]
        return port

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._broker)
        self._writers += [writer, back]
        await asyncio.gather(_copy(reader, back), _copy(there, writer))

    async def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def forwarding(broker: int) -> AsyncIterator[Way]:
    way = Way(broker)
    way.server = await asyncio.start_server(way.take, "127.0.0.1", 0)
    async with way.server:
        yield way


async def refusal(connection: Connection) -> OpenError:
    one = Client(MqttDriver(connection, 0, 1, Limits()))
    with pytest.raises(OpenError) as refused:
        await one.open()
    await one.driver.close(1)
    return refused.value


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
    peer: MqttPeer, specific: dict[str, str]
) -> None:
    address = await peer.address("in")
    connection = with_options(peer.connection([address]), specific)
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


async def test_more_publications_than_may_wait_are_a_503(peer: MqttPeer, broker: Mosquitto) -> None:
    out = await peer.address("out")
    async with client(peer, peer.connection(targets=[out]), limits=Limits(publishing=2)) as one:
        publication = Publication(out, b"x", None)
        answers = await asyncio.gather(*(one.driver.publish(publication, 20) for _ in range(3)))
        assert [answer.status for answer in answers] == [200, 200, 503]
        broker.pause()
        try:
            answer = await one.driver.publish(publication, 0.1)
            assert answer.status == 503
            assert "did not confirm" in answer.payload["message"]
        finally:
            broker.resume()


# -------------------------------------------------------------------------- sessions and openings


async def test_each_client_of_a_connection_has_a_session_of_its_own(peer: MqttPeer) -> None:
    address = await peer.address("in")
    connection = replace(peer.connection([address]), clients=2)
    both = [Client(MqttDriver(connection, number, 1, Limits())) for number in (0, 1)]
    for one in both:
        await one.open()
    await peer.send(address, b"x")
    for one in both:
        one.settle(await one.next())
        assert one.lost == []
        await one.driver.close(5)


async def test_a_trial_leaves_the_real_client_alone(peer: MqttPeer) -> None:
    address = await peer.address("in")
    connection = peer.connection([address])
    async with client(peer, connection) as one:
        async with client(peer, replace(connection, id="some-uuid-dry-run")):
            pass
        await peer.send(address, b"x")
        one.settle(await one.next())
        assert one.lost == []


async def test_thrown_out_by_a_client_of_the_same_id_it_is_lost(peer: MqttPeer) -> None:
    address = await peer.address("in")
    connection = peer.connection([address])
    async with client(peer, connection) as one, client(peer, connection, generation=2) as two:
        await wait_for(lambda: one.lost, DEADLINE, "the loss is told")
        await peer.send(address, b"x")
        two.settle(await two.next())
        assert two.lost == []
    assert len(one.lost) == 1
    assert one.deliveries == []


async def test_cut_off_it_is_lost_and_leaves_its_will(peer: MqttPeer) -> None:
    address, will = await peer.address("in"), await peer.address("will")
    specific = {"lastWillTopic": will, "lastWillMessage": "gone", "lastWillQos": "1"}
    async with forwarding(peer.uri.port) as way:
        uri = replace(peer.uri, port=way.port)
        connection = with_options(peer.connection([address], uri=uri), specific)
        async with client(peer, connection) as one:
            await way.cut()
            await wait_for(lambda: one.lost, DEADLINE, "the loss is told")
            assert (await peer.receive(will)).payload == b"gone"
    assert len(one.lost) == 1


async def test_closed_it_leaves_no_will(peer: MqttPeer) -> None:
    address, will = await peer.address("in"), await peer.address("will")
    specific = {"lastWillTopic": will, "lastWillMessage": "gone"}
    async with client(peer, with_options(peer.connection([address]), specific)):
        pass
    await peer.publish(will, b"later")
    assert (await peer.receive(will)).payload == b"later"


async def test_a_broker_that_is_silent_is_lost_after_the_keep_alive(
    peer: MqttPeer, broker: Mosquitto
) -> None:
    address = await peer.address("in")
    async with client(peer, peer.connection([address], keepAlive="1s")) as one:
        broker.pause()
        try:
            await wait_for(lambda: one.lost, DEADLINE, "the loss is told")
        finally:
            broker.resume()
    assert len(one.lost) == 1


async def test_closing_does_not_wait_for_a_broker_that_is_silent(
    peer: MqttPeer, broker: Mosquitto
) -> None:
    one = Client(MqttDriver(peer.connection([await peer.address("in")]), 0, 1, Limits()))
    await one.open()
    broker.pause()
    try:
        async with asyncio.timeout(5):
            await one.driver.close(0.1)
    finally:
        broker.resume()
    assert one.lost == []


async def test_a_certificate_of_ours_is_shown(peer: MqttPeer, broker: Mosquitto) -> None:
    cert, key = broker.authority.pair("gateway")
    uri = Uri("ssl", "localhost", broker.mutual_port, user=USER, password=PASSWORD)
    address = await peer.address("out")
    connection = peer.connection(targets=[address], uri=uri, ca=broker.authority.pem)
    await refusal(connection)  # the reason may be cut off: the broker resets the connection
    shown = {"type": "client-cert", "cert": cert, "key": key}
    async with client(peer, replace(connection, credentials=shown)) as one:
        assert (await one.driver.publish(Publication(address, b"x", None), 20)).status == 200


async def test_user_and_password_may_be_credentials(peer: MqttPeer, broker: Mosquitto) -> None:
    shown = {"type": "plain", "username": USER, "password": PASSWORD}
    uri = Uri("tcp", "127.0.0.1", broker.port)
    connection = peer.connection(targets=[await peer.address("out")], uri=uri)
    assert (await refusal(connection)).cause == "credentials"
    async with client(peer, replace(connection, credentials=shown)) as one:
        assert one.lost == []


@pytest.mark.parametrize(
    "specific",
    [
        {"cleanSession": "maybe"},
        {"keepAlive": "0s"},
        {"keepAlive": "20h"},
        {"reconnectForRedeliveryDelay": "soon"},
        {"lastWillTopic": "w", "lastWillQos": "3"},
        {"clientId": "same", "publisherId": "same", "separatePublisherClient": "true"},
    ],
)
async def test_options_that_are_not_valid_are_called_so(
    peer: MqttPeer, specific: dict[str, str]
) -> None:
    error = await refusal(with_options(peer.connection([await peer.address("in")]), specific))
    assert error.cause == "misconfigured"
    assert str(error)


@pytest.mark.parametrize("address", ["a/#/b", "a+/b", ""])
async def test_an_address_that_is_no_topic_filter_is_called_so(
    peer: MqttPeer, address: str
) -> None:
    assert (await refusal(peer.connection([address]))).cause == "misconfigured"


@asynccontextmanager
async def odd_broker(answers: Sequence[bytes]) -> AsyncIterator[int]:
    """Takes connections, sends these and closes; or says nothing. Gives its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        for answer in answers:
            writer.write(answer)
        if not answers:
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00" * 20, b"\x20\xff\xff\xff\xff\xff", b"\x20\x00"],
)
async def test_what_is_no_broker_is_refused(peer: MqttPeer, answer: bytes) -> None:
    async with odd_broker([answer]) as port:
        error = await refusal(
            peer.connection([await peer.address("in")], uri=Uri("tcp", "127.0.0.1", port))
        )
        assert error.cause == "temporary"


async def test_an_opening_that_is_given_up_leaves_nothing(peer: MqttPeer) -> None:
    async with odd_broker([]) as port:
        connection = peer.connection(["in"], uri=Uri("tcp", "127.0.0.1", port))
        one = Client(MqttDriver(connection, 0, 1, Limits()))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await one.open()
        await one.driver.close(1)
        assert one.lost == []


async def test_settling_before_it_is_open_is_ignored(peer: MqttPeer) -> None:
    address = await peer.address("in")
    connection = peer.connection([address])
    async with client(peer, connection) as one:
        await peer.send(address, b"x")
        delivery = await one.next()
        other = MqttDriver(connection, 0, 2, Limits())
        other.settle(delivery, ACCEPT)
        assert other.stale == 1
        one.settle(delivery)
