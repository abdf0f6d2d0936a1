"""A plain Python consumer of the journal: reads entries as they come, acknowledges each.

``python -m benchmarks.baselines.journal_consumer REDIS-URL LABEL``. The quickest an ack can come
from a Python process that reads the journal; prints ``ready``.
"""

from __future__ import annotations

import json
import sys
from typing import Any, cast

from redis import Redis

from acks.journal import DEFAULT_PREFIX, DEFAULT_SHARDS, EntryMeta, ack_channel, journal_key

BLOCK_MS = 5000


def ack_message(meta: EntryMeta, label: str) -> tuple[str, str]:
    """Channel and text of the ack for one entry (``acks/journal.py`` has the layout)."""
    record = [meta.correlation_id, label, meta.thing_id, 200, None]
    return ack_channel(DEFAULT_PREFIX, meta.origin), json.dumps([record])


def main() -> None:
    """Read all shards for ever; the starter ends this process."""
    url, label = sys.argv[1:3]
    redis = Redis.from_url(url)
    position: dict[Any, Any] = {
        journal_key(DEFAULT_PREFIX, shard).encode(): b"0" for shard in range(DEFAULT_SHARDS)
    }
    print("ready", flush=True)
    while True:
        reply = redis.xread(position, block=BLOCK_MS)
        for stream, entries in cast(list[tuple[bytes, list[Any]]], reply or []):
            for entry_id, fields in entries:
                position[stream] = entry_id
                meta = EntryMeta.from_json(json.loads(fields[b"m"]))
                if label in meta.requested_acks:
                    redis.publish(*ack_message(meta, label))


if __name__ == "__main__":
    main()
