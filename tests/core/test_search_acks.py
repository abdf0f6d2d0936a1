"""search-persisted: who asks, what became of a change, and the ack of that."""

from __future__ import annotations

import pytest

from acks.journal import EntryMeta, meta_json
from acks.labels import BUILT_IN, is_label
from acks.search_acks import (
    INDEXED,
    Asked,
    Indexing,
    ack_of,
    asked_by,
    concerns,
    indexing_of,
    notice_of,
    search_ack,
)
from acks.signals import Acknowledgement

META = meta_json("ns:n", "modified", "/", 7, "2026-01-01T00:00:00Z", "c", (), "node", 1234, ("s",))
ASKED = Asked("ns:n", 7, "c", "node", 1234, 42)


def test_an_entry_asks_if_it_has_a_token() -> None:
    assert asked_by(META) is None
    assert asked_by({**META, "i": 42}) == ASKED


def test_who_reads_entries_otherwise_sees_no_difference() -> None:
    assert EntryMeta.from_json({**META, "i": 42}) == EntryMeta.from_json(META)


@pytest.mark.parametrize(
    ("result", "before", "expected"),
    [
        (Indexing.WRITTEN, 0, Indexing.WRITTEN),
        (Indexing.WRITTEN, 6, Indexing.WRITTEN),
        (Indexing.WRITTEN, 7, Indexing.UNCHANGED),  # a newer change was written, not this one
        (Indexing.WRITTEN, 9, Indexing.UNCHANGED),
        (Indexing.UNCHANGED, 7, Indexing.UNCHANGED),
        (Indexing.UNCHANGED, 0, Indexing.UNCHANGED),
        (Indexing.FAILED, 6, Indexing.FAILED),
        (Indexing.FAILED, 9, Indexing.FAILED),
    ],
)
def test_what_became_of_one_of_several_changes(
    result: Indexing, before: int, expected: Indexing
) -> None:
    assert indexing_of(ASKED, result, before) is expected


@pytest.mark.parametrize(
    ("indexing", "status", "weak"),
    [
        (Indexing.WRITTEN, 204, False),
        (Indexing.UNCHANGED, 200, True),
        (Indexing.FAILED, 500, False),
    ],
)
def test_the_ack(indexing: Indexing, status: int, weak: bool) -> None:
    ack = search_ack("ns:n", "c", indexing)
    headers = {"response-required": False} | ({"ditto-weak-ack": True} if weak else {})
    assert ack == Acknowledgement("search-persisted", "ns:n", "c", status, None, headers)
    assert ack.weak is weak
    notice = notice_of(ASKED, indexing)
    assert notice.payload == 42
    assert ack_of(notice) == ack


def test_a_notice_is_no_ack_that_anybody_else_could_give() -> None:
    assert not is_label(INDEXED)
    assert INDEXED not in BUILT_IN


def test_a_notice_with_a_status_that_we_never_send() -> None:
    with pytest.raises(ValueError, match="202"):
        ack_of(notice_of(ASKED, Indexing.WRITTEN)._replace(status=202))


@pytest.mark.parametrize(
    ("theirs", "ours", "expected"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("", "b", True),
        ("a", "", True),  # nothing is searched here
        ("", "", True),
        ("a", None, False),  # not known yet which one is searched here
        ("", None, True),
    ],
)
def test_a_notice_is_of_one_index(theirs: str, ours: str | None, expected: bool) -> None:
    notice = notice_of(ASKED, Indexing.WRITTEN, theirs)
    assert concerns(notice, ours) is expected
    assert ack_of(notice) == search_ack("ns:n", "c", Indexing.WRITTEN), "nobody is told its name"


@pytest.mark.parametrize("result", [Indexing.WRITTEN, Indexing.UNCHANGED])
def test_a_change_that_the_store_has_lost_is_not_indexed(result: Indexing) -> None:
    assert indexing_of(ASKED, result, before=3, after=6) is Indexing.FAILED
    assert indexing_of(ASKED, result, before=3, after=7) is result
    assert indexing_of(ASKED, result, before=3, after=None) is result, "it was deleted"
