"""Pauses between tries, and waiting for what nobody tells."""

from __future__ import annotations

from connections.pauses import doubling, until


def test_a_pause_doubles_up_to_the_longest() -> None:
    assert [doubling(1.0, 5.0, failures) for failures in (1, 2, 3, 4, 10_000)] == [1, 2, 4, 5, 5]


async def test_waiting_ends_when_it_holds() -> None:
    looks = iter([False, False, True])
    await until(lambda: next(looks), 60.0)
    assert list(looks) == []


async def test_waiting_ends_with_the_grace() -> None:
    await until(lambda: False, 0.05)


async def test_without_a_grace_it_looks_once() -> None:
    looks = iter([False, True])
    await until(lambda: next(looks), 0.0)
    assert list(looks) == [True]
