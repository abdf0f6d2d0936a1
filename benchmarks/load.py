"""A lean closed-loop HTTP/1.1 load generator: ``python -m benchmarks.load '<Plan as JSON>'``.

N keep-alive connections, one request in flight on each; request bytes are built beforehand, and
of an answer only the status and the length are looked at. Prints ``Meter.result`` as JSON.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from dataclasses import asdict, dataclass
from functools import partial
from time import perf_counter_ns
from typing import cast

import uvloop
from typing_extensions import override

from benchmarks.bodies import (
    LARGE_BYTES,
    SMALL_BYTES,
    TURNS,
    USUAL_BYTES,
    Server,
    attribute,
    patch,
    thing,
    thing_id,
)
from benchmarks.meter import Meter

DRAIN_S = 5.0
"""How long to wait for answers that are still open when the window closes."""
CONNECT_S = 5.0
PREPARE_S = 20.0
"""How long the requests that come once, before the measuring, may take."""


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


def requests(plan: Plan, numbers: range) -> tuple[list[bytes], list[bytes]]:
    """What a connection sends for its things: once, before the measuring; again and again.

    Variants: ``things`` changes whole things, ``attributes`` one attribute of each, ``merge`` one
    property of a large thing by a merge patch, ``get`` reads things of usual size.
    """
    server = Server(plan.host, plan.port, plan.user, plan.password)
    acks = {"requested-acks": plan.acks, "timeout": "30s"}

    def change(method: str, path: str, content: bytes, kind: str = "application/json") -> bytes:
        return server.request(method, path, content, acks | {"Content-Type": kind})

    paths = {number: f"/api/2/things/{thing_id(number)}" for number in numbers}
    size = {"merge": LARGE_BYTES, "get": USUAL_BYTES}.get(plan.variant, SMALL_BYTES)
    first = [change("PUT", path, thing(number, size)) for number, path in paths.items()]
    match plan.variant:
        case "things":
            return [], first
        case "attributes":
            again = [
                change("PUT", f"{path}/attributes/sensor", attribute(number))
                for number, path in paths.items()
            ]
        case "merge":
            again = [
                change("PATCH", path, patch(number, turn), "application/merge-patch+json")
                for turn in range(TURNS)
                for number, path in paths.items()
            ]
        case "get":
            again = [server.request("GET", path) for path in paths.values()]
        case _:
            raise SystemExit(f"load: no such variant: {plan.variant}")
    return first, again


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
        loop = asyncio.get_running_loop()
        self.idle: asyncio.Future[None] = loop.create_future()
        self.prepared: asyncio.Future[None] = loop.create_future()

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
        if self._next == self._again and not self.prepared.done():
            self.prepared.set_result(None)
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
        for future in (self.idle, self.prepared):
            if not future.done():
                future.set_result(None)

    def close(self) -> None:
        """Close the transport."""
        if self._transport is not None:
            self._transport.close()


async def run(plan: Plan) -> dict[str, dict[str, float]]:
    """Connect, prepare, warm up, measure, drain. Raises OSError if the server cannot be reached."""
    loop = asyncio.get_running_loop()
    meter = Meter(plan.watch, plan.good)
    connections: list[Connection] = []
    for index in range(plan.connections):
        first, again = requests(plan, range(index, plan.things, plan.connections))
        _, connection = await asyncio.wait_for(
            loop.create_connection(partial(Connection, meter, first, again), plan.host, plan.port),
            CONNECT_S,
        )
        connections.append(connection)
    gc.collect()
    gc.disable()
    for connection in connections:
        connection.go()
    prepared = [connection.prepared for connection in connections]
    if (await asyncio.wait(prepared, timeout=PREPARE_S))[1]:
        raise SystemExit(f"load: not prepared within {PREPARE_S:g} s")
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
