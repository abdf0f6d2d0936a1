"""The watermark for every order in which positions may finish, fail and come again."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from acks.watermark import Watermark

positions = st.sets(st.integers(0, 10_000), min_size=1, max_size=40).map(sorted)


@given(positions, st.randoms(use_true_random=False))
def test_the_floor_never_passes_what_is_unfinished(log: list[int], random: Random) -> None:
    watermark = Watermark(len(log))
    for position in log:
        assert watermark.open(position)
    finished: set[int] = set()
    passed: list[int] = []
    order = list(log)
    random.shuffle(order)
    for position in order:
        assert watermark.finish(position)
        finished.add(position)
        passed += watermark.advance()
        expected = next((i for i, at in enumerate(log) if at not in finished), len(log))
        assert passed == log[:expected]
        assert watermark.floor == (log[expected - 1] if expected else None)
    assert passed == log
    assert len(watermark) == 0


@given(positions, st.integers(1, 8), st.randoms(use_true_random=False))
def test_a_reader_that_seeks_back_handles_everything_and_commits_no_gap(
    log: list[int], limit: int, random: Random
) -> None:
    """A small model of a Kafka partition: read, settle at random, seek to what was refused."""
    watermark = Watermark(limit)
    succeeded: list[int] = []
    refused: list[int] = []
    handling: list[int] = []
    at = 0
    while watermark.floor != log[-1]:
        while at < len(log) and watermark.takes(log[at]):
            if watermark.open(log[at]):
                handling.append(log[at])
            at += 1
        if handling:
            position = handling.pop(random.randrange(len(handling)))
            # Refused at most twice, so that the model comes to an end.
            if refused.count(position) < 2 and random.random() < 0.4:
                assert watermark.hold(position)
                refused.append(position)
            else:
                assert watermark.finish(position)
                succeeded.append(position)
        watermark.advance()
        assert len(watermark) <= limit
        committed = watermark.floor
        if committed is not None:
            assert {at for at in log if at <= committed} <= set(succeeded)
        first = watermark.first_held
        if first is not None and (not handling or random.random() < 0.5):
            at = log.index(first)
    assert sorted(succeeded) == log, "each position succeeds exactly once"
