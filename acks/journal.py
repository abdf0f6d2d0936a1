"""Where things are in the store, and what one line of the journal says.

The layout is shared by everything that touches the store: the gateway's adapters and the Spark
connector. It is part of the data format: a change needs a new ``FORMAT`` and a migration.

Keys (``prefix`` is ``ackgate`` unless set otherwise; ``{..}`` is a Redis Cluster hash tag):

=================================  ======================================================
``prefix:meta``                    hash: ``format``, ``shards`` (fixed when data is created), ``id``
                                   (of this data, app/store/layout.py)
``prefix:{s3}:twin:<thing id>``    string: tag, newline, meta JSON, newline, thing JSON
``prefix:{s3}:policy:<policy id>`` string: policy JSON
``prefix:{s3}:due``                sorted set: policy id -> when a subject of it expires or is to be
                                   announced (ms since the epoch), acks/announcements.py
``prefix:{s3}:journal``            stream of entries, see below
``prefix:{s3}:async:<id>``         hash: record of an accepted request by its correlation-id, in
                                   the shard of its thing (acks/accepted.lua); expires
``prefix:{labels}:owners``         hash: label -> ``<holder>/<session>`` or ``/<group>``; this and
                                   the keys beside it are acks/declared.lua's
``prefix:{labels}:leases``         sorted set: holder -> expiry (ms since the epoch)
``prefix:{labels}:version``        string, and pub/sub channel: changes with every change of a group
``prefix:acks:<node id>``          pub/sub channel: acknowledgements for requests of that node
``prefix:policies``                pub/sub channel: ids of policies that have been changed
``prefix:link:<node id>``          string, expires: JSON, where that node listens for links
``prefix:outcomes``                stream, trimmed: what became of requested acks (acks/outcomes.py)
``prefix:{report}:windows``        sorted set, expires: windows of the ack report, by their start
``prefix:{report}:<window>``       hash, expires: label -> JSON, the report of one window
``prefix:{connections}:*``         documents, revisions, commands, leases and reports of connections
                                   (app/store/connections.py)
=================================  ======================================================

A journal entry has three fields: ``m`` (meta, a JSON object with the keys of :class:`EntryMeta`),
``h`` (external headers, a JSON object) and ``v`` (the new value, JSON text; absent for deletions).
Live signals are entries too (meta with a kind): ``v`` is their payload, absent if they have none.
Changes of policies are entries as well: ``h`` is ``{}`` and ``v`` is ``null``.

An ack channel's message, and a frame of a link, is a JSON array of records
``[correlation-id, label, thing id, status, headers or null, payload]``; a record of five
elements has no payload.

An entry of the stream of outcomes has one field ``o``: a JSON array of records.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple
from zlib import crc32

Rules = tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...]
"""READ rules on things: subjects that have the same ones, pointers granted, pointers revoked."""

EVENT, MESSAGE, COMMAND, LIVE_EVENT, ANNOUNCEMENT, POLICY = (
    "",
    "message",
    "command",
    "event",
    "announcement",
    "policy",
)
"""Kinds of entries. Live signals and policy announcements travel through the journal too.

POLICY says that a policy has changed, for what is derived from things and policies together.
"""

FORMAT = 1
DEFAULT_PREFIX = "ackgate"
DEFAULT_SHARDS = 8
_NOBODY: Mapping[str, str] = MappingProxyType({})
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


def due_key(prefix: str, shard: int) -> str:
    """Key of the sorted set of a shard's policies that have to be looked at some time."""
    return f"{prefix}:{{s{shard}}}:due"


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


def groups_key(prefix: str) -> str:
    """Key of the hash label group -> its labels, sorted, with commas."""
    return f"{prefix}:{{labels}}:groups"


def group_channel(prefix: str) -> str:
    """Pub/sub channel on which every node hears that label groups have changed."""
    return f"{prefix}:{{labels}}:version"


def ack_channel(prefix: str, node_id: str) -> str:
    """Pub/sub channel on which node ``node_id`` hears acknowledgements for its requests."""
    return f"{prefix}:acks:{node_id}"


def policy_channel(prefix: str) -> str:
    """Pub/sub channel on which every node hears the ids of changed policies."""
    return f"{prefix}:policies"


def link_key(prefix: str, node_id: str) -> str:
    """Key of the JSON by which other nodes call node ``node_id`` without the store."""
    return f"{prefix}:link:{node_id}"


def outcomes_key(prefix: str) -> str:
    """Key of the stream of outcomes."""
    return f"{prefix}:outcomes"


def report_windows_key(prefix: str) -> str:
    """Key of the sorted set of the report's windows; score: start in ms since the epoch."""
    return f"{prefix}:{{report}}:windows"


def report_window_key(prefix: str, window: str) -> str:
    """Key of the hash with one window's rows; ``window`` is a member of the sorted set."""
    return f"{prefix}:{{report}}:{window}"


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
    ``readers`` are the subjects that may read the change or a part of the thing. If it is not all
    of the change or nothing for each of them, ``rules`` say what (acks/audience.py).

    ``kind`` to ``fields`` belong to live signals; entries of events lack them. A live signal's
    ``action`` is the subject of the message or the command's action, its revision is 0; it is for
    those who have a subject among the ``readers`` and none among the ``revoked``. ``answered`` says
    whether a response of a subscriber is wanted, ``fields`` what a retrieve asks for.

    ``assigned`` names, by label group, the member ``<node>/<session>`` that gets the signal for its
    group. If the origin is ASYNC, it has the node that chose, under "".

    There may be one more fact, [i], which the indexer alone reads (acks/search_acks.py).

    An announcement of a policy has that policy's id in place of the thing's, the announcement's
    name as its ``action``, and the subjects that it is about as its ``readers``. A change of a
    policy has its id, too, and its revision, and no readers: no subscriber gets it.
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
    kind: str = EVENT  # [k] EVENT | MESSAGE | COMMAND | LIVE_EVENT | ANNOUNCEMENT | POLICY
    revoked: tuple[str, ...] = ()  # [x]
    answered: bool = False  # [w]
    fields: str = ""  # [f]
    session: str = ""  # [n] the session that caused the signal, and does not get it back
    rules: Rules = ()  # [v]
    assigned: Mapping[str, str] = _NOBODY  # [g] group -> member that alone gets it

    def to_json(self) -> dict[str, Any]:
        """The JSON object stored in field ``m``."""
        meta = meta_json(*self[:10])
        if self.kind:
            meta.update(k=self.kind, x=self.revoked, w=self.answered, f=self.fields)
        if self.session:
            meta["n"] = self.session
        if self.rules:
            meta["v"] = self.rules
        if self.assigned:
            meta["g"] = dict(self.assigned)
        return meta

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> EntryMeta:
        """Read field ``m`` back. Raises KeyError if a fact is missing."""
        rest: tuple[Any, ...] = ()
        if len(data) > 10:
            rest = (
                data.get("k", EVENT),
                tuple(data.get("x", ())),
                data.get("w", False),
                data.get("f", ""),
                data.get("n", ""),
                _frozen(data.get("v", ())),
                data.get("g", _NOBODY),
            )
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
            *rest,
        )


def _frozen(rules: Any) -> Rules:
    return tuple(
        (tuple(subjects), tuple(granted), tuple(revoked)) for subjects, granted, revoked in rules
    )
