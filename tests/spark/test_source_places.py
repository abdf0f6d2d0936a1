"""Where a query starts and ends: every way to say it, on a real journal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from acks.bookmark import read_position, write_bookmark
from acks.journal import shard_of
from connections.spark.options import read_options
from connections.spark.pages import Journal, Offset, OffsetError
from connections.spark.places import parse_place
from connections.spark.tables import open_table
from tests.spark.conftest import SHARDS, Query, Seen, Store

# One thing of each shard, by its shard.
THINGS = sorted({shard_of(f"a:t{number}", SHARDS): f"a:t{number}" for number in range(50)}.items())


def journal(store: Store) -> Journal:
    options = read_options({"redisUrl": store.url, "prefix": store.prefix})
    return Journal(options, open_table(options))


def fill(store: Store) -> None:
    """An entry a second from 1 s on, in all shards at the same moments, two in each ms."""
    for second in range(1, 6):
        for _, thing_id in THINGS:
            store.event(thing_id, second, entry_id=f"{second * 1000}-0")
            store.event(thing_id, second, entry_id=f"{second * 1000}-1")


def resolved(store: Store, text: str, *, end: bool = False) -> list[str]:
    offset = journal(store).resolve(parse_place(text), end=end)
    return [offset[str(shard)] for shard in range(SHARDS)]


def test_an_instant_stands_before_what_was_appended_then(store: Store) -> None:
    fill(store)
    for text in ("3000", "1970-01-01T00:00:03Z"):
        assert resolved(store, text) == ["2000-1"] * SHARDS
        assert resolved(store, text, end=True) == ["2000-1"] * SHARDS
    assert resolved(store, "3001") == ["3000-1"] * SHARDS
    assert resolved(store, "500") == ["0-0"] * SHARDS
    assert resolved(store, "0") == ["0-0"] * SHARDS
    assert resolved(store, "99999", end=True) == ["5000-1"] * SHARDS


def test_an_end_may_lie_in_the_future_but_not_a_start(store: Store) -> None:
    fill(store)
    assert resolved(store, "2100-01-01T00:00:00Z", end=True) == ["5000-1"] * SHARDS
    with pytest.raises(OffsetError, match="in the future"):
        resolved(store, "2100-01-01T00:00:00Z")


def test_after_a_bookmark_nothing_of_other_shards_is_left_out(store: Store) -> None:
    fill(store)
    assert resolved(store, "1:3000-0") == ["2000-1", "3000-0", "2000-1", "2000-1"]
    assert resolved(store, "1:3000-0", end=True) == ["3000-1", "3000-0", "3000-1", "3000-1"]


def test_a_bookmark_of_the_event_streams_has_a_place_for_each_shard(store: Store) -> None:
    places = ["3000-0", "0-0", "2000-1", "4000-0"]
    text = write_bookmark(tuple(read_position(place.encode()) for place in places))
    assert resolved(store, text) == places


def test_a_map_says_it_for_each_shard(store: Store) -> None:
    fill(store)
    given = {"0": "2500-0", "1": "earliest", "2": "latest", "3": "3000-1"}
    assert resolved(store, json.dumps(given)) == ["2500-0", "0-0", "5000-1", "3000-1"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"0": "0-0", "1": "0-0", "3": "0-0"}', "lacks shard 2"),
        ('{"0": "0-0", "1": "0-0", "2": "0-0", "3": "0-0", "4": "0-0"}', "names shard 4"),
        ("7:1-0", "names shard 7; the data has 4 shards, from 0 to 3"),
        (write_bookmark(((1, 0), (2, 0))), "bookmark cannot be read"),
        ("1zzzz", "bookmark cannot be read"),
    ],
)
def test_a_place_of_other_data_is_refused(store: Store, text: str, problem: str) -> None:
    with pytest.raises(OffsetError, match=problem):
        resolved(store, text)


# --- through Spark


def values(spark: SparkSession, store: Store, **options: str) -> list[str]:
    reader = spark.read.format("ackgate").option("redisUrl", store.url)
    rows = reader.options(prefix=store.prefix, **options).load().collect()
    return sorted(f"{row.shard}:{row.value}" for row in rows)


def test_a_batch_reads_what_lies_between_two_places(spark: SparkSession, store: Store) -> None:
    fill(store)

    def expected(*seconds: int) -> list[str]:
        return sorted(f"{shard}:{s}" for shard in range(SHARDS) for s in seconds for _ in range(2))

    assert values(spark, store) == expected(1, 2, 3, 4, 5)
    assert values(spark, store, startingTimestamp="4000") == expected(4, 5)
    assert values(spark, store, endingTimestamp="3000") == expected(1, 2)
    between = {"startingTimestamp": "1970-01-01T00:00:02Z", "endingOffsets": "4000"}
    assert values(spark, store, **between) == expected(2, 3)
    marked = values(spark, store, startingOffsets="1:4000-0", endingOffsets="2:4000-0")
    assert marked == ["0:4", "0:4", "1:4", "2:4", "3:4", "3:4"]
    offset: Offset = {str(shard): "2000-1" for shard in range(SHARDS)}
    named = {"startingOffsets": json.dumps(offset), "endingOffsets": "latest"}
    assert values(spark, store, **named) == expected(3, 4, 5)


def test_a_batch_that_ends_before_it_starts_is_refused(spark: SparkSession, store: Store) -> None:
    fill(store)
    with pytest.raises(PySparkException, match=r"after its end in shard 0, 1, 2, 3"):
        values(spark, store, startingOffsets="1:4000-0", endingTimestamp="2000")


@pytest.mark.parametrize("read_on", ["auto", "driver", "executors"])
@pytest.mark.parametrize("trigger", ["", "availableNow"])
@pytest.mark.parametrize(
    "place",
    [
        {"startingTimestamp": "4000"},
        {"startingOffsets": '{"0": "3000-1", "1": "3000-1", "2": "3000-1", "3": "3000-1"}'},
    ],
)
def test_a_stream_starts_where_it_is_told(
    spark: SparkSession,
    store: Store,
    tmp_path: Path,
    read_on: str,
    trigger: str,
    place: dict[str, str],
) -> None:
    fill(store)
    seen = Seen()
    options = {"readOn": read_on, "trigger": trigger, **place}
    with Query(spark, store, tmp_path / "c", seen, **options) as query:
        if trigger:
            query.wait(lambda: not query.query.isActive)
        else:
            query.wait(lambda: len(seen.rows) >= 4 * SHARDS)
    assert sorted(row.value for row in seen.rows) == ["4"] * 2 * SHARDS + ["5"] * 2 * SHARDS


def test_a_stream_that_starts_at_a_bookmark_and_dies_at_once_starts_there_again(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    """Even if what lay before the bookmark has been trimmed meanwhile: a loss would be seen."""
    fill(store)
    first, second = Seen(), Seen()
    first.fail_at = 0
    with Query(spark, store, tmp_path / "c", first, startingOffsets="1:3000-0") as query:
        query.wait_error()
    with Query(spark, store, tmp_path / "c", second, startingOffsets="latest") as query:
        query.wait(lambda: second.rows)
    assert first.rows == []
    assert sorted(row.value for row in second.rows if row.shard == 1) == list("34455")
    assert sorted(row.value for row in second.rows if row.shard == 2) == list("334455")
