"""Signals for the members of label groups at this process: who of them takes what.

The node that waits for the acks has chosen a member (app/groups.py), by the entry itself or by an
order. If that member does not take the signal, another one of the same group here may; the node
that waits is told who has it, or that nobody has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import orjson
import structlog

from acks.declared import MOVED, PASSED, UNASSIGNED
from acks.journal import ASYNC, EntryMeta, journal_key
from acks.signals import Acknowledgement
from app.offers import Verdict
from app.session import Session
from app.sessions import SendAck, Sessions
from app.store.instant import now_ms
from app.store.redis_client import Redis, Reply, StoreError
from app.weak_acks import WEAK, weak_headers

log = structlog.get_logger(__name__)

TRIED = 64
"""Members that are offered a signal before others elsewhere are."""
FRESH_S = 2.0
"""How long a member that has just connected may take to subscribe before it passes, s."""
AGAIN_S = 0.25
"""Pause before an entry is read again from a store that could not be asked, s."""
WAITING = 10_000
"""Signals that may wait for a subscription or for the store; more are passed."""


class Share(NamedTuple):
    """A signal and the member it is for; ``tried`` are those of this node that passed it before.

    ``origin`` is the node that waits, until ``deadline`` (ms since the epoch); ``place`` is shard
    and entry id.
    ``thing_id`` and ``kind`` are the entry's, empty as long as it has not been read.
    """

    origin: str
    correlation_id: str
    is_async: bool
    thing_id: str
    kind: str
    group: str
    member: str
    place: tuple[int, str]
    deadline: int
    redelivered: bool = False
    tried: tuple[str, ...] = ()


class Members:
    """Members of this process. ``send`` takes control records to the node that waits."""

    def __init__(
        self,
        redis: Redis,
        sessions: Sessions,
        send: SendAck,
        owns: Callable[[], bool],
        *,
        prefix: str,
        node: str,
    ) -> None:
        self.node = node
        self.owns = owns
        self.sessions = sessions
        self._redis = redis
        self._prefix = prefix
        self._send = send
        self._fresh: dict[str, float] = {}  # by session, until when
        self._postponed: dict[str, list[Share]] = {}  # by session
        self._waiting = 0

    def __len__(self) -> int:
        """Signals that wait for a subscription or for the store."""
        return self._waiting

    # --- what comes

    def shared(
        self,
        group: str,
        labels: list[str],
        meta: EntryMeta,
        shard: int,
        entry_id: bytes,
        fields: list[Any],
    ) -> None:
        """Take an entry from the journal that asks for ``labels`` of a group with members here."""
        member = meta.assigned.get(group)
        waits = meta.assigned.get("") if meta.origin == ASYNC else meta.origin
        if not waits:
            return
        is_async = meta.origin == ASYNC
        place = (shard, entry_id.decode())
        if member is None:
            facts = {"g": group, "l": labels, "p": place, "d": meta.deadline, "a": is_async}
            self._tell(waits, UNASSIGNED, meta.correlation_id, meta.thing_id, facts)
        elif member.startswith(self.node + "/"):
            share = Share(
                waits,
                meta.correlation_id,
                is_async,
                meta.thing_id,
                meta.kind,
                group,
                member,
                place,
                meta.deadline,
            )
            self._offer(share, fields)

    def ordered(self, share: Share) -> None:
        """Read an entry from the journal for a member here, as another node has said."""

        def replied(reply: Reply | Exception) -> None:
            if isinstance(reply, list):
                if reply:
                    fields, meta = _entry(reply[0])
                    told = share._replace(thing_id=meta.thing_id, kind=meta.kind)
                    self._offer(told, fields)
                else:
                    # Nobody else can have it either: the request waits until its deadline.
                    log.warning("groups.entry_gone", place=place, group=share.group)
            elif isinstance(reply, StoreError):
                log.error("groups.entry_unreadable", place=place, error=str(reply))
            else:
                self._later(AGAIN_S, share)

        place = share.place
        key = journal_key(self._prefix, place[0])
        self._redis.send(("XRANGE", key, place[1], place[1]), replied)

    def joined(self, session: Session) -> None:
        """A session with a group is there; it has not subscribed yet."""
        loop = asyncio.get_running_loop()
        self._fresh[session.id] = loop.time() + FRESH_S
        loop.call_later(FRESH_S, self._settled, session.id)

    def subscribed(self, session: Session) -> None:
        """A session has subscribed to something: what waited for that is offered again."""
        for share in self._postponed.pop(session.id, ()):
            self._waiting -= 1
            self.ordered(share)

    def left(self, session: Session) -> None:
        """A session is no longer there: what waited for it is for others."""
        self._settled(session.id)

    # --- what is done with it

    def _offer(self, share: Share, fields: list[Any]) -> None:
        if share.deadline and share.deadline <= now_ms():
            return
        here = self.sessions.members(share.group)
        chosen = share.member.partition("/")[2]
        others = (one for one in here if one != chosen and f"{self.node}/{one}" not in share.tried)
        _Round(self, share, fields, (chosen, *_first(others, TRIED - 1))).go()

    def took(self, share: Share, session_id: str) -> None:
        """A member has got the signal."""
        member = f"{self.node}/{session_id}"
        if member != share.member:
            facts = {"g": share.group, "b": share.member, "m": member, "a": share.is_async}
            self._tell(share.origin, MOVED, share.correlation_id, share.thing_id, facts)

    def nobody(self, share: Share, asked: dict[str, Verdict], fields: list[Any]) -> None:
        """None of ``asked`` has taken the signal."""
        loop = asyncio.get_running_loop()
        for session_id, verdict in asked.items():
            if (
                verdict is Verdict.UNSUBSCRIBED
                and loop.time() < self._fresh.get(session_id, 0.0)
                and self._waiting < WAITING
            ):
                session = self.sessions.get(session_id)
                if session is not None and share.kind not in session.wants:
                    self._waiting += 1
                    self._postponed.setdefault(session_id, []).append(share)
                    return
        members = [f"{self.node}/{session_id}" for session_id in asked]
        reason = next((one for one in asked.values() if one in WEAK and self.owns()), None)
        facts = {"g": share.group, "x": members, "a": share.is_async}
        headers: dict[str, Any] | None = None
        if reason is not None:
            facts["v"] = reason.value
            entry = dict(zip(fields[::2], fields[1::2], strict=True))
            headers = weak_headers(share.correlation_id, entry[b"h"])
        self._tell(share.origin, PASSED, share.correlation_id, share.thing_id, facts, headers)

    def _settled(self, session_id: str) -> None:
        self._fresh.pop(session_id, None)
        for share in self._postponed.pop(session_id, ()):
            self._waiting -= 1
            self.ordered(share)

    def _later(self, seconds: float, share: Share) -> None:
        if self._waiting >= WAITING or share.deadline <= now_ms():
            return

        def again() -> None:
            self._waiting -= 1
            self.ordered(share)

        self._waiting += 1
        asyncio.get_running_loop().call_later(seconds, again)

    def _tell(
        self,
        node: str,
        what: str,
        correlation_id: str,
        thing_id: str,
        facts: dict[str, Any],
        headers: dict[str, Any] | None = None,
    ) -> None:
        ack = Acknowledgement(what, thing_id, correlation_id, 200, facts, headers or {})
        self._send(node, ack)


class _Round:
    """Offers a signal to one member after the other until one takes it.

    Verdicts may come at once or later; a loop, because there may be many.
    """

    __slots__ = ("_asked", "_candidates", "_fields", "_members", "_running", "_share", "_verdict")

    def __init__(
        self, members: Members, share: Share, fields: list[Any], candidates: Iterable[str]
    ) -> None:
        self._members = members
        self._share = share
        self._fields = fields
        self._candidates = list(reversed(tuple(candidates)))
        self._asked: dict[str, Verdict] = {}
        self._verdict: Verdict | None = None
        self._running = False

    def go(self) -> None:
        """Ask who is left."""
        self._running = True
        while self._candidates:
            session_id = self._candidates[-1]
            session = self._members.sessions.get(session_id)
            if session is None or session.group != self._share.group:
                self._verdict = Verdict.CLOSED
            else:
                shard, entry_id = self._share.place
                self._members.sessions.offer(
                    session,
                    shard,
                    entry_id.encode(),
                    self._fields,
                    self._decided,
                    redelivered=self._share.redelivered,
                )
            if self._verdict is None:
                self._running = False
                return
            if self._is_over():
                return
        self._members.nobody(self._share, self._asked, self._fields)

    def _decided(self, verdict: Verdict) -> None:
        self._verdict = verdict
        if not self._running and not self._is_over():
            self.go()

    def _is_over(self) -> bool:
        """Take the verdict of the last one asked; True if the signal has its receiver."""
        verdict, self._verdict = self._verdict, None
        session_id = self._candidates.pop()
        if verdict is Verdict.DELIVERED:
            self._members.took(self._share, session_id)
            return True
        assert verdict is not None
        self._asked[session_id] = verdict
        return False


def _first(names: Iterable[str], count: int) -> list[str]:
    found: list[str] = []
    for name in names:
        if len(found) == count:
            break
        found.append(name)
    return found


def _entry(entry: Reply) -> tuple[list[Any], EntryMeta]:
    """Fields and facts of an entry as the store returns it."""
    assert isinstance(entry, list)
    fields = entry[1]
    assert isinstance(fields, list)
    named: dict[Any, Any] = dict(zip(fields[::2], fields[1::2], strict=True))
    return fields, EntryMeta.from_json(orjson.loads(named[b"m"]))
