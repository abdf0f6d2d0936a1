"""Many WebSocket sessions in one process: they hear events, or only sit there.

``python -m benchmarks.audience PLAN`` (JSON of :class:`Audience`). Prints how long it took until
all were served. Then events are PUT one after another, each when all have got the one before,
and what was measured is printed; with ``seconds`` 0 the sessions sit there until SIGTERM.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import cast

import uvloop
from typing_extensions import override

from benchmarks.measure import RunError
from benchmarks.meter import Meter
from benchmarks.subscriber import frame, take_frame

AT_ONCE = 64
"""Sessions that are opened at the same time."""
OPEN_S, HEARD_S = 60.0, 30.0
WARMUP_EVENTS = 10
BODY = json.dumps({"attributes": {"temperature": 21.5, "note": "x" * 200}}).encode()


@dataclass(frozen=True)
class Audience:
    """``sessions`` on one server; each declares ``labels`` labels of its own. Times in s.

    Without ``listens`` they hear no events.
    """

    port: int
    sessions: int
    seconds: float
    user: str
    password: str
    watch: dict[str, list[int]] = field(default_factory=dict)
    labels: int = 0
    listens: bool = True

    def to_json(self) -> str:
        """The plan as a process's argument."""
        return json.dumps(asdict(self))


class Hall:
    """What all sessions have heard together."""

    def __init__(self) -> None:
        self.heard = 0
        self.expected = 0
        self.complete = asyncio.Event()
        self.lost: list[str] = []

    def hear(self) -> None:
        """One session has got one event."""
        self.heard += 1
        if self.heard == self.expected:
            self.complete.set()


class Session(asyncio.Protocol):
    """Handshake, ``START-SEND-EVENTS``, then it counts events."""

    def __init__(self, plan: Audience, number: int, hall: Hall) -> None:
        self._plan = plan
        self._number = number
        self._hall = hall
        self._rest = b""
        self._upgraded = False
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the upgrade."""
        # uvloop's transports are none of asyncio's classes, so isinstance cannot tell.
        self._transport = cast(asyncio.Transport, transport)
        labels = ",".join(f"bench:s{self._number}l{n}" for n in range(self._plan.labels))
        query = f"?declared-acks={labels}" if labels else ""
        self._transport.write(
            (
                f"GET /ws/2{query} HTTP/1.1\r\nHost: 127.0.0.1:{self._plan.port}\r\n"
                "Upgrade: websocket\r\nConnection: Upgrade\r\n"
                f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}\r\n"
                f"Sec-WebSocket-Version: 13\r\nAuthorization: Basic {credentials(self._plan)}\r\n"
                "\r\n"
            ).encode()
        )

    @override
    def data_received(self, data: bytes) -> None:
        """The answer to the upgrade, then frames."""
        data = self._rest + data if self._rest else data
        at = 0
        if not self._upgraded:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._rest = data
                return
            if not data.startswith(b"HTTP/1.1 101"):
                self._fail(data[:200].decode(errors="replace"))
                return
            self._upgraded, at = True, end + 4
            start = b"START-SEND-EVENTS" if self._plan.listens else b"STOP-SEND-EVENTS"
            self._transport.write(frame(start))
        while (taken := take_frame(data, at)) is not None:
            opcode, payload, at = taken
            if opcode == 0x1 and payload[:1] == b"{":
                self._hall.hear()
            elif opcode == 0x1 and not self.ready.done():
                self.ready.set_result(None)
            elif opcode == 0x9:
                self._transport.write(frame(payload, 0xA))
        self._rest = data[at:]

    @override
    def connection_lost(self, error: Exception | None) -> None:
        """No session may end during a measurement."""
        self._fail(f"connection lost: {error}")

    def _fail(self, reason: str) -> None:
        self._hall.lost.append(reason)
        self._hall.complete.set()
        if not self.ready.done():
            self.ready.set_exception(RunError(reason))


def credentials(plan: Audience) -> str:
    """Basic credentials, encoded."""
    return base64.b64encode(f"{plan.user}:{plan.password}".encode()).decode()


async def open_all(plan: Audience, hall: Hall) -> list[Session]:
    """All sessions, ready to hear events. Raises RunError, TimeoutError."""
    loop = asyncio.get_running_loop()
    free = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> Session:
        async with free:
            _, session = await loop.create_connection(
                lambda: Session(plan, number, hall), "127.0.0.1", plan.port
            )
            await session.ready
            return session

    async with asyncio.timeout(OPEN_S):
        return await asyncio.gather(*(one(number) for number in range(plan.sessions)))


async def measure(plan: Audience, hall: Hall) -> dict[str, dict[str, float]]:
    """PUT events, each when every session has got the one before."""
    reader, writer = await asyncio.open_connection("127.0.0.1", plan.port)
    request = (
        f"PUT /api/2/things/bench:fanout HTTP/1.1\r\nHost: 127.0.0.1:{plan.port}\r\n"
        f"Authorization: Basic {credentials(plan)}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(BODY)}\r\n\r\n"
    ).encode() + BODY
    meter = Meter(plan.watch, ["heard"])
    events, until = 0, float("inf")
    while events < WARMUP_EVENTS or time.monotonic() < until:
        if events == WARMUP_EVENTS:
            until = time.monotonic() + plan.seconds
            meter.start()
        hall.complete.clear()
        hall.expected = hall.heard + plan.sessions
        begin = time.perf_counter_ns()
        writer.write(request)
        await asyncio.wait_for(hall.complete.wait(), HEARD_S)
        if hall.lost:
            raise RunError(f"{len(hall.lost)} sessions ended: {hall.lost[0]}")
        spent = time.perf_counter_ns() - begin
        await answered(reader)
        events += 1
        if meter.open:
            meter.latencies.append(spent)
            meter.statuses["heard"] += 1
    meter.stop()
    writer.close()
    result = meter.result()
    figures = result["figures"]
    figures["deliveries_per_s"] = figures["requests_per_s"] * plan.sessions
    figures["delivery_cpu_us"] = figures["server_cpu_us"] / plan.sessions
    return result


async def answered(reader: asyncio.StreamReader) -> None:
    """Read one answer. Raises RunError if it is none of a change."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HEARD_S)
    status = head.split(b" ", 2)[1]
    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
    body = await reader.readexactly(int(length or 0))
    if status not in (b"201", b"204"):
        raise RunError(f"{status.decode()}: {body[:200].decode(errors='replace')}")


async def run(plan: Audience) -> None:
    """Open the sessions, then do what is asked for."""
    hall = Hall()
    begin = time.perf_counter()
    sessions = await open_all(plan, hall)
    print(json.dumps({"opened_s": time.perf_counter() - begin}), flush=True)
    if plan.seconds:
        print(json.dumps(await measure(plan, hall)), flush=True)
        return
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    if hall.lost:
        raise RunError(f"{len(hall.lost)} of {len(sessions)} sessions ended: {hall.lost[0]}")


if __name__ == "__main__":
    uvloop.run(run(Audience(**json.loads(sys.argv[1]))))
