"""What the index has to do for entries of a journal's shard: gathered, cut into batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import orjson

from acks.bookmark import entry_id, read_position
from acks.journal import EVENT, POLICY
from acks.search_acks import Asked, asked_by
from app.store.redis_client import Reply

_LAST = 2**64 - 1
MAX_PENDING = 5_000
"""Things of a shard that may wait; what they are is read when it is their turn."""
MAX_THINGS = 200
"""Things and policies of a batch: all of them are read, and written in one transaction."""


class Entry(NamedTuple):
    """A journal entry, as far as it concerns the index: what it is about, who waits for it.

    ``created``: a whole thing was made, and its policy perhaps with it.
    """

    position: bytes
    thing_id: str
    policy_id: str
    created: bool
    asked: Asked | None


def read_entry(position: bytes, fields: list[Reply]) -> Entry | None:
    """What an entry has to say to the index, None for nothing.

    Raises KeyError or ValueError if it is none of ours.
    """
    text = fields[fields.index(b"m") + 1]
    assert isinstance(text, bytes)
    meta = orjson.loads(text)
    if not isinstance(meta, dict):
        raise ValueError("its facts are no JSON object")
    kind = meta.get("k", EVENT)
    if kind == EVENT:
        created = meta["a"] == "created" and meta["p"] == "/"
        return Entry(position, meta["id"], "", created, asked_by(meta))
    if kind == POLICY:
        return Entry(position, "", meta["id"], False, None)
    return None


@dataclass
class Batch:
    """What is done in one go: ``things`` and ``policies`` to look at, and who waits for that.

    When it is done, so is everything in the journal up to ``position``. ``oldest`` is the first
    entry that is about one of them, None if there is none. ``made`` are the things that have been
    created.
    """

    position: bytes
    oldest: bytes | None = None
    things: dict[str, None] = field(default_factory=dict)
    policies: dict[str, None] = field(default_factory=dict)
    made: set[str] = field(default_factory=set)
    asked: list[Asked] = field(default_factory=list)

    @property
    def full(self) -> bool:
        """Whether nothing more goes into it."""
        return len(self.things) + len(self.policies) >= MAX_THINGS


class _Thing:
    """What the entries say that wait for one thing; ``first`` is the oldest of them."""

    __slots__ = ("asked", "created", "first")

    def __init__(self, first: bytes) -> None:
        self.first = first
        self.created = False
        self.asked: list[Asked] = []


class Pending:
    """What waits in a shard, oldest first, and how far the journal has been read.

    Many changes of a thing take no more room, and no more work, than one.
    """

    def __init__(self, position: bytes) -> None:
        self.position = position
        self._things: dict[str, _Thing] = {}
        self._policies: dict[str, bytes] = {}
        self.waiting = 0  # entries that somebody waits for

    def __len__(self) -> int:
        return len(self._things) + len(self._policies)

    @property
    def full(self) -> bool:
        """Whether no more should be read for now."""
        return len(self) >= MAX_PENDING

    @property
    def due(self) -> bool:
        """Whether something has to be done at once: somebody waits, or it becomes too much."""
        return self.waiting > 0 or len(self) >= MAX_PENDING // 2

    @property
    def oldest(self) -> bytes | None:
        """The id of the first entry that waits."""
        thing = next(iter(self._things.values()), None)
        policy = next(iter(self._policies.values()), None)
        if thing is None or policy is None:
            return policy if thing is None else thing.first
        return min(thing.first, policy, key=read_position)

    def add(self, entry: Entry) -> None:
        """Take in what an entry says; they come in their order."""
        if entry.policy_id:
            self._policies.setdefault(entry.policy_id, entry.position)
            return
        thing = self._things.get(entry.thing_id)
        if thing is None:
            self._things[entry.thing_id] = thing = _Thing(entry.position)
        if entry.created:
            thing.created = True
        if entry.asked is not None:
            thing.asked.append(entry.asked)
            self.waiting += 1

    def fill(self, batch: Batch) -> None:
        """Move what waits longest into a batch, until it is full or nothing is left."""
        batch.oldest = batch.oldest or self.oldest
        while self._policies and not batch.full:
            name = next(iter(self._policies))
            del self._policies[name]
            batch.policies[name] = None
        while self._things and not batch.full:
            name = next(iter(self._things))
            thing = self._things.pop(name)
            batch.things[name] = None
            batch.asked += thing.asked
            self.waiting -= len(thing.asked)
            if thing.created:
                batch.made.add(name)
        left = self.oldest
        batch.position = self.position if left is None else before(left)


def before(position: bytes) -> bytes:
    """The last possible id of an entry before the one at ``position``."""
    ms, number = read_position(position)
    return entry_id((ms, number - 1) if number else (ms - 1, _LAST)).encode()


def after(position: bytes) -> bytes:
    """The first possible id of an entry after ``position``."""
    ms, number = read_position(position)
    return entry_id((ms, number + 1) if number < _LAST else (ms + 1, 0)).encode()
