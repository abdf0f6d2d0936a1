"""Settlement of consumed messages: the rules of spec websocket-... 4.4 one by one."""

from __future__ import annotations

from typing import Any

import pytest

from acks.errors import error
from acks.settlement import Reply, Settlement, decide

ACCEPT, REDELIVER, DISCARD = Settlement.ACCEPT, Settlement.REDELIVER, Settlement.DISCARD


def test_without_acks_to_wait_for_a_message_is_accepted_at_once() -> None:
    assert decide([], 0) is ACCEPT


def test_replies_are_waited_for() -> None:
    assert decide([], 1) is None
    assert decide([Reply((204,))], 2) is None
    assert decide([Reply((503,))], 2) is None, "only an error ends the wait"


@pytest.mark.parametrize(
    ("statuses", "settlement"),
    [
        ((204,), ACCEPT),
        ((200, 399), ACCEPT),
        ((200, 400), DISCARD),
        ((412,), DISCARD),
        ((408,), REDELIVER),
        ((424,), REDELIVER),
        ((499,), DISCARD),
        ((500,), REDELIVER),
        ((404, 503), REDELIVER),
    ],
)
def test_failures_come_again_if_they_may_pass(
    statuses: tuple[int, ...], settlement: Settlement
) -> None:
    assert decide([Reply(statuses)], 1) is settlement
    assert decide([Reply((status,)) for status in statuses], len(statuses)) is settlement


@pytest.mark.parametrize(("status", "settlement"), [(404, ACCEPT), (503, ACCEPT), (408, REDELIVER)])
def test_a_live_response_fails_only_with_408(status: int, settlement: Settlement) -> None:
    assert decide([Reply((status,), live=True)], 1) is settlement


def test_late_replies_count_as_missing() -> None:
    assert decide([], 1, late=True) is REDELIVER
    assert decide([Reply((204,))], 2, late=True) is REDELIVER
    assert decide([Reply((400,))], 2, late=True) is DISCARD
    assert decide([Reply((400,)), Reply((408,))], 3, late=True) is REDELIVER


def test_more_replies_than_commands_count_as_missing_ones() -> None:
    assert decide([Reply((204,))] * 2, 1) is REDELIVER


def test_an_error_ends_the_wait() -> None:
    def settled(code: str, **facts: Any) -> Settlement | None:
        return decide([Reply(error=error(code, **facts))], 3)

    assert settled("things:thing.notfound", thing_id="a:b") is DISCARD
    assert settled("command.timeout", timeout_ms=1) is REDELIVER
    assert settled("things:thing.unavailable", thing_id="a:b") is REDELIVER
    assert settled("gateway:internalerror") is REDELIVER
    assert settled("things:condition.failed") is ACCEPT
    assert settled("header.invalid", value="x", header="timeout", type="number") is DISCARD
