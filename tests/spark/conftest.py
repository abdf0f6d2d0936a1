"""One SparkSession and one store for all tests here; every test has a prefix of its own."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self, cast

import pytest
import redis
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from acks.journal import (
    EVENT,
    EntryMeta,
    ack_channel,
    journal_key,
    leases_key,
    meta_key,
    owners_key,
)
from acks.journal import shard_of as shard_of_id
from connections.spark import spark_session
from tests.servers import RedisServer, redis_server, wait_for_sync

SHARDS = 4
DEADLINE = 30.0
_prefixes = (f"test{number}" for number in itertools.count())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def server() -> Iterator[RedisServer]:
    with redis_server(tcp=True, appendfsync="no") as running:
        yield running


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = spark_session("tests", local_dir=str(tmp_path_factory.mktemp("spark")))
    yield session
    session.stop()


class Store:
    """The part of the gateway that the connector sees: entries go in, acks come out."""

    def __init__(self, url: str, prefix: str, *, create: bool = True) -> None:
        self.url = url
        self.prefix = prefix
        self.redis = redis.Redis.from_url(url, protocol=2)
        self._revisions: dict[str, int] = {}
        if create:
            self.redis.hset(meta_key(prefix), mapping={"format": 1, "shards": SHARDS})

    def event(
        self,
        thing_id: str = "org.acme:lamp",
        value: object = None,
        *,
        labels: tuple[str, ...] = (),
        origin: str = "node1",
        action: str = "modified",
        path: str = "/attributes/on",
        headers: dict[str, object] | None = None,
        kind: str = EVENT,
        timestamp: str = "2026-02-03T04:05:06.789012Z",
        entry_id: str = "*",
        into: redis.Redis | None = None,
    ) -> str:
        """Append an entry, an event's unless ``kind`` says otherwise; its correlation-id."""
        revision = self._revisions[thing_id] = self._revisions.get(thing_id, 0) + 1
        correlation_id = f"{thing_id}-{revision}"
        meta = EntryMeta(
            thing_id=thing_id,
            action=action,
            path=path,
            revision=revision,
            timestamp=timestamp,
            correlation_id=correlation_id,
            requested_acks=labels,
            origin=origin,
            deadline=1_800_000_000_000,
            readers=("nginx:ditto",),
            kind=kind,
        )
        fields: dict[Any, Any] = {
            "m": json.dumps(meta.to_json()),
            "h": json.dumps(headers or {"correlation-id": correlation_id}),
        }
        if action != "deleted":
            fields["v"] = json.dumps(value)
        key = self.journal(shard_of_id(thing_id, SHARDS))
        (into or self.redis).xadd(key, fields, id=entry_id)
        return correlation_id

    def events(self, count: int, **more: Any) -> list[str]:
        """Append ``count`` entries to as many things; their correlation-ids."""
        return [self.event(f"org.acme:t{number}", number, **more) for number in range(count)]

    def at_once(self, count: int, **more: Any) -> list[str]:
        """As :meth:`events`; whoever reads sees all of them or none."""
        with self.redis.pipeline(transaction=True) as together:
            expected = self.events(count, into=together, **more)
            together.execute()
        return expected

    def last_id(self, shard: int) -> str:
        """Stream id of the youngest entry."""
        [(last, _)] = cast(list[Any], self.redis.xrevrange(self.journal(shard), count=1))
        return str(last, "ascii")

    def give_away(self, label: str, owner: str) -> None:
        """Make somebody else the owner at once, as when a lease has run out unnoticed."""
        with self.redis.pipeline() as change:
            change.delete(leases_key(self.prefix))
            change.hset(owners_key(self.prefix), label, owner)
            change.zadd(leases_key(self.prefix), {owner.split("/", maxsplit=1)[0]: 9e15})
            change.execute()

    def journal(self, shard: int) -> str:
        return journal_key(self.prefix, shard)

    def owner(self, label: str) -> str | None:
        """Who holds a lease on the label at this moment."""
        owner = self.redis.hget(owners_key(self.prefix), label)
        if not isinstance(owner, bytes):
            return None
        expiry = self.redis.zscore(leases_key(self.prefix), owner.decode().split("/")[0])
        alive = isinstance(expiry, float) and expiry > time.time() * 1000
        return owner.decode() if alive else None


@pytest.fixture
def store(server: RedisServer) -> Iterator[Store]:
    made = Store(server.url, next(_prefixes))
    yield made
    made.redis.close()


class Acks:
    """What arrives on the ack channel of a node, in order."""

    def __init__(self, store: Store, node: str = "node1") -> None:
        self.records: list[list[Any]] = []
        self._pubsub = store.redis.pubsub()  # type: ignore[no-untyped-call]  # not annotated
        self._pubsub.subscribe(ack_channel(store.prefix, node))
        # The confirmation: from here on nothing is missed.
        assert self._pubsub.get_message(timeout=DEADLINE) is not None

    def receive(self) -> int:
        """Take in what is there; how many records there are in all."""
        while message := self._pubsub.get_message(timeout=0.01):
            assert message["type"] == "message"
            self.records.extend(json.loads(message["data"]))
        return len(self.records)

    def wait(self, count: int) -> list[list[Any]]:
        """Wait until ``count`` records are there."""
        wait_for_sync(lambda: self.receive() >= count, DEADLINE, f"{count} acks: {self.records}")
        return self.records

    def close(self) -> None:
        self._pubsub.close()


@pytest.fixture
def acks(store: Store) -> Iterator[Acks]:
    listening = Acks(store)
    yield listening
    listening.close()


class Seen:
    """A batch function that keeps the rows of every batch."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Row]] = {}
        self.fail_at: int | None = None

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        rows = df.collect()
        if rows and self.fail_at is not None and len(self.rows) >= self.fail_at:
            raise RuntimeError("asked to fail")
        self.batches[batch_id] = rows

    @property
    def rows(self) -> list[Row]:
        return [row for batch in sorted(self.batches) for row in self.batches[batch]]

    @property
    def ids(self) -> list[str]:
        return [row.correlation_id for row in self.rows]


class Query:
    """A running query; stopped at the end of the ``with`` block."""

    def __init__(
        self,
        spark: SparkSession,
        store: Store,
        checkpoint: Path,
        function: Callable[[DataFrame, int], None],
        **options: str,
    ) -> None:
        trigger = options.pop("trigger", "") or "0 seconds"
        reader = spark.readStream.format("ackgate")
        for name, value in {"redisUrl": store.url, "prefix": store.prefix, **options}.items():
            reader = reader.option(name, value)
        writer = reader.load().writeStream.foreachBatch(function)
        writer = writer.option("checkpointLocation", str(checkpoint))
        if trigger == "availableNow":
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=trigger)
        self.query: StreamingQuery = writer.start()

    def wait(self, condition: Callable[[], object], what: str = "") -> None:
        """Wait for a condition; the query's error ends the wait."""

        def look() -> object:
            if condition():
                return True
            if (error := self.query.exception()) is not None:
                raise error
            return False

        wait_for_sync(look, DEADLINE, what)

    def wait_started(self, seen: Seen) -> None:
        """Wait for the first, empty batch: from here on every event is seen."""
        self.wait(lambda: seen.batches, "first batch")

    def wait_error(self) -> str:
        """Wait until the query fails; the error's text."""
        wait_for_sync(lambda: not self.query.isActive, DEADLINE, "end of the query")
        return str(self.query.exception())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.query.stop()
