"""The watermark: any order in, no gap out, whatever is to come again holds it."""

from __future__ import annotations

import pytest

from acks.watermark import Watermark


def opened(*positions: int, limit: int = 100) -> Watermark:
    watermark = Watermark(limit)
    for position in positions:
        assert watermark.open(position)
    return watermark


def test_the_floor_waits_for_the_first_unfinished_position() -> None:
    watermark = opened(5, 6, 7)
    assert watermark.finish(7)
    assert watermark.finish(6)
    assert watermark.advance() == []
    assert watermark.floor is None
    assert watermark.finish(5)
    assert watermark.advance() == [5, 6, 7]
    assert watermark.floor == 7
    assert len(watermark) == 0


def test_positions_that_the_log_leaves_out_are_no_gap() -> None:
    watermark = opened(1, 4, 9)
    for position in (9, 1, 4):
        watermark.finish(position)
    assert watermark.advance() == [1, 4, 9]


def test_a_held_position_holds_the_floor_until_it_has_come_again() -> None:
    watermark = opened(1, 2, 3)
    assert watermark.finish(1)
    assert watermark.hold(2)
    assert watermark.finish(3)
    assert watermark.advance() == [1]
    assert watermark.first_held == 2
    # Read anew from 2: only 2 itself is to be handled.
    assert [watermark.open(position) for position in (1, 2, 3, 4)] == [False, True, False, True]
    assert watermark.first_held is None
    assert watermark.finish(2)
    assert watermark.advance() == [2, 3]
    assert watermark.floor == 3


def test_what_is_not_open_can_neither_be_finished_nor_held() -> None:
    watermark = opened(1, 2)
    assert watermark.hold(1)
    assert watermark.finish(2)
    for position in (1, 2, 3):
        assert not watermark.finish(position)
        assert not watermark.hold(position)
    assert watermark.advance() == []
    assert watermark.first_held == 1


def test_a_position_that_was_left_out_before_finds_its_place() -> None:
    watermark = opened(1, 5)
    watermark.finish(1)
    watermark.finish(5)
    assert watermark.open(3)
    assert watermark.advance() == [1]
    watermark.finish(3)
    assert watermark.advance() == [3, 5]


def test_there_is_a_bound() -> None:
    watermark = opened(1, 2, limit=2)
    assert watermark.full
    assert not watermark.open(2)
    assert not watermark.takes(3)
    with pytest.raises(OverflowError):
        watermark.open(3)
    watermark.finish(1)
    assert watermark.full, "only the floor makes room"
    watermark.advance()
    assert not watermark.full
    assert watermark.takes(3)
    assert watermark.open(3)
    assert [watermark.takes(position) for position in (1, 2, 3, 4)] == [True, True, True, False]
    with pytest.raises(ValueError, match="room for one"):
        Watermark(0)


def test_a_full_watermark_takes_what_was_held() -> None:
    watermark = opened(1, limit=1)
    watermark.hold(1)
    assert watermark.full
    assert watermark.takes(1)
    assert watermark.open(1)
