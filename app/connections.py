"""Connections run by this process: which documents there are, and their clients.

Every process looks at all documents; which process runs which client is decided by leases in the
store (app/connection_lease.py). A change is told at once, and looked for every second besides.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable

import structlog

from acks.errors import GatewayError
from acks.signals import JsonObject
from app.connection_client import Client, Means, Plan
from app.connection_gate import relayed
from app.settings import Settings
from app.store.connections import StoredConnection
from app.store.redis_client import RedisAddress, StoreError, StoreUnavailable
from connections.documents.validation import connection_of
from connections.driver import Limits
from connections.model import Connection
from connections.supervisor import Pace

log = structlog.get_logger(__name__)

LOOK_S = 1.0
"""How often it is asked whether there is a change that nobody told of, s."""
PRESENT_MS = 5_000
"""For how long a process counts among those that run connections, after it has looked, ms."""
END_S = 3.0
"""How much longer than its grace the end of a client may take, s."""


def pace_of(settings: Settings) -> Pace:
    """How long things of connections may take, as the settings say."""
    return Pace(
        open_s=settings.connection_open_timeout,
        first_delay_s=settings.connection_retry,
        last_delay_s=max(settings.connection_retry, settings.connection_retry_max),
        limits=Limits(in_flight=settings.connection_in_flight),
    )


class Connections:
    """The connections of one process. ``address`` is that of the store, for notices."""

    def __init__(self, means: Means, address: RedisAddress) -> None:
        self._means = means
        self._clients: dict[tuple[str, int], Client] = {}
        self._known: dict[str, tuple[JsonObject, Connection | None]] = {}  # and what it says
        self._version = -1
        self._wake = asyncio.Event()
        self._notices = means.store.watch(address, lambda _: self._changed(), node=means.node)
        self._task: asyncio.Task[None] | None = None
        self._past: Counter[tuple[str, str, bool]] = Counter()
        self._past_claims = self._past_dropped = 0
        gateway = means.desk.gateway
        gateway.on_relayed = lambda ack: relayed(gateway, ack)

    async def start(self, deadline: float) -> None:
        """Begin to look; raises StoreUnavailable after ``deadline`` seconds."""
        await self._notices.start(deadline)
        await self._means.store.present(self._means.node, PRESENT_MS)
        self._task = asyncio.create_task(self._keep(), name="connections")

    def drain(self, timeout: float) -> Awaitable[object]:
        """Take up nothing new, consume no more, and settle what is pending within ``timeout`` s.

        That begins in this turn of the event loop; await the result for its end. Targets go on
        until :meth:`close`: others may wait for their acks.
        """
        if self._task is not None:
            self._task.cancel()
        return asyncio.gather(*(client.drain(timeout) for client in self._clients.values()))

    async def close(self, grace: float = 0.0) -> None:
        """End all clients, whose leases are free then. Idempotent."""
        await self._end_looking()
        try:
            await self._means.store.present(self._means.node, 0)
        except (StoreUnavailable, StoreError) as problem:
            log.debug("connections.presence_not_ended", error=str(problem))  # it ends by itself
        clients = list(self._clients.values())
        for client in clients:
            client.stop(grace)
        ends = await asyncio.gather(*(client.finished(grace + END_S) for client in clients))
        if not all(ends):
            log.warning("connections.ended_by_force", clients=ends.count(False))
        await self._notices.close()

    async def _end_looking(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    # --- what there is

    def _changed(self) -> None:
        self._version = -1
        self._wake.set()

    async def _keep(self) -> None:
        interrupted = False
        while True:
            try:
                await self._look()
                interrupted = False
            except (StoreUnavailable, StoreError) as problem:
                if not interrupted:  # once for an outage, not once a second
                    log.warning("connections.not_read", error=str(problem))
                interrupted = True
            except Exception:
                log.exception("connections.not_read")
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._wake.wait()
            except TimeoutError:
                pass  # the ordinary case
            self._wake.clear()

    async def _look(self) -> None:
        """Read the documents if they have changed, and have the clients be as these say."""
        store = self._means.store
        await store.present(self._means.node, PRESENT_MS)
        if self._version >= 0 and await store.version() == self._version:
            return
        self._wake.clear()
        version, found = await store.snapshot()
        self._apply(found)
        # Unless there was another notice meanwhile.
        self._version = -1 if self._wake.is_set() else version

    def _apply(self, found: list[StoredConnection]) -> None:
        wanted: dict[tuple[str, int], Plan] = {}
        for stored in found:
            connection = self._read(stored)
            if connection is not None and connection.open:
                for number in range(connection.clients):
                    plan = Plan(connection, stored.commands, stored.revision)
                    wanted[stored.id, number] = plan
        for name in self._known.keys() - {stored.id for stored in found}:
            del self._known[name]
        for key, client in list(self._clients.items()):
            if key not in wanted:
                client.stop()
                if client.over:
                    self._forget(key)
        for key, plan in wanted.items():
            if key not in self._clients:
                self._clients[key] = Client(self._means, *key, self._running)
            self._clients[key].want(plan)

    def _read(self, stored: StoredConnection) -> Connection | None:
        """What a document says; None for one that makes no sense, which is logged once.

        Its revision does not tell: it begins anew with a document that was deleted meanwhile, and
        a store that was set back gives the same one twice.
        """
        known = self._known.get(stored.id)
        if known is not None and known[0] == stored.document:
            return known[1]
        connection = None
        try:
            connection = connection_of(stored.document)
        except GatewayError as problem:
            log.error("connection.document_broken", connection=stored.id, error=problem.message)
        self._known[stored.id] = stored.document, connection
        return connection

    def _forget(self, key: tuple[str, int]) -> None:
        client = self._clients.pop(key)
        self._past.update(client.ended)
        self._past_claims += client.claims
        self._past_dropped += client.dropped

    # --- figures

    def _running(self) -> int:
        return sum(client.held for client in self._clients.values())

    def figures(self) -> dict[str, float]:
        """Counters and gauges for the metrics, by name."""
        counts = Counter(self._past)
        clients = self._clients.values()
        dropped = self._past_dropped
        for client in clients:
            counts.update(client.ended)
            dropped += client.dropped
            if client.supervisor is not None:
                counts.update(client.supervisor.totals)
            if client.crew is not None:
                dropped += sum(session.dropped for session in client.crew.sessions.values())
        messages = {
            f"connection_messages_{way}_{what}_{'success' if well else 'failure'}": float(count)
            for (way, what, well), count in counts.items()
        }
        supervisors = [one.supervisor for one in clients if one.supervisor is not None]
        return {
            "connection_clients": self._running(),
            "connection_unsettled": sum(one.unsettled for one in supervisors),
            "connection_clients_open": sum(client.is_open for client in clients),
            "connection_claims": self._past_claims + sum(client.claims for client in clients),
            "connection_signals_dropped": dropped,
            **messages,
        }
