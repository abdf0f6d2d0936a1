"""Where things are in the store, and what one line of the journal says.

The layout is shared by everything that touches the store: the gateway's adapters and the Spark
connector. It is part of the data format: a change needs a new ``FORMAT`` and a migration.

Keys (``prefix`` is ``ackgate`` unless set otherwise; ``{..}`` is a Redis Cluster hash tag):

=================================  ======================================================
``prefix:meta``                    hash: ``format``, ``shards`` (fixed when data is created)
``prefix:{s3}:twin:<thing id>``    string: tag, newline, meta JSON, newline, thing JSON
``prefix:{s3}:policy:<policy id>`` string: policy JSON
``prefix:{s3}:journal``            stream of entries, see below
``prefix:{labels}:owners``         hash: label -> ``<holder>/<session>`` (acks/declared.lua)
``prefix:{labels}:leases``         sorted set: holder -> expiry (ms since the epoch)
``prefix:acks:<node id>``          pub/sub channel: acknowledgements for requests of that node
=================================  ======================================================

A journal entry has three fields: ``m`` (meta, a JSON object with the keys of :class:`EntryMeta`),
``h`` (external headers, a JSON object) and ``v`` (the new value, JSON text; absent for deletions).

An ack channel's message is a JSON array of records
``[correlation-id, label, thing id, status, headers or null, payload]``; a record of five
elements has no payload.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from zlib import crc32

FORMAT = 1
DEFAULT_PREFIX = "ackgate"
DEFAULT_SHARDS = 8


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


def owners_key(prefix: str) -> str:
    """Key of the hash label -> owner."""
    return f"{prefix}:{{labels}}:owners"


def leases_key(prefix: str) -> str:
    """Key of the sorted set holder -> lease expiry in ms since the epoch."""
    return f"{prefix}:{{labels}}:leases"


def ack_channel(prefix: str, node_id: str) -> str:
    """Pub/sub channel on which node ``node_id`` hears acknowledgements for its requests."""
    return f"{prefix}:acks:{node_id}"


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
    """

    thing_id: str  # [id]
    action: str  # [a] created | modified | merged | deleted
    path: str  # [p] JSON pointer, "/" for the whole thing
    revision: int  # [r]
    timestamp: str  # [t] ISO-8601 instant
    correlation_id: str  # [c]
    requested_acks: tuple[str, ...]  # [q]
    origin: str  # [o] node that waits for the acks
    deadline: int  # [d]
    readers: tuple[str, ...]  # [s]

    def to_json(self) -> dict[str, Any]:
        """The JSON object stored in field ``m``."""
        return meta_json(*self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> EntryMeta:
        """Read field ``m`` back. Raises KeyError if a fact is missing."""
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
        )
