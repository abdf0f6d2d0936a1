"""The job ``ack-report`` beside a real gateway: its figures, its Parquet files, a crash."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from acks.journal import outcomes_key, report_window_key, report_windows_key
from connections.spark.jobs.ack_report import Publish, service_levels
from connections.spark.outcomes import SCHEMA, OutcomeTable
from connections.spark.store import calls
from tests.servers import RedisServer
from tests.spark.conftest import Store
from tests.spark.jobs import Site, site

COUNTS = ("requested", "success", "failed", "weak", "timedOut")


@pytest.fixture
def here(tmp_path: Path, server: RedisServer) -> Iterator[Site]:
    with site(tmp_path, server) as made:
        yield made


def totals(here: Site) -> dict[str, Counter[str]]:
    """The counts of each label over all windows of the gateway's report."""
    found: dict[str, Counter[str]] = {}
    for window in here.get("/api/2/acks/report", "devops")["windows"]:
        for label, level in window["labels"].items():
            found.setdefault(label, Counter()).update({name: level[name] for name in COUNTS})
    return found


def files(folder: Path) -> list[dict[str, Any]]:
    """The rows that a reader of Parquet finds."""
    if not folder.exists():
        return []
    rows: list[dict[str, Any]] = (
        ds.dataset(folder, format="parquet", partitioning="hive").to_table().to_pylist()
    )
    return rows


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_report_counts_each_ack_once_even_after_a_crash(here: Site) -> None:
    output, hold = here.place / "report", here.place / "held"
    options = (
        *("--window", "1s", "--delay", "1s", "--keep", "1h"),
        *("--trigger", "0s", "--output", output),
    )
    absent = [here.ask("no:body", f"org.acme:{name}", "", {}, "300ms") for name in range(3)]
    assert [one.result().status_code for one in absent] == [408] * 3
    job = here.job("ack-report", *options, hold=hold)
    job.wait_for(hold.exists, "a batch in the store")
    wanted = Counter({"requested": 3, "timedOut": 3, "success": 0, "failed": 0, "weak": 0})
    assert totals(here) == {"no:body": wanted}
    job.kill9()
    again = here.job("ack-report", *options).ready()
    late = here.ask("no:body", "org.acme:late", "", {}, "300ms")
    assert late.result().status_code == 408
    wanted += Counter({"requested": 1, "timedOut": 1})
    again.wait_for(lambda: totals(here)["no:body"]["requested"] >= 4, "the last outcome")
    assert totals(here) == {"no:body": wanted}

    def closed() -> bool:
        """Later outcomes move the watermark on, until the windows of the first are final."""
        here.ask("the:clock", "org.acme:clock", "", {}, "300ms").result()
        rows = [row for row in files(output) if row.get("label") == "no:body"]
        return bool(sum(row["requested"] for row in rows) >= 4)

    again.wait_for(closed, "the windows as Parquet")
    assert again.terminate() == 0
    rows = [row for row in files(output) if row["label"] == "no:body"]
    assert sum(row["requested"] for row in rows) == sum(row["timed_out"] for row in rows) == 4
    assert len({row["start"] for row in rows}) == len(rows)
    assert {row["max_ms"] for row in rows} == {None}
    assert " reported, " in again.log


def outcome(label: str, status: int, how: int, us: int | None, *, second: int = 0) -> list[Any]:
    return ["id", "a:b", 1_768_478_400_000 + second * 1000, 100, status, label, status, how, us]


def test_levels_are_counted_by_how_an_ack_came_about(spark: SparkSession) -> None:
    import orjson

    records = [
        *(outcome("x:good", 200, 0, ms * 1000) for ms in range(1, 101)),
        outcome("x:bad", 503, 0, 7_000),
        outcome("x:bad", 408, 0, 9_000),
        outcome("x:bad", 200, 1, 5),
        outcome("x:bad", 408, 2, None),
        outcome("x:bad", 200, 0, 1_500, second=60),
    ]
    page = OutcomeTable().batch([(0, (b"1-1", {b"o": orjson.dumps(records)}))])
    assert page.schema.names == SCHEMA.fieldNames()
    table = spark.createDataFrame([tuple(row.values()) for row in page.to_pylist()], SCHEMA)
    levels = service_levels(table, 60_000, 1000).orderBy("label", "start").collect()
    found = [tuple(row)[2:] for row in levels]
    assert found == [
        ("x:bad", 4, 0, 2, 1, 1, 7.0, 9.0, 9.0, 9.0),
        ("x:bad", 1, 1, 0, 0, 0, 1.5, 1.5, 1.5, 1.5),
        ("x:good", 100, 100, 0, 0, 0, 50.0, 95.0, 99.0, 100.0),
    ]


def test_an_entry_that_is_none_is_named() -> None:
    for content in (b"[[]]", b"{", b"[[1,2,3,4,5,6]]"):
        with pytest.raises(ValueError, match="the entry 0:5-1 of outcomes cannot be read"):
            OutcomeTable().batch([(0, (b"5-1", {b"o": content}))])
    assert OutcomeTable().key("p", 0) == outcomes_key("p")


def test_old_windows_leave_the_store(spark: SparkSession, store: Store) -> None:
    """Those that are older than --keep, counted from the newest; and all that is there expires."""
    publish = Publish(store.url, store.prefix, 180_000)
    for minute in (0, 1, 3, 4):
        row = f"2026-01-15 12:{minute:02}:00", f"2026-01-15 12:{minute + 1:02}:00"
        facts = spark.sql(
            f"SELECT timestamp'{row[0]}' AS start, timestamp'{row[1]}' AS end, 'x:y' AS label, "
            "1L AS requested, 1L AS success, 0L AS failed, 0L AS weak, 0L AS timed_out, "
            "1.5D AS p50_ms, 1.5D AS p95_ms, 1.5D AS p99_ms, 1.5D AS max_ms"
        )
        publish(facts, minute)
        publish(facts, minute)  # a batch that runs again
    index = report_windows_key(store.prefix)
    [windows] = calls(store.url, [("ZRANGE", index, 0, -1)])
    starts = [int(window.split(b"-")[0]) for window in windows]
    assert [(start - starts[0]) // 60_000 for start in starts] == [0, 2, 3]
    key = report_window_key(store.prefix, windows[0].decode())
    [lasts, level] = calls(store.url, [("PTTL", key), ("HGET", key, "x:y")])
    assert 0 < lasts <= 3_780_000
    assert b'"latencyMs":{"p50":1.5,"p95":1.5,"p99":1.5,"max":1.5}' in level
