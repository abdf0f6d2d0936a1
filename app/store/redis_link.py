"""One connection to Redis that is kept open: it connects by itself again and again until closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from app.store.redis_address import RedisAddress, open_socket
from app.store.redis_wire import StoreError, StoreUnavailable, Wire

CONNECT_TIMEOUT = 5.0  # seconds, one attempt with its handshake
FIRST_DELAY, LAST_DELAY = 0.05, 1.0  # seconds between attempts, doubling

log = structlog.get_logger(__name__)


class Link:
    """Keeps one connection open: connects, notices the loss, connects again."""

    def __init__(self, address: RedisAddress, name: str) -> None:
        self.on_connected: Callable[[], None] | None = None
        self.on_lost: Callable[[], None] | None = None
        self._address = address
        # CLIENT SETNAME takes no spaces or control characters.
        self._name = "".join(c if "!" <= c <= "~" else "-" for c in name)
        self._listeners: list[Callable[[], None]] = []
        self._wire: Wire | None = None
        self._connections = 0
        self._task: asyncio.Task[None] | None = None
        self._gone = asyncio.Event()
        self._last_error: Exception | None = None

    @property
    def connected(self) -> bool:
        """True while commands are taken (subscriber: while messages can come)."""
        return self._wire is not None

    @property
    def connections(self) -> int:
        """How often a connection was made; a change says that there was a gap."""
        return self._connections

    def add_connected_listener(self, listener: Callable[[], None]) -> None:
        """Have ``listener`` called after every connect, beside ``on_connected``."""
        self._listeners.append(listener)

    def remove_connected_listener(self, listener: Callable[[], None]) -> None:
        """Undo :meth:`add_connected_listener`. Raises ValueError if it was not added."""
        self._listeners.remove(listener)

    async def start(self, deadline: float = 10.0) -> None:
        """Connect, trying again for up to ``deadline`` seconds; from then on stay connected.

        Raises StoreUnavailable when nothing answers in time or the server refuses us (password,
        database number); a refusal is not tried again.
        """
        if self._task is not None:
            raise RuntimeError("already started")
        first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._keep(first), name=f"redis-{self._name}")
        try:
            async with asyncio.timeout(deadline):
                await first
        except TimeoutError:
            await self.close()
            raise StoreUnavailable(
                f"no store at {self._address} within {deadline:g} s: {self._last_error}"
            ) from self._last_error
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close; everything in flight fails with StoreUnavailable. Safe to call twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._wire is not None:
            self._wire.drop("the store client was closed")

    async def _keep(self, first: asyncio.Future[None]) -> None:
        loop, delay = asyncio.get_running_loop(), FIRST_DELAY
        while True:
            self._gone.clear()
            try:
                wire = await self._connect()
            except Exception as error:  # noqa: BLE001 - nothing may end the link but close()
                self._note_failure(error, first)
            else:
                since = loop.time()
                self._up(wire, first)
                if not wire.closed:
                    await self._gone.wait()
                # A server that takes us in only to throw us out must not be hammered.
                delay = FIRST_DELAY if loop.time() - since > LAST_DELAY else delay
            await asyncio.sleep(delay)
            delay = min(delay * 2, LAST_DELAY)

    def _note_failure(self, error: Exception, first: asyncio.Future[None]) -> None:
        self._last_error = error
        log.warning("redis.connect_failed", client=self._name, error=str(error) or repr(error))
        if isinstance(error, StoreError) and not first.done():
            refused = StoreUnavailable(f"the store at {self._address} refused us: {error}")
            first.set_exception(refused)

    async def _connect(self) -> Wire:
        def lost(reason: str) -> None:
            if self._wire is wire:
                self._down(reason)

        wire = Wire(self._name, self._reply_timeout(), lost)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                await open_socket(self._address, lambda: wire)
                await self._handshake(wire)
        except TimeoutError as error:
            wire.drop("no answer to the handshake in time")
            raise StoreUnavailable(f"no answer within {CONNECT_TIMEOUT:g} s") from error
        except BaseException:
            wire.drop("the handshake failed")
            raise
        return wire

    async def _handshake(self, wire: Wire) -> None:
        address = self._address
        if address.password is not None:
            login = (address.username,) if address.username else ()
            await wire.ask("AUTH", *login, address.password)
        if address.db:
            await wire.ask("SELECT", address.db)
        try:
            await wire.ask("CLIENT", "SETNAME", self._name)
        except StoreError as error:
            # A restricted user may lack this command; the name is only for people.
            log.info("redis.name_refused", client=self._name, error=str(error))

    def _up(self, wire: Wire, first: asyncio.Future[None]) -> None:
        if wire.closed:
            return
        self._wire = wire
        self._last_error = None
        self._connections += 1
        log.info("redis.connected", client=self._name, address=str(self._address))
        if not first.done():
            first.set_result(None)
        for listener in (self.on_connected, *self._listeners):
            self._tell(listener)

    def _down(self, reason: str) -> None:
        self._wire = None
        self._gone.set()
        if self._task is not None:
            log.warning("redis.connection_lost", client=self._name, reason=reason)
        self._tell(self.on_lost)

    def _tell(self, listener: Callable[[], None] | None) -> None:
        if listener is None:
            return
        try:
            listener()
        except Exception:
            log.exception("redis.listener_failed", client=self._name)

    def _reply_timeout(self) -> float:
        return CONNECT_TIMEOUT
