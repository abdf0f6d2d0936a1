"""Bookmarks: positions to text and back, and what is no bookmark."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from acks.bookmark import (
    MAX_LENGTH,
    START,
    Positions,
    entry_id,
    read_bookmark,
    read_position,
    write_bookmark,
)
from acks.errors import GatewayError

NUMBERS = st.integers(0, 2**64 - 1)
POSITIONS = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=64).map(tuple)
NOW = 1_755_500_000_000
BUSY = tuple((NOW + shard, shard) for shard in range(8))


@given(POSITIONS)
@example((START,))
@example((START, (NOW, 0)))
def test_what_is_written_is_read(positions: Positions) -> None:
    assert read_bookmark(write_bookmark(positions), len(positions)) == positions


@given(POSITIONS)
def test_a_bookmark_is_one_line_of_plain_characters(positions: Positions) -> None:
    text = write_bookmark(positions)
    assert text.replace("-", "").replace("_", "").isalnum()
    assert text.isascii()


def test_different_positions_have_different_bookmarks() -> None:
    seen = {BUSY, *((*BUSY[:at], (NOW + at, at + 1), *BUSY[at + 1 :]) for at in range(8))}
    assert len({write_bookmark(positions) for positions in seen}) == 9


def test_a_bookmark_is_compact() -> None:
    assert len(write_bookmark(BUSY)) < 40
    spread = tuple((NOW - shard * 3_600_000, 0) for shard in range(8))
    assert len(write_bookmark(spread)) < 64


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "5",
        "nonsense",
        "1755500000000-0",
        "\u0661" + write_bookmark(BUSY)[1:],
        "2" + write_bookmark(BUSY)[1:],
        write_bookmark(BUSY)[:-1],
        write_bookmark(BUSY)[:-4],
        write_bookmark(BUSY) + "A",
        write_bookmark(BUSY) + "=",
        write_bookmark(BUSY) + "\n",
        write_bookmark(BUSY)[:9] + "+" + write_bookmark(BUSY)[9:],
        write_bookmark(BUSY[:7]),
        write_bookmark((*BUSY, START)),
        "1" + "_" * 40,
        "1" + "A" * MAX_LENGTH,
    ],
)
def test_what_is_no_bookmark_is_refused(text: str) -> None:
    with pytest.raises(GatewayError) as refused:
        read_bookmark(text, 8)
    problem = refused.value
    assert (problem.status, problem.code) == (400, "header.invalid")
    assert problem.to_json()["invalidHeaderKey"] == "last-event-id"
    assert len(problem.message) < 200


@given(st.text(max_size=60))
def test_whatever_is_read_has_one_spelling(text: str) -> None:
    with suppress(GatewayError):
        assert write_bookmark(read_bookmark("1" + text, 2)) == "1" + text


@pytest.mark.parametrize(
    "text",
    [
        "1BQEABgA",  # the first place of all in another spelling
        "1BQEABwA",  # a ms before the first
        "1BQEABgGA",  # a number with more bytes than it takes
    ],
)
def test_a_place_has_one_spelling(text: str) -> None:
    assert read_bookmark("1BQEAAA", 2) == ((5, 0), START)
    assert read_bookmark("1BQEABgE", 2) == ((5, 0), (0, 1))
    with pytest.raises(GatewayError):
        read_bookmark(text, 2)


def test_entry_ids_are_positions() -> None:
    assert read_position(b"1755500000000-12") == (NOW, 12)
    assert read_position(b"1755500000000") == (NOW, 0)
    assert entry_id((NOW, 12)) == "1755500000000-12"
    assert entry_id(START) == "0-0"
    with pytest.raises(ValueError, match="invalid literal"):
        read_position(b"?")
