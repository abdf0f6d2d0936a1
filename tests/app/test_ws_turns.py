"""Which command of a session waits for which: spec websocket-... 1.3 and 1.4."""

from __future__ import annotations

import asyncio

import pytest

from app.api.ws_turns import MAX_OPEN, Kind, Turns
from tests.servers import wait_for

CHANGE, SEND, READ = Kind.CHANGE, Kind.SEND, Kind.READ


class Wire:
    """Counts how often it was told to wait."""

    def __init__(self) -> None:
        self.holds = 0

    def hold(self) -> None:
        self.holds += 1

    def release(self) -> None:
        assert self.holds > 0
        self.holds -= 1


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def turns(wire: Wire) -> Turns:
    return Turns(wire)


@pytest.mark.parametrize(
    ("first", "then", "waits"),
    [
        (CHANGE, CHANGE, False),
        (CHANGE, SEND, True),
        (CHANGE, READ, True),
        (CHANGE, None, True),
        (SEND, CHANGE, True),
        (SEND, SEND, False),
        (SEND, READ, False),
        (SEND, None, True),
    ],
)
def test_who_waits_for_whom(
    wire: Wire, turns: Turns, first: Kind, then: Kind | None, waits: bool
) -> None:
    done: list[str] = []
    token = turns.enter(first, "a:a")
    if then is not None:
        turns.in_turn(then, "b:b", lambda: done.append("other thing"))
        assert done == ["other thing"]
        done.clear()
    turns.in_turn(then, "a:a", lambda: done.append("it"))
    assert (done, wire.holds) == (([], 1) if waits else (["it"], 0))
    turns.leave(first, "a:a", token)
    turns.leave(first, "a:a", token)
    assert (done, wire.holds) == (["it"], 0)


def test_all_that_came_before_is_waited_for(wire: Wire, turns: Turns) -> None:
    done: list[int] = []
    tokens = [turns.enter(CHANGE, "a:a") for _ in range(3)]
    turns.in_turn(READ, "a:a", lambda: done.append(1))
    for token in tokens:
        assert (done, wire.holds) == ([], 1)
        turns.leave(CHANGE, "a:a", token)
    assert (done, wire.holds) == ([1], 0)


def test_the_connection_is_released_even_if_what_waited_fails(wire: Wire, turns: Turns) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    token = turns.enter(CHANGE, "a:a")
    turns.in_turn(READ, "a:a", fail)
    with pytest.raises(ZeroDivisionError):
        turns.leave(CHANGE, "a:a", token)
    assert wire.holds == 0


def test_so_many_are_under_way_at_most(wire: Wire, turns: Turns) -> None:
    tokens = [turns.begin() for _ in range(MAX_OPEN - 1)]
    assert wire.holds == 0
    last = turns.enter(CHANGE, "a:a")
    assert wire.holds == 1
    turns.leave(CHANGE, "a:a", last)
    assert wire.holds == 1  # it is done, but not yet answered
    turns.end(tokens[0])
    turns.end(tokens[0])
    assert wire.holds == 0
    again = turns.begin()
    assert wire.holds == 1
    for token in (again, last, *tokens):
        turns.end(token)
    assert wire.holds == 0


async def test_work_that_is_done_alone(wire: Wire, turns: Turns) -> None:
    gate = asyncio.Event()

    async def work() -> None:
        await gate.wait()

    turns.start(work(), alone=True)
    assert wire.holds == 1
    gate.set()
    await wait_for(lambda: wire.holds == 0)


async def test_the_end_of_a_session_ends_its_work(wire: Wire, turns: Turns) -> None:
    ended: list[str] = []

    begun: list[str] = []

    async def work() -> None:
        begun.append("it")
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("it")

    turns.start(work())
    turns.start(work(), alone=True)
    await wait_for(lambda: len(begun) == 2)
    await turns.close()
    assert (ended, wire.holds) == (["it", "it"], 0)
    turns.start(work())  # nothing is begun any more, and nothing is left behind
    assert begun == ["it", "it"]
