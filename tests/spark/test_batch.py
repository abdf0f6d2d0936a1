"""``spark.read``: which rows, in how many tasks, and what is left out before it is read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from acks.journal import shard_of
from connections.spark.wanted import Wanted
from tests.spark.conftest import SHARDS, Store

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
LAMP, SHARD = "org.acme:lamp", shard_of("org.acme:lamp", SHARDS)


def read(spark: SparkSession, store: Store, **options: str) -> DataFrame:
    reader = spark.read.format("ackgate").option("redisUrl", store.url)
    return reader.options(prefix=store.prefix, **options).load()


def ids(table: DataFrame) -> list[str]:
    return sorted(row.correlation_id for row in table.collect())


@pytest.fixture(params=["false", "true"])
def pushdown(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[bool]:
    """Spark's own switch; the source has to do with both."""
    before = spark.conf.get(PUSHDOWN)
    spark.conf.set(PUSHDOWN, request.param)
    yield request.param == "true"
    spark.conf.set(PUSHDOWN, str(before))


# --- tasks


def test_few_entries_are_one_task_and_min_partitions_makes_them_more(
    spark: SparkSession, store: Store
) -> None:
    for second in range(1, 20):
        store.event(LAMP, second, entry_id=f"{second}000-0")
        store.event("a:b", second, entry_id=f"{second}000-1")
    assert read(spark, store).rdd.getNumPartitions() == 1
    split = read(spark, store, minPartitions="6")
    assert split.rdd.getNumPartitions() == 6
    assert ids(split) == ids(read(spark, store))
    order = [row.revision for row in split.where(f.col("thing_id") == LAMP).collect()]
    assert order == sorted(order)
    assert len(order) == 19


def test_many_entries_are_a_task_for_each_shard(spark: SparkSession, store: Store) -> None:
    with store.redis.pipeline(transaction=False) as pipeline:
        for shard in range(SHARDS):
            for number in range(10_100):
                pipeline.xadd(store.journal(shard), {"m": "rubbish"}, id=f"{number + 1}-0")
        pipeline.execute()
    assert read(spark, store).rdd.getNumPartitions() == SHARDS


def test_an_empty_journal_is_an_empty_table(spark: SparkSession, store: Store) -> None:
    assert read(spark, store).count() == 0
    assert read(spark, store, minPartitions="4").count() == 0


def test_an_entry_that_is_none_is_named(spark: SparkSession, store: Store) -> None:
    store.event(LAMP, 1)
    store.redis.xadd(store.journal(2), {"m": "{}", "h": "{}"}, id="77-1")
    with pytest.raises(PySparkException, match="journal entry 2:77-1 cannot be read"):
        read(spark, store).collect()


def test_what_was_trimmed_since_the_start_is_a_loss(spark: SparkSession, store: Store) -> None:
    for second in range(1, 6):
        store.event(LAMP, second, entry_id=f"{second}000-0")
    start = {str(shard): "2000-0" if shard == SHARD else "0-0" for shard in range(SHARDS)}
    from_there = {"startingOffsets": json.dumps(start)}
    assert len(ids(read(spark, store, **from_there))) == 3
    store.redis.xtrim(store.journal(SHARD), maxlen=2, approximate=False)
    with pytest.raises(PySparkException, match="trimmed beyond the offset 2000-0"):
        read(spark, store, **from_there).collect()
    assert len(ids(read(spark, store, **from_there, failOnDataLoss="false"))) == 2
    # Who names an instant asks for what is left.
    assert len(ids(read(spark, store, startingTimestamp="2001"))) == 2


# --- columns


def test_the_value_as_a_variant_is_what_parse_json_makes_of_it(
    spark: SparkSession, store: Store
) -> None:
    values: list[object] = [
        {"a": 1, "b": [True, None, "é", {"c": 1.5}], "ä": {}},
        [],
        "text",
        -3,
        12.25,
        1e300,
        2**62,
        12345678901234567890,
        None,
        {"deep": {"er": [[[1]]]}},
    ]
    for value in values:
        store.event(value=value)
    store.event(action="deleted")
    table = read(spark, store, variant="true")
    assert table.schema["value_variant"].dataType.simpleString() == "variant"
    # Variants cannot be compared; their text with their types can.
    made, own = f.parse_json("value"), f.col("value_variant")
    texts = table.select(
        made.cast("string").alias("made"),
        own.cast("string").alias("own"),
        f.schema_of_variant(made).alias("type"),
        f.schema_of_variant(own).alias("own_type"),
    ).collect()
    assert [row.own for row in texts] == [row.made for row in texts]
    assert [row.own_type for row in texts] == [row.type for row in texts]
    found = table.select(f.try_variant_get(own, "$.b[3].c", "double").alias("c")).collect()
    assert [row.c for row in found if row.c is not None] == [1.5]
    assert [row.own for row in texts].count(None) == 2


# --- filters


def test_a_filter_and_namespaces_leave_rows_out(spark: SparkSession, store: Store) -> None:
    on = [store.event(f"{space}:t", True) for space in ("a", "b", "c")]
    store.event("a:t", False)
    other = store.event("a:t", True, path="/attributes/other")
    assert ids(read(spark, store, filter="eq(attributes/on,true)")) == sorted(on)
    assert ids(read(spark, store, namespaces="a, c", filter="eq(attributes/on,true)")) == [
        on[0],
        on[2],
    ]
    assert ids(read(spark, store, filter='eq(resource:path,"/attributes/other")')) == [other]


def test_time_in_a_filter_is_that_of_the_event(spark: SparkSession, store: Store) -> None:
    """So that a batch that runs again has the same rows."""
    kept = store.event(value="2026-02-03T04:00:00Z", timestamp="2026-02-03T04:05:06Z")
    store.event(value="2026-02-03T04:00:00Z", timestamp="2026-02-03T04:20:06Z")
    assert ids(read(spark, store, filter="gt(attributes/on,time:now-10m)")) == [kept]


@pytest.mark.parametrize(
    "condition",
    [
        f"thing_id = '{LAMP}'",
        f"thing_id in ('{LAMP}', 'a:b', 'no:body')",
        f"thing_id = '{LAMP}' and thing_id = 'a:b'",
        "namespace = 'a' or namespace = 'b'",
        "namespace = 'a' and shard in (0, 1, 2)",
        f"shard = {SHARD}",
        "shard > 1",
        "timestamp >= timestamp'2026-02-03 04:05:07Z' and revision > 1",
        "timestamp < timestamp'2026-02-03 04:05:07Z'",
        "timestamp = timestamp'2026-02-03 04:05:07.5Z'",
        "not (namespace = 'a')",
        "value is null",
        "headers['x'] = '1'",
    ],
)
def test_conditions_give_the_same_rows_pushed_down_or_not(
    spark: SparkSession, store: Store, pushdown: bool, condition: str
) -> None:
    for thing_id in (LAMP, "a:b", "a:c", "b:d", "c:e"):
        for stamp in ("06Z", "07Z", "07.5Z"):
            store.event(thing_id, 1, timestamp=f"2026-02-03T04:05:{stamp}", headers={"x": "1"})
    store.event("a:b", action="deleted")
    rows = read(spark, store).collect()
    everything = spark.createDataFrame(rows, read(spark, store).schema)
    assert ids(read(spark, store).where(condition)) == ids(everything.where(condition))


@pytest.mark.parametrize("pushdown", ["true"], indirect=True)
@pytest.mark.parametrize(
    "condition", [f"thing_id = '{LAMP}'", f"shard = {SHARD}", f"'{LAMP}' = thing_id and shard < 9"]
)
def test_other_shards_are_not_even_read(
    spark: SparkSession, store: Store, pushdown: bool, condition: str
) -> None:
    """They hold an entry here that cannot be read."""
    assert pushdown
    mine = store.event(LAMP)
    for shard in set(range(SHARDS)) - {SHARD}:
        store.redis.xadd(store.journal(shard), {"m": "rubbish"})
    assert ids(read(spark, store).where(condition)) == [mine]
    with pytest.raises(PySparkException, match="cannot be read"):
        read(spark, store).collect()


NOON = datetime(2026, 2, 3, 12, tzinfo=UTC)
LATER = datetime(2026, 2, 3, 13, tzinfo=UTC)


def test_what_is_pushed_down_narrows_what_is_wanted() -> None:
    wanted, shards = Wanted().narrowed(
        [
            In(("thing_id",), (LAMP, "a:b", None)),
            EqualTo(("thing_id",), LAMP),
            EqualTo(("namespace",), "org.acme"),
            GreaterThan(("timestamp",), NOON),
            GreaterThanOrEqual(("timestamp",), LATER),
            LessThan(("timestamp",), LATER),
            LessThanOrEqual(("timestamp",), NOON),
            # These say nothing that could be used.
            StringStartsWith(("thing_id",), "x"),
            EqualTo(("headers", "namespace"), "x"),
            GreaterThan(("revision",), 5),
        ],
        SHARDS,
    )
    assert wanted == Wanted(
        namespaces=frozenset({"org.acme"}), thing_ids=frozenset({LAMP}), since=LATER, until=NOON
    )
    assert shards == {SHARD}
