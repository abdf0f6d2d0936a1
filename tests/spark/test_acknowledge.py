"""Acks: when they are sent, to whom, with what; and what a failure does to them."""

from __future__ import annotations

import threading
import time
from importlib.resources import files
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from acks.journal import ASYNC, leases_key, owners_key, request_key, shard_of
from connections.spark import Acknowledger, LabelTaken, Poison, acknowledge
from tests.servers import wait_for_sync
from tests.spark.conftest import DEADLINE, SHARDS, Acks, Query, Seen, Store

LABEL = "spark:done"


@pytest.mark.parametrize("read_on", ["driver", "executors"])
def test_every_row_that_asks_gets_its_ack(
    spark: SparkSession, store: Store, acks: Acks, tmp_path: Path, read_on: str
) -> None:
    other_node = Acks(store, "node2")
    seen = Seen()
    acknowledger = acknowledge(
        seen, LABEL, redis_url=store.url, prefix=store.prefix, persist=read_on == "executors"
    )
    with (
        acknowledger,
        Query(spark, store, tmp_path / "c", acknowledger, readOn=read_on) as query,
    ):
        query.wait_started(seen)
        mine = store.event("a:one", labels=("x:other", LABEL))
        far = store.event("a:two", labels=(LABEL,), origin="node2")
        store.event("a:three", labels=("x:other",))
        store.event("a:four")
        store.event("a:five", labels=(LABEL,), origin="")
        last = store.event("a:six", labels=(LABEL,))
        acks.wait(2)
        other_node.wait(1)
        query.wait(lambda: len(seen.rows) == 6)
        wait_for_sync(lambda: acknowledger.counters.acks == 3, DEADLINE)
    acks.receive()
    other_node.close()
    assert sorted(acks.records) == sorted(
        [cid, LABEL, thing, 200, {"correlation-id": cid}]
        for cid, thing in ((mine, "a:one"), (last, "a:six"))
    )
    assert other_node.records == [[far, LABEL, "a:two", 200, {"correlation-id": far}]]
    assert (acknowledger.counters.nacks, acknowledger.counters.unheard) == (0, 0)


def test_no_ack_before_the_batch_function_has_returned(
    spark: SparkSession, store: Store, acks: Acks, tmp_path: Path
) -> None:
    entered, allowed = threading.Event(), threading.Event()
    started = threading.Event()

    def function(df: DataFrame, _batch: int) -> None:
        if df.count():
            entered.set()
            assert allowed.wait(DEADLINE)
        started.set()

    with (
        acknowledge(function, LABEL, redis_url=store.url, prefix=store.prefix) as acknowledger,
        Query(spark, store, tmp_path / "c", acknowledger) as query,
    ):
        query.wait(started.is_set)
        store.event(labels=(LABEL,))
        query.wait(entered.is_set)
        # Everything an ack would need is there; a marker sent now must come before it.
        store.redis.publish(f"{store.prefix}:acks:node1", '[["marker"]]')
        assert acks.wait(1) == [["marker"]]
        assert acknowledger.counters.acks == 0
        allowed.set()
        assert [record[0] for record in acks.wait(2)] == ["marker", "org.acme:lamp-1"]


def test_a_failing_batch_gives_500_and_stops_the_query(
    spark: SparkSession, store: Store, acks: Acks, tmp_path: Path
) -> None:
    seen = Seen()
    seen.fail_at = 0
    with (
        acknowledge(seen, LABEL, redis_url=store.url, prefix=store.prefix) as acknowledger,
        Query(spark, store, tmp_path / "c", acknowledger) as query,
    ):
        query.wait_started(seen)
        cid = store.event(labels=(LABEL,))
        assert "asked to fail" in query.wait_error()
    [[*facts, headers, payload]] = acks.wait(1)
    assert facts == [cid, LABEL, "org.acme:lamp", 500]
    assert headers == {"correlation-id": cid, "content-type": "application/json"}
    assert payload == {"message": "RuntimeError: asked to fail", "batchId": 1}
    assert (acknowledger.counters.failures, acknowledger.counters.nacks) == (1, 1)


def test_skip_goes_on_after_a_failing_batch(
    spark: SparkSession, store: Store, acks: Acks, tmp_path: Path
) -> None:
    seen = Seen()
    seen.fail_at = 0
    with (
        acknowledge(
            seen, LABEL, redis_url=store.url, prefix=store.prefix, on_failure="skip"
        ) as acknowledger,
        Query(spark, store, tmp_path / "c", acknowledger) as query,
    ):
        query.wait_started(seen)
        store.event("a:bad", labels=(LABEL,))
        assert [record[3] for record in acks.wait(1)] == [500]
        seen.fail_at = None
        store.event("a:good", labels=(LABEL,))
        assert [record[3] for record in acks.wait(2)] == [500, 200]


def test_poison_rows_get_their_own_status(
    spark: SparkSession, store: Store, acks: Acks, tmp_path: Path
) -> None:
    started = threading.Event()

    def function(df: DataFrame, _batch: int) -> list[Poison]:
        started.set()
        bad = df.where("value = '\"bad\"'").collect()
        return [Poison(row.correlation_id, 422, {"why": "bad"}) for row in bad]

    with (
        acknowledge(function, LABEL, redis_url=store.url, prefix=store.prefix) as acknowledger,
        Query(spark, store, tmp_path / "c", acknowledger) as query,
    ):
        query.wait(started.is_set)
        good = store.event("a:good", "fine", labels=(LABEL,))
        bad = store.event("a:bad", "bad", labels=(LABEL,))
        records = {record[0]: record[3:] for record in acks.wait(2)}
        wait_for_sync(lambda: acknowledger.counters.nacks, DEADLINE)
    assert records[good] == [200, {"correlation-id": good}]
    headers = {"correlation-id": bad, "content-type": "application/json"}
    assert records[bad] == [422, headers, {"why": "bad"}]
    assert (acknowledger.counters.acks, acknowledger.counters.nacks) == (1, 1)


def test_a_result_that_is_not_poison_is_a_failure(
    spark: SparkSession, store: Store, acks: Acks, tmp_path: Path
) -> None:
    started = threading.Event()

    def function(df: DataFrame, _batch: int) -> list[Poison]:
        started.set()
        return ["org.acme:lamp-1"] if df.count() else []  # type: ignore[list-item]  # the point

    with (
        acknowledge(function, LABEL, redis_url=store.url, prefix=store.prefix) as acknowledger,
        Query(spark, store, tmp_path / "c", acknowledger) as query,
    ):
        query.wait(started.is_set)
        store.event(labels=(LABEL,))
        assert "returns None or Poison rows, not str" in query.wait_error()
    assert [record[3] for record in acks.wait(1)] == [500]


def test_a_large_batch_is_split_into_messages(
    spark: SparkSession, store: Store, acks: Acks, tmp_path: Path
) -> None:
    expected = store.events(1500, labels=(LABEL,))
    with (
        acknowledge(Seen(), LABEL, redis_url=store.url, prefix=store.prefix) as acknowledger,
        Query(spark, store, tmp_path / "c", acknowledger, startingOffsets="earliest"),
    ):
        acks.wait(1500)
    assert sorted(record[0] for record in acks.records) == sorted(expected)


def test_columns_that_acks_need_must_be_there(spark: SparkSession, store: Store) -> None:
    batch = spark.range(1).selectExpr(
        "'c' correlation_id", "'t' thing_id", "array('a') requested_acks"
    )
    with (
        acknowledge(Seen(), LABEL, redis_url=store.url, prefix=store.prefix) as acknowledger,
        pytest.raises(ValueError, match="the batch lacks origin"),
    ):
        acknowledger(batch, 0)


def test_a_label_has_one_owner(store: Store) -> None:
    def claim(label: str) -> Acknowledger:
        return acknowledge(Seen(), label, redis_url=store.url, prefix=store.prefix)

    with claim(LABEL):
        owner = store.owner(LABEL)
        assert owner is not None
        assert owner.startswith("spark-")
        with pytest.raises(LabelTaken, match=f"'{LABEL}' is taken by {owner}") as refused:
            claim(LABEL)
        assert (refused.value.label, refused.value.owner) == (LABEL, owner)
        with claim("spark:other"):
            assert store.owner("spark:other") not in (None, owner)
    assert store.owner(LABEL) is None
    claim(LABEL).close()


@pytest.mark.parametrize("persist", [False, True])
def test_several_labels_get_an_ack_each(
    spark: SparkSession, store: Store, acks: Acks, tmp_path: Path, persist: bool
) -> None:
    labels = (LABEL, "spark:indexed")
    started = threading.Event()

    def function(df: DataFrame, _batch: int) -> list[Poison]:
        started.set()
        return [Poison("a:bad-1", 400)]

    with (
        acknowledge(
            function, labels, redis_url=store.url, prefix=store.prefix, persist=persist
        ) as acknowledger,
        Query(spark, store, tmp_path / "c", acknowledger) as query,
    ):
        query.wait(started.is_set)
        store.event("a:both", labels=("x:other", *labels))
        store.event("a:one", labels=("spark:indexed",))
        store.event("a:none", labels=("x:other",))
        store.event("a:bad", labels=labels)
        acks.wait(5)
        wait_for_sync(lambda: acknowledger.counters.acks == 3, DEADLINE)
        assert acknowledger.counters.nacks == 2
        assert store.owner(LABEL) == store.owner("spark:indexed") is not None
    acks.receive()
    assert sorted((thing, label, status) for _, label, thing, status, *_ in acks.records) == [
        ("a:bad", LABEL, 400),
        ("a:bad", "spark:indexed", 400),
        ("a:both", LABEL, 200),
        ("a:both", "spark:indexed", 200),
        ("a:one", "spark:indexed", 200),
    ]


def test_a_group_shares_a_label(store: Store) -> None:
    def claim(group: str) -> Acknowledger:
        return acknowledge(Seen(), LABEL, group=group, redis_url=store.url, prefix=store.prefix)

    with claim("team"):
        with claim("team"):
            assert store.redis.hget(owners_key(store.prefix), LABEL) == b"/team"
        for other in ("", "others"):
            with pytest.raises(LabelTaken, match="is taken by the group team"):
                claim(other)
    claim("").close()


def test_the_label_of_a_holder_that_died_can_be_waited_for(store: Store) -> None:
    store.give_away(LABEL, "spark-dead/query")
    expiry = time.time() * 1000 + 1000
    store.redis.zadd(leases_key(store.prefix), {"spark-dead": expiry})
    with acknowledge(
        Seen(), LABEL, redis_url=store.url, prefix=store.prefix, label_timeout=DEADLINE
    ):
        assert time.time() * 1000 >= expiry
        assert store.owner(LABEL) is not None


def test_an_acknowledger_needs_a_label(store: Store) -> None:
    with pytest.raises(ValueError, match="needs a label"):
        acknowledge(Seen(), [], redis_url=store.url, prefix=store.prefix)


def test_a_closed_acknowledger_refuses_batches(spark: SparkSession, store: Store) -> None:
    acknowledger = acknowledge(Seen(), LABEL, redis_url=store.url, prefix=store.prefix)
    acknowledger.close()
    acknowledger.close()
    with pytest.raises(RuntimeError, match="closed before batch 7"):
        acknowledger(spark.range(0), 7)


def test_a_label_taken_by_somebody_else_stops_the_query(
    spark: SparkSession, store: Store, acks: Acks, tmp_path: Path
) -> None:
    """As after a pause so long that the lease ran out and another one came."""
    seen = Seen()
    with (
        acknowledge(seen, LABEL, redis_url=store.url, prefix=store.prefix) as acknowledger,
        Query(spark, store, tmp_path / "c", acknowledger) as query,
    ):
        query.wait_started(seen)
        store.give_away(LABEL, "gw-1/s1")
        wait_for_sync(lambda: acknowledger_lost(acknowledger), DEADLINE)
        store.event(labels=(LABEL,))
        assert f"'{LABEL}' is taken by gw-1/s1" in query.wait_error()
    assert acks.receive() == 0
    assert seen.rows == []
    assert store.owner(LABEL) == "gw-1/s1"


def acknowledger_lost(acknowledger: Acknowledger) -> bool:
    try:
        acknowledger._lease.check()
    except LabelTaken:
        return True
    return False


@pytest.mark.parametrize("status", [200, 399, 500])
def test_poison_is_the_requesters_fault(status: int) -> None:
    with pytest.raises(ValueError, match="400-499"):
        Poison("c", status)


def test_acks_of_accepted_requests_go_into_their_records(
    spark: SparkSession, store: Store, acks: Acks, tmp_path: Path
) -> None:
    """No gateway waits for them, so none has to be there."""
    seen = Seen()
    script = files("app.store").joinpath("accept.lua").read_text()
    keys = {
        cid: request_key(store.prefix, shard_of(thing, SHARDS), cid)
        for thing, cid in (("a:one", "a:one-1"), ("a:two", "a:two-1"), ("a:three", "a:three-1"))
    }
    for cid in ("a:one-1", "a:two-1"):
        store.redis.eval(script, 1, keys[cid], "{}", "30000", "60000", "0", LABEL, "x:other")

    def function(df: DataFrame, batch: int) -> list[Poison]:
        seen(df, batch)
        return [Poison("a:two-1", 422, {"why": "bad"})]

    with (
        acknowledge(function, LABEL, redis_url=store.url, prefix=store.prefix) as acknowledger,
        Query(spark, store, tmp_path / "c", acknowledger) as query,
    ):
        query.wait_started(seen)
        for thing in ("a:one", "a:two", "a:three"):
            store.event(thing, labels=(LABEL,), origin=ASYNC)
        near = store.event("a:four", labels=(LABEL,))
        wait_for_sync(lambda: acknowledger.counters.acks + acknowledger.counters.nacks == 4)
        assert [record[0] for record in acks.wait(1)] == [near]
    field = f"ack:{LABEL}"
    assert store.redis.hget(keys["a:one-1"], field) == b'1 [200,{"correlation-id":"a:one-1"}]'
    assert store.redis.hget(keys["a:two-1"], field) == (
        b'1 [422,{"correlation-id":"a:two-1","content-type":"application/json"},{"why":"bad"}]'
    )
    assert store.redis.hget(keys["a:one-1"], "left") == b"1"
    assert not store.redis.exists(keys["a:three-1"]), "a record that is gone stays so"
    assert acknowledger.counters.unheard == 0
