"""Events one at a time, and how long until each one's ack: ``python -m benchmarks.event_load``.

Stands in for the gateway on the store's side: appends an entry to the journal and listens on the
ack channel, so that only the consumer differs between the systems. Its one argument is a
``Trickle`` as JSON; prints ``Meter.result``.
"""

from __future__ import annotations

import json
import random
import sys
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from redis import Redis
from redis.client import PubSub

from acks.journal import (
    DEFAULT_PREFIX,
    DEFAULT_SHARDS,
    FORMAT,
    EntryMeta,
    ack_channel,
    journal_key,
    meta_key,
    shard_of,
)
from benchmarks.bodies import thing
from benchmarks.meter import Meter

NODE = "bench-node"
FIRST_ACK_S, ACK_S = 60.0, 10.0
NO_ACK, GIVE_UP = "no ack", 2
PAUSE_S = (0.02, 0.10)
"""Between two events: low load, and no beat that the consumer could fall into."""


@dataclass(frozen=True)
class Trickle:
    """``warmup`` events that do not count, then ``events`` that do."""

    url: str
    label: str
    warmup: int
    events: int
    watch: dict[str, list[int]]

    def to_json(self) -> str:
        """The plan as the process's one argument."""
        return json.dumps(asdict(self))


def lay_out(url: str) -> None:
    """Write the data's format as the gateway does when it creates it."""
    redis = Redis.from_url(url)
    redis.hset(meta_key(DEFAULT_PREFIX), mapping={"format": FORMAT, "shards": DEFAULT_SHARDS})
    redis.close()


def append(redis: Redis, label: str, number: int, wait_s: float) -> str:
    """Append one event that asks for ``label``; returns its correlation-id."""
    now = datetime.now(UTC)
    thing_id, correlation_id = f"bench:thing-{number}", f"bench-{number}"
    meta = EntryMeta(
        thing_id=thing_id,
        action="created",
        path="/",
        revision=1,
        timestamp=now.isoformat().replace("+00:00", "Z"),
        correlation_id=correlation_id,
        requested_acks=(label,),
        origin=NODE,
        deadline=int((now.timestamp() + wait_s) * 1000),
        readers=("nginx:bench",),
    )
    redis.xadd(
        journal_key(DEFAULT_PREFIX, shard_of(thing_id, DEFAULT_SHARDS)),
        {"m": json.dumps(meta.to_json()), "h": "{}", "v": thing(number)},
    )
    return correlation_id


def run(plan: Trickle) -> dict[str, dict[str, float]]:
    """Append, wait for the ack, pause, again."""
    redis = Redis.from_url(plan.url)
    heard = PubSub(redis.connection_pool, ignore_subscribe_messages=True)
    heard.subscribe(ack_channel(DEFAULT_PREFIX, NODE))
    heard.get_message(timeout=5.0)
    pauses = random.Random(7)
    meter = Meter(plan.watch, ["200"])
    missing = 0
    for number in range(plan.warmup + plan.events):
        if number == plan.warmup:
            meter.start()
        if missing == GIVE_UP:
            break
        wait_s = FIRST_ACK_S if number == 0 else ACK_S
        begin = time.perf_counter_ns()
        correlation_id = append(redis, plan.label, number, wait_s)
        status = wait_for_ack(heard, correlation_id, wait_s)
        missing = missing + 1 if status == NO_ACK else 0
        if meter.open:
            meter.latencies.append(time.perf_counter_ns() - begin)
            meter.statuses[status] += 1
        time.sleep(pauses.uniform(*PAUSE_S))
    if not meter.open:
        raise SystemExit("event_load: no acks before the window began")
    meter.stop()
    return meter.result()


def wait_for_ack(heard: PubSub, correlation_id: str, within: float) -> str:
    """The ack's status as text, or ``no ack`` after ``within`` s."""
    deadline = time.monotonic() + within
    while (left := deadline - time.monotonic()) > 0:
        message = heard.get_message(timeout=left)
        if message is None or message["type"] != "message":
            continue
        for record in json.loads(message["data"]):
            if record[0] == correlation_id:
                return str(record[3])
    return NO_ACK


def main() -> None:
    """Entry point of the load process."""
    print(json.dumps(run(Trickle(**json.loads(sys.argv[1])))), flush=True)


if __name__ == "__main__":
    main()
