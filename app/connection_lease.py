"""The lease of one client of a connection: at most one process runs it at a time.

A lease is known to be ours for its time after the moment *before* the command that extended it was
sent, less a margin in which whoever runs the client stops. So by the time the store gives it to
somebody else we have stopped, by our own clock and without asking anybody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from app.store.connections import ConnectionStore
from app.store.labels import CLOCK_MARGIN, lease_clock
from app.store.redis_client import StoreError, StoreUnavailable

log = structlog.get_logger(__name__)

RENEWALS = 3
"""How often a lease is renewed in its time."""
STOPPING = 0.25
"""Share of a lease's time that is left for stopping: a driver may take a second for it."""
AGAIN_S = 0.2
"""Pause before a renewal that the store did not answer is tried again, s."""


class Lease:
    """The lease of client ``number`` of a connection for ``node``; ``ttl`` is its time in s.

    ``on_lost`` is called once for each lease that ends other than by :meth:`release`.
    """

    def __init__(
        self,
        store: ConnectionStore,
        connection_id: str,
        number: int,
        node: str,
        ttl: float,
        on_lost: Callable[[], None],
        clock: Callable[[], float] = lease_clock,
    ) -> None:
        self._store = store
        self._client = (connection_id, number, node)
        self._ttl_ms = int(ttl * 1000)
        self._ttl = ttl * (1 - CLOCK_MARGIN) - ttl * STOPPING
        self._on_lost = on_lost
        self._clock = clock
        self._generation: int | None = None
        self._until = float("-inf")
        self.crowded = False  # it is free, but we have our share of the clients
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def held(self) -> bool:
        """Whether it has been claimed, and neither released nor lost."""
        return self._generation is not None

    def valid(self) -> bool:
        """Whether the client is surely ours. Local and cheap."""
        return self._generation is not None and self._clock() < self._until

    async def claim(self, clients: int = 0) -> bool:
        """Try to get it. Raises StoreUnavailable and StoreError.

        Of a connection with so many ``clients`` no more than our share; else :attr:`crowded`.
        """
        sent = self._clock()
        generation = await self._store.claim(*self._client, self._ttl_ms, clients)
        self.crowded = generation < 0
        if generation <= 0:
            return False
        self._generation, self._until = generation, sent + self._ttl
        if not self.valid():  # the answer took too long
            await self.release()
            return False
        self._watch()
        self._task = asyncio.create_task(self._keep(), name="connection-lease")
        return True

    async def release(self) -> None:
        """Give it back: somebody else may run the client at once. Idempotent."""
        generation = self._end()
        if generation is None:
            return
        try:
            await self._store.release(*self._client, generation)
        except (StoreUnavailable, StoreError) as problem:
            log.warning("connection.lease_not_released", client=self._client, error=str(problem))

    def lose(self) -> None:
        """It is over; whoever runs the client has to stop at once. Idempotent."""
        if self._end() is not None:
            log.warning("connection.lease_lost", client=self._client)
            self._on_lost()

    def _end(self) -> int | None:
        """Forget it; returns its generation if there was one."""
        generation, self._generation = self._generation, None
        self._until = float("-inf")
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return generation

    def _watch(self) -> None:
        left = self._until - self._clock()
        if left <= 0:
            self._timer = None
            self.lose()
        else:
            self._timer = asyncio.get_running_loop().call_later(left, self._watch)

    async def _keep(self) -> None:
        pause = self._ttl_ms / 1000 / RENEWALS
        while self.held:
            await asyncio.sleep(pause)
            generation = self._generation
            if generation is None:
                return
            sent = self._clock()
            try:
                ours = await self._store.renew(*self._client, generation, self._ttl_ms)
            except (StoreUnavailable, StoreError) as problem:
                log.warning("connection.lease_not_renewed", client=self._client, error=str(problem))
                pause = AGAIN_S
                continue
            if not ours:
                self.lose()
                return
            self._until, pause = sent + self._ttl, self._ttl_ms / 1000 / RENEWALS
