"""``format("ackgate-acks")``: rows become acks; labels are owned while the query runs."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from acks.errors import GatewayError
from acks.journal import ASYNC, leases_key, request_key, shard_of
from connections.spark import acknowledge
from connections.spark.ack_rows import AckColumnError, AckRows
from connections.spark.keeper import _keepers as keepers
from connections.spark.options import OptionError
from connections.spark.sink import AckSink, sink_options
from tests.servers import redis_server, wait_for_sync
from tests.spark.conftest import DEADLINE, SHARDS, Acks, Seen, Store

LABEL = "spark:sunk"
COLUMNS = "correlation_id string, thing_id string, origin string, label string, status int"
ROW = ("c1", "a:one", "node1", LABEL, 200)
Shape = Callable[[DataFrame], DataFrame]


def verdict(df: DataFrame) -> DataFrame:
    """200 for every event, with the label."""
    return df.withColumns({"label": f.lit(LABEL), "status": f.lit(200)})


class Sunk:
    """A running query from the journal to the sink."""

    def __init__(
        self, spark: SparkSession, store: Store, checkpoint: Path, shape: Shape, **options: str
    ) -> None:
        where = {"redisUrl": store.url, "prefix": store.prefix}
        source = spark.readStream.format("ackgate").options(**where)
        writer = shape(source.load()).writeStream.format("ackgate-acks")
        writer = writer.options(**where, **({"labels": LABEL} | options))
        writer = writer.option("checkpointLocation", str(checkpoint))
        self.query: StreamingQuery = writer.trigger(processingTime="0 seconds").start()

    def started(self) -> Sunk:
        """Wait for the first, empty batch: from here on every event is seen."""

        def look() -> bool:
            if (error := self.query.exception()) is not None:
                raise error
            return self.query.lastProgress is not None

        wait_for_sync(look, DEADLINE, "first batch")
        return self

    def error(self) -> str:
        """Wait until the query fails; the error's text."""
        wait_for_sync(lambda: not self.query.isActive, DEADLINE, "end of the query")
        return str(self.query.exception())


@contextmanager
def sunk(
    spark: SparkSession, store: Store, checkpoint: Path, shape: Shape = verdict, **options: str
) -> Iterator[Sunk]:
    """A query that is stopped at the end."""
    running = Sunk(spark, store, checkpoint, shape, **options)
    try:
        yield running
    finally:
        running.query.stop()


def save(df: DataFrame, store: Store, **options: str) -> None:
    """Send the acks of a DataFrame."""
    where = {"redisUrl": store.url, "prefix": store.prefix, "labels": LABEL, **options}
    df.write.format("ackgate-acks").options(**where).mode("append").save()


# --- streams


@pytest.mark.parametrize("send_on", ["driver", "executors"])
def test_rows_become_acks(
    spark: SparkSession, store: Store, acks: Acks, tmp_path: Path, send_on: str
) -> None:
    def shape(df: DataFrame) -> DataFrame:
        bad = f.col("value") == '"bad"'
        return verdict(df).withColumns(
            {
                "status": f.when(bad, 422).otherwise(200),
                "payload": f.when(bad, f.struct(f.col("thing_id").alias("of"))),
            }
        )

    with sunk(spark, store, tmp_path / "c", shape, sendOn=send_on) as query:
        query.started()
        good = store.event("a:good", "fine", labels=("x:other", LABEL))
        bad = store.event("a:bad", "bad", labels=(LABEL,))
        store.event("a:other", labels=("x:other",))
        store.event("a:nobody", labels=(LABEL,), origin="")
        last = store.event("a:last", labels=(LABEL,))
        acks.wait(3)
    acks.receive()
    records = {record[0]: record[1:] for record in acks.records}
    assert records == {
        good: [LABEL, "a:good", 200, {"correlation-id": good}],
        last: [LABEL, "a:last", 200, {"correlation-id": last}],
        bad: [
            *(LABEL, "a:bad", 422),
            {"correlation-id": bad, "content-type": "application/json"},
            {"of": "a:bad"},
        ],
    }


def test_a_bad_row_fails_the_query_and_none_of_its_batch_is_acknowledged(
    spark: SparkSession, store: Store, acks: Acks, tmp_path: Path
) -> None:
    def shape(df: DataFrame) -> DataFrame:
        odd = f.when(f.col("value") == "1", 999).otherwise(200)
        return verdict(df).withColumn("status", odd)

    with sunk(spark, store, tmp_path / "c", shape) as query:
        query.started()
        store.event("a:bad", 1, labels=(LABEL,))
        assert "'a:bad-1' has the status 999, which is not 100 to 599" in query.error()
    assert acks.receive() == 0


def test_bad_rows_can_be_left_out(
    spark: SparkSession, store: Store, acks: Acks, tmp_path: Path
) -> None:
    def shape(df: DataFrame) -> DataFrame:
        odd = f.when(f.col("value") == "1", 999).otherwise(200)
        return verdict(df).withColumn("status", odd)

    with sunk(spark, store, tmp_path / "c", shape, onBadRows="skip") as query:
        query.started()
        store.event("a:bad", 1, labels=(LABEL,))
        good = store.event("a:good", 2, labels=(LABEL,))
        assert [record[0] for record in acks.wait(1)] == [good]
        assert query.query.isActive


# --- labels


def test_an_idle_query_owns_its_label_until_it_stops(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    with sunk(spark, store, tmp_path / "c") as query:
        query.started()
        wait_for_sync(lambda: store.owner(LABEL), DEADLINE)
        assert store.owner(LABEL) == f"spark-{query.query.id}/{query.query.runId}"
        # As after a pause in which the lease ran out: nobody sends anything, it comes back.
        store.redis.delete(leases_key(store.prefix))
        wait_for_sync(lambda: store.owner(LABEL), DEADLINE)
    wait_for_sync(lambda: store.owner(LABEL) is None, DEADLINE)


def test_a_look_at_the_queries_that_fails_is_not_the_last(
    spark: SparkSession, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [keeper] = [one for one in keepers.values() if one.is_alive]
    queries, failures = keeper._queries, [Py4JNetworkError("no answer")]

    def fails_once() -> list[Any]:
        if failures:
            raise failures.pop()
        return queries()

    monkeypatch.setattr(keeper, "_queries", fails_once)
    wait_for_sync(lambda: not failures, DEADLINE, "a look")
    with sunk(spark, store, tmp_path / "c") as query:
        query.started()
        wait_for_sync(lambda: store.owner(LABEL), DEADLINE, "the claim of the first batch")
        store.redis.delete(leases_key(store.prefix))
        wait_for_sync(lambda: store.owner(LABEL), DEADLINE, "the claim of the keeper")


def test_a_restarted_query_takes_its_label_over_at_once(
    spark: SparkSession, store: Store, acks: Acks, tmp_path: Path
) -> None:
    with sunk(spark, store, tmp_path / "c") as query:
        query.started()
    with sunk(spark, store, tmp_path / "c") as again:
        # No batch runs: there is nothing to read. The label is claimed all the same.
        owner = f"spark-{again.query.id}/{again.query.runId}"
        wait_for_sync(lambda: store.owner(LABEL) == owner, DEADLINE)
        assert again.query.id == query.query.id
        cid = store.event(labels=(LABEL,))
        assert [record[0] for record in acks.wait(1)] == [cid]


def test_two_queries_with_one_label_conflict_unless_they_share_a_group(
    spark: SparkSession, store: Store, acks: Acks, tmp_path: Path
) -> None:
    with sunk(spark, store, tmp_path / "a", ackGroup="team") as first:
        first.started()
        with sunk(spark, store, tmp_path / "b", ackGroup="team") as second:
            second.started()
            cid = store.event(labels=(LABEL,))
            assert [record[0] for record in acks.wait(2)] == [cid, cid]
        with sunk(spark, store, tmp_path / "c") as alone:
            error = alone.error()
        assert f"LabelTaken: the label '{LABEL}' is taken by the group team" in error
        assert first.query.isActive


def test_a_sink_and_an_acknowledger_conflict_too(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    with (
        acknowledge(Seen(), LABEL, redis_url=store.url, prefix=store.prefix),
        sunk(spark, store, tmp_path / "c") as query,
    ):
        assert f"the label '{LABEL}' is taken by spark-" in query.error()


# --- one DataFrame


def test_payloads_are_json_text_variants_or_anything_else_as_json(
    spark: SparkSession, store: Store, acks: Acks
) -> None:
    row = spark.createDataFrame([ROW], COLUMNS)
    variant = f.parse_json(f.lit('{"a": [1, null]}'))
    cases: list[tuple[Any, Any]] = [
        (f.lit('{"text": true}'), {"text": True}),
        (variant, {"a": [1, None]}),
        (f.struct(variant.alias("v"), f.lit(1).alias("n")), {"v": {"a": [1, None]}, "n": 1}),
        (f.create_map(f.lit("k"), f.array(f.lit(1.5))), {"k": [1.5]}),
        (f.lit(None).cast("string"), None),
    ]
    for number, (column, expected) in enumerate(cases, 1):
        save(row.withColumn("payload", column), store)
        *_, last = acks.wait(number)
        assert (last[5] if len(last) > 5 else None) == expected
    assert store.owner(LABEL) is None


def test_one_partition_that_fails_keeps_back_the_acks_of_all(
    spark: SparkSession, store: Store, acks: Acks
) -> None:
    rows = [("c1", "a:one", "node1", LABEL, 200), ("c2", "a:two", "node1", "x:other", 200)]
    df = spark.createDataFrame(rows, COLUMNS).repartition(2, "correlation_id")
    with pytest.raises(Exception, match="the label 'x:other', which the option labels does not"):
        save(df, store)
    assert acks.receive() == 0
    assert store.owner(LABEL) is None


def test_acks_of_accepted_requests_go_into_their_records(spark: SparkSession, store: Store) -> None:
    key = request_key(store.prefix, shard_of("a:one", SHARDS), "c1")
    script = files("app.store").joinpath("accept.lua").read_text()
    store.redis.eval(script, 1, key, "{}", "30000", "60000", "0", LABEL)
    save(spark.createDataFrame([("c1", "a:one", ASYNC, LABEL, 200)], COLUMNS), store)
    assert store.redis.hget(key, f"ack:{LABEL}") == b'1 [200,{"correlation-id":"c1"}]'


def test_many_acks_go_in_pieces(spark: SparkSession, store: Store, acks: Acks) -> None:
    df = spark.range(25_000).selectExpr(
        "string(id) correlation_id", "'a:one' thing_id", "'node1' origin", "200 status"
    )
    save(df, store)
    records = acks.wait(25_000)
    assert {record[0] for record in records} == {str(number) for number in range(25_000)}
    assert {record[1] for record in records} == {LABEL}, "the only label is the default"


# --- what is refused


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "labels is needed"),
        ({"labels": "twin-persisted"}, "no label that a query can declare"),
        ({"labels": LABEL, "sendOn": "moon"}, "sendOn must be one of driver, executors"),
        ({"labels": LABEL, "onBadRows": "ignore"}, "onBadRows must be one of fail, skip"),
        ({"labels": LABEL, "label": "x"}, "unknown option label"),
    ],
)
def test_options_are_checked(options: dict[str, str], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        sink_options({"redisUrl": "redis://nowhere", **options})


def test_a_group_must_be_a_name() -> None:
    with pytest.raises(GatewayError):
        sink_options({"redisUrl": "redis://nowhere", "labels": LABEL, "ackGroup": "?"})


@pytest.mark.parametrize(
    ("columns", "labels", "problem"),
    [
        ("correlation_id string, thing_id string", "a:b", "origin must be a string; it is not"),
        (COLUMNS.replace("status int", "status string"), "a:b", "status must be a whole number"),
        (COLUMNS.replace("label string,", ""), "a:b,c:d", "label must be a string; it is not"),
    ],
)
def test_columns_are_checked(spark: SparkSession, columns: str, labels: str, problem: str) -> None:
    with pytest.raises(AckColumnError, match=problem):
        AckRows(cast(StructType, StructType.fromDDL(columns)), tuple(labels.split(",")))


def test_acks_cannot_be_overwritten(spark: SparkSession, store: Store) -> None:
    df = spark.createDataFrame([ROW], COLUMNS)
    where = {"redisUrl": store.url, "prefix": store.prefix, "labels": LABEL}
    with pytest.raises(Exception, match="acks are never taken back"):
        df.write.format("ackgate-acks").options(**where).mode("overwrite").save()


def test_the_address_is_in_no_text_of_the_options() -> None:
    options = sink_options({"redisUrl": "redis://:secret@nowhere", "labels": LABEL})
    assert "secret" not in repr(options)
    sink = AckSink({"redisUrl": "redis://:secret@nowhere", "labels": LABEL})
    assert pickle.loads(pickle.dumps(sink)).name() == "ackgate-acks"


# --- outages


def test_a_store_that_restarts_is_waited_for(spark: SparkSession, tmp_path: Path) -> None:
    with redis_server() as server:
        store = Store(server.url, "outage")
        with sunk(spark, store, tmp_path / "c") as query:
            query.started()
            cid = store.event(labels=(LABEL,))
            server.kill9()
            server.start()
            acks = Acks(store)
            again = store.event("a:after", labels=(LABEL,))
            wait_for_sync(lambda: acks.receive() and again in {a[0] for a in acks.records}, 60)
            assert query.query.isActive
            assert {record[0] for record in acks.records} <= {cid, again}
            acks.close()
        store.redis.close()
