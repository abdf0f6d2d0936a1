"""Options of the source, places in the journal, ranges of tasks: all that needs no Spark."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connections.spark.options import BATCH, STREAM, OptionError, read_options
from connections.spark.pages import START, position
from connections.spark.places import (
    Bookmark,
    Map,
    Moment,
    Named,
    Opaque,
    PlaceError,
    parse_moment,
    parse_place,
)
from connections.spark.ranges import WORTH, ShardRange, grouped, ranges, split
from connections.spark.store import StoreError, spoken_url

URL = {"redisUrl": "redis://h"}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("startingOffsets", "now"),
        ("startingOffsets", "3:170-0-1"),
        ("startingOffsets", '{"0": "now"}'),
        ("startingOffsets", '{"0": 17}'),
        ("startingOffsets", '{"a": "0-0"}'),
        ("startingOffsets", '{"0": "0-0"'),
        ("startingOffsets", "3:18446744073709551616-0"),
        ("startingTimestamp", "yesterday"),
        ("startingTimestamp", "latest"),
        ("startingTimestamp", "2026-02-03T04:05:06"),
        ("endingOffsets", "soon"),
        ("endingTimestamp", "-1"),
        ("maxOffsetsPerTrigger", "0"),
        ("maxOffsetsPerTrigger", "many"),
        ("minPartitions", "0"),
        ("storeTimeout", "-5"),
        ("failOnDataLoss", "maybe"),
        ("readOn", "cluster"),
        ("stream", "commands"),
        ("variant", "yes"),
        ("filter", "eq(attributes/a,1"),
        ("filter", "eq(unknown,1)"),
        ("namespaces", "a,,b"),
        ("namespaces", ""),
        ("ackLabels", "twin-persisted"),
        ("ackLabels", "no label"),
        ("weakAckLabels", "{{connection:id}}:x"),
    ],
)
def test_an_option_with_a_bad_value_is_refused(option: str, value: str) -> None:
    with pytest.raises(OptionError, match=option):
        read_options({**URL, option: value})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"startingOffsets": "latest", "startingTimestamp": "0"}, "contradict"),
        ({"endingOffsets": "latest", "endingTimestamp": "0"}, "contradict"),
        ({"endingOffsets": "earliest"}, "nothing to read"),
        ({"startingTimestamp": "2000", "endingTimestamp": "1000"}, "after its end"),
        ({"readOn": "driver", "minPartitions": "4"}, "contradict"),
        ({"ackGroup": "blue"}, "there are none"),
        ({"ackLabels": "a:b", "weakAckLabels": "c:d,a:b"}, "a:b is in ackLabels"),
        ({"stream": "outcomes", "filter": 'eq(thingId,"a:b")'}, "filter is for stream=events"),
        ({"stream": "outcomes", "ackLabels": "a:b"}, "ackLabels is for stream=events"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        read_options({**URL, **options})


@pytest.mark.parametrize(
    ("kind", "option", "value", "text"),
    [
        (STREAM, "endingOffsets", "latest", "endingOffsets is not for spark.readStream"),
        (STREAM, "endingTimestamp", "5", "endingTimestamp is not for spark.readStream"),
        (BATCH, "maxOffsetsPerTrigger", "5", "maxOffsetsPerTrigger is not for spark.read"),
        (BATCH, "readOn", "driver", "readOn is not for spark.read"),
        (BATCH, "ackLabels", "a:b", "ackLabels is not for spark.read"),
        (BATCH, "weakAckLabels", "a:b", "weakAckLabels is not for spark.read"),
    ],
)
def test_options_of_the_other_kind_of_query_are_refused(
    kind: str, option: str, value: str, text: str
) -> None:
    options = read_options({**URL, option.upper(): value})
    with pytest.raises(OptionError, match=text):
        options.check_for(kind)
    options.check_for(BATCH if kind == STREAM else STREAM)


def test_option_names_ignore_case_and_the_url_may_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ACKGATE_REDIS_URL", "unix:///r.sock")
    options = read_options({"READON": "executors", "maxoffsetspertrigger": "7"})
    assert (options.url, options.read_on, options.max_offsets) == ("unix:///r.sock", "executors", 7)
    monkeypatch.delenv("ACKGATE_REDIS_URL")
    with pytest.raises(StoreError, match="ACKGATE_REDIS_URL"):
        read_options({})


@pytest.mark.parametrize(
    ("url", "spoken"),
    [
        ("redis://user:secret@host:6380/2", "redis://host:6380"),
        ("rediss://:secret@host", "rediss://host"),
        ("redis://:sec/ret@host:1", "redis://…"),
        ("unix:///run/r.sock?password=secret", "unix:///run/r.sock"),
        ("unix://:secret@/run/r.sock", "unix://"),
    ],
)
def test_an_address_is_spoken_of_without_its_password(url: str, spoken: str) -> None:
    assert spoken_url(url) == spoken
    assert "secret" not in repr(read_options({"redisUrl": url}))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", Named("earliest")),
        (" Latest ", Named("latest")),
        ("3:1700000000000-2", Bookmark(3, "1700000000000-2")),
        ("1700000000000", Moment(1_700_000_000_000)),
        ("2026-02-03T04:05:06Z", Moment(1_770_091_506_000)),
        ("2026-02-03T05:05:06.0001+01:00", Moment(1_770_091_506_001)),
        ("1960-01-01T00:00:00Z", Moment(0)),
        ("1gOvyq9wxAAAB", Opaque("1gOvyq9wxAAAB")),
        (
            '{"0": "17-0", "1": "latest", "since": {"0": "16-0"}}',
            Map((("0", "17-0"), ("1", "latest"))),
        ),
    ],
)
def test_a_place_is_read_as_what_it_is(text: str, place: object) -> None:
    assert parse_place(text) == place


def test_an_instant_needs_a_zone() -> None:
    with pytest.raises(PlaceError, match="needs a zone"):
        parse_moment("2026-02-03 04:05:06")


# --- ranges


@given(st.integers(0, 10_000), st.integers(0, 9), st.integers(0, 10_000), st.integers(1, 40))
def test_pieces_of_a_range_hold_exactly_what_it_holds(
    begin: int, sequence: int, length: int, minimum: int
) -> None:
    whole = ShardRange("0", f"{begin}-{sequence}", f"{begin + length}-{sequence + 1}")
    tasks = split([whole], {}, minimum)
    pieces = [piece for task in tasks for piece in task.ranges]
    assert (pieces[0].start, pieces[-1].end) == (whole.start, whole.end)
    assert all(one.end == other.start for one, other in pairwise(pieces))
    assert all(position(piece.start) < position(piece.end) for piece in pieces)
    assert len(tasks) == min(minimum, max(1, length))


def test_a_range_from_the_beginning_is_split_where_entries_are() -> None:
    tasks = split([ShardRange("0", START, "2000-0")], {"0": "1000-3"}, 4)
    bounds = [(part.start, part.end) for task in tasks for part in task.ranges]
    assert bounds == [
        (START, "1250-0"),
        ("1250-0", "1500-0"),
        ("1500-0", "1750-0"),
        ("1750-0", "2000-0"),
    ]


def test_nobody_begins_to_read_before_the_first_entry() -> None:
    """Who begins after an id looks whether something at or before it is left: loss, if not."""
    for length in (0, 1, 5, 9):
        tasks = split([ShardRange("0", START, f"{1000 + length}-7")], {"0": "1000-3"}, 8)
        first, *later = [part.start for task in tasks for part in task.ranges]
        assert first == START
        assert all(position(start) > (1000, 3) for start in later)


@given(st.lists(st.integers(0, 3 * WORTH), max_size=12))
def test_tasks_hold_every_range_once_and_are_as_few_as_is_worth_it(counts: list[int]) -> None:
    whole = [ShardRange(str(shard), START, "5-0") for shard in range(len(counts))]
    tasks = grouped(whole, {str(shard): count for shard, count in enumerate(counts)})
    held = [part for task in tasks for part in task.ranges]
    assert sorted(held, key=whole.index) == whole
    assert len(tasks) <= max(1, -(-sum(counts) // WORTH))
    if counts:
        assert tasks


def test_a_range_of_unknown_size_gets_a_task_of_its_own() -> None:
    whole = ranges({"0": START, "1": START, "2": "4-0"}, {"0": "5-0", "1": "5-0", "2": "4-0"})
    assert [task.ranges for task in grouped(whole, {})] == [(whole[0],), (whole[1],)]


def test_the_offset_map_of_a_progress_report_is_a_place() -> None:
    offset = json.dumps({"0": "17-0", "1": "18-3"})
    assert parse_place(offset) == Map((("0", "17-0"), ("1", "18-3")))
