"""One connection to Redis: commands of a tick leave in one write, replies are matched in order.

Why so: under load the cost of a request is dominated by system calls and wake-ups, not by Redis.
One write per event-loop tick turns many round trips into one, and with ``appendfsync always`` the
server also syncs once for the whole batch.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable
from typing import TypeAlias, cast

import structlog
from hiredis import HiredisError, Reader, pack_command
from typing_extensions import override

Reply: TypeAlias = "int | bytes | list[Reply] | None"
OnReply: TypeAlias = "Callable[[Reply | Exception], None]"
Args: TypeAlias = "tuple[str | bytes | int, ...]"
# The library's stub allows tuples of length one only.
pack = cast("Callable[[Args], bytes]", pack_command)

# Unsent bytes at which a connection takes no more commands: the server no longer keeps up.
MAX_UNSENT_BYTES = 64 * 1024 * 1024
# Seconds. When a deadline has passed, the connection is given up only if nothing arrives for this
# long (and after one more deadline in any case): when this process itself stood still, the replies
# already wait in the socket and take several reads.
GRACE = 0.05

_NOT_ENOUGH = object()
_UNAVAILABLE = frozenset(
    {
        "LOADING",
        "MASTERDOWN",
        "OOM",
        "READONLY",
        "MISCONF",
        "BUSY",
        "NOREPLICAS",
        "CLUSTERDOWN",
        "TRYAGAIN",
        "UNBLOCKED",
    }
)
# Redis before 7 wraps the error of a command called by a script.
_WRAPPED = re.compile(r"^ERR Error running script .*?: -([A-Z]+) ", re.DOTALL)

log = structlog.get_logger(__name__)


class StoreUnavailable(Exception):
    """The store cannot do it now: not connected, connection lost, no reply in time, or overload.

    A command that was in flight may still have been carried out.
    """


class StoreError(Exception):
    """The store answered with an error; the text is the server's."""


class ScriptMissing(StoreError):
    """The server does not know the script of an EVALSHA (NOSCRIPT)."""


def reply_error(text: str) -> Exception:
    """Turn an error reply into a value: StoreUnavailable for passing states, else StoreError."""
    code = text.partition(" ")[0]
    wrapped = _WRAPPED.match(text) if code == "ERR" else None
    if wrapped:
        code = wrapped.group(1)
    if code in _UNAVAILABLE:
        return StoreUnavailable(text)
    return ScriptMissing(text) if code == "NOSCRIPT" else StoreError(text)


def deliver(on_reply: OnReply, reply: Reply | Exception) -> None:
    """Call ``on_reply``; a failure in it is logged and harms nobody else."""
    try:
        on_reply(reply)
    except Exception:
        log.exception("redis.callback_failed")


class Wire(asyncio.Protocol):
    """A connection in request-reply mode; with ``on_push`` set, in subscribe mode.

    ``on_lost(reason)`` is called once, at once, when the connection is gone; everything in flight
    has failed with StoreUnavailable then. ``reply_timeout`` is in seconds.
    """

    def __init__(self, name: str, reply_timeout: float, on_lost: Callable[[str], None]) -> None:
        self.pending: deque[OnReply] = deque()
        self.on_push: Callable[[Reply | Exception], None] | None = None
        self.closed = False
        self.paused = False
        self.writes = 0
        self.sent = 0
        self._name = name
        self._timeout = reply_timeout
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._batches: deque[tuple[int, float]] = deque()  # (sent so far, when), oldest first
        self._timer: asyncio.TimerHandle | None = None
        self._suspect_since: float | None = None
        self._progress = False
        self._reader = Reader(replyError=reply_error, notEnoughData=_NOT_ENOUGH)
        self._transport: asyncio.Transport | None = None

    def push(self, packed: bytes, on_reply: OnReply) -> None:
        """Queue one packed command; it leaves with the others of this tick."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(packed)
        self._out_bytes += len(packed)
        if self._out_bytes > MAX_UNSENT_BYTES:
            self.paused = True
        self.pending.append(on_reply)

    def write(self, *args: str | bytes | int) -> None:
        """Send a command whose answer comes as a push (subscribe mode)."""
        if self._transport is not None and not self.closed:
            self._transport.write(pack(args))

    async def ask(self, *args: str | bytes | int) -> Reply:
        """Send one command and wait for its reply. For the handshake, off the hot path."""
        future: asyncio.Future[Reply] = self._loop.create_future()
        if self.closed:
            raise StoreUnavailable("the connection was closed")
        self.push(pack(args), lambda reply: settle(future, reply))
        return await future

    def drop(self, reason: str) -> None:
        """Close at once and fail everything in flight."""
        if self.closed:
            return
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        pending, self.pending = self.pending, deque()
        self._out.clear()
        self._batches.clear()
        self._on_lost(reason)
        for on_reply in pending:
            deliver(on_reply, StoreUnavailable(reason))

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the socket is open."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=MAX_UNSENT_BYTES)
        if self.closed:
            self._transport.abort()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the socket is gone."""
        self.drop(f"the connection to the store was lost: {exc}" if exc else _ENDED)

    @override
    def eof_received(self) -> bool:
        """asyncio: the peer sends no more."""
        self.drop(_ENDED)
        return False

    @override
    def pause_writing(self) -> None:
        """asyncio: too many bytes wait to be sent."""
        self.paused = True

    @override
    def resume_writing(self) -> None:
        """asyncio: the bytes that waited are sent."""
        self.paused = False

    @override
    def data_received(self, data: bytes) -> None:
        """asyncio: parse what came and hand each reply to the oldest command."""
        reader, pending = self._reader, self.pending
        self._progress = True
        try:
            reader.feed(data)
            reply = reader.gets()
            while reply is not _NOT_ENOUGH:
                if pending:
                    deliver(pending.popleft(), reply)
                elif self.on_push is not None:
                    deliver(self.on_push, reply)
                else:
                    self.drop("the store sent a reply nobody asked for")
                if self.closed:
                    return
                reply = reader.gets()
        except HiredisError as error:
            self.drop(f"the store sent malformed data: {error}")
            return
        answered = self.sent - len(pending) + len(self._out)
        batches = self._batches
        while batches and batches[0][0] <= answered:
            batches.popleft()

    def _flush(self) -> None:
        out = self._out
        if self._transport is None or not out:
            return
        self.sent += len(out)
        self.writes += 1
        now = self._loop.time()
        self._batches.append((self.sent, now))
        if self._timer is None:
            self._timer = self._loop.call_at(now + self._timeout, self._check_age)
        data = b"".join(out)
        out.clear()
        self._out_bytes, self.paused = 0, False
        # Last: it may call pause_writing or, on an error, lead to connection_lost.
        self._transport.write(data)

    def _check_age(self) -> None:
        self._timer = None
        if not self._batches:
            self._suspect_since = None
            return
        now = self._loop.time()
        next_look = self._batches[0][1] + self._timeout
        if next_look > now:
            self._suspect_since = None
        else:
            if self._suspect_since is None:
                self._suspect_since = now
            elif not self._progress or now - self._suspect_since > self._timeout:
                self.drop(f"no reply from the store within {self._timeout:g} s ({self._name})")
                return
            next_look = now + GRACE
        self._progress = False
        self._timer = self._loop.call_at(next_look, self._check_age)


_ENDED = "the store closed the connection"


def settle(future: asyncio.Future[Reply], reply: Reply | Exception) -> None:
    """Finish ``future`` with a reply or an error; one that no longer waits is left alone."""
    if future.done():
        return
    if isinstance(reply, Exception):
        future.set_exception(reply)
    else:
        future.set_result(reply)
