"""The order of a session's commands, and how many of them may be under way (spec ws 1.3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from enum import Enum
from typing import Any, Protocol

MAX_OPEN = 100
"""Commands of one session that may be under way; with that many its socket is not read (1.3)."""


class Wire(Protocol):
    """The connection, as far as it can be told to wait."""

    def hold(self) -> None:
        """Handle no more frames until :meth:`release`."""

    def release(self) -> None:
        """Undo one :meth:`hold`."""


class Kind(Enum):
    """What a command does with a thing: those of one kind keep their order by themselves."""

    CHANGE = "change"
    SEND = "send"
    READ = "read"


_WAITS_FOR = {
    Kind.CHANGE: (Kind.SEND,),
    Kind.SEND: (Kind.CHANGE,),
    Kind.READ: (Kind.CHANGE,),
    None: (Kind.CHANGE, Kind.SEND),
}
"""Of which earlier kinds a command waits for the end; None is one that concerns everything."""


class Turns:
    """Lets commands be carried out side by side, but as if one came after the other.

    What reads a thing waits until the session's earlier changes of it are done, and so does what is
    sent about it; a change waits until what was sent before is on its way. Meanwhile the connection
    is held, and so it is with ``most`` commands under way.
    """

    def __init__(self, wire: Wire, most: int = MAX_OPEN) -> None:
        self._wire = wire
        self._most = most
        self._open: set[object] = set()
        self._under_way: dict[Kind, dict[str, set[object]]] = {Kind.CHANGE: {}, Kind.SEND: {}}
        self._next: tuple[Kind | None, str, Callable[[], None]] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def close(self) -> None:
        """The session has ended: nobody waits for its answers any more."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def begin(self) -> object:
        """A command is under way, until :meth:`end` gets what this returns."""
        token = object()
        self._open.add(token)
        if len(self._open) == self._most:
            self._wire.hold()
        return token

    def end(self, token: object) -> None:
        """A command has been answered; idempotent."""
        if token in self._open:
            if len(self._open) == self._most:
                self._wire.release()
            self._open.discard(token)

    def enter(self, kind: Kind, thing_id: str) -> object:
        """As :meth:`begin`, for a change or what is sent; :meth:`leave` is its earlier end."""
        token = self.begin()
        self._under_way[kind].setdefault(thing_id, set()).add(token)
        return token

    def leave(self, kind: Kind, thing_id: str, token: object) -> None:
        """It is done or has failed: what waits for it may go on. Idempotent."""
        things = self._under_way[kind]
        tokens = things.get(thing_id)
        if tokens is not None:
            tokens.discard(token)
            if not tokens:
                del things[thing_id]
        if self._next is not None and not self._must_wait(*self._next[:2]):
            run, self._next = self._next[2], None
            try:
                run()
            finally:
                self._wire.release()

    def in_turn(self, kind: Kind | None, thing_id: str, run: Callable[[], None]) -> None:
        """Run when it is a command's turn; ``kind`` None: once everything else is done.

        The connection is held until then, so that at most one command waits. ``run`` must not
        raise if it is to be run later.
        """
        if self._must_wait(kind, thing_id):
            self._wire.hold()
            self._next = (kind, thing_id, run)
        else:
            run()

    def _must_wait(self, kind: Kind | None, thing_id: str) -> bool:
        for other in _WAITS_FOR[kind]:
            things = self._under_way[other]
            if things and (kind is None or thing_id in things):
                return True
        return False

    def start(
        self, work: Coroutine[Any, Any, None], token: object | None = None, *, alone: bool = False
    ) -> None:
        """Do what takes several steps in a task, which must not raise.

        ``token`` is that of the command if it has begun; ``alone``: the connection is held.
        """
        if self._closed:
            work.close()
            return
        token = token or self.begin()
        if alone:
            self._wire.hold()

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self.end(token)
            if alone:
                self._wire.release()

        task = asyncio.create_task(work, name="ws-command")
        self._tasks.add(task)
        task.add_done_callback(done)
