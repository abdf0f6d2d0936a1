"""A lean closed-loop HTTP/1.1 load generator: ``python -m benchmarks.load '<Plan as JSON>'``.

N keep-alive connections, one request in flight on each; request bytes are built beforehand, and
of an answer only the status and the length are looked at. Prints ``Meter.result`` as JSON.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import sys
from dataclasses import asdict, dataclass
from functools import partial
from time import perf_counter_ns
from typing import cast

import uvloop
from typing_extensions import override

from benchmarks.meter import Meter

DRAIN_S = 5.0
"""How long to wait for answers that are still open when the window closes."""
CONNECT_S = 5.0
BODY_BYTES = 200


@dataclass(frozen=True)
class Plan:
    """What one load process does. Times in s; ``watch`` as in ``Meter``."""

    host: str
    port: int
    connections: int
    warmup: float
    seconds: float
    acks: str
    user: str
    password: str
    good: list[str]
    watch: dict[str, list[int]]
    things: int = 1000
    variant: str = "things"

    def to_json(self) -> str:
        """The plan as the process's one argument."""
        return json.dumps(asdict(self))


def body(variant: str, number: int) -> bytes:
    """A JSON body of about ``BODY_BYTES`` bytes for a thing or for one of its attributes."""
    value: dict[str, object] = {
        "serial": f"SN-{number:08d}",
        "location": {"latitude": 44.673856, "longitude": 8.261719, "site": "hall-7"},
        "temperature": 20.5 + number % 10,
        "on": number % 2 == 0,
        "note": "",
    }
    document = {"attributes": value} if variant == "things" else value
    value["note"] = "x" * max(0, BODY_BYTES - len(json.dumps(document)))
    return json.dumps(document).encode()


def request_bytes(plan: Plan, variant: str, number: int) -> bytes:
    """The whole PUT for thing ``number``, or for its attribute, as bytes on the wire."""
    content = body(variant, number)
    path = f"/api/2/things/bench:thing-{number}"
    if variant == "attributes":
        path += "/attributes/sensor"
    credentials = base64.b64encode(f"{plan.user}:{plan.password}".encode()).decode()
    head = (
        f"PUT {path} HTTP/1.1\r\n"
        f"Host: {plan.host}:{plan.port}\r\n"
        f"Authorization: Basic {credentials}\r\n"
        f"requested-acks: {plan.acks}\r\n"
        "timeout: 30s\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def response_end(data: bytes) -> int:
    """Length of the first response in ``data``, or 0 if it is not whole yet.

    Raises ValueError for a response that has a body and no Content-Length.
    """
    head = data.find(b"\r\n\r\n")
    if head < 0:
        return 0
    at = data.find(b"ontent-length:", 0, head)
    if at < 0:
        at = data.find(b"ontent-Length:", 0, head)
    if at < 0:
        if data[9:12] in (b"204", b"304"):
            return head + 4
        raise ValueError("a response without Content-Length")
    eol = data.find(b"\r\n", at)
    end = head + 4 + int(data[at + 14 : eol])
    return end if len(data) >= end else 0


class Connection(asyncio.Protocol):
    """One keep-alive connection that sends its requests round and round until told to stop."""

    def __init__(self, meter: Meter, first: list[bytes], requests: list[bytes]) -> None:
        """``first`` is sent once, then ``requests`` again and again.

        Each connection has things of its own, so that no two change one thing at once.
        """
        self._meter = meter
        self._requests = first + requests
        self._again = len(first)
        self._next = 0
        self._rest = b""
        self._sent_at = 0
        self._transport: asyncio.Transport | None = None
        self.running = False
        self.waiting = False
        self.idle: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; requests start with ``go``."""
        # uvloop's transports are none of asyncio's classes, so isinstance cannot tell.
        self._transport = cast(asyncio.Transport, transport)

    def go(self) -> None:
        """Send the first request."""
        self.running = self.waiting = True
        self._send(perf_counter_ns())

    def _send(self, now: int) -> None:
        request = self._requests[self._next]
        self._next += 1
        if self._next == len(self._requests):
            self._next = self._again
        self._sent_at = now
        assert self._transport is not None
        self._transport.write(request)

    @override
    def data_received(self, data: bytes) -> None:
        """Count a whole answer and send the next request."""
        if self._rest:
            data = self._rest + data
        try:
            end = response_end(data)
        except ValueError:
            self._give_up("unreadable")
            return
        if not end:
            self._rest = data
            return
        self._rest = data[end:] if end < len(data) else b""
        now = perf_counter_ns()
        meter = self._meter
        if meter.open:
            meter.latencies.append(now - self._sent_at)
            meter.statuses[data[9:12].decode()] += 1
        if self.running:
            self._send(now)
        else:
            self.waiting = False
            self._end()

    @override
    def connection_lost(self, _error: Exception | None) -> None:
        """A connection the server closed is an error, at any time before the end."""
        if self.running:
            self._give_up("connection lost")

    def _give_up(self, reason: str) -> None:
        self.running = False
        self._meter.statuses[reason] += 1
        self._end()

    def _end(self) -> None:
        if not self.idle.done():
            self.idle.set_result(None)

    def close(self) -> None:
        """Close the transport."""
        if self._transport is not None:
            self._transport.close()


async def run(plan: Plan) -> dict[str, dict[str, float]]:
    """Connect, warm up, measure, drain. Raises OSError if the server cannot be reached."""
    loop = asyncio.get_running_loop()
    meter = Meter(plan.watch, plan.good)
    numbers = range(plan.things)
    requests = [request_bytes(plan, plan.variant, number) for number in numbers]
    # An attribute needs its thing: that one is made first, during the warm-up.
    first = [request_bytes(plan, "things", number) for number in numbers]
    first = [] if plan.variant == "things" else first
    connections: list[Connection] = []
    for index in range(plan.connections):
        mine = slice(index, None, plan.connections)
        _, connection = await asyncio.wait_for(
            loop.create_connection(
                partial(Connection, meter, first[mine], requests[mine]), plan.host, plan.port
            ),
            CONNECT_S,
        )
        connections.append(connection)
    gc.collect()
    gc.disable()
    for connection in connections:
        connection.go()
    await asyncio.sleep(plan.warmup)
    meter.start()
    await asyncio.sleep(plan.seconds)
    meter.stop()
    for connection in connections:
        connection.running = False
    await asyncio.wait([connection.idle for connection in connections], timeout=DRAIN_S)
    unanswered = sum(1 for connection in connections if not connection.idle.done())
    for connection in connections:
        connection.close()
    return meter.result(unanswered)


def main() -> None:
    """Entry point of the load process."""
    plan = Plan(**json.loads(sys.argv[1]))
    print(json.dumps(uvloop.run(run(plan))), flush=True)


if __name__ == "__main__":
    main()
