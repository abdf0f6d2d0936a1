"""Redis for the gateway: one coalescing connection for commands, one for pub/sub.

Both connect by themselves again and again until they are closed. While there is no connection,
commands fail at once with StoreUnavailable, so that no request hangs.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass

import structlog
from typing_extensions import override

from app.store.redis_address import RedisAddress
from app.store.redis_link import Link
from app.store.redis_subscriber import Subscriber
from app.store.redis_wire import (
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

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script and its SHA-1 (lower-case hex), by which EVALSHA names it."""

    text: str
    sha: str


class Redis(Link):
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
