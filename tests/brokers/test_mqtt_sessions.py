"""MQTT: sessions, losses, wills and openings, also with what is no broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from connections.driver import Limits, Publication
from connections.model import Uri
from connections.mqtt.driver import MqttDriver
from tests.brokers.mosquitto import PASSWORD, USER, Mosquitto, MqttPeer, mqtt_peer
from tests.brokers.peers import ACCEPT, DEADLINE, Client, client, refusal
from tests.servers import wait_for

peer = pytest.fixture(params=["mqtt", "mqtt-5"])(mqtt_peer)


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
    async with forwarding(peer.uri.port) as way:
        uri = replace(peer.uri, port=way.port)
        connection = peer.connection(
            [address], uri=uri, lastWillTopic=will, lastWillMessage="gone", lastWillQos="1"
        )
        async with client(peer, connection) as one:
            await way.cut()
            await wait_for(lambda: one.lost, DEADLINE, "the loss is told")
            assert (await peer.receive(will)).payload == b"gone"
    assert len(one.lost) == 1


async def test_closed_it_leaves_no_will(peer: MqttPeer) -> None:
    address, will = await peer.address("in"), await peer.address("will")
    connection = peer.connection([address], lastWillTopic=will, lastWillMessage="gone")
    async with client(peer, connection):
        pass
    await peer.publish(will, b"later")
    assert (await peer.receive(will)).payload == b"later"


async def test_a_broker_that_is_silent_is_lost_after_the_keep_alive(
    peer: MqttPeer, mqtt: Mosquitto
) -> None:
    address = await peer.address("in")
    async with client(peer, peer.connection([address], keepAlive="1s")) as one:
        mqtt.pause()
        try:
            await wait_for(lambda: one.lost, DEADLINE, "the loss is told")
        finally:
            mqtt.resume()
    assert len(one.lost) == 1


async def test_closing_does_not_wait_for_a_broker_that_is_silent(
    peer: MqttPeer, mqtt: Mosquitto
) -> None:
    one = Client(MqttDriver(peer.connection([await peer.address("in")]), 0, 1, Limits()))
    await one.open()
    mqtt.pause()
    try:
        async with asyncio.timeout(5):
            await one.driver.close(0.1)
    finally:
        mqtt.resume()
    assert one.lost == []


async def test_a_certificate_of_ours_is_shown(peer: MqttPeer, mqtt: Mosquitto) -> None:
    cert, key = mqtt.authority.pair("gateway")
    uri = Uri("ssl", "localhost", mqtt.mutual_port, user=USER, password=PASSWORD)
    address = await peer.address("out")
    connection = peer.connection(targets=[address], uri=uri, ca=mqtt.authority.pem)
    await refusal(
        MqttDriver, connection
    )  # the reason may be cut off: the broker resets the connection
    shown = {"type": "client-cert", "cert": cert, "key": key}
    async with client(peer, replace(connection, credentials=shown)) as one:
        assert (await one.driver.publish(Publication(address, b"x", None), 20)).status == 200


async def test_user_and_password_may_be_credentials(peer: MqttPeer, mqtt: Mosquitto) -> None:
    shown = {"type": "plain", "username": USER, "password": PASSWORD}
    uri = Uri("tcp", "127.0.0.1", mqtt.port)
    connection = peer.connection(targets=[await peer.address("out")], uri=uri)
    assert (await refusal(MqttDriver, connection)).cause == "credentials"
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
    peer: MqttPeer, specific: dict[str, Any]
) -> None:
    error = await refusal(MqttDriver, peer.connection([await peer.address("in")], **specific))
    assert error.cause == "misconfigured"
    assert str(error)


@pytest.mark.parametrize("address", ["a/#/b", "a+/b", ""])
async def test_an_address_that_is_no_topic_filter_is_called_so(
    peer: MqttPeer, address: str
) -> None:
    assert (await refusal(MqttDriver, peer.connection([address]))).cause == "misconfigured"


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
            MqttDriver,
            peer.connection([await peer.address("in")], uri=Uri("tcp", "127.0.0.1", port)),
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
