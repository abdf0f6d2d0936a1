"""What the data in the store was made with; checked before anything is served (design: shards)."""

from __future__ import annotations

from uuid import uuid4

from acks.journal import FORMAT, meta_key
from app.store.redis_client import Redis, StoreError


class LayoutMismatch(Exception):
    """The store holds data of another layout, or is less durable than demanded."""


async def check_layout(redis: Redis, prefix: str, shards: int) -> None:
    """Write the layout into a fresh store, or compare it with the one that is there.

    Raises LayoutMismatch with what to do, StoreUnavailable, StoreError.
    """
    key = meta_key(prefix)
    for field, wanted in (("format", FORMAT), ("shards", shards)):
        await redis.call("HSETNX", key, field, wanted)
        found = await redis.call("HGET", key, field)
        if found != str(wanted).encode():
            shown = found.decode() if isinstance(found, bytes) else repr(found)
            raise LayoutMismatch(
                f"the data under prefix '{prefix}' was made with {field}={shown}, this gateway is "
                f"set to {field}={wanted}. The {field} cannot change once there is data: set it "
                f"back, or use another prefix or data directory."
            )


async def store_id(redis: Redis, prefix: str) -> str:
    """The name of this data, given to it when it is first asked for.

    What is derived from the data is kept elsewhere, and must not be taken for that of other data.
    Raises StoreUnavailable, StoreError.
    """
    key = meta_key(prefix)
    await redis.call("HSETNX", key, "id", uuid4().hex)
    found = await redis.call("HGET", key, "id")
    assert isinstance(found, bytes)
    return found.decode()


async def check_durability(redis: Redis, durability: str) -> str | None:
    """Whether the store is as durable as ``durability`` (fsync | everysec | none) demands.

    Returns a warning if the store does not tell. Raises LayoutMismatch if it is not.
    """
    if durability == "none":
        return None
    try:
        reply = await redis.call("CONFIG", "GET", "append*")
    except StoreError as problem:
        return f"the store does not show its configuration ({problem}); durability is unchecked"
    assert isinstance(reply, list)
    texts = [item.decode() for item in reply if isinstance(item, bytes)]
    config = dict(zip(texts[::2], texts[1::2], strict=True))
    enough = ("always",) if durability == "fsync" else ("always", "everysec")
    if config.get("appendonly") != "yes" or config.get("appendfsync") not in enough:
        raise LayoutMismatch(
            f"durability={durability} needs a store with 'appendonly yes' and 'appendfsync "
            f"{' or '.join(enough)}', but it has 'appendonly {config.get('appendonly')}' and "
            f"'appendfsync {config.get('appendfsync')}'. Change the store, or set "
            f"ACKGATE_DURABILITY to what you accept (everysec, none)."
        )
    return None
