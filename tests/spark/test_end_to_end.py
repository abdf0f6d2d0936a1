"""A request over HTTP, a query of one's own, and the answer: success, failure, poison."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from connections.spark import Poison, acknowledge
from tests.servers import RedisServer, wait_for_sync
from tests.spark.conftest import DEADLINE
from tests.spark.jobs import Site, site

LABEL = "spark:ingested"
BOTH = f"twin-persisted,{LABEL}"


@pytest.fixture
def here(tmp_path: Path, server: RedisServer) -> Iterator[Site]:
    with site(tmp_path, server) as made:
        yield made


def events(spark: SparkSession, here: Site) -> DataFrame:
    options = {"redisUrl": here.url, "prefix": here.prefix}
    return spark.readStream.format("ackgate").options(**options).load()


def wait_started(query: StreamingQuery) -> None:
    def look() -> bool:
        if (error := query.exception()) is not None:
            raise error
        return query.lastProgress is not None

    wait_for_sync(look, DEADLINE, "first batch")


def test_the_batch_function_decides_what_the_requester_gets(
    spark: SparkSession, here: Site, tmp_path: Path
) -> None:
    failing = threading.Event()

    def ingest(df: DataFrame, _batch: int) -> list[Poison]:
        rows = df.collect()
        if rows and failing.is_set():
            raise RuntimeError("the lake is closed")
        return [
            Poison(row.correlation_id, 422, {"reason": "too hot"})
            for row in rows
            if row.value == "99"
        ]

    with acknowledge(ingest, redis_url=here.url, prefix=here.prefix, on_failure="skip") as acks:
        query = (
            events(spark, here)
            .writeStream.foreachBatch(acks)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        try:
            wait_started(query)
            here.put("org.acme:oven", "", {"attributes": {"heat": 1}})
            path = "/attributes/heat"
            done = here.ask(BOTH, "org.acme:oven", path, 20).result()
            assert done.status_code == 200, done.text
            assert _statuses(done.json()) == {"twin-persisted": 204, LABEL: 200}
            assert here.ask(LABEL, "org.acme:oven", path, 21).result().status_code == 200

            hot = here.ask(BOTH, "org.acme:oven", path, 99).result()
            assert hot.status_code == 424, hot.text
            assert _statuses(hot.json()) == {"twin-persisted": 204, LABEL: 422}
            assert hot.json()[LABEL]["payload"] == {"reason": "too hot"}

            failing.set()
            failed = here.ask(BOTH, "org.acme:oven", path, 22).result()
            assert failed.status_code == 424, failed.text
            assert _statuses(failed.json()) == {"twin-persisted": 204, LABEL: 500}
            assert failed.json()[LABEL]["payload"]["message"] == (
                "RuntimeError: the lake is closed"
            )
            alone = here.ask(LABEL, "org.acme:oven", path, 23).result()
            assert alone.status_code == 500, alone.text
            assert here.owner(LABEL) is not None
        finally:
            query.stop()
    assert here.owner(LABEL) is None


def test_rows_of_the_sink_are_the_answer(spark: SparkSession, here: Site, tmp_path: Path) -> None:
    hot = f.col("value").try_cast("int") > 90
    acks = events(spark, here).withColumns(
        {
            "label": f.lit(LABEL),
            "status": f.when(hot, 422).otherwise(200),
            "payload": f.when(hot, f.struct(f.lit("too hot").alias("reason"))),
        }
    )
    query = (
        acks.writeStream.format("ackgate-acks")
        .options(redisUrl=here.url, prefix=here.prefix, labels=LABEL)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        wait_started(query)
        here.put("org.acme:oven", "", {"attributes": {"heat": 1}})
        done = here.ask(LABEL, "org.acme:oven", "/attributes/heat", 20).result()
        assert done.status_code == 200, done.text
        bad = here.ask(BOTH, "org.acme:oven", "/attributes/heat", 99).result()
        assert bad.status_code == 424, bad.text
        assert bad.json()[LABEL]["status"] == 422
        assert bad.json()[LABEL]["payload"] == {"reason": "too hot"}
    finally:
        query.stop()


def _statuses(entries: dict[str, Any]) -> dict[str, int]:
    return {label: entry["status"] for label, entry in entries.items()}
