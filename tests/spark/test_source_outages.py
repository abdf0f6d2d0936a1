"""What goes wrong while a query reads: workers die, the store goes away, entries are trimmed."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from acks.journal import shard_of
from connections.spark.options import read_options
from connections.spark.pages import DataLossError, Journal
from connections.spark.source import FEW
from connections.spark.tables import open_table
from tests.servers import RedisServer, redis_server, wait_for_sync
from tests.spark.conftest import DEADLINE, SHARDS, Query, Seen, Store

MANY = FEW + 500
"""More than readOn=auto reads on the driver."""


def connected(port: int) -> set[int]:
    """Processes, other than this one, with a connection to a TCP port of this machine."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {f"socket:[{line[9]}]" for line in lines if line[2].endswith(f":{port:04X}")}
    found: set[int] = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            links = {os.readlink(file) for file in (process / "fd").iterdir()}
        except OSError:
            continue
        if links & inodes:
            found.add(int(process.name))
    return found - {os.getpid()}


class Gate:
    """A batch function that waits before it reads a batch with events."""

    def __init__(self) -> None:
        self.seen = Seen()
        self.entered, self.allowed = threading.Event(), threading.Event()

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        if batch_id > 0:  # the first one is empty
            self.entered.set()
            assert self.allowed.wait(DEADLINE)
        self.seen(df, batch_id)


def test_a_worker_that_is_killed_in_a_batch_leaves_it_to_the_next_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    gate, second = Gate(), Seen()
    with redis_server(tcp=True) as own:
        store = Store(own.url, "p")
        options = {"redisUrl": own.tcp_url}
        with Query(spark, store, tmp_path / "c", gate, **options) as query:
            query.wait_started(gate.seen)
            source = connected(own.port)
            expected = store.at_once(MANY)
            query.wait(gate.entered.is_set)
            own.pause()
            gate.allowed.set()
            wait_for_sync(lambda: connected(own.port) - source, DEADLINE, "a worker that reads")
            for pid in connected(own.port) - source:
                os.kill(pid, signal.SIGKILL)
            own.resume()
            query.wait_error()
        assert gate.seen.rows == []
        with Query(spark, store, tmp_path / "c", second, **options) as query:
            query.wait(lambda: len(second.rows) >= MANY)
        store.redis.close()
    assert sorted(second.ids) == sorted(expected)


def refuse_one(own: RedisServer) -> None:
    """Stand in for a stopped store until somebody has called, in vain."""
    with socket.create_server(("127.0.0.1", own.port)) as door:
        door.settimeout(DEADLINE)
        door.accept()[0].close()


def test_a_store_that_restarts_while_executors_read_is_waited_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    gate = Gate()
    with redis_server(tcp=True) as own:
        store = Store(own.url, "p")
        with Query(spark, store, tmp_path / "c", gate, redisUrl=own.tcp_url) as query:
            query.wait_started(gate.seen)
            expected = store.at_once(MANY)
            query.wait(gate.entered.is_set)
            own.stop()
            gate.allowed.set()
            refuse_one(own)
            own.start()
            query.wait(lambda: len(gate.seen.rows) >= MANY)
        store.redis.close()
    assert sorted(gate.seen.ids) == sorted(expected)


def test_a_batch_read_waits_for_a_store_that_restarts(spark: SparkSession) -> None:
    with redis_server(tcp=True) as own:
        store = Store(own.url, "p")
        expected = store.at_once(MANY)
        reader = spark.read.format("ackgate").option("redisUrl", own.tcp_url).option("prefix", "p")
        table = reader.load()
        # Spark plans it, asks the store, and keeps the plan.
        assert table.rdd.getNumPartitions() == 1
        own.stop()
        found: list[str] = []
        reading = threading.Thread(
            target=lambda: found.extend(row.correlation_id for row in table.collect())
        )
        reading.start()
        refuse_one(own)
        own.start()
        reading.join(DEADLINE)
        store.redis.close()
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("read_on", ["driver", "executors"])
def test_patience_has_an_end(spark: SparkSession, tmp_path: Path, read_on: str) -> None:
    seen = Seen()
    with redis_server() as own:
        store = Store(own.url, "p")
        options = {"storeTimeout": "1", "readOn": read_on}
        with Query(spark, store, tmp_path / "c", seen, **options) as query:
            query.wait_started(seen)
            own.stop()
            text = query.wait_error()
        store.redis.close()
    assert "redis.exceptions.ConnectionError" in text


# --- trimmed while it is read


def stopped_between_pages(store: Store, trim: Callable[[str], None], **options: str) -> list[int]:
    """Read one shard, trim it after the first page; the lengths of the pages."""
    for number in range(2500):
        store.event("org.acme:lamp", number)
    shard = str(shard_of("org.acme:lamp", SHARDS))
    read = read_options({"redisUrl": store.url, "prefix": store.prefix, **options})
    journal = Journal(read, open_table(read))
    lengths: list[int] = []
    for page in journal.between(shard, "0-0", journal.latest()[shard]):
        if not lengths:
            trim(store.journal(int(shard)))
        lengths.append(len(page))
    return lengths


def test_entries_that_are_trimmed_between_two_pages_are_a_loss(store: Store) -> None:
    with pytest.raises(DataLossError, match="failOnDataLoss"):
        stopped_between_pages(store, lambda key: _trim(store, key, 1000))
    assert stopped_between_pages(
        store, lambda key: _trim(store, key, 1000), failOnDataLoss="false"
    ) == [1000, 1000]


def test_entries_that_are_trimmed_behind_the_page_are_none(store: Store) -> None:
    assert stopped_between_pages(store, lambda key: _trim(store, key, 1501)) == [1000, 1000, 500]


def _trim(store: Store, key: str, left: int) -> None:
    store.redis.xtrim(key, maxlen=left, approximate=False)
