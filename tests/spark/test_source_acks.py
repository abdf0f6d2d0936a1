"""Acks that the source sends by itself: ``ackLabels``, ``weakAckLabels``, ``ackGroup``."""

from __future__ import annotations

import threading
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from acks.envelopes import WEAK_FILTERED, WEAK_UNSUBSCRIBED
from acks.journal import ASYNC, MESSAGE, leases_key, owners_key, request_key, shard_of
from connections.spark import acknowledge
from connections.spark.labels import SCRIPT, LabelLease
from tests.servers import redis_server, wait_for_sync
from tests.spark.conftest import DEADLINE, SHARDS, Acks, Query, Seen, Store

LABEL = "spark:seen"
all_ways = pytest.mark.parametrize("read_on", ["auto", "driver", "executors"])


def ack(correlation_id: str, thing_id: str, label: str = LABEL) -> list[Any]:
    return [correlation_id, label, thing_id, 200, {"correlation-id": correlation_id}]


def weak(correlation_id: str, thing_id: str, reason: str, label: str = LABEL) -> list[Any]:
    headers = {
        "correlation-id": correlation_id,
        "response-required": False,
        "ditto-weak-ack": True,
    }
    return [correlation_id, label, thing_id, 200, headers, reason]


def committed(checkpoint: Path) -> int:
    """The last batch that is in the checkpoint, -1 for none."""
    done = (int(file.name) for file in checkpoint.glob("commits/*") if file.name.isdigit())
    return max(done, default=-1)


@all_ways
def test_an_ack_comes_when_the_batch_is_in_the_checkpoint_and_not_before(
    spark: SparkSession, store: Store, acks: Acks, tmp_path: Path, read_on: str
) -> None:
    seen = Seen()
    entered, allowed = threading.Event(), threading.Event()

    def function(df: DataFrame, batch_id: int) -> None:
        seen(df, batch_id)
        if seen.batches[batch_id] and not allowed.is_set():
            entered.set()
            assert allowed.wait(DEADLINE)

    options = {"readOn": read_on, "ackLabels": LABEL}
    with Query(spark, store, tmp_path / "c", function, **options) as query:
        query.wait_started(seen)
        mine = store.event("a:one", labels=("x:other", LABEL))
        query.wait(entered.is_set)
        store.redis.publish(f"{store.prefix}:acks:node1", '[["marker"]]')
        assert acks.wait(1) == [["marker"]]
        allowed.set()
        # No other event is needed to get it on its way.
        assert acks.wait(2)[1:] == [ack(mine, "a:one")]
        assert committed(tmp_path / "c") >= min(
            batch for batch, rows in seen.batches.items() if rows
        )
        for thing_id, labels in (("a:two", ()), ("a:three", ("x:other",)), ("a:four", (LABEL,))):
            store.event(thing_id, labels=labels)
        assert acks.wait(3)[2:] == [ack("a:four-1", "a:four")]
        query.wait(lambda: len(seen.rows) == 4)


@all_ways
def test_a_query_that_catches_up_has_acknowledged_all_when_it_ends(
    spark: SparkSession, store: Store, acks: Acks, tmp_path: Path, read_on: str
) -> None:
    expected = store.events(25, labels=(LABEL,))
    options = {
        "startingOffsets": "earliest",
        "readOn": read_on,
        "maxOffsetsPerTrigger": "10",
        "ackLabels": LABEL,
        "trigger": "availableNow",
    }
    with Query(spark, store, tmp_path / "c", Seen(), **options) as query:
        query.wait(lambda: not query.query.isActive)
    acks.receive()
    assert sorted(record[0] for record in acks.records) == sorted(expected)


@all_ways
def test_a_batch_that_fails_is_acknowledged_when_it_has_run_again(
    spark: SparkSession, store: Store, acks: Acks, tmp_path: Path, read_on: str
) -> None:
    first, second = Seen(), Seen()
    first.fail_at = 0
    options = {"readOn": read_on, "ackLabels": LABEL}
    with Query(spark, store, tmp_path / "c", first, **options) as query:
        query.wait_started(first)
        store.event("a:one", labels=(LABEL,))
        query.wait_error()
    assert acks.receive() == 0
    with Query(spark, store, tmp_path / "c", second, **options) as query:
        query.wait(lambda: second.rows)
        assert acks.wait(1) == [ack("a:one-1", "a:one")]


@all_ways
def test_what_a_query_leaves_behind_is_acknowledged_by_the_next(
    spark: SparkSession, store: Store, acks: Acks, tmp_path: Path, read_on: str
) -> None:
    """It ends between its checkpoint and its acks: the next trigger would be in an hour."""
    before = store.event("a:before", labels=(LABEL,))
    seen = Seen()
    options = {"readOn": read_on, "ackLabels": LABEL}
    first = {"startingOffsets": "earliest", "trigger": "1 hour", **options}
    with Query(spark, store, tmp_path / "c", seen, **first) as query:
        query.wait(lambda: committed(tmp_path / "c") == 0)
        assert [row.correlation_id for row in seen.rows] == [before]
    assert acks.receive() == 0
    with Query(spark, store, tmp_path / "c", seen, **options) as query:
        assert acks.wait(1) == [ack(before, "a:before")]
        query.wait(lambda: query.query.status["message"] == "Waiting for data to arrive")
        # Once: what comes next is another one's.
        store.event("a:after", labels=(LABEL,))
        assert acks.wait(2)[1:] == [ack("a:after-1", "a:after")]


@all_ways
def test_what_is_filtered_out_gets_a_weak_ack(
    spark: SparkSession, store: Store, acks: Acks, tmp_path: Path, read_on: str
) -> None:
    seen = Seen()
    options = {
        "readOn": read_on,
        "ackLabels": f"{LABEL},spark:too",
        "namespaces": "a",
        "filter": "eq(attributes/on,true)",
    }
    with Query(spark, store, tmp_path / "c", seen, **options) as query:
        query.wait_started(seen)
        store.event("a:off", False, labels=(LABEL,), headers={"content-type": "x", "mine": "1"})
        store.event("b:on", True, labels=("x:other", "spark:too"), headers={"mine": "2"})
        store.event("a:ask", True, labels=(LABEL,), kind=MESSAGE, headers={"mine": "3"})
        store.event("a:on", True, labels=("spark:too", LABEL))
        store.event("a:unasked", False)
        acks.wait(5)
        query.wait(lambda: seen.rows)
    expected = [
        weak("a:off-1", "a:off", WEAK_FILTERED),
        weak("b:on-1", "b:on", WEAK_UNSUBSCRIBED, "spark:too"),
        weak("a:ask-1", "a:ask", WEAK_UNSUBSCRIBED),
        ack("a:on-1", "a:on", "spark:too"),
        ack("a:on-1", "a:on"),
    ]
    for record, mine in zip(expected[:3], "123", strict=True):
        record[4]["mine"] = mine
    assert sorted(acks.records, key=str) == sorted(expected, key=str)
    assert [row.correlation_id for row in seen.rows] == ["a:on-1"]


def test_weak_acks_for_a_label_that_the_batch_function_acknowledges(
    spark: SparkSession, store: Store, acks: Acks, tmp_path: Path
) -> None:
    seen = Seen()
    options = {"weakAckLabels": f"{LABEL},spark:nobody", "filter": "eq(attributes/on,true)"}
    with (
        acknowledge(seen, LABEL, redis_url=store.url, prefix=store.prefix) as acknowledger,
        Query(spark, store, tmp_path / "c", acknowledger, **options) as query,
    ):
        query.wait_started(seen)
        store.event("a:off", False, labels=(LABEL, "spark:nobody"), headers={"x": "y"})
        store.event("a:on", True, labels=(LABEL,))
        acks.wait(2)
    acks.receive()
    by_thing = {record[2]: record for record in acks.records}
    assert by_thing["a:off"][1:3] == [LABEL, "a:off"]
    assert by_thing["a:off"][5] == WEAK_FILTERED
    assert by_thing["a:on"] == ack("a:on-1", "a:on")
    assert len(acks.records) == 2


def test_weak_acks_for_a_label_that_a_group_of_queries_owns(
    spark: SparkSession, store: Store, acks: Acks, tmp_path: Path
) -> None:
    seen = Seen()
    options = {"weakAckLabels": LABEL, "filter": "eq(attributes/on,true)"}
    lease = LabelLease(store.url, store.prefix, [LABEL], group="spark:blue")
    with Query(spark, store, tmp_path / "c", seen, **options) as query:
        query.wait_started(seen)
        store.event("a:off", False, labels=(LABEL,))
        assert acks.wait(1)[0][2:4] == ["a:off", 200]
    lease.close()


def lone_session(store: Store) -> None:
    store.give_away(LABEL, "node7/session")


def mixed_group(store: Store) -> None:
    """A query and a gateway's session share the label."""
    keys = owners_key(store.prefix), leases_key(store.prefix)
    store.redis.delete(*keys)
    for holder in ("spark-1", "node7"):
        join = ("join", holder, "60000", "session", "mixed", LABEL)
        assert store.redis.eval(SCRIPT, 2, *keys, *join) == b""


def test_no_weak_ack_for_a_label_that_others_own_too(
    spark: SparkSession, store: Store, acks: Acks, tmp_path: Path
) -> None:
    seen = Seen()
    options = {"weakAckLabels": LABEL, "filter": "eq(attributes/on,true)"}
    with Query(spark, store, tmp_path / "c", seen, **options) as query:
        query.wait_started(seen)
        for number, owns in enumerate((lone_session, mixed_group)):
            owns(store)
            store.event(f"a:{number}", False, labels=(LABEL,))
            batches = len(seen.batches)
            query.wait(lambda batches=batches: len(seen.batches) > batches)  # type: ignore[misc]
            query.wait(lambda: query.query.status["message"] == "Waiting for data to arrive")
        store.give_away(LABEL, "spark-1/query")
        store.event("a:last", False, labels=(LABEL,))
        [record] = acks.wait(1)
    assert record[2] == "a:last"


def test_acks_of_accepted_requests_go_into_their_records(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    key = request_key(store.prefix, shard_of("a:one", SHARDS), "a:one-1")
    script = files("app.store").joinpath("accept.lua").read_text()
    store.redis.eval(script, 1, key, "{}", "30000", "60000", "0", LABEL)
    store.event("a:one", labels=(LABEL,), origin=ASYNC)
    options = {"startingOffsets": "earliest", "ackLabels": LABEL, "trigger": "availableNow"}
    with Query(spark, store, tmp_path / "c", Seen(), **options) as query:
        query.wait(lambda: not query.query.isActive)
    assert store.redis.hget(key, f"ack:{LABEL}") == b'1 [200,{"correlation-id":"a:one-1"}]'


@pytest.mark.timeout(180)
def test_labels_belong_to_one_query_and_to_the_next_one_when_it_has_ended(
    spark: SparkSession, store: Store, acks: Acks, tmp_path: Path
) -> None:
    first, second, third = Seen(), Seen(), Seen()
    options = {"ackLabels": LABEL}
    with Query(spark, store, tmp_path / "1", first, **options) as one:
        one.wait_started(first)
        owner = store.owner(LABEL)
        assert owner is not None
        assert owner.startswith("spark-")
        with Query(spark, store, tmp_path / "2", second, **options) as other:
            text = other.wait_error()
        assert f"the label '{LABEL}' is taken by {owner}" in text
        assert second.batches == {}
        assert store.owner(LABEL) == owner
    with Query(spark, store, tmp_path / "3", third, **options) as next_one:
        next_one.wait_started(third)
        assert store.owner(LABEL) not in (None, owner)
        store.event("a:one", labels=(LABEL,))
        assert acks.wait(1) == [ack("a:one-1", "a:one")]


def test_queries_of_a_group_share_labels(
    spark: SparkSession, store: Store, acks: Acks, tmp_path: Path
) -> None:
    first, second = Seen(), Seen()
    options = {"ackLabels": LABEL, "ackGroup": "spark:blue"}
    with (
        Query(spark, store, tmp_path / "1", first, **options) as one,
        Query(spark, store, tmp_path / "2", second, **options) as other,
    ):
        one.wait_started(first)
        other.wait_started(second)
        store.event("a:one", labels=(LABEL,))
        # Both read everything; the gateway takes the first of their acks.
        assert acks.wait(2) == [ack("a:one-1", "a:one")] * 2


def test_a_store_that_is_away_gets_its_acks_later(spark: SparkSession, tmp_path: Path) -> None:
    seen = Seen()
    entered, allowed = threading.Event(), threading.Event()

    def function(df: DataFrame, batch_id: int) -> None:
        seen(df, batch_id)
        if seen.rows and not allowed.is_set():
            entered.set()
            assert allowed.wait(DEADLINE)

    with redis_server() as own:
        store = Store(own.url, "p")
        with Query(spark, store, tmp_path / "c", function, ackLabels=LABEL) as query:
            query.wait_started(seen)
            store.event("a:one", labels=(LABEL,))
            query.wait(entered.is_set)
            own.stop()
            allowed.set()
            wait_for_sync(lambda: committed(tmp_path / "c") == max(seen.batches), DEADLINE)
            own.start()
            acks = Acks(store)
            store.event("a:two", labels=(LABEL,))
            acks.wait(1)
            wait_for_sync(
                lambda: acks.receive() and acks.records[-1] == ack("a:two-1", "a:two"), DEADLINE
            )
            acks.close()
        store.redis.close()
    assert [row.correlation_id for row in seen.rows] == ["a:one-1", "a:two-1"]
