"""What a batch names, read from the store as it is now."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple

from acks.journal import policy_key, shard_of, twin_key
from app.search.batches import Batch
from app.search.reads import record, records
from app.store.redis_client import Redis
from app.store.sql.index_rows import policy_named
from app.store.sql.index_writer import Change, IndexWriter, PolicyChange

REMEMBERED = 10_000
"""Policies of a shard whose text in the index is remembered."""


class Found(NamedTuple):
    """The things of a batch, and the policies that the index needs for them."""

    changes: list[Change]
    policies: list[PolicyChange]


class Source:
    """Reads things and policies for shard ``number``, which is ours as long as this lives."""

    def __init__(
        self, redis: Redis, writer: IndexWriter, prefix: str, shards: int, number: int
    ) -> None:
        self._redis = redis
        self._writer = writer
        self._prefix = prefix
        self._shards = shards
        self._number = number
        self._written: OrderedDict[str, bytes] = OrderedDict()  # policy -> digest of its text

    async def read(self, batch: Batch) -> Found:
        """Read what a batch names; raises what store and index raise.

        Every thing is written as it is found, even over a newer revision: nobody else writes those
        of our shard, so that one is of a store that has lost it.
        """
        keys = [twin_key(self._prefix, self._number, name) for name in batch.things]
        found = await records(self._redis, keys)
        changes = [
            Change(name, text, force=True) for name, text in zip(batch.things, found, strict=True)
        ]
        # What a thing says now must not be found by rights that have been taken away before, nor
        # be hidden by those that were granted: its policy is that of now, whoever indexes it.
        named = {policy_named(change) for change in changes}
        named.update(batch.policies, batch.made, await self._writer.unknown_policies(changes))
        return Found(changes, await self._policies(named - {""}, batch))

    async def own(self, names: Iterable[str]) -> list[PolicyChange]:
        """Policies of our shard. Raises StoreUnavailable, StoreError."""
        keys = {name: policy_key(self._prefix, self._number, name) for name in names}
        found = await records(self._redis, list(keys.values()))
        return [PolicyChange(name, text, own=True) for name, text in zip(keys, found, strict=True)]

    def written(self, policies: Iterable[PolicyChange]) -> None:
        """Remember what is in the index by now."""
        for one in policies:
            self._written[one.policy_id] = _digest(one.record)
            self._written.move_to_end(one.policy_id)
        while len(self._written) > REMEMBERED:
            self._written.popitem(last=False)

    async def _policies(self, names: set[str], batch: Batch) -> list[PolicyChange]:
        """The policies among ``names`` that have to be written."""
        ordered = sorted(names)
        shards = [shard_of(name, self._shards) for name in ordered]
        keys = [policy_key(self._prefix, *place) for place in zip(shards, ordered, strict=True)]
        texts = await asyncio.gather(*(record(self._redis, key) for key in keys))
        return [
            PolicyChange(name, text, own=shard == self._number)
            for name, shard, text in zip(ordered, shards, texts, strict=True)
            if self._written.get(name) != _digest(text)
            # A thing that was made need not have made a policy.
            and (text is not None or name not in batch.made)
        ]


def _digest(text: bytes | None) -> bytes:
    return b"" if text is None else blake2b(text, digest_size=16).digest()
