"""The end of an MQTT client: the broker reads all that was said before it."""

from __future__ import annotations

import asyncio

from connections.driver import Limits
from connections.model import Uri
from connections.mqtt.driver import MqttDriver
from tests.brokers.peers import ACCEPT, DEADLINE, Client, connection_of

CONNECT, SUBSCRIBE, PUBACK, DISCONNECT = 1, 8, 4, 14
TOPIC = "in"
FLOOD = 8 * 1024 * 1024  # more than the buffers of two sockets hold


def publish(number: int, length: int = 1) -> bytes:
    """A PUBLISH packet of QoS 1; MQTT 3.1.1."""
    body = len(TOPIC).to_bytes(2, "big") + TOPIC.encode() + number.to_bytes(2, "big")
    body += b"x" * length
    size, left = b"", len(body)
    while True:
        left, digit = left >> 7, left & 0x7F
        size += bytes([digit | (0x80 if left else 0)])
        if not left:
            return b"\x32" + size + body


class SlowBroker:
    """A broker that goes on sending after a client's goodbye, and reads the last acks late."""

    def __init__(self) -> None:
        self.acked: list[int] = []
        self.problem: Exception | None = None
        self.parted = asyncio.Event()
        self.over = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._talk(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError) as problem:
            self.problem = problem
        finally:
            writer.close()
            self.over.set()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            kind, body = await self._packet(reader)
            if kind == CONNECT:
                writer.write(b"\x20\x02\x00\x00")
            elif kind == SUBSCRIBE:
                writer.write(b"\x90\x03" + body[:2] + b"\x01" + publish(1))
            elif kind == PUBACK:
                self.acked.append(int.from_bytes(body[:2], "big"))
            elif kind == DISCONNECT:
                self.parted.set()
                writer.write(publish(2, FLOOD))
                await writer.drain()  # raises if the client has closed with bytes unread
                return

    async def _packet(self, reader: asyncio.StreamReader) -> tuple[int, bytes]:
        head = (await reader.readexactly(1))[0]
        length = (await reader.readexactly(1))[0]  # of what is read here always one byte
        return head >> 4, await reader.readexactly(length)


async def test_the_client_lets_the_broker_close_so_that_no_ack_is_lost() -> None:
    broker = SlowBroker()
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    uri = Uri("tcp", "127.0.0.1", port)
    connection = connection_of("mqtt", uri, [TOPIC], [], specific={"clientId": "goodbye"})
    one = Client(MqttDriver(connection, 0, 1, Limits(message_bytes=2 * FLOOD)))
    async with server:
        await one.open()
        one.settle(await one.next(), ACCEPT)
        await one.driver.close(DEADLINE)
        await asyncio.wait_for(broker.over.wait(), DEADLINE)
    assert broker.parted.is_set()
    assert broker.acked == [1]
    assert broker.problem is None, "the connection was reset before the broker was done"
