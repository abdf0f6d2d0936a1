"""Leases of declared labels: a label has at most one owner in the whole cluster.

All sessions of a process share one lease in the store (acks/declared.lua). A lease is known to be
ours for ``ttl`` after the moment *before* the command that extended it was sent, and only while
the connection on which that happened lives. Whenever that knowledge had a gap, every session is
claimed anew before :meth:`LabelRegistry.valid` is true again; what somebody else took in the gap
is lost and reported.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from importlib import resources

import structlog

from acks.journal import leases_key, owners_key
from app.store.label_list import LabelList, text
from app.store.redis_client import Redis, Reply, StoreError, StoreUnavailable

TTL_MS = 6000
# Our clock and the store's may run at slightly different speeds, and the store counts in whole
# milliseconds.
CLOCK_MARGIN = 0.01
CLOSE_WAIT = 2.0  # seconds; the lease runs out by itself if the store does not answer
SWEEPS = 3  # looks for left-over claims after a failure, one per renewal
_BATCH = 500  # sessions claimed anew at a time

log = structlog.get_logger(__name__)


def lease_clock() -> float:
    """Seconds that also run while the machine sleeps, where the system offers that."""
    boot_time = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot_time is None else time.clock_gettime(boot_time)


@dataclass(slots=True)
class _Held:
    """A session's claim. ``owner`` is its name in the store, new with every first claim.

    A new name keeps a delayed release of an older claim from freeing this one.
    """

    owner: str
    labels: tuple[str, ...]
    group: str
    sent: float = 0.0
    connection: int = 0
    announced: bool = False  # claim() has returned: a loss goes to on_lost
    released: bool = False
    lost: str | None = None


class LabelRegistry:
    """The labels that the sessions of one process own.

    ``holder`` names this process and must be new with every start; holder and session ids contain
    no ``/``. While ``valid()`` is true, every session whose ``claim`` returned None, and which was
    neither released nor reported to ``on_lost(session, label)``, owns its labels.
    """

    def __init__(
        self,
        redis: Redis,
        prefix: str,
        holder: str,
        ttl_ms: int = TTL_MS,
        clock: Callable[[], float] = lease_clock,
    ) -> None:
        if "/" in holder:
            raise ValueError("a holder id contains no '/'")
        self.on_lost: Callable[[str, str], None] | None = None
        self._redis = redis
        self._keys = (owners_key(prefix), leases_key(prefix))
        self._holder = holder
        self._ttl_ms = ttl_ms
        self._ttl = ttl_ms / 1000 * (1 - CLOCK_MARGIN)
        self._clock = clock
        rule = resources.files("acks").joinpath("declared.lua").read_text(encoding="utf-8")
        self._script = redis.register(rule)
        self.list = LabelList(redis, prefix, self._script)
        self._sessions: dict[str, _Held] = {}
        self._claiming: dict[str, _Held] = {}
        self._attempts = 0
        self._base = 0.0  # every known session was claimed at or after this moment
        self._connection = -1  # ... on this connection
        self._valid_until = float("-inf")
        self._sweeps = 0
        self._recovering = asyncio.Lock()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to renew the lease, and to claim anew after every reconnect."""
        if self._task is not None:
            raise RuntimeError("already started")
        self._redis.add_connected_listener(self._wake.set)
        self._task = asyncio.create_task(self._keep(), name="label-leases")

    async def close(self) -> None:
        """Free all labels of this holder and end its lease. Safe to call twice."""
        task, self._task = self._task, None
        if task is None:
            return
        self._redis.remove_connected_listener(self._wake.set)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        self._sessions.clear()
        self._valid_until = float("-inf")
        try:
            async with asyncio.timeout(CLOSE_WAIT):
                while await self._ask("drop"):
                    pass
        except (TimeoutError, StoreUnavailable, StoreError) as error:
            log.warning("labels.drop_failed", holder=self._holder, error=str(error))

    def valid(self) -> bool:
        """True only while the lease is surely ours. Local and cheap."""
        return (
            self._connection == self._redis.connections
            and self._redis.connected
            and self._clock() < self._valid_until
        )

    @property
    def owned(self) -> int:
        """How many labels the sessions of this process own, those of a group once per member."""
        return sum(len(held.labels) for held in self._sessions.values())

    async def claim(self, session: str, labels: Collection[str], group: str = "") -> str | None:
        """Claim all ``labels`` for ``session`` or none. None is success, else a taken label.

        With a ``group`` (by the grammar of labels) they may have other owners, if these are
        members of this group and have the same labels. A session claims once until it is released;
        ValueError otherwise. Raises StoreUnavailable; the session then owns nothing and, if the
        store did carry the claim out, the labels are freed later.
        """
        if "/" in session:
            raise ValueError("a session id contains no '/'")
        if session in self._sessions or session in self._claiming:
            raise ValueError("the session has claimed its labels already")
        if self._task is None:
            raise StoreUnavailable("the label registry is not running")
        if not labels:
            return None
        self._attempts += 1
        held = _Held(f"{session}~{self._attempts}", tuple(dict.fromkeys(labels)), group)
        self._claiming[session] = held
        try:
            return await self._claim_first(session, held)
        except BaseException:
            if self._sessions.get(session) is held:
                del self._sessions[session]
            self._sweeps = SWEEPS
            raise
        finally:
            del self._claiming[session]

    async def release(self, session: str) -> None:
        """Free the labels of ``session``. If the store does not answer they are freed later."""
        held = self._claiming.get(session)
        if held is not None:
            held.released = True
        held = self._sessions.pop(session, None)
        if held is not None:
            await self._free(held.owner)

    async def _claim_first(self, session: str, held: _Held) -> str | None:
        taken = await self._claim(held)
        if taken is not None:
            return taken
        if not held.released:
            self._sessions[session] = held
            if not self._covers(held):
                await self._recover()
        if held.lost is None and self._sessions.get(session) is not held:
            await self._free(held.owner)
            raise StoreUnavailable("the session was released while it claimed its labels")
        held.announced = True
        return held.lost

    async def _claim(self, held: _Held) -> str | None:
        sent, connection = self._clock(), self._redis.connections
        member = ("join", self._ttl_ms, held.owner, held.group)
        what = member if held.group else ("claim", self._ttl_ms, held.owner)
        reply = await self._ask(*what, *held.labels)
        if reply:
            return text(reply)
        held.sent, held.connection = sent, connection
        return None

    def _covers(self, held: _Held) -> bool:
        """Take a fresh claim into what is known to be valid; False if that has a gap."""
        until = held.sent + self._ttl
        if len(self._sessions) == 1 and held.connection == self._redis.connections:
            self._base, self._connection, self._valid_until = held.sent, held.connection, until
        elif self.valid() and held.sent >= self._base:
            # The lease cannot have run out before this claim extended it: its reply is here and
            # the old term is not over yet.
            self._valid_until = max(self._valid_until, until)
        else:
            return False
        return self.valid()

    async def _recover(self) -> None:
        """Claim all sessions anew that may have lost their labels. Raises StoreUnavailable."""
        async with self._recovering:
            base, connection, fresh = self._base, self._connection, not self.valid()
            if fresh:
                base, connection = self._clock(), self._redis.connections
            while stale := [
                (name, held)
                for name, held in self._sessions.items()
                if held.connection != connection or held.sent < base
            ]:
                if connection != self._redis.connections:
                    raise StoreUnavailable("the store was lost while labels were claimed anew")
                claims = (self._claim_again(*pair) for pair in stale[:_BATCH])
                for problem in await asyncio.gather(*claims, return_exceptions=True):
                    if problem is not None:
                        raise problem
            if fresh:
                self._base, self._connection = base, connection
                self._valid_until = base + self._ttl

    async def _claim_again(self, session: str, held: _Held) -> None:
        if self._sessions.get(session) is not held:
            return
        taken = await self._claim(held)
        if taken is None or self._sessions.get(session) is not held:
            return
        held.lost = taken
        del self._sessions[session]
        log.warning("labels.lost", holder=self._holder, session=session, label=taken)
        if held.announced and self.on_lost is not None:
            try:
                self.on_lost(session, taken)
            except Exception:
                log.exception("labels.listener_failed", session=session)
        await self._free(held.owner)

    async def _keep(self) -> None:
        while True:
            self._wake.clear()
            try:
                async with asyncio.timeout(self._ttl / 3):
                    await self._wake.wait()
            except TimeoutError:
                pass  # the ordinary case: it is time to renew
            try:
                await self._renew()
            except (StoreUnavailable, StoreError) as error:
                self._sweeps = SWEEPS
                log.warning("labels.renewal_failed", holder=self._holder, error=str(error))
            except Exception:
                log.exception("labels.renewal_failed", holder=self._holder)

    async def _renew(self) -> None:
        if self._sessions:
            if self.valid():
                sent = self._clock()
                if await self._ask("renew", self._ttl_ms) == 1 and self.valid():
                    self._valid_until = max(self._valid_until, sent + self._ttl)
                else:
                    self._valid_until = float("-inf")
            if not self.valid():
                await self._recover()
        if self._sweeps > 0:
            await self._sweep()
            self._sweeps -= 1

    async def _sweep(self) -> None:
        """Free what a claim or release without an answer left behind."""
        mine = await self._ask("mine")
        if not isinstance(mine, list):
            raise StoreError("the store's list of sessions is malformed")
        known = {held.owner for held in (*self._sessions.values(), *self._claiming.values())}
        for name in map(text, mine):
            if name not in known:
                await self._ask("release", name)

    async def _free(self, owner: str) -> None:
        try:
            await self._ask("release", owner)
        except (StoreUnavailable, StoreError) as error:
            self._sweeps = SWEEPS
            log.warning("labels.release_failed", owner=owner, error=str(error))

    async def _ask(self, operation: str, *args: str | int) -> Reply:
        return await self._redis.call_script(
            self._script, self._keys, (operation, self._holder, *args)
        )
