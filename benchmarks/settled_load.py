"""Load of ``mqtt`` and ``amqp``: messages published, and when the consumer has settled each.

The consumer reaches the broker through this process, which forwards every byte and notes when a
message goes to it and when its ack comes back. So both systems are measured by what the broker
sees, whatever they are made of. As many messages are under way as the plan says: each ack lets
the next one be published. Prints ``{"figures": …, "errors": …}``.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from urllib.parse import quote

import aiomqtt
import aiormq

from benchmarks.bodies import thing, thing_id
from benchmarks.meter import Meter

CONSUMING_S, ENDING_S = 30.0, 10.0
THINGS = 1000
PUBLISHERS = 8  # at a time, each waiting for the broker's confirmation with MQTT
SETTLED = "settled"


@dataclass(frozen=True)
class Plan:
    """What to do. Ports: of the broker, and where the consumer connects. Times in s."""

    kind: str
    broker: int
    port: int
    address: str
    user: str
    password: str
    in_flight: int
    warmup: float
    seconds: float
    watch: dict[str, list[int]]

    def to_json(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))


def command(number: int) -> bytes:
    """A Ditto Protocol command that writes a thing."""
    name = thing_id(number % THINGS)
    value = {"thingId": name, **json.loads(thing(number % THINGS))}
    return json.dumps(
        {
            "topic": f"{name.replace(':', '/')}/things/twin/commands/modify",
            "headers": {"response-required": False, "requested-acks": ["twin-persisted"]},
            "path": "/",
            "value": value,
        },
        separators=(",", ":"),
    ).encode()


class Tap:
    """Reads along. ``on_settled`` is told the ns from a message to the consumer to its ack."""

    def __init__(self, on_settled: Callable[[int], None]) -> None:
        self.consuming = asyncio.Event()
        self._on_settled = on_settled
        self._given: dict[int, int] = {}  # number -> when
        self._down, self._up = bytearray(), bytearray()

    def down(self, data: bytes) -> None:
        """Bytes of the broker."""
        self._down += data
        self._cut(self._down, self._from_broker)

    def up(self, data: bytes) -> None:
        """Bytes of the consumer."""
        self._up += data
        self._cut(self._up, self._from_consumer)

    def _cut(self, buffer: bytearray, take: Callable[[bytearray], None]) -> None:
        raise NotImplementedError

    def _from_broker(self, frame: bytearray) -> None:
        raise NotImplementedError

    def _from_consumer(self, frame: bytearray) -> None:
        raise NotImplementedError

    def _given_out(self, number: int) -> None:
        self._given[number] = time.perf_counter_ns()

    def _settled(self, number: int) -> None:
        self._on_settled(time.perf_counter_ns() - self._given.pop(number))


class MqttTap(Tap):
    """PUBLISH of QoS 1 and PUBACK (MQTT 3.1.1, 2.2 and 3.3)."""

    def _cut(self, buffer: bytearray, take: Callable[[bytearray], None]) -> None:
        while len(buffer) >= 2:
            length, at = 0, 1
            while at < len(buffer) and at <= 4:
                length |= (buffer[at] & 127) << (7 * (at - 1))
                at += 1
                if not buffer[at - 1] & 128:
                    break
            else:
                return
            if len(buffer) < at + length:
                return
            take(buffer[:1] + buffer[at : at + length])
            del buffer[: at + length]

    def _from_broker(self, frame: bytearray) -> None:
        if frame[0] >> 4 == 3:
            at = 3 + int.from_bytes(frame[1:3], "big")
            self._given_out(int.from_bytes(frame[at : at + 2], "big"))
        elif frame[0] >> 4 == 9:
            self.consuming.set()

    def _from_consumer(self, frame: bytearray) -> None:
        if frame[0] >> 4 == 4:
            self._settled(int.from_bytes(frame[1:3], "big"))


class AmqpTap(Tap):
    """basic.deliver, basic.ack and basic.consume-ok (AMQP 0.9.1, 2.3.5)."""

    _hello = True

    def _cut(self, buffer: bytearray, take: Callable[[bytearray], None]) -> None:
        if buffer is self._up and self._hello:
            if len(buffer) < 8:
                return
            del buffer[:8]  # the protocol header
            self._hello = False
        while len(buffer) >= 7:
            length = int.from_bytes(buffer[3:7], "big")
            if len(buffer) < length + 8:
                return
            if buffer[0] == 1:
                take(buffer[7 : 7 + length])
            del buffer[: length + 8]

    def _from_broker(self, frame: bytearray) -> None:
        if frame[:4] == b"\0\x3c\0\x3c":
            at = 5 + frame[4]
            self._given_out(int.from_bytes(frame[at : at + 8], "big"))
        elif frame[:4] == b"\0\x3c\0\x15":
            self.consuming.set()

    def _from_consumer(self, frame: bytearray) -> None:
        if frame[:4] == b"\0\x3c\0\x50":
            tag, multiple = int.from_bytes(frame[4:12], "big"), frame[12] & 1
            tags = [one for one in self._given if one <= tag] if multiple else [tag]
            for one in tags:
                self._settled(one)


async def _forward(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, look: Callable[[bytes], None]
) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            look(data)
    finally:
        writer.close()


Send = Callable[[bytes], Awaitable[object]]


async def run(plan: Plan, send: Send) -> dict[str, dict[str, float]]:
    """Forward, publish and measure."""
    meter = Meter(plan.watch, [SETTLED])
    free = asyncio.Semaphore(plan.in_flight)

    def settled(took: int) -> None:
        free.release()
        if meter.open:
            meter.latencies.append(took)
            meter.statuses[SETTLED] += 1

    tap: Tap = MqttTap(settled) if plan.kind == "mqtt" else AmqpTap(settled)

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", plan.broker)
        with suppress(asyncio.CancelledError, OSError):  # the end of the run
            await asyncio.gather(_forward(reader, back, tap.up), _forward(there, writer, tap.down))

    numbers = itertools.count()
    over = asyncio.Event()

    async def publish() -> None:
        while True:
            await free.acquire()
            if over.is_set():
                return
            await send(command(next(numbers)))

    server = await asyncio.start_server(take, "127.0.0.1", plan.port)
    async with server:
        print("listening", flush=True)
        await asyncio.wait_for(tap.consuming.wait(), CONSUMING_S)
        publishing = [asyncio.create_task(publish()) for _ in range(PUBLISHERS)]
        await asyncio.sleep(plan.warmup)
        meter.start()
        await asyncio.sleep(plan.seconds)
        meter.stop()
        over.set()
        for _ in publishing:
            free.release()
        # Not cancelled: a wait_for inside the client may swallow that (before Python 3.12).
        await asyncio.wait_for(asyncio.gather(*publishing), ENDING_S)
    return meter.result()


async def main(plan: Plan) -> dict[str, dict[str, float]]:
    """By a client of the plan's broker."""
    if plan.kind == "mqtt":
        async with aiomqtt.Client(
            "127.0.0.1", plan.broker, username=plan.user, password=plan.password
        ) as client:
            return await run(plan, lambda body: client.publish(plan.address, body, qos=1))
    url = f"amqp://{plan.user}:{quote(plan.password)}@127.0.0.1:{plan.broker}/"
    connection = await aiormq.connect(url)
    channel = await connection.channel(publisher_confirms=False)
    properties = aiormq.spec.Basic.Properties(content_type="application/json", delivery_mode=2)
    try:
        return await run(
            plan,
            lambda body: channel.basic_publish(
                body, routing_key=plan.address, properties=properties
            ),
        )
    finally:
        await connection.close()


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(Plan(**json.loads(sys.argv[1]))))))
