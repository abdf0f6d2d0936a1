"""Small reads of the store, for the index."""

from __future__ import annotations

from collections.abc import Sequence

from app.store.redis_client import Redis, Reply


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


async def last_entry(redis: Redis, key: str) -> bytes:
    """The id of the last entry of a stream, ``0-0`` if it is empty."""
    page = entries_of(await redis.call("XREVRANGE", key, "+", "-", "COUNT", 1))
    return page[0][0] if page else b"0-0"


def entries_of(page: Reply) -> list[tuple[bytes, list[Reply]]]:
    """The entries of a page of a stream: their ids and fields."""
    assert isinstance(page, list)
    found = []
    for entry in page:
        assert isinstance(entry, list)
        position, fields = entry
        assert isinstance(position, bytes)
        assert isinstance(fields, list)
        found.append((position, fields))
    return found
