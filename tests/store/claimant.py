"""A process that claims labels when told to: ``python -m tests.store.claimant URL PREFIX N``.

It says on the list ``PREFIX:ready`` that it can begin and begins when it finds something on the
list ``PREFIX:go``. What its sessions have won goes to ``PREFIX:won`` as JSON; it keeps that until
it finds something on ``PREFIX:end``.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys

from app.store.labels import LabelRegistry
from app.store.redis_client import Redis, RedisAddress

SESSIONS = 150
WAIT = 60


async def main(url: str, prefix: str, number: int) -> None:
    """Claim for many sessions at once, some of them in groups."""
    redis, waiting = (
        Redis(RedisAddress.parse(url), name=f"c{number}", reply_timeout=90) for _ in "ab"
    )
    await redis.start()
    await waiting.start()
    labels = LabelRegistry(redis, prefix, f"h{number}")
    await labels.start()
    rng = random.Random(number)
    names = [f"label{n}" for n in range(60)]
    wants: dict[str, tuple[str, list[str]]] = {}
    for session in range(SESSIONS):
        group = rng.choice(["", "", "red", "blue"])
        wanted = rng.sample(names, rng.choice([1, 2, 3]))
        if group and rng.random() < 0.8:
            wanted = names[:2] if group == "red" else names[2:4]
        wants[f"s{session}"] = (group, wanted)
    await waiting.call("RPUSH", f"{prefix}:ready", number)
    await waiting.call("BLMOVE", f"{prefix}:go", f"{prefix}:gone", "LEFT", "LEFT", WAIT)
    limit = asyncio.Semaphore(8)  # else all claims of a process would go to the store as one write
    won: list[tuple[str, str, list[str]]] = []

    async def claim(session: str, group: str, wanted: list[str]) -> None:
        async with limit:
            if await labels.claim(session, wanted, group) is None:
                won.append((f"h{number}/{session}", group, wanted))

    await asyncio.gather(*(claim(session, *want) for session, want in wants.items()))
    await waiting.call("RPUSH", f"{prefix}:won", json.dumps(won))
    await waiting.call("BLMOVE", f"{prefix}:end", f"{prefix}:ended", "LEFT", "LEFT", WAIT)
    await labels.close()
    await redis.close()
    await waiting.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
