"""Requests that wait for an ack nobody gives, and all expire at one moment.

Used by both ways to open them: ``benchmarks.crowd`` over HTTP, ``benchmarks.waiting`` inside the
process that waits. First some requests are opened and expire (the rehearsals), which warms
everything up and tells how long opening takes; then all of them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from time import perf_counter_ns
from typing import Any

from redis.asyncio import Redis

from benchmarks.meter import Meter
from benchmarks.start import memory_mb

WINDOW = 64
"""Requests that are under way to the store at most; those whose write is there wait."""
REHEARSALS, REHEARSED, REHEARSAL_S = 2, 500, 3.0
THINGS = REHEARSED
"""Things that the requests change in turn: all of them are there after a rehearsal."""
SPARE_S, SETTLE_S, LATE_S = 3.0, 0.5, 60.0
SLOWER = 2.5
"""How many times longer than in the rehearsal a request may take to open."""
STEP_MS = 10
"""Timeouts are multiples of this, so that many requests have the same headers."""
EARLY_NS = -5_000_000
EXPIRED = "424"


@dataclass(frozen=True)
class Crowd:
    """``requests`` that wait at once in the process ``pid``, whose store is at ``url``."""

    url: str
    requests: int
    watch: dict[str, list[int]]
    pid: int = 0
    host: str = ""
    port: int = 0
    user: str = ""
    password: str = ""

    def to_json(self) -> str:
        """The plan as a process's argument."""
        return json.dumps(asdict(self))


class Expiry:
    """``requests`` that expire ``within`` s, all at once."""

    def __init__(self, requests: int, within: float, meter: Meter) -> None:
        self.deadline = perf_counter_ns() + int(within * 1e9)
        self.last = 0
        self._left = requests
        self._meter = meter
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def timeout_ms(self) -> int:
        """The timeout of a request that begins now, in ms; at most ``STEP_MS`` too long."""
        return (max(0, self.deadline - perf_counter_ns()) // (STEP_MS * 1_000_000) + 1) * STEP_MS

    def answered(self, status: str) -> None:
        """Count the answer to one request."""
        self.last = perf_counter_ns()
        late = self.last - self.deadline
        self._meter.latencies.append(late)
        self._meter.statuses[status if late > EARLY_NS else f"{status} before its time"] += 1
        self._left -= 1
        if not self._left:
            self.over.set_result(None)

    def statuses(self) -> dict[str, int]:
        """Answers so far, by status."""
        return dict(self._meter.statuses)

    async def end(self) -> int:
        """Wait for all answers, ``LATE_S`` at most; returns how many did not come."""
        left = (self.deadline - perf_counter_ns()) / 1e9
        await asyncio.wait([self.over], timeout=left + LATE_S)
        return self._left


OpenSome = Callable[[range, Expiry], Awaitable[None]]
"""Begins the requests of these numbers."""


async def open_all(requests: int, expiry: Expiry, store: Redis, some: OpenSome) -> float:
    """Open all requests; returns the seconds until the writes of all were in the store.

    What has been written is told by the store's count of XADD, one per request in every system.
    Raises SystemExit if the deadline comes first.
    """
    begin, before = perf_counter_ns(), await _appended(store)
    sent = written = 0
    while written < requests:
        more = min(requests - sent, WINDOW - (sent - written))
        if more > 0:
            await some(range(sent, sent + more), expiry)
            sent += more
        await asyncio.sleep(0.001)
        written = await _appended(store) - before
        if perf_counter_ns() > expiry.deadline:
            answers = f"; answers before it: {expiry.statuses()}" if expiry.statuses() else ""
            raise SystemExit(f"{written} of {requests} were open at the deadline{answers}")
    return (perf_counter_ns() - begin) / 1e9


async def _appended(store: Redis) -> int:
    stats: dict[str, Any] = await store.info("commandstats")
    return int(stats.get("cmdstat_xadd", {}).get("calls", 0))


async def measure(crowd: Crowd, some: OpenSome) -> dict[str, dict[str, float]]:
    """Rehearse, open, wait, and tell: figures and errors as of ``Meter.result``.

    Figures beside the meter's: ``open_s``; ``request_kb``, the growth of the process's resident
    memory per request; ``expired_s`` from the deadline to the last answer. Latencies are the time
    from the deadline to each answer.
    """
    meter = Meter(crowd.watch, [EXPIRED])
    async with Redis.from_url(crowd.url) as store:
        taken = 0.0
        for _ in range(REHEARSALS):
            rehearsal = Expiry(REHEARSED, REHEARSAL_S, meter)
            taken = await open_all(REHEARSED, rehearsal, store, some)
            if await rehearsal.end() or set(meter.statuses) != {EXPIRED}:
                raise SystemExit(f"the rehearsal went wrong: {rehearsal.statuses()}")
            meter.latencies.clear()
            meter.statuses.clear()
        memory = memory_mb(crowd.pid)["Rss"]
        within = SPARE_S + SLOWER * taken * crowd.requests / REHEARSED
        expiry = Expiry(crowd.requests, within, meter)
        meter.start()
        opened = await open_all(crowd.requests, expiry, store, some)
        await asyncio.sleep(SETTLE_S)
        memory = memory_mb(crowd.pid)["Rss"] - memory
        if perf_counter_ns() > expiry.deadline:
            raise SystemExit("the deadline came before the memory was measured")
        unanswered = await expiry.end()
        meter.stop()
    result = meter.result(unanswered)
    del result["figures"]["requests_per_s"]
    result["figures"] |= {
        "open_s": opened,
        "request_kb": memory * 1000 / crowd.requests,
        "expired_s": (expiry.last - expiry.deadline) / 1e9,
    }
    return result
