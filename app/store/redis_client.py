"""Redis for the gateway: one coalescing connection for commands, one for pub/sub.

Both connect by themselves again and again until they are closed. While there is no connection,
commands fail at once with StoreUnavailable, so that no request hangs.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog
from typing_extensions import override

from app.store.redis_address import RedisAddress, open_socket
from app.store.redis_wire import (
    GRACE,
    OnReply,
    Reply,
    ScriptMissing,
    StoreError,
    StoreUnavailable,
    Wire,
    deliver,
    pack,
    settle,
)

__all__ = [
    "OnReply",
    "Redis",
    "RedisAddress",
    "Reply",
    "Script",
    "StoreError",
    "StoreUnavailable",
    "Subscriber",
]

CONNECT_TIMEOUT = 5.0  # seconds, one attempt with its handshake
FIRST_DELAY, LAST_DELAY = 0.05, 1.0  # seconds between attempts, doubling
PING_INTERVAL = 5.0  # seconds

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script and its SHA-1 (lower-case hex), by which EVALSHA names it."""

    text: str
    sha: str


class _Link:
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


class Redis(_Link):
    """Commands and scripts over one connection; all of one event-loop tick leave in one write.

    ``name`` is shown by CLIENT LIST. ``reply_timeout`` (seconds) bounds the age of the oldest
    unanswered command: when it passes, the connection is dropped and everything in flight fails.
    ``max_pending`` bounds the commands without a reply; more fail with StoreUnavailable.
    Must be used from one event loop. A user of blocking reads takes a Redis of its own, with a
    ``reply_timeout`` longer than its block time.
    """

    def __init__(
        self,
        address: RedisAddress,
        *,
        name: str,
        reply_timeout: float = 5.0,
        max_pending: int = 100_000,
    ) -> None:
        super().__init__(address, name)
        self._timeout = reply_timeout
        self._max_pending = max_pending
        self._scripts: dict[str, Script] = {}

    @property
    def pending(self) -> int:
        """Commands that wait for their reply."""
        return len(self._wire.pending) if self._wire is not None else 0

    @property
    def writes(self) -> int:
        """Writes to the socket since this connection was made; one may carry many commands."""
        return self._wire.writes if self._wire is not None else 0

    def send(self, args: tuple[str | bytes | int, ...], on_reply: OnReply) -> None:
        """Send a command; ``on_reply`` gets its reply, or StoreUnavailable/StoreError as a value.

        Never raises, and never calls ``on_reply`` before it returns. Commands reach the server
        in the order of the calls. Errors inside an array reply stay in it as exception values.
        """
        wire = self._wire
        if wire is None:
            self._refuse(on_reply, StoreUnavailable("not connected to the store"))
        elif len(wire.pending) >= self._max_pending or wire.paused:
            self._refuse(on_reply, StoreUnavailable("too many commands wait for the store"))
        else:
            try:
                packed = pack(args)
            except Exception as error:  # noqa: BLE001 - promised never to raise
                self._refuse(on_reply, StoreError(f"cannot be sent: {error}"))
            else:
                wire.push(packed, on_reply)

    async def call(self, *args: str | bytes | int, timeout: float | None = None) -> Reply:
        """Send a command and wait for its reply, at most ``timeout`` seconds if given.

        Raises StoreUnavailable or StoreError. The command may still be carried out after a
        timeout or a cancellation.
        """
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.send(args, lambda reply: settle(future, reply))
        return await _within(future, timeout)

    def register(self, text: str) -> Script:
        """Make a Lua script known; it is loaded on every connect before commands are taken."""
        script = Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
        if script.sha not in self._scripts:
            self._scripts[script.sha] = script
            if self._wire is not None:
                self.send(("SCRIPT", "LOAD", text), _ignore)
        return script

    def run(
        self,
        script: Script,
        keys: tuple[str | bytes, ...],
        args: tuple[str | bytes | int, ...],
        on_reply: OnReply,
    ) -> None:
        """Run a script; ``on_reply`` as in :meth:`send`.

        When the server has forgotten the script its text is sent once more; such a call may be
        overtaken by commands sent after it.
        """

        def replied(reply: Reply | Exception) -> None:
            if type(reply) is ScriptMissing:
                self.send(("EVAL", script.text, len(keys), *keys, *args), on_reply)
            else:
                on_reply(reply)

        self.send(("EVALSHA", script.sha, len(keys), *keys, *args), replied)

    async def call_script(
        self,
        script: Script,
        keys: tuple[str | bytes, ...],
        args: tuple[str | bytes | int, ...],
    ) -> Reply:
        """Run a script and wait for its reply. Raises StoreUnavailable or StoreError."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.run(script, keys, args, lambda reply: settle(future, reply))
        return await future

    @override
    async def _handshake(self, wire: Wire) -> None:
        await super()._handshake(wire)
        loaded: set[str] = set()
        # A script may be registered while this waits; none is left out.
        while missing := [s for sha, s in self._scripts.items() if sha not in loaded]:
            for script in missing:
                await wire.ask("SCRIPT", "LOAD", script.text)
                loaded.add(script.sha)
        # A server that still reads its data says so here (LOADING).
        await wire.ask("PING")

    @override
    def _reply_timeout(self) -> float:
        return self._timeout

    def _refuse(self, on_reply: OnReply, error: Exception) -> None:
        asyncio.get_running_loop().call_soon(deliver, on_reply, error)


class Subscriber(_Link):
    """A connection in subscribe mode; subscribes again by itself after every connect.

    ``on_message(channel, payload)`` gets each message. Messages published while there is no
    connection are lost: that is the nature of pub/sub. A PING every ``ping_interval`` seconds
    finds a dead peer.
    """

    def __init__(
        self,
        address: RedisAddress,
        channels: Sequence[str],
        on_message: Callable[[bytes, bytes], None],
        *,
        name: str,
        ping_interval: float = PING_INTERVAL,
    ) -> None:
        super().__init__(address, name)
        self._channels = tuple(channels)
        self._on_message = on_message
        self._interval = ping_interval
        self._timer: asyncio.TimerHandle | None = None
        self._heard = True
        self._suspect = False

    @override
    async def _handshake(self, wire: Wire) -> None:
        await super()._handshake(wire)
        ready: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        open_channels = {name.encode() for name in self._channels}

        def pushed(reply: Reply | Exception) -> None:
            self._heard = True
            if isinstance(reply, Exception):
                settle(ready, reply)
                wire.drop(f"the store refused a subscription: {reply}")
            elif isinstance(reply, list) and len(reply) == 3:
                kind, channel, content = reply
                if not isinstance(channel, bytes):
                    wire.drop("the store sent a push without a channel")
                elif kind == b"message" and isinstance(content, bytes):
                    self._on_message(channel, content)
                elif kind == b"subscribe":
                    open_channels.discard(channel)
                    if not open_channels:
                        settle(ready, None)

        wire.on_push = pushed
        wire.write("SUBSCRIBE", *self._channels)
        await ready

    @override
    def _up(self, wire: Wire, first: asyncio.Future[None]) -> None:
        self._heard = True
        self._suspect = False
        self._watch(wire)
        super()._up(wire, first)

    def _watch(self, wire: Wire) -> None:
        if wire.closed:
            return
        loop, delay = asyncio.get_running_loop(), self._interval
        if self._heard:
            self._heard = self._suspect = False
            wire.write("PING")
        elif not self._suspect:
            self._suspect, delay = True, GRACE
        else:
            wire.drop(f"no sign of life from the store for {self._interval:g} s")
            return
        self._timer = loop.call_later(delay, self._watch, wire)

    @override
    def _down(self, reason: str) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        super()._down(reason)


async def _within(future: asyncio.Future[Reply], timeout: float | None) -> Reply:
    if timeout is None:
        return await future
    try:
        async with asyncio.timeout(timeout):
            return await future
    except TimeoutError:
        raise StoreUnavailable(f"no reply from the store within {timeout:g} s") from None


def _ignore(reply: Reply | Exception) -> None:
    if isinstance(reply, Exception):
        # NOSCRIPT leads to EVAL later, so this costs nothing but a note.
        log.info("redis.script_load_failed", error=str(reply))
