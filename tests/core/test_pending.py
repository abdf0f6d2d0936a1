"""Pending: who is finished by what, and when the next one expires."""

from __future__ import annotations

import pytest

from acks.aggregator import Aggregator
from acks.errors import error
from acks.pending import TICK, Pending
from acks.signals import Acknowledgement, Response


def aggregator(*labels: str, timeout_ms: int = 1000) -> Aggregator:
    return Aggregator("ns:n", "c", labels or ("my-ack",), timeout_ms)


def ack(label: str = "my-ack", status: int = 200) -> Acknowledgement:
    return Acknowledgement(label, "ns:n", "c", status)


def test_an_ack_finishes_its_request_only() -> None:
    pending: Pending[str] = Pending()
    assert pending.open("a", aggregator(), 1.0, "first")
    assert pending.open("b", aggregator(), 1.0, "second")
    finished = pending.receive("a", ack())
    assert finished is not None
    assert finished[0] == "first"
    assert "a" not in pending
    assert "b" in pending
    assert pending.receive("a", ack()) is None
    assert pending.receive("unknown", ack()) is None


def test_a_key_that_is_open_cannot_be_opened_again() -> None:
    pending: Pending[str] = Pending()
    assert pending.open("a", aggregator(), 1.0, "first")
    assert not pending.open("a", aggregator(), 1.0, "second")
    pending.receive("a", ack())
    assert pending.open("a", aggregator(), 1.0, "third")


def test_response_and_error_finish_requests() -> None:
    pending: Pending[str] = Pending()
    pending.open("a", aggregator("twin-persisted"), 1.0, "first")
    pending.open("b", aggregator("twin-persisted", "my-ack"), 1.0, "second")
    done = pending.respond("a", Response(204, None, {}))
    assert done is not None
    assert done[1].status == 204
    assert pending.respond("b", Response(204, None, {})) is None
    assert pending.is_outstanding("b", "my-ack")
    assert not pending.is_outstanding("b", "twin-persisted")
    failed = pending.fail("b", error("things:thing.unavailable", thing_id="ns:n"))
    assert failed is not None
    assert failed[1].status == 503
    assert len(pending) == 0


def test_expiry_comes_at_the_deadline_and_not_before() -> None:
    pending: Pending[str] = Pending()
    assert pending.next_deadline() is None
    pending.open("late", aggregator(), 20.0, "late")
    pending.open("soon", aggregator(), 10.0, "soon")
    deadline = pending.next_deadline()
    assert deadline is not None
    assert 10.0 <= deadline <= 10.0 + 2 * TICK
    assert pending.expire(9.99) == []
    assert [waiter for waiter, _ in pending.expire(deadline)] == ["soon"]
    deadline = pending.next_deadline()
    assert deadline is not None
    assert deadline >= 20.0


def test_finished_requests_leave_no_deadline_behind() -> None:
    pending: Pending[int] = Pending()
    for number in range(1000):
        pending.open(number, aggregator(), 60.0 + number / 10, number)
        pending.receive(number, ack())
    assert pending.next_deadline() is None
    assert pending.expire(1e9) == []


def test_expiry_comes_in_slices() -> None:
    pending: Pending[int] = Pending()
    for number in range(1200):
        pending.open(number, aggregator(), 5.0, number)
    counts = []
    while batch := pending.expire(6.0, 500):
        counts.append(len(batch))
        assert all(outcome.status == 408 for _, outcome in batch)
    assert counts == [500, 500, 200]


def test_a_discarded_request_is_gone() -> None:
    pending: Pending[str] = Pending()
    pending.open("a", aggregator(), 1.0, "first")
    pending.discard("a")
    pending.discard("a")
    assert pending.open_keys() == []
    assert pending.expire(10.0) == []


def test_a_token_tells_a_request_from_a_later_one_with_its_key() -> None:
    pending: Pending[str] = Pending()
    pending.open("a", aggregator(), 1.0, "first")
    assert not pending.is_marked("a", 1)
    pending.mark("a", 1)
    assert pending.is_marked("a", 1)
    assert not pending.is_marked("a", 2)
    assert not pending.is_marked("b", 1)
    pending.discard("a")
    pending.open("a", aggregator(), 1.0, "second")
    assert not pending.is_marked("a", 1)
    with pytest.raises(KeyError):
        pending.mark("b", 1)
