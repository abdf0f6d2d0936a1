"""Policies from the store, compiled and cached."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import orjson
import structlog

from acks.errors import GatewayError, error
from acks.journal import policy_key, shard_of
from acks.policy import Policy
from acks.signals import JsonObject
from app.store.redis_client import Redis, Reply

log = structlog.get_logger(__name__)

CACHED = 10_000
OnPolicy = Callable[[Policy | GatewayError | None], None]


class PolicyStore:
    """Reads policies by id; a policy that was read or written here is kept, least recent out."""

    def __init__(self, redis: Redis, prefix: str, shards: int) -> None:
        self._redis = redis
        self._prefix = prefix
        self._shards = shards
        self._cache: OrderedDict[str, Policy] = OrderedDict()
        self._compiled: OrderedDict[bytes, Policy] = OrderedDict()

    def key(self, policy_id: str) -> str:
        """Key of the policy's document."""
        return policy_key(self._prefix, shard_of(policy_id, self._shards), policy_id)

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
            self._compiled[key] = policy = Policy(document)
            if len(self._compiled) > CACHED:
                self._compiled.popitem(last=False)
        return policy

    def remember(self, policy_id: str, policy: Policy) -> None:
        """Keep a policy that is known to be stored."""
        self._cache[policy_id] = policy
        if len(self._cache) > CACHED:
            self._cache.popitem(last=False)

    def load(self, policy_id: str, on_policy: OnPolicy) -> None:
        """Read a policy; ``on_policy`` gets it, None if there is none, or a 503."""
        policy = self.cached(policy_id)
        if policy is not None:
            on_policy(policy)
            return

        def replied(reply: Reply | Exception) -> None:
            if isinstance(reply, bytes):
                try:
                    loaded = self.compile(orjson.loads(reply))
                except (ValueError, GatewayError):
                    log.exception("store.policy_unreadable", policy_id=policy_id)
                    on_policy(error("gateway:service.unavailable", reason="Its policy is broken."))
                    return
                self.remember(policy_id, loaded)
                on_policy(loaded)
            elif reply is None:
                on_policy(None)
            else:
                on_policy(
                    error("gateway:service.unavailable", reason="The store cannot be reached.")
                )

        self._redis.send(("GET", self.key(policy_id)), replied)
