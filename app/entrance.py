"""The entrance: where sessions come in with their labels, and leave again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import structlog

from acks.declared import why_taken
from acks.errors import error
from acks.journal import EVENT
from app.crew import Crew
from app.group_members import Members
from app.session import Session, Subscription
from app.sessions import Sessions
from app.store.journal import JournalTail
from app.store.labels import LabelRegistry
from app.store.redis_client import StoreError, StoreUnavailable

log = structlog.get_logger(__name__)

CLAIM_AGAIN = (0.02, 0.08, 0.2)
"""Pauses before a taken label is tried once more, s."""


class Entrance:
    """Opens and closes sessions: their labels, their subscriptions, the journal they hear.

    At most ``max_sessions`` are open, each with an outbox of ``outbox_bytes``.
    """

    def __init__(
        self,
        sessions: Sessions,
        registry: LabelRegistry,
        tail: JournalTail,
        members: Members,
        *,
        max_sessions: int,
        outbox_bytes: int,
    ) -> None:
        self.closed = False
        self._crews: dict[str, Crew] = {}
        self._sessions = sessions
        self._registry = registry
        self._tail = tail
        self._members = members
        self._max_sessions = max_sessions
        self._outbox_bytes = outbox_bytes

    async def open(
        self, subjects: tuple[str, ...], labels: Iterable[str], group: str = ""
    ) -> Session:
        """Open a session that owns ``labels``, alone or with the other members of ``group``.

        Raises ``acknowledgement:label.not.unique``, ``gateway:service.unavailable``.
        """
        if self.closed or len(self._sessions) >= self._max_sessions:
            raise error("gateway:service.unavailable", reason="It takes no more sessions.")
        session = Session(subjects, labels, outbox_bytes=self._outbox_bytes)
        if session.declared:
            # First of all, for signals may be meant for a member as soon as the store knows it.
            await self._acquire_tail()
            try:
                await self._declare(session, group)
            except BaseException:
                self._forget(session)
                await self._tail.release()
                raise
        # Known before anything is awaited, so that the loss of a label finds it.
        self._sessions.add(session)
        return session

    async def _declare(self, session: Session, group: str) -> None:
        if group:
            session.group = group
            self._members.joined(session)
            self._sessions.add(session)
        try:
            taken = await self._claim(session)
        except (StoreUnavailable, StoreError) as problem:
            log.warning("labels.not_claimed", session=session.id, reason=str(problem))
            reason = "The labels cannot be claimed in the store."
            raise error("gateway:service.unavailable", reason=reason) from problem
        if taken is not None:
            description = await self._why_taken(session, taken) if group else None
            raise error("acknowledgement:label.not.unique", description=description)

    async def _why_taken(self, session: Session, taken: str) -> str | None:
        """What keeps a member out of its group; None if the store does not tell any more."""
        try:
            shared = await self._registry.list.shared(session.group)
        except (StoreUnavailable, StoreError):
            return None
        return why_taken(session.group, sorted(session.declared), shared, taken)

    def _forget(self, session: Session) -> None:
        self._sessions.remove(session)
        if session.group:
            self._members.left(session)

    async def _claim(self, session: Session) -> str | None:
        """Claim a session's labels, with patience; the first taken label, or None.

        A client that reconnects at once finds them taken until its old session has been taken
        down, here or on another node.
        """
        for wait in CLAIM_AGAIN:
            taken = await self._registry.claim(session.id, session.declared, session.group)
            if taken is None:
                return None
            await asyncio.sleep(wait)
        return await self._registry.claim(session.id, session.declared, session.group)

    async def subscribe(
        self, session: Session, subscription: Subscription, kind: str = EVENT
    ) -> None:
        """Deliver signals of ``kind`` (acks/journal.py) to ``session``.

        Returns when every later one will be delivered.
        """
        if not session.wants and not session.declared:
            await self._acquire_tail()
        self._sessions.subscribe(session, subscription, kind)
        if session.group:
            self._members.subscribed(session)

    async def unsubscribe(self, session: Session, kind: str = EVENT) -> None:
        """Stop delivering signals of ``kind`` to ``session``."""
        listened = bool(session.wants)
        self._sessions.unsubscribe(session, kind)
        if listened and not session.wants and not session.declared:
            await self._tail.release()

    async def close(self, session: Session) -> None:
        """End a session: its labels are free at once."""
        listened = bool(session.wants or session.declared)
        self._forget(session)
        if session.declared:
            await self._registry.release(session.id)
        if listened:
            await self._tail.release()

    # --- connections

    async def open_crew(self, crew: Crew) -> None:
        """Let the sessions of a connection's targets in; :meth:`claim_crew` gets their labels.

        Returns when every later signal will be delivered. Raises ``gateway:service.unavailable``.
        """
        room = self._max_sessions - len(self._sessions)
        if self.closed or len(crew.sessions) > room:
            raise error("gateway:service.unavailable", reason="It takes no more sessions.")
        if crew.sessions:
            await self._acquire_tail()
        self._crews[crew.id] = crew
        self._sessions.add_crew(crew)

    async def claim_crew(self, crew: Crew) -> str | None:
        """Claim the labels of a crew that does not have them; None, or one that is taken.

        Raises StoreUnavailable and StoreError.
        """
        if crew.owns or not crew.labels:
            return None
        taken = await self._registry.claim(crew.id, crew.labels)
        if taken is None:
            if crew.id not in self._crews:
                await self._registry.release(crew.id)
            else:
                self._sessions.crew_claimed(crew)
        return taken

    async def close_crew(self, crew: Crew) -> None:
        """End the sessions of a crew: its labels are free at once. Idempotent."""
        if self._crews.pop(crew.id, None) is None:
            return
        self._sessions.remove_crew(crew)
        for session in crew.sessions.values():
            session.close(1000, "")
        if crew.labels:
            await self._registry.release(crew.id)
        if crew.sessions:
            await self._tail.release()

    async def _acquire_tail(self) -> None:
        try:
            await self._tail.acquire()
        except StoreUnavailable as problem:
            raise error("gateway:service.unavailable", reason=str(problem)) from problem

    def lost(self, session_id: str, label: str) -> None:
        """The lease of a session's label could not be kept: the session is told and closed."""
        session, crew = self._sessions.get(session_id), self._crews.get(session_id)
        if session is not None:
            log.warning("labels.lost", session=session_id, label=label)
            session.lost()
        elif crew is not None:
            log.warning("labels.lost", connection=crew.connection_id, label=label)
            self._sessions.crew_lost(crew)
