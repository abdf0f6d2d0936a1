"""What became of requested acks: noted on the hot path, gathered, appended to a stream.

The records of many requests are written together, a moment later. The stream is for reports
(connections/spark/jobs/ack_report.py): no answer waits for it, and what cannot be written is
counted and dropped.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import orjson
import structlog

from acks.aggregator import Outcome
from acks.journal import outcomes_key
from acks.outcomes import record_of
from app.store.redis_client import Redis, Reply, StoreError, StoreUnavailable

log = structlog.get_logger(__name__)

GATHER_S: Final = 0.1
"""Longest time that a record waits to be written, s."""
RECORDS: Final = 500
"""Most records of one stream entry; when there are so many, they are written at once."""
OPEN: Final = 100_000
"""Requests that are followed at a time; more are counted as lost."""
CLOSE_S: Final = 1.0
"""Longest wait for the last records at the end of the process, s."""

_Followed = tuple[float, dict[str, float]]
"""When a request was opened, and when its acks came; times of ``perf_counter``."""


class Outcomes:
    """Records the outcomes of this process's requests; ``max_entries`` bounds the stream.

    A request is followed from :meth:`opened` to :meth:`finished` or :meth:`abandoned`; calls about
    others are ignored. ``recorded`` and ``lost`` count requests.
    """

    def __init__(self, redis: Redis, *, prefix: str, max_entries: int) -> None:
        self.recorded = 0
        self.lost = 0
        self._redis = redis
        self._append = ("XADD", outcomes_key(prefix), "MAXLEN", "~", max_entries, "*", "o")
        self._open: dict[object, _Followed] = {}
        self._records: list[list[Any]] = []
        self._epoch = _epoch()
        self._timer: asyncio.TimerHandle | None = None

    def opened(self, key: object) -> None:
        """A request that names acks of others begins to wait; ``key`` is its correlation-id."""
        if len(self._open) < OPEN:
            self._open[key] = time.perf_counter(), {}
        else:
            self.lost += 1

    def arrived(self, key: object, label: str) -> None:
        """An ack has counted, and the request still waits for others."""
        if (followed := self._open.get(key)) is not None:
            followed[1][label] = time.perf_counter()

    def finished(self, outcome: Outcome) -> None:
        """A request has an outcome with acks."""
        followed = self._open.pop(outcome.acks[0].correlation_id, None)
        if followed is None:
            return
        begun, arrivals = followed
        records = self._records
        # Made at once: to keep the outcome until the records are written costs four times as much.
        records.append(record_of(outcome, arrivals, begun, time.perf_counter(), self._epoch))
        if len(records) == 1:
            self._timer = asyncio.get_running_loop().call_later(GATHER_S, self._flush)
        elif len(records) >= RECORDS:
            self._flush()

    def abandoned(self, key: object) -> None:
        """An error of our own processing ended a request: its labels had no chance."""
        self._open.pop(key, None)

    async def close(self) -> None:
        """Write what is there, with a deadline; does nothing the second time."""
        if self._records:
            count, command = self._take()
            try:
                await self._redis.call(*command, timeout=CLOSE_S)
            except (StoreUnavailable, StoreError, TimeoutError) as problem:
                self._dropped(count, problem)

    def _flush(self) -> None:
        if not self._records:
            return
        count, command = self._take()

        def replied(reply: Reply | Exception) -> None:
            if isinstance(reply, Exception):
                self._dropped(count, reply)

        self._redis.send(command, replied)

    def _take(self) -> tuple[int, tuple[str | bytes | int, ...]]:
        """How many records there are, and the command that writes them; then there are none."""
        if self._timer is not None:
            self._timer.cancel()
        records, self._records = self._records, []
        self._epoch = _epoch()  # the time of day may be put right while we run
        self.recorded += len(records)
        return len(records), (*self._append, orjson.dumps(records))

    def _dropped(self, count: int, problem: Exception) -> None:
        self.lost += count
        log.debug("outcomes.lost", records=count, reason=str(problem))


def _epoch() -> float:
    """What makes a time of ``perf_counter`` one since the epoch, s."""
    return time.time() - time.perf_counter()
