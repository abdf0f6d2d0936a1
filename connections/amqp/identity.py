"""Which message of AMQP 0.9.1 is which, when it comes again: the broker has no name for them.

A sender may have given a message id, but others may use the same one: a message is known by a
digest of what it says, and its id. Messages without an id that say the same are told apart by a
number, so that the failures of one are not counted against the other: they may go on to lose a
message that has hardly been tried.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Any

from aiormq.abc import DeliveredMessage

MAX_GIVEN_BACK = 10_000
"""Messages that were given back and are expected again; the oldest are forgotten."""
_NOTHING: Mapping[str, Any] = {}


class Identities:
    """The names of the messages that one client consumes."""

    def __init__(self, generation: int) -> None:
        self._generation = generation
        self._next = 0
        self._given_back: OrderedDict[str, deque[str]] = OrderedDict()
        self._count = 0

    def of(self, address: str, message: DeliveredMessage) -> str:
        """The name of a message that has just come from the queue ``address``."""
        digest = f"{address} {_digest(message)}"
        given = message.header.properties.message_id
        if given:
            return f"{digest} {given}"
        if not _came_before(message):
            self._next += 1
            return f"{digest} {self._generation}.{self._next}"
        names = self._given_back.get(digest)
        if names is None:
            return digest  # another client had it
        name = names.popleft()
        self._count -= 1
        if not names:
            del self._given_back[digest]
        return name

    def given_back(self, address: str, message_id: str | None, name: str) -> None:
        """The message ``name`` will come again."""
        if message_id:
            return
        # Queue names may have spaces, digests have none.
        digest = name[: len(address) + 1 + _DIGITS]
        self._given_back.setdefault(digest, deque()).append(name)
        self._count += 1
        if self._count > MAX_GIVEN_BACK:
            _, forgotten = self._given_back.popitem(last=False)
            self._count -= len(forgotten)


_SIZE = 16
_DIGITS = 2 * _SIZE


def _digest(message: DeliveredMessage) -> str:
    properties = message.header.properties
    headers = properties.headers or _NOTHING
    # What begins with x- is the broker's own and may change.
    own = sorted((name, str(value)) for name, value in headers.items() if name[:2] != "x-")
    facts = (message.exchange, message.routing_key, properties.correlation_id, own)
    digest = hashlib.blake2b(repr((*facts, properties.timestamp)).encode(), digest_size=_SIZE)
    digest.update(message.body)
    return digest.hexdigest()


def _came_before(message: DeliveredMessage) -> bool:
    return bool(getattr(message.delivery, "redelivered", False))


def redeliveries(message: DeliveredMessage) -> int | None:
    """How often a message was delivered before. Only quorum queues count; others know whether."""
    headers = message.header.properties.headers or _NOTHING
    counted = headers.get("x-delivery-count")
    if isinstance(counted, int):
        return counted
    return None if _came_before(message) else 0
