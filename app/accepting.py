"""Accepting: requests that are answered with 202 and carried out afterwards.

What becomes of them is in the store (app/store/requests.py), so this process only has to begin them
and to add the result of its own processing. If it dies, others go on, and the deadline still holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

import structlog

from acks import accepted
from acks.errors import GatewayError, error
from acks.journal import ASYNC
from acks.signals import Acknowledgement, Command, Live, Response
from app.store.requests import RequestStore

log = structlog.get_logger(__name__)

AGAIN_S = 0.25
"""Pause before something is offered again to a store that could not be asked, s."""
ACK_S = 60.0
"""How long an ack is offered again, s; the store knows whether it is late by then."""
MAX_AGAIN = 10_000
"""Results and acks that may wait for the store; more acks are dropped."""

Result = Response | GatewayError
Signal = TypeVar("Signal", Command, Live)
Begin = Callable[[Signal, int, Callable[[Result], None]], None]
"""Begins the processing of a signal: (signal, deadline in the journal, callback of the result)."""


class Accepting:
    """Begins accepted requests and adds results and acks to their records. One per process."""

    def __init__(self, requests: RequestStore) -> None:
        self.requests = requests
        self.accepted = 0
        self.recorded = 0
        self.ignored = 0
        self._processing = 0
        self._tasks: set[asyncio.Task[object]] = set()

    @property
    def open(self) -> int:
        """Requests whose own processing is not over, or not known to the store yet."""
        return self._processing + len(self._tasks)

    async def accept(
        self, signal: Signal, timeout_ms: int, location: str, begin: Begin[Signal]
    ) -> None:
        """Make the record of a request, then let ``begin`` carry it out.

        Raises ``acknowledgement:request.duplicate.correlation-id``, ``gateway:service.unavailable``
        """
        request = accepted.accept(
            signal,
            timeout_ms=timeout_ms,
            keep_ms=self.requests.keep_ms,
            location=location,
        )
        self._processing += 1
        try:
            deadline = await self.requests.create(request)
        except BaseException:
            self._processing -= 1
            raise
        self.accepted += 1
        signal = signal._replace(answer_to=ASYNC)
        until = deadline if request.labels else 0
        done = False

        def processed(result: Result) -> None:
            nonlocal done
            if not done:
                done = True
                self._processing -= 1
                seconds = timeout_ms / 1000  # later than that nothing counts
                self._own(self._offer(request.thing_id, request.correlation_id, result, seconds))

        try:
            begin(signal, until, processed)
        except GatewayError as problem:
            processed(problem)
        except Exception:
            log.exception("request.failed", correlation_id=signal.correlation_id)
            processed(error("gateway:internalerror"))

    def record(self, ack: Acknowledgement) -> None:
        """Add an ack to the record of its request; late and repeated ones are ignored."""

        def counted(did: bool | None) -> None:
            if did is None and len(self._tasks) < MAX_AGAIN:
                self._own(self._offer_ack(ack))
            else:
                self._count(did)

        self.requests.record(ack.thing_id, ack.correlation_id, ack, counted)

    def _count(self, did: bool | None) -> None:
        self.recorded += bool(did)
        self.ignored += not did

    async def _offer_ack(self, ack: Acknowledgement) -> None:
        await asyncio.sleep(AGAIN_S)
        self._count(await self._offer(ack.thing_id, ack.correlation_id, ack, ACK_S))

    def _own(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.create_task(work, name="accepted-request")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _offer(
        self, thing_id: str, correlation_id: str, thing: Acknowledgement | Result, seconds: float
    ) -> bool | None:
        """Offer something to the store until it could be asked, for at most ``seconds``.

        Returns whether it counted, None if the store could not be asked in all that time.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while True:
            told: asyncio.Future[bool | None] = loop.create_future()
            self.requests.record(thing_id, correlation_id, thing, partial(_settle, told))
            did = await told
            if did is not None or loop.time() >= end:
                return did
            await asyncio.sleep(AGAIN_S)

    async def close(self) -> None:
        """Give up what the store has not taken: deadlines will end those requests."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _settle(told: asyncio.Future[bool | None], did: bool | None) -> None:
    if not told.done():
        told.set_result(did)
