"""The journal and twins as they are in the store, read by a client of its own."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import redis

from acks.journal import DEFAULT_SHARDS, journal_key, shard_of, twin_key


def revisions(url: str, prefix: str = "ackgate") -> dict[str, list[int]]:
    """Revisions by thing id, in the order of the journal's events."""
    found: dict[str, list[int]] = defaultdict(list)
    with redis.Redis.from_url(url) as client:
        for shard in range(DEFAULT_SHARDS):
            for _, fields in client.xrange(journal_key(prefix, shard)):
                meta: dict[str, Any] = json.loads(fields[b"m"])
                if "k" not in meta:  # live signals have no revision
                    found[meta["id"]].append(meta["r"])
    return found


def twin(url: str, thing_id: str, prefix: str = "ackgate") -> tuple[int, dict[str, Any]]:
    """A thing's revision and document, (0, {}) if it is not there."""
    key = twin_key(prefix, shard_of(thing_id, DEFAULT_SHARDS), thing_id)
    with redis.Redis.from_url(url) as client:
        record = client.get(key)
    if record is None:
        return 0, {}
    assert isinstance(record, bytes)
    _, meta, document = record.split(b"\n", 2)
    return json.loads(meta)["r"], json.loads(document)


def assert_gap_free(found: dict[str, list[int]]) -> None:
    """Every thing's revisions are 1, 2, 3 ... in the journal's order."""
    wrong = {
        thing_id: list_of
        for thing_id, list_of in found.items()
        if list_of != list(range(1, len(list_of) + 1))
    }
    assert wrong == {}
