"""Policies in the store: read, compiled, cached; changed by one script that tells every process.

A compiled policy is kept until somebody changes it. Who changes one publishes its id in the same
step; every process listens, forgets the policy, and counts up :attr:`PolicyStore.generation`, by
which whoever holds a policy on his own sees that he has to look again. A policy that was being
read at that moment is read once more.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

import orjson
import structlog

from acks.announcements import due_at, reschedule
from acks.errors import GatewayError, error
from acks.journal import (
    POLICY,
    EntryMeta,
    due_key,
    journal_key,
    policy_channel,
    policy_key,
    shard_of,
)
from acks.policy import Policy
from acks.policy_document import is_tombstone, revision, shown, tombstone
from acks.resources import ABSENT
from acks.signals import JsonObject
from app.store.instant import instant, now_ms
from app.store.redis_client import Redis, Reply, StoreError, StoreUnavailable

log = structlog.get_logger(__name__)

CACHED = 10_000
TOMBSTONE_MS = 30 * 24 * 3_600_000
"""How long the revision of something deleted is remembered, so that a new one goes on from it, ms.

Of a policy also who could change it: only they may make it again.
"""
OnPolicy = Callable[[Policy | GatewayError | None], None]
Entry = tuple[bytes, bytes, bytes]
"""A new journal entry: its fields m, h and v."""


class StoredPolicy(NamedTuple):
    """A policy as it is in the store: its text, what that says, and what follows from it."""

    text: bytes
    document: JsonObject
    policy: Policy

    @property
    def deleted(self) -> bool:
        """Whether it is only what is left of a deleted policy."""
        return is_tombstone(self.document)


class PolicyStore:
    """Reads policies by id and changes them; what was read here is kept, least recent out.

    ``generation`` counts the changes heard of; ``listening`` is False while none can be heard.
    ``on_due`` is called when something was written that is due at once. About ``journal_entries``
    stay in a shard's journal, into which every change goes.
    """

    def __init__(
        self, redis: Redis, prefix: str, shards: int, *, journal_entries: int = 100_000
    ) -> None:
        self.generation = 0
        self.listening = True
        self.on_due: Callable[[], None] | None = None
        self._redis = redis
        self._prefix = prefix
        self._shards = shards
        self._keep = journal_entries
        self._cache: OrderedDict[str, Policy] = OrderedDict()
        self._compiled: OrderedDict[bytes, Policy] = OrderedDict()
        self._changes: OrderedDict[str, int] = OrderedDict()  # policy id -> its last generation
        self._floor = 0  # everything else may have changed up to here
        self._expiries: dict[str, asyncio.TimerHandle] = {}
        script = files("app.store").joinpath("policy.lua").read_text(encoding="utf-8")
        self._script = redis.register(script)

    def key(self, policy_id: str) -> str:
        """Key of the policy's document."""
        return policy_key(self._prefix, shard_of(policy_id, self._shards), policy_id)

    # --- what is known here

    def cached(self, policy_id: str) -> Policy | None:
        """The compiled policy if it is at hand."""
        policy = self._cache.get(policy_id)
        if policy is not None:
            self._cache.move_to_end(policy_id)
        return policy

    def compile(self, document: JsonObject) -> Policy:
        """The compiled policy; one object for all documents with the same entries.

        Most things have their implicit policy, and most of those say the same. Raises
        ``policies:entry.invalid``.
        """
        key = orjson.dumps(document.get("entries"))
        policy = self._compiled.get(key)
        if policy is None:
            policy = Policy(document, time.time_ns() // 1_000_000)
            if policy.expires is None:
                self._compiled[key] = policy
                if len(self._compiled) > CACHED:
                    self._compiled.popitem(last=False)
        return policy

    def remember(self, policy_id: str, policy: Policy, since: int) -> None:
        """Keep a policy that was stored at generation ``since``, unless it has changed then."""
        if self._has_changed(policy_id, since):
            return
        if policy.expires is not None:
            self._expire_later(policy_id, policy.expires)
        if not self.listening:
            return
        self._cache[policy_id] = policy
        if len(self._cache) > CACHED:
            oldest, _ = self._cache.popitem(last=False)
            if oldest in self._expiries:
                self.changed(oldest)

    def changed(self, policy_id: str) -> None:
        """Forget a policy, for it is another one now."""
        self.generation += 1
        self._changes[policy_id] = self.generation
        self._changes.move_to_end(policy_id)
        if len(self._changes) > CACHED:
            _, self._floor = self._changes.popitem(last=False)
        self._cache.pop(policy_id, None)
        expiry = self._expiries.pop(policy_id, None)
        if expiry is not None:
            expiry.cancel()

    def all_changed(self) -> None:
        """Forget every policy: changes may have been missed."""
        self.generation += 1
        self._floor = self.generation
        self._changes.clear()
        self._cache.clear()
        for expiry in self._expiries.values():
            expiry.cancel()
        self._expiries.clear()

    def _has_changed(self, policy_id: str, since: int) -> bool:
        return self._changes.get(policy_id, self._floor) > since

    def _expire_later(self, policy_id: str, expires: int) -> None:
        """Look at the policy again when the first of its subjects loses its rights."""
        before = self._expiries.get(policy_id)
        if before is not None:
            before.cancel()
        seconds = max(0.0, expires / 1000 - time.time())
        loop = asyncio.get_running_loop()
        self._expiries[policy_id] = loop.call_later(seconds, self.changed, policy_id)

    # --- reading

    def load(self, policy_id: str, on_policy: OnPolicy) -> None:
        """Read a policy; ``on_policy`` gets it, None if there is none, or a 503."""
        policy = self.cached(policy_id)
        if policy is not None:
            on_policy(policy)
            return
        since = self.generation

        def replied(reply: Reply | Exception) -> None:
            if self._has_changed(policy_id, since):
                self.load(policy_id, on_policy)
            elif isinstance(reply, bytes):
                try:
                    stored = self._read(policy_id, reply)
                except GatewayError as problem:
                    on_policy(problem)
                    return
                if stored.deleted:
                    on_policy(None)
                    return
                self.remember(policy_id, stored.policy, since)
                on_policy(stored.policy)
            elif reply is None:
                on_policy(None)
            else:
                on_policy(
                    error("gateway:service.unavailable", reason="The store cannot be reached.")
                )

        self._redis.send(("GET", self.key(policy_id)), replied)

    async def get(self, policy_id: str) -> StoredPolicy | None:
        """Read a policy as it is now, None if there is none.

        Raises ``policies:policy.unavailable``, and ``gateway:service.unavailable`` if it is broken.
        """
        stored = await self.find(policy_id)
        return None if stored is None or stored.deleted else stored

    async def find(self, policy_id: str) -> StoredPolicy | None:
        """Read a policy or what is left of it, None if there is nothing; raises as :meth:`get`."""
        try:
            reply = await self._redis.call("GET", self.key(policy_id))
        except (StoreUnavailable, StoreError) as problem:
            raise _unavailable(policy_id, problem) from problem
        return self._read(policy_id, reply) if isinstance(reply, bytes) else None

    def find_later(
        self, policy_id: str, on_found: Callable[[StoredPolicy | GatewayError | None], None]
    ) -> None:
        """:meth:`find` without waiting: ``on_found`` gets what it returns or raises."""

        def replied(reply: Reply | Exception) -> None:
            found: StoredPolicy | GatewayError | None = None
            try:
                if isinstance(reply, bytes):
                    found = self._read(policy_id, reply)
                elif reply is not None:
                    found = _unavailable(policy_id, reply)
            except GatewayError as problem:
                found = problem
            on_found(found)

        self._redis.send(("GET", self.key(policy_id)), replied)

    async def readable(self, policy_id: str, subjects: tuple[str, ...]) -> JsonObject | None:
        """As much of a policy as the requester may read, None for nothing.

        Raises as :meth:`get`.
        """
        stored = await self.get(policy_id)
        if stored is None:
            return None
        seen: Any = stored.policy.view(subjects, "policy", (), shown(stored.document))
        return None if seen is ABSENT else {"policyId": policy_id, **seen}

    def _read(self, policy_id: str, text: bytes) -> StoredPolicy:
        try:
            document = orjson.loads(text)
            return StoredPolicy(text, document, self.compile(document))
        except (ValueError, GatewayError):
            log.exception("store.policy_unreadable", policy_id=policy_id)
            reason = "Its policy is broken."
            raise error("gateway:service.unavailable", reason=reason) from None

    # --- changing

    async def write(self, policy_id: str, before: bytes, document: JsonObject | None) -> bool:
        """Store a policy, None deletes it, if its text is still ``before`` (empty for none).

        A deleted one leaves a tombstone for :data:`TOMBSTONE_MS`, which :meth:`find` returns. What
        is due about its subjects is computed here and stored with it.
        Returns False if it is not. When this returns, this process knows of the change, and the
        others are about to. Raises ``policies:policy.unavailable``: it may be stored nevertheless.
        """
        keep_ms: int | str = ""
        known = orjson.loads(before) if before else None
        if document is None:
            assert known is not None
            document, keep_ms = tombstone(known), TOMBSTONE_MS
        document = scheduled(known, document)
        try:
            return await self._write(policy_id, before, document, keep_ms)
        finally:
            self.changed(policy_id)

    async def advance(
        self,
        policy_id: str,
        before: bytes,
        document: JsonObject | None,
        *,
        told: bool,
        entries: Sequence[Entry] = (),
    ) -> bool:
        """Store what has become of a policy by the course of time; as :meth:`write`.

        ``document`` has its watches; None: there is none, so nothing of it is due. ``told``: every
        process is to look at it again. ``entries`` go into its journal.
        """
        try:
            return await self._write(
                policy_id, before, document, "same", told=told, entries=entries
            )
        finally:
            if told:
                self.changed(policy_id)

    async def _write(
        self,
        policy_id: str,
        before: bytes,
        document: JsonObject | None,
        keep_ms: int | str,
        *,
        told: bool = True,
        entries: Sequence[Entry] = (),
    ) -> bool:
        due = None if document is None else due_at(document)
        if told and document is not None:
            entries = (_change(policy_id, document), *entries)
        arguments = (
            before,
            b"" if document is None else orjson.dumps(document),
            policy_channel(self._prefix) if told else "",
            policy_id,
            keep_ms,
            "" if due is None else due,
            self._keep,
            *(field for entry in entries for field in entry),
        )
        shard = shard_of(policy_id, self._shards)
        keys = (
            self.key(policy_id), due_key(self._prefix, shard), journal_key(self._prefix, shard),
        )  # fmt: skip
        try:
            done = await self._redis.call_script(self._script, keys, arguments)
        except (StoreUnavailable, StoreError) as problem:
            raise _unavailable(policy_id, problem) from problem
        if due is not None and due <= now_ms() and self.on_due is not None:
            self.on_due()
        return done == 1

    async def due(self, at_ms: int, limit: int) -> list[str]:
        """Policies that are due at ``at_ms`` (since the epoch), at most ``limit`` of each shard.

        Raises StoreUnavailable, StoreError.
        """
        pages = await asyncio.gather(
            *(
                self._redis.call(
                    "ZRANGEBYSCORE", due_key(self._prefix, shard), "-inf", at_ms,
                    "LIMIT", 0, limit,
                )
                for shard in range(self._shards)
            )
        )  # fmt: skip
        return [
            name.decode()
            for page in pages
            for name in (page if isinstance(page, list) else ())
            if isinstance(name, bytes)
        ]

    async def postpone(self, policy_id: str, until_ms: int) -> None:
        """Look at a policy that is due no earlier than ``until_ms``; it stays as it is.

        Raises StoreUnavailable, StoreError.
        """
        key = due_key(self._prefix, shard_of(policy_id, self._shards))
        await self._redis.call("ZADD", key, "XX", until_ms, policy_id)


def scheduled(before: JsonObject | None, document: JsonObject) -> JsonObject:
    """A policy that is about to be stored in the place of ``before``, with what is due about it."""
    return reschedule(before, document, now_ms(), random.random())  # noqa: S311 - no secret


def _change(policy_id: str, document: JsonObject) -> Entry:
    """The journal entry that says that a policy is ``document`` now."""
    deleted = is_tombstone(document)
    meta = EntryMeta(
        policy_id, "deleted" if deleted else "modified", "/", revision(document),
        instant(now_ms()), "", (), "", 0, (), POLICY,
    )  # fmt: skip
    return orjson.dumps(meta.to_json()), b"{}", b"null"


def _unavailable(policy_id: str, cause: Reply | Exception) -> GatewayError:
    if not isinstance(cause, StoreUnavailable):
        log.error("store.command_failed", policy_id=policy_id, error=str(cause))
    return error("policies:policy.unavailable", policy_id=policy_id)
