"""What is known of one partition: no broker, no threads, time is given."""

from __future__ import annotations

import random

import pytest

from connections.kafka.options import Place, place
from connections.kafka.partition import FIRST_DELAY_S, LAST_DELAY_S, Partition


def _partition(limit: int = 100) -> Partition[str]:
    return Partition("in", 0, limit)


def _read(partition: Partition[str], *offsets: int) -> list[int]:
    """Read messages, and give out what can be; returns the offsets of these."""
    for offset in offsets:
        partition.read(offset, f"m{offset}")
    given: list[int] = []
    while (found := partition.next()) is not None:
        assert found[1] == f"m{found[0]}"
        given.append(found[0])
    return given


def test_what_is_committed_has_no_gap() -> None:
    partition = _partition()
    assert _read(partition, 5, 6, 7) == [5, 6, 7]
    assert partition.uncommitted() is None
    partition.finish(6)
    assert partition.uncommitted() is None
    partition.finish(5)
    assert partition.uncommitted() == 7
    partition.finish(7)
    assert partition.uncommitted() == 8


def test_offsets_that_a_compacted_log_leaves_out_are_no_gap() -> None:
    partition = _partition()
    assert _read(partition, 5, 9) == [5, 9]
    partition.finish(5)
    assert partition.uncommitted() == 6
    partition.finish(9)
    assert partition.uncommitted() == 10


def test_an_offset_is_committed_once_and_again_if_that_failed() -> None:
    partition = _partition()
    _read(partition, 0)
    partition.finish(0)
    partition.committed(1)
    assert partition.uncommitted() is None
    partition.committed(None)
    assert partition.uncommitted() == 1


def test_what_is_given_back_is_read_again_without_the_others() -> None:
    partition = _partition()
    assert _read(partition, 0, 1, 2, 3) == [0, 1, 2, 3]
    partition.finish(0)
    partition.finish(2)
    partition.give_back(1, 10.0)
    assert partition.due(10.0) is None
    assert _read(partition, 4) == [4], "the others go on meanwhile"
    assert partition.due(10.0 + FIRST_DELAY_S) == 1
    partition.sought(1, 10.2)
    assert _read(partition, 1, 2, 3, 4, 5) == [1, 5]
    for offset in (1, 3, 4, 5):
        partition.finish(offset)
    assert partition.uncommitted() == 6
    assert partition.due(99.0) is None


def test_the_delay_doubles_up_to_a_minute() -> None:
    partition = _partition()
    _read(partition, 0)
    now, delays = 0.0, []
    for _ in range(12):
        partition.give_back(0, now)
        delay = next(each / 100 for each in range(7_000) if _due(partition, now + each / 100))
        delays.append(delay)
        now += delay
        partition.sought(0, now)
        assert _read(partition, 0) == [0]
    assert delays[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert delays[-1] == LAST_DELAY_S


def _due(partition: Partition[str], now: float) -> bool:
    # Rounded: the delay is added to a time that has grown by steps of a hundredth.
    return partition.due(now + 1e-6) is not None


def test_one_that_was_passed_over_is_read_again() -> None:
    partition = _partition()
    _read(partition, 0, 1)
    partition.give_back(0, 0.0)
    assert partition.due(1.0) == 0
    partition.sought(0, 1.0)
    partition.give_back(1, 1.0)
    assert partition.due(2.0) == 0
    partition.sought(0, 2.0)
    assert _read(partition, 0) == [0]
    assert partition.due(2.0) == 1, "it has not come with the first one: looked for by itself"


def test_what_does_not_come_again_is_missed() -> None:
    partition = _partition()
    _read(partition, 0, 1)
    partition.give_back(0, 0.0)
    assert partition.due(1.0) == 0
    partition.sought(0, 1.0)
    assert not partition.overdue(61.0, 60.0)
    assert partition.overdue(61.1, 60.0)
    partition.patient(61.1)
    assert not partition.overdue(62.0, 60.0), "nothing was read meanwhile"
    _read(partition, 0)
    assert not partition.overdue(999.0, 60.0)


def test_a_topic_that_was_made_anew_is_noticed() -> None:
    partition = _partition()
    _read(partition, 7, 8, 9)
    partition.give_back(8, 0.0)
    assert partition.due(1.0) == 8
    partition.sought(8, 1.0)
    assert _read(partition, 8, 9, 10) == [8, 10]
    assert not partition.began_anew
    assert _read(partition, 0) == []
    assert partition.began_anew


def test_no_more_than_the_window_is_given_out_and_nothing_is_dropped() -> None:
    partition = _partition(limit=3)
    assert _read(partition, 0, 1, 2, 3, 4) == [0, 1, 2]
    assert partition.stuck
    partition.finish(1)
    partition.finish(2)
    assert _read(partition) == []
    partition.give_back(0, 0.0)
    assert partition.due(1.0) == 0
    partition.sought(0, 1.0)
    assert not partition.stuck, "what is awaited has to be read"
    assert _read(partition, 0, 1, 2, 3, 4, 5) == [0], "there is room for what was given back"
    partition.finish(0)
    assert _read(partition) == [3, 4, 5]
    assert not partition.stuck


@pytest.mark.parametrize("seed", range(20))
def test_random_settlements_lose_nothing_and_repeat_only_what_was_given_back(seed: int) -> None:
    """A log with gaps, read again from wherever the partition asks, in pieces of any size."""
    chance = random.Random(seed)
    log = sorted(chance.sample(range(1_000), 200))
    partition = _partition(limit=30)
    position, now = 0, 0.0
    waiting: list[int] = []
    backs: dict[int, int] = {}
    times: dict[int, int] = {}
    while position < len(log) or waiting or partition.due(now) is not None or backs:
        now += 0.05
        offset = partition.due(now)
        if offset is not None:
            partition.sought(offset, now)
            position = log.index(offset)
        if not partition.stuck:
            piece = log[position : position + chance.randrange(1, 20)]
            position += len(piece)
            given = _read(partition, *piece)
        else:
            given = _read(partition)
        for each in given:
            times[each] = times.get(each, 0) + 1
            assert times[each] <= backs.pop(each, 0) + 1
        waiting += given
        chance.shuffle(waiting)
        for _ in range(chance.randrange(len(waiting) + 1)):
            each = waiting.pop()
            if chance.random() < 0.2:
                backs[each] = times[each]
                partition.give_back(each, now)
            else:
                partition.finish(each)
        done = partition.uncommitted()
        if done is not None:
            assert all(each >= done for each in (*waiting, *backs))
    assert set(times) == set(log)
    assert partition.uncommitted() == log[-1] + 1


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("topic", Place("topic")),
        ("a.b_c-1/", Place("a.b_c-1")),
        ("topic/key", Place("topic", "key")),
        ("topic/org.acme:thing/x#1", Place("topic", "org.acme:thing/x#1")),
        ("topic#0", Place("topic", None, 0)),
        ("topic#12", Place("topic", None, 12)),
    ],
)
def test_addresses(address: str, expected: Place) -> None:
    assert place(address) == expected


@pytest.mark.parametrize("address", ["", "/key", "no topic", "a#", "a#x", "a#-1", "..", "a" * 250])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(ValueError, match="is no n"):
        place(address)
