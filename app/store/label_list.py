"""What the store says about owned labels: who owns which, and which groups there are.

Read as acks/declared.lua lays it out; written only by that script.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from acks.journal import groups_key, leases_key, owners_key
from app.store.redis_client import Redis, Reply, Script, StoreError

_PAGE = 1000
_ATTEMPT = re.compile(r"~\d+$")


class Owned(NamedTuple):
    """One label and one of its owners; ``ms_left`` is what is left of the holder's lease."""

    label: str
    holder: str
    session: str
    ms_left: int
    group: str


class Groups(NamedTuple):
    """The holders with a lease (name -> ms left of it), and the groups at ``version``.

    ``groups`` is name -> (labels, members as ``<holder>/<session>``), of all holders; None if that
    is as it was at the version that was asked for.
    """

    version: str
    leases: dict[str, int]
    groups: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] | None


class LabelList:
    """Reads the owners and groups of the whole cluster with the registered ``script``."""

    def __init__(self, redis: Redis, prefix: str, script: Script) -> None:
        self._redis = redis
        self._keys = (owners_key(prefix), leases_key(prefix))
        self._groups = groups_key(prefix)
        self._script = script

    async def owners(self, labels: Sequence[str] = (), limit: int = 1_000_000) -> list[Owned]:
        """The owners of these labels, or of all; at most ``limit`` rows, in no order.

        Read page by page, so that no list, however long, holds up the store. Raises
        StoreUnavailable, StoreError.
        """
        groups = await self.groups("")
        rows: list[Owned] = []
        if labels:
            owners = await self._redis.call("HMGET", self._keys[0], *labels)
            assert isinstance(owners, list)
            for label, owner in zip(labels, owners, strict=True):
                rows.extend(() if owner is None else _rows(label, text(owner), groups))
            return rows[:limit]
        cursor = b"0"
        while True:
            page = await self._redis.call("HSCAN", self._keys[0], cursor, "COUNT", _PAGE)
            if not isinstance(page, list) or len(page) != 2 or not isinstance(page[1], list):
                raise StoreError("the store's page of labels is malformed")
            flat = page[1]
            for name, owner in zip(flat[::2], flat[1::2], strict=True):
                rows.extend(_rows(text(name), text(owner), groups))
            if page[0] == b"0" or len(rows) >= limit:
                return list(dict.fromkeys(rows))[:limit]  # a page may repeat what was on another
            assert isinstance(page[0], bytes)
            cursor = page[0]

    async def shared(self, group: str) -> tuple[str, ...]:
        """The labels of a group, none if there is no such group. Raises as :meth:`groups`."""
        found = await self._redis.call("HGET", self._groups, group)
        return tuple(text(found).split(",")) if found else ()

    async def groups(self, version: str) -> Groups:
        """The groups, unless they still are as they were at ``version``.

        Raises StoreUnavailable, StoreError.
        """
        reply = await self._redis.call_script(self._script, self._keys, ("groups", "", version))
        if not isinstance(reply, list) or not isinstance(reply[1], list):
            raise StoreError("the store's list of groups is malformed")
        leases = {
            text(name): int(text(left))
            for name, left in zip(reply[1][::2], reply[1][1::2], strict=True)
        }
        if len(reply) < 3:
            return Groups(text(reply[0]), leases, None)
        flat = reply[2]
        assert isinstance(flat, list)
        found: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
        for name, labels, members in zip(flat[::3], flat[1::3], flat[2::3], strict=True):
            assert isinstance(members, list)
            names = tuple(spoken(text(member)) for member in members)
            found[text(name)] = (tuple(text(labels).split(",")), names)
        return Groups(text(reply[0]), leases, found)


def spoken(owner: str) -> str:
    """``<holder>/<session>`` of an owner's name in the store, which also counts its claims."""
    return _ATTEMPT.sub("", owner)


def text(reply: Reply) -> str:
    """A reply as text."""
    return reply.decode() if isinstance(reply, bytes) else str(reply)


def _rows(label: str, owner: str, groups: Groups) -> list[Owned]:
    """A row for each owner of a label who has a lease."""
    group = owner[1:] if owner.startswith("/") else ""
    owners: tuple[str, ...] = (owner,)
    if group:
        owners = (groups.groups or {}).get(group, ((), ()))[1]
    rows = []
    for one in owners:
        holder, _, session = spoken(one).partition("/")
        left = groups.leases.get(holder, 0)
        if left > 0:
            rows.append(Owned(label, holder, session, left, group))
    return rows
