"""AMQP 0.9.1: brokers that end or fall silent in the middle of something; names; statuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pamqp import frame as frames
from pamqp.base import Frame
from pamqp.body import ContentBody
from pamqp.commands import Basic, Channel, Confirm, Connection, Exchange
from pamqp.header import ContentHeader
from pamqp.heartbeat import Heartbeat

from connections.amqp.driver import AmqpDriver
from connections.amqp.wire import SILENT
from connections.driver import Limits, Publication
from connections.model import Uri
from tests.brokers.peers import DEADLINE, Client, connection_of, refusal
from tests.connections.listening import listening
from tests.servers import wait_for

START = Connection.Start(
    server_properties={"capabilities": {"publisher_confirms": True}}, mechanisms="PLAIN"
)
ANSWERS: dict[type, Frame] = {
    Connection.StartOk: Connection.Tune(channel_max=10, frame_max=131_072, heartbeat=10),
    Connection.Open: Connection.OpenOk(),
    Channel.Open: Channel.OpenOk(),
    Confirm.Select: Confirm.SelectOk(),
    Exchange.Declare: Exchange.DeclareOk(),
    Basic.Qos: Basic.QosOk(),
    Basic.Consume: Basic.ConsumeOk(consumer_tag="one"),
}
FORCED = Connection.Close(reply_code=320, reply_text="CONNECTION_FORCED", class_id=0, method_id=0)
End = Callable[[asyncio.StreamWriter, Any], None]
"""Of the conversation, at this frame of the client."""


def _closes(writer: asyncio.StreamWriter, _: Any) -> None:
    writer.close()


def _aborts(writer: asyncio.StreamWriter, _: Any) -> None:
    writer.transport.abort()


def _beats_and_closes(writer: asyncio.StreamWriter, _: Any) -> None:
    writer.write(frames.marshal(Heartbeat(), 0))
    writer.close()


def _says_goodbye(writer: asyncio.StreamWriter, _: Any) -> None:
    writer.write(frames.marshal(FORCED, 0))


def _is_silent(writer: asyncio.StreamWriter, _: Any) -> None:
    """The client has to notice."""


def _raves(writer: asyncio.StreamWriter, _: Any) -> None:
    writer.write(b"\x01\x00\x00\x00\x00\x00\x04\xff\xff\xff\xff\xce")


@asynccontextmanager
async def broker(ends_at: type[Frame], end: End) -> AsyncIterator[int]:
    """Answers as a broker does, up to a frame of this kind. Gives its port."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.write(frames.marshal(START, 0))
        while True:
            head = await reader.readexactly(7)
            rest = await reader.readexactly(int.from_bytes(head[3:]) + 1)
            _, channel, frame = frames.unmarshal(head + rest)
            if isinstance(frame, ends_at):
                end(writer, frame)
            elif (answer := ANSWERS.get(type(frame))) is not None:
                writer.write(frames.marshal(answer, channel))

    async with listening(talk) as port:
        yield port


@pytest.mark.parametrize("end", [_closes, _aborts, _beats_and_closes, _says_goodbye, _raves])
@pytest.mark.parametrize("ends_at", [Channel.Open, Basic.Consume])
async def test_a_broker_that_ends_while_it_is_opened(ends_at: type[Frame], end: End) -> None:
    async with broker(ends_at, end) as port:
        uri = Uri("amqp", "127.0.0.1", port)
        connection = connection_of("amqp-091", uri, ["queue"], ["exchange/key"])
        problem = await refusal(AmqpDriver, connection)
    assert problem.cause == "temporary"
    assert str(problem)


@pytest.mark.parametrize("ends_at", [Exchange.Declare, Basic.Consume])
async def test_a_broker_that_falls_silent_while_it_is_opened(
    ends_at: type[Frame], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connections.amqp.wire.HEARTBEAT_S", 1)
    async with broker(ends_at, _is_silent) as port:
        uri = Uri("amqp", "127.0.0.1", port)
        problem = await refusal(
            AmqpDriver, connection_of("amqp-091", uri, ["queue"], ["exchange/key"])
        )
    assert problem.cause == "temporary"


async def test_names_that_are_too_long_for_the_protocol() -> None:
    name = "x" * 256
    async with broker(Basic.Get, _closes) as port:
        uri = Uri("amqp", "127.0.0.1", port)
        problem = await refusal(AmqpDriver, connection_of("amqp-091", uri, [name], []))
        assert problem.cause == "misconfigured"
        one = Client(
            AmqpDriver(connection_of("amqp-091", uri, [], [f"{name}/key"]), 0, 1, Limits())
        )
        await one.open()
        for address in (f"{name}/key", f"exchange/{name}"):
            published = await one.driver.publish(Publication(address, b"", None), DEADLINE)
            assert published.status == 400
            assert "more than 255 bytes" in published.payload["message"]
        await one.driver.close(1)


async def test_a_source_is_told_to_be_well_before_its_first_message() -> None:
    def answers_with_a_message(writer: asyncio.StreamWriter, asked: Any) -> None:
        tag = asked.consumer_tag
        deliver = Basic.Deliver(consumer_tag=tag, delivery_tag=1, routing_key="queue")
        head = ContentHeader(body_size=1, properties=Basic.Properties())
        for frame in (Basic.ConsumeOk(consumer_tag=tag), deliver, head, ContentBody(b"x")):
            writer.write(frames.marshal(frame, 1))

    told: list[str] = []
    async with broker(Basic.Consume, answers_with_a_message) as port:
        connection = connection_of("amqp-091", Uri("amqp", "127.0.0.1", port), ["queue"], [])
        driver = AmqpDriver(connection, 0, 1, Limits())
        await driver.open(
            lambda delivery: told.append("delivery"), told.append, lambda *_: told.append("status")
        )
        await wait_for(lambda: "delivery" in told, DEADLINE, "the message")
        await driver.close(1)
    assert told == ["status", "delivery"]


async def test_a_task_that_fails_takes_the_connection_down() -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    async with broker(Basic.Get, _closes) as port:
        uri = Uri("amqp", "127.0.0.1", port)
        one = Client(AmqpDriver(connection_of("amqp-091", uri, ["queue"], []), 0, 1, Limits()))
        await one.open()
        one.driver._start(fail())  # type: ignore[attr-defined]  # a defect, made here
        await wait_for(lambda: one.lost, DEADLINE, "the loss is told")
        await one.driver.close(1)
    assert one.lost == ["Encountered <ZeroDivisionError>."]


async def test_a_broker_that_falls_silent_later_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connections.amqp.wire.HEARTBEAT_S", 1)
    async with broker(Exchange.Declare, _is_silent) as port:
        connection = connection_of("amqp-091", Uri("amqp", "127.0.0.1", port), ["queue"], [])
        one = Client(AmqpDriver(connection, 0, 1, Limits()))
        await one.open()
        published = await one.driver.publish(Publication("exchange/key", b"x", None), DEADLINE)
        await wait_for(lambda: one.lost, DEADLINE, "the loss is told")
        await one.driver.close(1)
    assert published.status == 503
    assert one.lost == [f"The connection to the broker is lost: {SILENT}"]


async def test_closing_is_not_cancelled_by_a_broker_that_falls_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("connections.amqp.wire.HEARTBEAT_S", 1)
    async with broker(Channel.Close, _is_silent) as port:
        connection = connection_of("amqp-091", Uri("amqp", "127.0.0.1", port), ["queue"], [])
        one = Client(AmqpDriver(connection, 0, 1, Limits()))
        await one.open()
        await one.driver.close(DEADLINE)
    assert one.lost == []
