"""A broker of MQTT that reads nothing any more: what waits for it is bounded."""

from __future__ import annotations

import asyncio

from connections.driver import Limits, Publication
from connections.model import Uri
from connections.mqtt.driver import MqttDriver
from connections.mqtt.wire import MAX_BACKLOG
from tests.brokers.peers import DEADLINE, Client, connection_of
from tests.connections.listening import listening

PAYLOAD = bytes(1024 * 1024)
ENOUGH = 2 * MAX_BACKLOG // len(PAYLOAD)  # the network's own buffers hold some, too


async def test_what_a_broker_does_not_read_is_bounded() -> None:
    over = asyncio.Event()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(2)
        writer.write(b"\x20\x02\x00\x00")
        await over.wait()  # a reader that nobody reads from takes little
        writer.transport.abort()

    async with listening(greet) as port:
        uri = Uri("tcp", "127.0.0.1", port)
        connection = connection_of("mqtt", uri, [], ["out"])
        one = Client(MqttDriver(connection, 0, 1, Limits(message_bytes=len(PAYLOAD))))
        await one.open()
        publication = Publication("out", PAYLOAD, None, qos=0)
        answers = [await one.driver.publish(publication, DEADLINE) for _ in range(ENOUGH)]
        over.set()
        await one.driver.close(0.1)
    assert answers[0].status == 200
    assert answers[-1].status == 503
    assert "does not read" in answers[-1].payload["message"]
