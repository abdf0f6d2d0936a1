"""Where things are in the store, and what one line of the journal says.

The layout is shared by everything that touches the store: the gateway's adapters and the Spark
connector. It is part of the data format: a change needs a new ``FORMAT`` and a migration.

Keys (``prefix`` is ``ackgate`` unless set otherwise; ``{..}`` is a Redis Cluster hash tag):

=================================  ======================================================
``prefix:meta``                    hash: ``format``, ``shards`` (fixed when data is created)
``prefix:{s3}:twin:<thing id>``    string: tag, newline, meta JSON, newline, thing JSON
``prefix:{s3}:policy:<policy id>`` string: policy JSON
``prefix:{s3}:journal``            stream of entries, see below
``prefix:{s3}:async:<id>``         hash: record of an accepted request by its correlation-id, in
                                   the shard of its thing (acks/accepted.lua); expires
``prefix:{labels}:owners``         hash: label -> ``<holder>/<session>`` (acks/declared.lua)
``prefix:{labels}:leases``         sorted set: holder -> expiry (ms since the epoch)
``prefix:acks:<node id>``          pub/sub channel: acknowledgements for requests of that node
``prefix:policies``                pub/sub channel: ids of policies that have been changed
``prefix:link:<node id>``          string, expires: JSON, where that node listens for links
=================================  ======================================================

A journal entry has three fields: ``m`` (meta, a JSON object with the keys of :class:`EntryMeta`),
``h`` (external headers, a JSON object) and ``v`` (the new value, JSON text; absent for deletions).
Live signals are entries too (meta with a kind): ``v`` is their payload, absent if they have none.

An ack channel's message, and a frame of a link, is a JSON array of records
``[correlation-id, label, thing id, status, headers or null, payload]``; a record of five
elements has no payload.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from zlib import crc32

EVENT, MESSAGE, COMMAND, LIVE_EVENT, ANNOUNCEMENT = (
    "",
    "message",
    "command",
    "event",
    "announcement",
)
"""Kinds of entries. Live signals and policy announcements travel through the journal too."""

FORMAT = 1
DEFAULT_PREFIX = "ackgate"
DEFAULT_SHARDS = 8
ASYNC = "async"
"""Origin of entries whose acks no node waits for: they go into the record of the request."""


def shard_of(entity_id: str, shards: int) -> int:
    """Return the shard (0 .. shards-1) of ``entity_id``. Stable for ever: data lies by it."""
    return crc32(entity_id.encode()) % shards


def meta_key(prefix: str) -> str:
    """Key of the hash that says how this data was laid out."""
    return f"{prefix}:meta"


def twin_key(prefix: str, shard: int, thing_id: str) -> str:
    """Key of a twin's record."""
    return f"{prefix}:{{s{shard}}}:twin:{thing_id}"


def policy_key(prefix: str, shard: int, policy_id: str) -> str:
    """Key of a policy document; ``shard`` is the shard of the policy id."""
    return f"{prefix}:{{s{shard}}}:policy:{policy_id}"


def journal_key(prefix: str, shard: int) -> str:
    """Key of the stream that holds one shard of the journal."""
    return f"{prefix}:{{s{shard}}}:journal"


def request_key(prefix: str, shard: int, correlation_id: str) -> str:
    """Key of the record of an accepted request; ``shard`` is the shard of its thing."""
    return f"{prefix}:{{s{shard}}}:async:{correlation_id}"


def owners_key(prefix: str) -> str:
    """Key of the hash label -> owner."""
    return f"{prefix}:{{labels}}:owners"


def leases_key(prefix: str) -> str:
    """Key of the sorted set holder -> lease expiry in ms since the epoch."""
    return f"{prefix}:{{labels}}:leases"


def ack_channel(prefix: str, node_id: str) -> str:
    """Pub/sub channel on which node ``node_id`` hears acknowledgements for its requests."""
    return f"{prefix}:acks:{node_id}"


def policy_channel(prefix: str) -> str:
    """Pub/sub channel on which every node hears the ids of changed policies."""
    return f"{prefix}:policies"


def link_key(prefix: str, node_id: str) -> str:
    """Key of the JSON by which other nodes call node ``node_id`` without the store."""
    return f"{prefix}:link:{node_id}"


def meta_json(
    thing_id: str,
    action: str,
    path: str,
    revision: int,
    timestamp: str,
    correlation_id: str,
    requested_acks: tuple[str, ...],
    origin: str,
    deadline: int,
    readers: tuple[str, ...],
) -> dict[str, Any]:
    """The JSON object of field ``m``; for the meaning of each fact see :class:`EntryMeta`."""
    return {
        "id": thing_id,
        "a": action,
        "p": path,
        "r": revision,
        "t": timestamp,
        "c": correlation_id,
        "q": requested_acks,
        "o": origin,
        "d": deadline,
        "s": readers,
    }


class EntryMeta(NamedTuple):
    """The routing facts of one journal entry (field ``m``), JSON keys in brackets.

    ``deadline`` is the moment the request stops waiting, in ms since the epoch; 0 if nobody waits.
    ``requested_acks`` holds the custom labels the request asked for, in its order.
    ``readers`` are the subjects that may read the whole change.

    The facts after these belong to live signals; entries of events lack them. A live signal's
    ``action`` is the subject of the message or the command's action, its revision is 0; it is for
    those who have a subject among the ``readers`` and none among the ``revoked``. ``answered`` says
    whether a response of a subscriber is wanted, ``fields`` what a retrieve asks for.
    """

    thing_id: str  # [id]
    action: str  # [a] created | modified | merged | deleted
    path: str  # [p] JSON pointer, "/" for the whole thing
    revision: int  # [r]
    timestamp: str  # [t] ISO-8601 instant
    correlation_id: str  # [c]
    requested_acks: tuple[str, ...]  # [q]
    origin: str  # [o] node that waits for the acks, or ASYNC
    deadline: int  # [d]
    readers: tuple[str, ...]  # [s]
    kind: str = EVENT  # [k] EVENT | MESSAGE | COMMAND
    revoked: tuple[str, ...] = ()  # [x]
    answered: bool = False  # [w]
    fields: str = ""  # [f]
    session: str = ""  # [n] the session that caused the signal, and does not get it back

    def to_json(self) -> dict[str, Any]:
        """The JSON object stored in field ``m``."""
        meta = meta_json(*self[:10])
        if self.kind:
            meta.update(k=self.kind, x=self.revoked, w=self.answered, f=self.fields)
        if self.session:
            meta["n"] = self.session
        return meta

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> EntryMeta:
        """Read field ``m`` back. Raises KeyError if a fact is missing."""
        kind = data.get("k")
        live: tuple[Any, ...] = ()
        if len(data) > 10:
            live = (EVENT, (), False, "")
            if kind is not None:
                live = (kind, tuple(data["x"]), data["w"], data["f"])
            live += (data.get("n", ""),)
        return cls(
            data["id"],
            data["a"],
            data["p"],
            data["r"],
            data["t"],
            data["c"],
            tuple(data["q"]),
            data["o"],
            data["d"],
            tuple(data["s"]),
            *live,
        )
