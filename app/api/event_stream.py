"""One open stream of server-sent events: a session that may begin in the past."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import orjson
import structlog

from acks.bookmark import Position, Positions, read_position, write_bookmark
from app.api.sse import CHUNK, Wire, comment, event
from app.gateway import Gateway
from app.offers import Verdict
from app.replay import Entry, Gap, Replay, size_of
from app.session import Delivery, Session, Subscription
from app.store.instant import instant
from app.store.redis_client import StoreError, StoreUnavailable

log = structlog.get_logger(__name__)

HEARTBEAT_S = 1.0
"""Longest silence of a stream, s (spec websocket-... 3)."""
CLOSE_DEADLINE = 5.0
"""How long a client may take to read what is left once its session is closed, s."""
TURN_BYTES = 64 * 1024
"""Bytes of entries that a replay handles before the event loop gets a turn."""
OVERHEAD = 1_000
"""What an entry takes beside its text while it waits, bytes, about."""


class Told(NamedTuple):
    """An event as its stream tells it: its type, "" for the usual one, and its data."""

    kind: str
    data: bytes


Tell = Callable[[Delivery], Told | None]
"""What a stream tells of a signal, None for nothing."""


class EventStream:
    """Sends a session's signals, each with the bookmark after it.

    A stream begins with what has been written after a bookmark, if it was given one, and goes on
    with what comes, without a seam: live signals are held back while the last of the replay is
    sent, and are left to the replay if they become too many.
    """

    def __init__(
        self,
        gateway: Gateway,
        replay: Replay,
        session: Session,
        subscription: Subscription,
        kind: str,
        tell: Tell,
    ) -> None:
        self._sessions = gateway.sessions
        self._gateway = gateway
        self._replay = replay
        self._session = session
        self._subscription = subscription
        self._kind = kind
        self._tell = tell
        self._limit = session.limit // 2  # of what a replay has under way, bytes
        self._done: list[Position] = []  # by shard: everything up to there has been told
        self._mark = ""  # the last bookmark sent
        self._live: Positions | None = None  # signals after this are live, None: all are replayed
        self._held: list[tuple[int, Position, Told]] | None = None  # live signals that wait
        self._held_bytes = 0
        self._offered: set[tuple[int, Position]] = set()  # replayed ones under way
        self._under_way = 0  # their sizes, bytes
        self._queued = 0  # bytes in the outbox
        self._progress = asyncio.Event()
        session.render = self._render

    async def open(self, after: Positions | None) -> bytes:
        """Subscribe to all that is written after ``after``, None for now; the first bytes to send.

        Raises ``gateway:service.unavailable``.
        """
        gap = None
        if after is not None:
            after, gap = await self._replay.begin(after)
        await self._gateway.entrance.subscribe(self._session, self._subscription, self._kind)
        # Nothing is routed before the next await.
        if after is None:
            self._live = after = self._replay.live()
        else:
            self._leave_live()
        self._done = list(after)
        self._mark = write_bookmark(after)
        return (b"" if gap is None else _gap_event(gap)) + comment("", self._mark)

    async def run(self, wire: Wire, correlation_id: str, first: bytes) -> None:
        """Send ``first`` and what comes, until the client or the session ends.

        No task outlives this call.
        """
        name = self._session.id
        writing = self._write(wire, correlation_id, first)
        writer = asyncio.create_task(writing, name=f"sse-writer-{name}")
        gone = asyncio.create_task(wire.client_gone(), name=f"sse-client-{name}")
        ending = asyncio.create_task(self._session.ended(), name=f"sse-ending-{name}")
        tasks = [writer, gone, ending]
        if self._live is None:
            tasks.append(asyncio.create_task(self._catch_up(), name=f"sse-replay-{name}"))
        try:
            await asyncio.wait(tasks[:3], return_when=asyncio.FIRST_COMPLETED)
            self._session.close(1000, "")
            ends = (writer, gone)
            await asyncio.wait(ends, timeout=CLOSE_DEADLINE, return_when=asyncio.FIRST_COMPLETED)
            if not any(task.done() for task in ends):
                await wire.abort()
        finally:
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, Exception) and not isinstance(result, OSError):
                    log.error("sse.stream_failed", session=name, error=repr(result))

    # --- out

    async def _write(self, wire: Wire, correlation_id: str, first: bytes) -> None:
        try:
            await wire.begin(correlation_id, first)
            while True:
                frames: list[bytes] | None = None
                try:
                    async with asyncio.timeout(HEARTBEAT_S):
                        frames = await self._session.frames()
                except TimeoutError:
                    await wire.write(self._heartbeat())
                    continue
                self._queued = 0
                self._progress.set()
                if not frames:
                    break
                for chunk in _chunks(frames):
                    await wire.write(chunk)
            await wire.end(_farewell(self._session))
        except TimeoutError:
            await wire.abort()  # the client does not read

    def _heartbeat(self) -> bytes:
        """A sign of life; with it the bookmark moves on over what was not for this stream."""
        live = self._live is not None and self._held is None and self._session.backlog is None
        if live:
            self._done = list(map(max, self._done, self._replay.live()))
        mark = write_bookmark(tuple(self._done))
        # What is in the outbox by now has not been sent.
        if mark == self._mark or self._queued:
            return comment("")
        self._mark = mark
        return comment("", mark)

    # --- in

    def _render(self, delivery: Delivery) -> bytes | None:
        """A signal as a frame, None if it is not to be sent, or not now."""
        shard, position = delivery.shard, read_position(delivery.entry_id)
        replayed = (shard, position) in self._offered
        self._offered.discard((shard, position))
        if not replayed and (self._live is None or position <= self._live[shard]):
            return None  # it comes, or has come, by replay
        try:
            told = self._tell(delivery)
        except Exception:
            # One that cannot be told must not keep other sessions from theirs.
            log.exception(
                "sse.not_told", session=self._session.id, entry=delivery.entry_id.decode()
            )
            return None
        if told is None:
            return None
        if self._held is not None and not replayed:
            self._hold(shard, position, told)
            return None
        return self._frame(shard, position, told)

    def _frame(self, shard: int, position: Position, told: Told) -> bytes:
        self._done[shard] = position
        self._mark = write_bookmark(tuple(self._done))
        frame = event(told.data, told.kind, self._mark)
        self._queued += len(frame)
        return frame

    def _hold(self, shard: int, position: Position, told: Told) -> None:
        assert self._held is not None
        self._held.append((shard, position, told))
        self._held_bytes += len(told.data) + OVERHEAD
        if self._held_bytes > self._limit:
            self._leave_live()

    def _leave_live(self) -> None:
        """Leave what comes to the replay: it has not kept up with it so far."""
        self._live = self._held = None
        self._sessions.unsubscribe(self._session, self._kind)
        # Still what it wants: of what it is offered.
        self._session.wants[self._kind] = self._subscription

    # --- replay

    async def _catch_up(self) -> None:
        """Replay until nothing is left before what comes live; then go on with that."""
        try:
            while self._live is None:
                # The bookmark may be of a process that was ahead of this one.
                self._live = tuple(map(max, self._done, self._replay.live()))
                self._held, self._held_bytes = [], 0
                self._sessions.subscribe(self._session, self._subscription, self._kind)
                await self._replayed(tuple(self._done), self._live)
        except (StoreUnavailable, StoreError) as problem:
            self._session.close(1011, f"The journal could not be read: {problem}.")
            return
        except Exception:
            log.exception("sse.replay_failed", session=self._session.id)
            self._session.close(1011, "The journal could not be replayed.")
            return
        held, self._held = self._held, None
        for shard, position, told in held or ():
            self._session.put(self._frame(shard, position, told))

    async def _replayed(self, after: Positions, until: Positions) -> None:
        """Offer the session what was written after ``after`` up to ``until``; all of it is done."""
        turn = 0
        async for found in self._replay.entries(after, until):
            if isinstance(found, Gap):
                self._session.put(_gap_event(found))
                continue
            size = size_of(found.fields) + OVERHEAD
            await self._room(size)
            self._offer(found, size)
            turn += size
            if turn > TURN_BYTES:
                turn = 0
                await asyncio.sleep(0)
        await self._until(lambda: not self._under_way)

    def _offer(self, entry: Entry, size: int) -> None:
        shard, position = entry.shard, read_position(entry.entry_id)
        self._offered.add((shard, position))
        self._under_way += size
        decided = partial(self._decided, shard, position, size)
        self._sessions.offer(self._session, shard, entry.entry_id, entry.fields, decided)

    def _decided(self, shard: int, position: Position, size: int, verdict: Verdict) -> None:
        """The session has got what it was offered, or is not to get it."""
        self._offered.discard((shard, position))
        self._under_way -= size
        if verdict is not Verdict.CLOSED:
            self._done[shard] = max(self._done[shard], position)
        self._progress.set()

    async def _room(self, size: int) -> None:
        """Wait until there is room for an entry of ``size`` bytes, or nothing is under way."""
        await self._until(
            lambda: (
                not (self._queued or self._under_way)
                or self._queued + self._under_way + size <= self._limit
            )
        )

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._progress.clear()
            await self._progress.wait()


def _chunks(frames: list[bytes]) -> list[bytes]:
    """The frames, small ones together."""
    chunks, chunk, size = [], [], 0
    for frame in frames:
        chunk.append(frame)
        size += len(frame)
        if size >= CHUNK:
            chunks.append(b"".join(chunk))
            chunk, size = [], 0
    return [*chunks, b"".join(chunk)] if chunk else chunks


def _farewell(session: Session) -> bytes:
    """Why the stream ends, for who looks at it."""
    reason = "" if session.closing is None else session.closing[1]
    return comment(" ".join(reason.split())) if reason else b""


def _gap_event(gap: Gap) -> bytes:
    """That events may be missing, and between which moments they were written."""
    after = instant(gap.after) if gap.after else None
    return event(orjson.dumps({"after": after, "before": instant(gap.before)}), "gap")
