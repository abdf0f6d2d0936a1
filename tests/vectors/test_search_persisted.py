"""The vectors about ``search-persisted``: what an ack says, from the entry to the answer."""

from __future__ import annotations

from typing import Any

import pytest

from acks.search_acks import Asked, Indexing, ack_of, indexing_of, notice_of
from acks.signals import Acknowledgement
from tests.vectors import load

Json = Any


def ack_after(result: Indexing, revision: int, before: int) -> Acknowledgement:
    asked = Asked("ns:n", revision, "c", "node", 0, 1)
    return ack_of(notice_of(asked, indexing_of(asked, result, before)))


@pytest.mark.parametrize(
    ("given", "expected"), [p for p in load("search-persisted") if "ack" in p.values[1]]
)
def test_one_change(given: Json, expected: Json) -> None:
    wanted = expected["ack"]
    stale = "not newer" in given.get("event", "")
    ack = ack_after(Indexing.WRITTEN, revision=3, before=3 if stale else 2)
    assert ack.label == wanted.get("label", "search-persisted")
    assert (ack.status, ack.payload) == (wanted["status"], wanted.get("payload"))
    assert ack.weak is wanted.get("weak", False)
    assert ack.headers == wanted.get("headers", ack.headers)
    assert "correlation-id" not in ack.headers


@pytest.mark.parametrize(
    ("given", "expected"), [p for p in load("search-persisted") if "bulk" in p.values[0]]
)
def test_a_batch(given: Json, expected: Json) -> None:
    """All of it is written or nothing: what was there already is no failure."""
    lost = "unreachable" in given["bulk"] or "error index" in given["bulk"]
    result = Indexing.FAILED if lost else Indexing.WRITTEN
    acks = [ack_after(result, revision, 0) for revision in range(1, 6)]
    assert [ack.status for ack in acks] == expected["ackStatuses"]
    assert all(ack.payload is None and not ack.weak for ack in acks)
