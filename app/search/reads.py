"""Small reads of the store, for the index."""

from __future__ import annotations

from collections.abc import Sequence

from app.store.redis_client import Redis, Reply, StoreError


async def record(redis: Redis, key: str) -> bytes | None:
    """What a key holds. Raises StoreUnavailable, StoreError."""
    reply = await redis.call("GET", key)
    return reply if isinstance(reply, bytes) else None


async def records(redis: Redis, keys: Sequence[str]) -> list[bytes | None]:
    """What the keys hold. Raises StoreUnavailable, StoreError."""
    if not keys:
        return []
    reply = await redis.call("MGET", *keys)
    assert isinstance(reply, list)
    return [one if isinstance(one, bytes) else None for one in reply]


async def stream_facts(redis: Redis, key: str) -> dict[Reply, Reply]:
    """What the store says of a stream; nothing if there is none. Raises StoreUnavailable."""
    try:
        facts = await redis.call("XINFO", "STREAM", key)
    except StoreError:
        return {}
    assert isinstance(facts, list)
    return dict(zip(facts[::2], facts[1::2], strict=True))


async def last_entry(redis: Redis, key: str) -> bytes:
    """The id of the last entry of a stream, be it trimmed by now; ``0-0`` if there was none."""
    last = (await stream_facts(redis, key)).get(b"last-generated-id", b"0-0")
    assert isinstance(last, bytes)
    return last
