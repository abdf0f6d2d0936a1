"""The data source: rows, offsets, restarts, limits, lost data, options."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from acks.journal import COMMAND, MESSAGE, meta_key, shard_of
from connections.spark.options import read_options
from connections.spark.pages import Journal, Offset, position
from connections.spark.rows import SCHEMA
from connections.spark.store import StoreError, shard_count
from connections.spark.tables import open_table
from tests.servers import RedisServer, redis_server
from tests.spark.conftest import SHARDS, Query, Seen, Store

all_ways = pytest.mark.parametrize("read_on", ["auto", "driver", "executors"])


def read(spark: SparkSession, store: Store, **options: str) -> DataFrame:
    reader = spark.read.format("ackgate").option("redisUrl", store.url)
    return reader.options(prefix=store.prefix, **options).load()


def journal(store: Store, **options: str) -> Journal:
    read = read_options({"redisUrl": store.url, "prefix": store.prefix, **options})
    return Journal(read, open_table(read))


def check_row(row: Row, store: Store) -> None:
    shard = shard_of("org.acme:lamp", SHARDS)
    # Spark gives timestamps in the session's time zone, without saying so.
    stamp = datetime(2026, 2, 3, 4, 5, 6, 789012, tzinfo=UTC).astimezone().replace(tzinfo=None)
    assert row.asDict() == {
        "thing_id": "org.acme:lamp",
        "namespace": "org.acme",
        "topic": "org.acme/lamp/things/twin/events/modified",
        "action": "modified",
        "path": "/attributes/on",
        "value": '{"a": [1, "\\u00e9"]}',
        "revision": 1,
        "timestamp": stamp,
        "headers": {"x": "text", "flag": "true", "list": '["a"]'},
        "requested_acks": ["a:b", "c:d"],
        "correlation_id": "org.acme:lamp-1",
        "origin": "node1",
        "deadline": 1_800_000_000_000,
        "bookmark": f"{shard}:{store.last_id(shard)}",
        "shard": shard,
    }


def one_event(store: Store) -> None:
    store.event(
        value={"a": [1, "é"]},
        labels=("a:b", "c:d"),
        headers={"x": "text", "flag": True, "list": ["a"]},
    )


def test_a_batch_read_gives_typed_and_complete_rows(spark: SparkSession, store: Store) -> None:
    one_event(store)
    table = read(spark, store)
    assert table.schema == SCHEMA
    [row] = table.collect()
    check_row(row, store)


@all_ways
def test_a_stream_starts_at_latest_with_typed_and_complete_rows(
    spark: SparkSession, store: Store, tmp_path: Path, read_on: str
) -> None:
    seen = Seen()
    store.event("org.acme:before")
    with Query(spark, store, tmp_path / "c", seen, readOn=read_on) as query:
        query.wait_started(seen)
        one_event(store)
        query.wait(lambda: seen.rows)
    [row] = seen.rows
    check_row(row, store)


def test_a_deletion_has_no_value(spark: SparkSession, store: Store) -> None:
    store.event(action="deleted", path="/")
    [row] = read(spark, store).collect()
    assert (row.action, row.value) == ("deleted", None)


@all_ways
def test_messages_and_live_commands_are_no_events(
    spark: SparkSession, store: Store, tmp_path: Path, read_on: str
) -> None:
    events = []
    for number in range(6):
        events.append(store.event(f"org.acme:t{number % 2}", number))
        store.event(f"org.acme:t{number % 2}", "hi", kind=MESSAGE, path="/inbox/messages/ask")
        store.event(f"org.acme:t{number % 2}", number, kind=COMMAND)
    assert {row.correlation_id for row in read(spark, store).collect()} == set(events)
    seen = Seen()
    options = {"startingOffsets": "earliest", "readOn": read_on, "maxOffsetsPerTrigger": "4"}
    with Query(spark, store, tmp_path / "c", seen, trigger="availableNow", **options) as query:
        query.wait(lambda: not query.query.isActive)
    assert sorted(seen.ids) == sorted(events)


def test_a_batch_read_from_latest_is_empty(spark: SparkSession, store: Store) -> None:
    store.events(3)
    assert read(spark, store, startingOffsets="latest").count() == 0


@all_ways
def test_order_holds_inside_a_shard_and_no_batch_exceeds_the_limit(
    spark: SparkSession, store: Store, tmp_path: Path, read_on: str
) -> None:
    for number in range(250):
        store.event(f"org.acme:t{number % 9}", number)
    seen = Seen()
    options = {"startingOffsets": "earliest", "readOn": read_on, "maxOffsetsPerTrigger": "70"}
    with Query(spark, store, tmp_path / "c", seen, **options) as query:
        query.wait(lambda: len(seen.rows) >= 250)
    assert len(set(seen.ids)) == len(seen.ids) == 250
    assert [len(rows) for rows in seen.batches.values() if rows] == [70, 70, 70, 40]
    for shard in range(SHARDS):
        ids = [row.bookmark.split(":")[1] for row in seen.rows if row.shard == shard]
        assert ids == sorted(ids, key=position)
        assert len(ids) > 20


@all_ways
def test_available_now_reads_what_is_there_and_ends(
    spark: SparkSession, store: Store, tmp_path: Path, read_on: str
) -> None:
    expected = store.events(12)
    seen = Seen()
    options = {"startingOffsets": "earliest", "readOn": read_on, "maxOffsetsPerTrigger": "5"}
    with Query(spark, store, tmp_path / "c", seen, trigger="availableNow", **options) as query:
        query.wait(lambda: not query.query.isActive)
    assert sorted(seen.ids) == sorted(expected)
    assert max(len(rows) for rows in seen.batches.values()) <= 5


@all_ways
def test_a_restart_repeats_the_unfinished_batch_exactly_and_goes_on(
    spark: SparkSession, store: Store, tmp_path: Path, read_on: str
) -> None:
    first, second = Seen(), Seen()
    first.fail_at = 8
    with Query(spark, store, tmp_path / "c", first, readOn=read_on) as query:
        query.wait_started(first)
        done = store.events(8)
        query.wait(lambda: len(first.rows) >= 8)
        unfinished = store.event("org.acme:unfinished")
        assert "asked to fail" in query.wait_error()
    later = store.events(6)
    with Query(spark, store, tmp_path / "c", second, readOn=read_on) as query:
        query.wait(lambda: len(second.rows) >= 7)
        # One more shows that nothing else was under way.
        last = store.event("org.acme:last")
        query.wait(lambda: len(second.rows) >= 8)
    assert sorted(first.ids) == sorted(done)
    repeated = min(second.batches)
    assert [row.correlation_id for row in second.batches[repeated]] == [unfinished]
    assert sorted(second.ids) == sorted([unfinished, *later, last])


@all_ways
def test_latest_is_pinned_before_the_first_event(
    spark: SparkSession, store: Store, tmp_path: Path, read_on: str
) -> None:
    """A query that dies in its very first batch of events must not start later next time."""
    first, second = Seen(), Seen()
    first.fail_at = 0
    with Query(spark, store, tmp_path / "c", first, readOn=read_on) as query:
        query.wait_started(first)
        lost_once = store.event()
        query.wait_error()
    with Query(spark, store, tmp_path / "c", second, readOn=read_on) as query:
        query.wait(lambda: second.rows)
    assert (first.ids, second.ids) == ([], [lost_once])


@all_ways
def test_trimmed_entries_are_an_error_unless_allowed(
    spark: SparkSession, store: Store, tmp_path: Path, read_on: str
) -> None:
    before, strict, lenient = Seen(), Seen(), Seen()
    with Query(spark, store, tmp_path / "c", before, readOn=read_on) as query:
        query.wait_started(before)
        store.event(value=1)
        query.wait(lambda: before.rows)
        # One more batch shows that the first is in the checkpoint.
        store.event(value=2)
        query.wait(lambda: len(before.rows) == 2)
    store.events(2)
    store.event(value=3)
    left = store.event(value=4)
    shard = shard_of("org.acme:lamp", SHARDS)
    store.redis.xtrim(store.journal(shard), maxlen=1, approximate=False)
    with Query(spark, store, tmp_path / "c", strict, readOn=read_on) as query:
        text = query.wait_error()
    assert f"shard {shard} of the journal" in text
    assert "failOnDataLoss" in text
    assert left not in strict.ids
    options = {"readOn": read_on, "failOnDataLoss": "false"}
    with Query(spark, store, tmp_path / "c", lenient, **options) as query:
        query.wait(lambda: left in lenient.ids)


def test_trimming_behind_the_offset_is_no_loss(store: Store) -> None:
    store.events(40)
    reading = journal(store)
    reached = reading.latest()
    for shard in range(SHARDS):
        store.redis.xtrim(store.journal(shard), maxlen=1, approximate=False)
    new = store.events(4)
    entries, end = reading.after(reached, 100)
    assert len(entries) == len(new)
    assert end == reading.latest()


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 100])
def test_no_shard_starves_whatever_the_limit(store: Store, limit: int) -> None:
    """Offsets of both ways to read advance alike, at most by the limit, and meet all entries."""
    total = len(store.events(30))
    reading = journal(store)
    offset: Offset = reading.earliest()
    seen: list[bytes] = []
    for _ in range(total):
        entries, reached = reading.after(offset, limit)
        assert reading.reach(offset, limit, reading.latest())[0] == reached
        assert len(entries) == min(limit, total - len(seen))
        between = [
            entry[0]
            for shard in offset
            for page in reading.between(shard, offset[shard], reached[shard])
            for entry in page
        ]
        assert between == [entry[0] for _, entry in entries]
        seen += between
        offset = reached
        if len(seen) == total:
            break
    assert len(seen) == total
    assert reading.after(offset, limit) == ([], offset)


def test_long_ways_are_walked_in_steps_and_end_at_the_same_place(store: Store) -> None:
    store.at_once(5000)
    reading = journal(store)
    for limit in (2001, 4321, 4999, 9999):
        entries, reached = reading.after(reading.earliest(), limit)
        walked, counts = reading.reach(reading.earliest(), limit, reading.latest())
        assert walked == reached
        assert sum(counts.values()) == len(entries) == min(limit, 5000)


def test_an_offset_of_other_data_is_refused(store: Store) -> None:
    with pytest.raises(RuntimeError, match="belongs to other data"):
        journal(store).after({"0": "0-0"}, 10)


def test_without_data_the_error_says_what_to_do(
    spark: SparkSession, server: RedisServer, store: Store, tmp_path: Path
) -> None:
    store.redis.delete(meta_key(store.prefix))
    with Query(spark, store, tmp_path / "c", Seen()) as query:
        text = query.wait_error()
    assert f"no ackgate data under the prefix '{store.prefix}'" in text
    assert "Start a gateway" in text


def test_an_unknown_format_is_refused(store: Store) -> None:
    store.redis.hset(meta_key(store.prefix), "format", "99")
    with pytest.raises(StoreError, match="format 99, this connector reads format 1"):
        shard_count(store.url, store.prefix)


def test_an_unknown_option_names_the_valid_ones(spark: SparkSession, store: Store) -> None:
    with pytest.raises(PySparkException, match=r"unknown option startingoffset.*redisUrl, prefix"):
        read(spark, store, startingOffset="latest")


@pytest.mark.parametrize("part", ["wrong", "sec/ret"])
def test_no_password_in_errors_or_checkpoint(
    spark: SparkSession, server: RedisServer, store: Store, tmp_path: Path, part: str
) -> None:
    """A wrong password, and one that breaks the address."""
    seen = Seen()
    url = f"redis://somebody:{part}@127.0.0.1:{server.port}"
    with Query(spark, store, tmp_path / "c", seen, redisUrl=url) as query:
        text = query.wait_error()
    assert "redis" in text.lower()
    assert part not in text
    for file in (tmp_path / "c").rglob("*"):
        assert not file.is_file() or part.encode() not in file.read_bytes()


def test_no_password_in_the_checkpoint_of_a_working_query(
    spark: SparkSession, server: RedisServer, store: Store, tmp_path: Path
) -> None:
    store.redis.execute_command(  # type: ignore[no-untyped-call]  # not annotated
        "ACL", "SETUSER", "reader", "on", ">s3cr3t-word", "~*", "&*", "+@all"
    )
    seen = Seen()
    url = f"redis://reader:s3cr3t-word@127.0.0.1:{server.port}"
    with Query(spark, store, tmp_path / "c", seen, redisUrl=url) as query:
        query.wait_started(seen)
        store.event()
        query.wait(lambda: seen.rows)
    files = [file for file in (tmp_path / "c").rglob("*") if file.is_file()]
    assert len(files) >= 5
    assert not any(b"s3cr3t-word" in file.read_bytes() for file in files)


@all_ways
def test_a_store_that_is_away_for_a_moment_stops_nothing(
    spark: SparkSession, tmp_path: Path, read_on: str
) -> None:
    seen = Seen()
    with redis_server() as own:
        store = Store(own.url, "p")
        with Query(spark, store, tmp_path / "c", seen, readOn=read_on) as query:
            query.wait_started(seen)
            before = store.event(value=1)
            query.wait(lambda: seen.rows)
            own.stop()
            own.start()
            after = store.event(value=2)
            query.wait(lambda: len(seen.rows) == 2)
        store.redis.close()
    assert seen.ids == [before, after]
