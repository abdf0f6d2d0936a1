"""Entries of the journal, gathered into batches for the search index."""

from __future__ import annotations

import orjson
import pytest

from acks.journal import MESSAGE, POLICY, EntryMeta
from app.search.batches import (
    MAX_PENDING,
    MAX_THINGS,
    Batch,
    Entry,
    Pending,
    after,
    before,
    read_entry,
)


def meta(
    thing_id: str = "a:b", action: str = "modified", path: str = "/", kind: str = "", **more: int
) -> bytes:
    entry = EntryMeta(thing_id, action, path, 3, "t", "c", (), "node", 99, (), kind)
    return orjson.dumps({**entry.to_json(), **more})


def entry(number: int, thing_id: str = "", *, asked: bool = False) -> Entry:
    name = thing_id or f"a:{number}"
    text = meta(name, i=7) if asked else meta(name)
    found = read_entry(f"{number}-0".encode(), [b"m", text])
    assert found is not None
    return found


def test_an_event_is_about_its_thing_and_a_change_of_a_policy_about_that() -> None:
    assert read_entry(b"1-0", [b"m", meta()]) == Entry(b"1-0", "a:b", "", False, None)
    assert read_entry(b"1-0", [b"h", b"{}", b"m", meta(kind=POLICY)]) == Entry(
        b"1-0", "", "a:b", False, None
    )


def test_live_signals_say_nothing_to_the_index() -> None:
    assert read_entry(b"1-0", [b"m", meta(kind=MESSAGE)]) is None


@pytest.mark.parametrize(
    ("action", "path", "created"),
    [("created", "/", True), ("created", "/attributes/x", False), ("modified", "/", False)],
)
def test_only_a_whole_new_thing_may_have_made_its_policy(
    action: str, path: str, created: bool
) -> None:
    found = read_entry(b"1-0", [b"m", meta(action=action, path=path)])
    assert found is not None
    assert found.created is created


def test_who_waits_is_known() -> None:
    found = entry(1, asked=True)
    assert found.asked is not None
    assert (found.asked.origin, found.asked.deadline, found.asked.token) == ("node", 99, 7)


@pytest.mark.parametrize("text", [b"{}", b"[]", b'{"a":"created"}'])
def test_entries_that_are_none_of_ours_are_refused(text: bytes) -> None:
    with pytest.raises((KeyError, ValueError)):
        read_entry(b"1-0", [b"m", text])


def gathered(position: str, *entries: Entry) -> Pending:
    pending = Pending(b"0-0")
    for one in entries:
        pending.add(one)
    pending.position = position.encode()
    return pending


def test_a_thing_that_changes_often_is_in_a_batch_once_and_all_who_wait_are() -> None:
    pending = gathered("3-0", *(entry(n, "a:hot", asked=True) for n in range(1, 4)))
    assert len(pending) == 1
    batch = Batch(b"0-0")
    pending.fill(batch)
    assert list(batch.things) == ["a:hot"]
    assert len(batch.asked) == 3
    assert (batch.oldest, batch.position, len(pending)) == (b"1-0", b"3-0", 0)


def test_the_bookmark_never_passes_what_is_left() -> None:
    pending = gathered("9999-0", *(entry(n) for n in range(1, MAX_THINGS + 3)))
    batch = Batch(b"0-0")
    pending.fill(batch)
    assert batch.full
    left = f"{MAX_THINGS + 1}-0".encode()
    assert pending.oldest == left
    assert batch.position == before(left)
    rest = Batch(b"0-0")
    pending.fill(rest)
    # Nothing is left: it covers what said nothing, too.
    assert (len(rest.things), rest.position) == (2, b"9999-0")


def test_a_thing_that_changes_again_after_its_batch_waits_again() -> None:
    pending = gathered("2-0", entry(1, "a:x"), entry(2, "a:y"))
    pending.fill(Batch(b"0-0"))
    pending.add(entry(3, "a:x"))
    assert pending.oldest == b"3-0"


def test_policies_come_first_and_hold_the_bookmark_back() -> None:
    policy = Entry(b"5-0", "", "a:p", False, None)
    pending = gathered("9-0", entry(1), policy, entry(7))
    assert pending.oldest == b"1-0"
    batch = Batch(b"0-0")
    pending.fill(batch)
    assert list(batch.policies) == ["a:p"]
    assert (batch.oldest, batch.position) == (b"1-0", b"9-0")
    assert gathered("9-0", policy, entry(7)).oldest == b"5-0"


def test_entries_that_say_nothing_move_the_position() -> None:
    batch = Batch(b"0-0")
    gathered("5-0").fill(batch)
    assert (batch.position, batch.oldest, batch.things) == (b"5-0", None, {})


def test_somebody_who_waits_makes_it_due_until_he_is_in_a_batch() -> None:
    pending = gathered("1-0", entry(1))
    assert not pending.due
    pending.add(entry(2, asked=True))
    assert pending.due
    pending.fill(Batch(b"0-0"))
    assert not pending.due


def test_much_to_do_is_due_and_more_than_enough_is_not_read() -> None:
    pending = gathered("1-0", *(entry(n) for n in range(MAX_PENDING // 2)))
    assert pending.due
    assert not pending.full
    for number in range(MAX_PENDING):
        pending.add(entry(number))
    assert pending.full


def test_a_batch_that_could_not_be_written_takes_more_in() -> None:
    pending = gathered("2-0", entry(1, "a:x"), entry(2, "a:y"))
    batch = Batch(b"0-0")
    pending.fill(batch)
    pending.add(entry(3, "a:x", asked=True))
    pending.position = b"4-0"
    pending.fill(batch)
    assert list(batch.things) == ["a:x", "a:y"]
    assert (len(batch.asked), batch.oldest, batch.position) == (1, b"1-0", b"4-0")


@pytest.mark.parametrize(
    ("position", "expected"),
    [(b"5-3", b"5-2"), (b"5-0", b"4-18446744073709551615")],
)
def test_there_is_a_place_before_and_after_every_entry(position: bytes, expected: bytes) -> None:
    assert before(position) == expected
    assert after(expected) == position
