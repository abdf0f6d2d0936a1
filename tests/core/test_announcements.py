"""When policies' subjects expire, and when that is announced; and what may be said about it."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest

from acks.announcement_settings import (
    MAX_WAIT_MS,
    SPREAD_MS,
    AnnouncementSettings,
    check_announcement,
    read_announcement,
)
from acks.announcements import (
    GRACE_MS,
    MAX_BACKOFF_MS,
    MAX_DELETED_BYTES,
    PUBLICATIONS,
    Step,
    answered,
    due_at,
    reschedule,
    step,
)
from acks.errors import GatewayError
from acks.policy_document import WATCHES, shown, tombstone

NOW = 1_800_000_000_000
EXPIRY = NOW + 3_600_000
BEFORE = 300_000
Document = dict[str, Any]


def instant(moment: int) -> str:
    return datetime.fromtimestamp(moment / 1000, UTC).isoformat()


def subject(expiry: int | None = EXPIRY, /, **announcement: Any) -> Document:
    value: Document = {"type": "t"}
    if expiry is not None:
        value["expiry"] = instant(expiry)
    if announcement:
        value["announcement"] = announcement
    return value


def acks(*labels: str, timeout: str = "10s") -> Document:
    return {"labels": list(labels), "timeout": timeout}


def policy(**entries: Document) -> Document:
    """A policy with these entries, each a map of subjects; beside one that stays."""
    all_ = {"owner": {"a:owner": {"type": "t"}}, **entries}
    return {
        "policyId": "ns:p",
        "entries": {
            label: {"subjects": subjects, "resources": {}} for label, subjects in all_.items()
        },
    }


def made(*, now: int = NOW, chance: float = 0.0, **entries: Document) -> Document:
    return reschedule(None, policy(**entries), now, chance)


def changed(before: Document, now: int = NOW, **entries: Document) -> Document:
    return reschedule(before, policy(**entries), now, 0.0)


def at(document: Document, now: int, token: str = "t") -> Step:
    taken = step(document, now, token)
    assert taken is not None
    return taken


def due(document: Document) -> int:
    """When it is due, which it must be."""
    moment = due_at(document)
    assert moment is not None
    return moment


def subjects(document: Document) -> list[str]:
    return [name for entry in document["entries"].values() for name in entry["subjects"]]


NO_SPREAD: Document = {"randomizationInterval": "0s"}
AHEAD: Document = {"beforeExpiry": "5m", **NO_SPREAD}


# --- settings


def test_what_is_stored_of_an_announcement_and_what_it_means() -> None:
    given = {
        "beforeExpiry": "2h",
        "whenDeleted": True,
        "requestedAcks": {"labels": ["my-ack", "other", "my-ack"], "timeout": "5s", "x": 1},
        "randomizationInterval": "10s",
        "more": None,
    }
    checked = check_announcement(given)
    assert checked == {
        "beforeExpiry": "2h",
        "whenDeleted": True,
        "requestedAcks": {"labels": ["my-ack", "other", "my-ack"], "timeout": "5s"},
        "randomizationInterval": "10s",
    }
    assert read_announcement(checked) == AnnouncementSettings(
        7_200_000, True, ("my-ack", "other"), 5_000, 10_000
    )


def test_defaults_and_bounds_of_an_announcement() -> None:
    nothing = AnnouncementSettings(None, False, (), MAX_WAIT_MS, SPREAD_MS)
    assert check_announcement({"whenDeleted": None}) == {}
    assert read_announcement({}) == nothing
    long = check_announcement({"requestedAcks": {"labels": [], "timeout": "1h"}})
    assert read_announcement(long) == nothing


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ([], "json.format.invalid"),
        ("5m", "json.format.invalid"),
        ({"beforeExpiry": 5}, "policies:entry.invalid"),
        ({"beforeExpiry": "5"}, "policies:entry.invalid"),
        ({"beforeExpiry": "0s"}, "policies:entry.invalid"),
        ({"beforeExpiry": "-5s"}, "policies:entry.invalid"),
        ({"beforeExpiry": "5ms"}, "policies:entry.invalid"),
        ({"beforeExpiry": "1d"}, "policies:entry.invalid"),
        ({"whenDeleted": "true"}, "json.format.invalid"),
        ({"randomizationInterval": 5}, "policies:entry.invalid"),
        ({"randomizationInterval": "-1s"}, "policies:entry.invalid"),
        ({"requestedAcks": ["a"]}, "json.format.invalid"),
        ({"requestedAcks": {}}, "json.field.missing"),
        ({"requestedAcks": {"labels": "abc"}}, "json.format.invalid"),
        ({"requestedAcks": {"labels": [1]}}, "json.format.invalid"),
        ({"requestedAcks": {"labels": ["a b c"]}}, "acknowledgement:label.invalid"),
        ({"requestedAcks": {"labels": ["twin-persisted"]}}, "policies:entry.invalid"),
        ({"requestedAcks": {"labels": ["{{connection:id}}:my-ack"]}}, "policies:entry.invalid"),
        ({"requestedAcks": {"labels": ["abc"], "timeout": "soon"}}, "policies:entry.invalid"),
        ({"requestedAcks": {"labels": ["abc"], "timeout": "0s"}}, "policies:entry.invalid"),
    ],
)
def test_bad_announcements_are_refused(value: Any, code: str) -> None:
    with pytest.raises(GatewayError) as caught:
        check_announcement(value)
    assert (caught.value.status, caught.value.code) == (400, code)


# --- expiry


def test_a_policy_without_expiries_stays_as_it_is() -> None:
    plain = policy(more={"a:1": subject(None, whenDeleted=True)})
    assert reschedule(None, plain, NOW, 0.5) == plain
    assert due_at(plain) is None
    assert step(plain, NOW, "t") is None


def test_a_subject_goes_when_it_expires() -> None:
    document = made(guests={"a:1": subject(), "a:2": subject(EXPIRY + 1)})
    assert WATCHES not in shown(document)
    assert due_at(document) == EXPIRY
    assert step(document, EXPIRY - 1, "t") is None
    taken = at(document, EXPIRY)
    assert (taken.expired, taken.publications) == (True, ())
    assert subjects(taken.document) == ["a:owner", "a:2"]
    assert subjects(document) == ["a:owner", "a:1", "a:2"]
    last = at(taken.document, EXPIRY + 1)
    assert subjects(last.document) == ["a:owner"]
    assert WATCHES not in last.document


def test_it_goes_from_every_entry_in_which_it_expires_then() -> None:
    document = made(
        one={"a:1": subject()}, two={"a:1": subject()}, three={"a:1": subject(EXPIRY + 9)},
        four={"a:1": subject(None)},
    )  # fmt: skip
    left = at(document, EXPIRY).document
    assert [label for label, entry in left["entries"].items() if "a:1" in entry["subjects"]] == [
        "three",
        "four",
    ]
    assert due_at(left) == EXPIRY + 9


def test_one_that_expired_before_anybody_watched_is_due_at_once() -> None:
    document = changed(policy(guests={"a:1": subject(NOW - 1, **AHEAD)}), guests={
        "a:1": subject(NOW - 1, **AHEAD)
    })  # fmt: skip
    taken = at(document, NOW)
    assert (taken.expired, taken.publications) == (True, ())


def test_an_expiry_that_is_moved_is_the_new_one() -> None:
    document = made(guests={"a:1": subject(**AHEAD)})
    moved = changed(document, guests={"a:1": subject(EXPIRY + BEFORE, **AHEAD)})
    assert due_at(moved) == EXPIRY
    assert due_at(changed(moved, guests={"a:1": subject(None)})) is None


# --- ahead of the expiry


def test_an_expiry_is_announced_and_then_not_its_deletion() -> None:
    document = made(guests={"a:1": subject(whenDeleted=True, **AHEAD)})
    assert due_at(document) == EXPIRY - BEFORE
    taken = at(document, EXPIRY - BEFORE)
    (publication,) = taken.publications
    assert (publication.subject, publication.delete_at) == ("a:1", EXPIRY)
    assert (publication.labels, publication.token, taken.expired) == ((), "t", False)
    assert due_at(taken.document) == EXPIRY
    gone = at(taken.document, EXPIRY)
    assert (gone.expired, gone.publications) == (True, ())
    assert WATCHES not in gone.document


def test_it_comes_earlier_by_chance_within_its_interval() -> None:
    settings: Document = {"beforeExpiry": "5m", "randomizationInterval": "10m"}
    people = {f"a:{number}": subject(**settings) for number in range(40)}
    moments = set()
    for chance in (0.0, 0.3, 0.999):
        document = made(chance=chance, guests=people)
        each = [watch[4] for watch in document[WATCHES]]
        assert all(EXPIRY - BEFORE - 600_000 <= moment <= EXPIRY - BEFORE for moment in each)
        assert max(each) - min(each) > 300_000
        moments |= set(each)
    assert len(moments) > 100


def test_without_time_left_it_comes_at_once() -> None:
    document = made(guests={"a:1": subject(NOW + 1000, **AHEAD)})
    assert due_at(document) == NOW
    late = made(guests={"a:1": subject(beforeExpiry="999999999999999999h")})
    assert due_at(late) == NOW


def test_a_write_in_between_changes_nothing_of_the_schedule() -> None:
    document = made(chance=0.4, guests={"a:1": subject(beforeExpiry="5m")})
    again = reschedule(document, policy(guests={"a:1": subject(beforeExpiry="5m")}), NOW, 0.9)
    assert again[WATCHES] == document[WATCHES]
    announced = at(document, due(document)).document
    again = changed(announced, EXPIRY - 1, guests={"a:1": subject(beforeExpiry="5m")})
    assert again[WATCHES] == announced[WATCHES]


# --- acks


def test_until_it_is_acknowledged_it_comes_again_and_the_subject_stays() -> None:
    settings: Document = {**AHEAD, "whenDeleted": True, "requestedAcks": acks("my-ack")}
    document = made(guests={"a:1": subject(**settings)})
    pauses, now = [], due(document)
    while now < EXPIRY:
        taken = at(document, now, f"t{now}")
        (publication,) = taken.publications
        assert (publication.labels, publication.wait_ms) == (("my-ack",), 10_000)
        assert not taken.expired
        document, last = taken.document, now
        now = due(document)
        pauses.append(now - last - 10_000)
    assert pauses[:8] == [1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 128_000]
    late = at(document, now, "late")
    assert (late.expired, len(late.publications)) == (False, 1)
    settled = answered(late.document, "late", [200], now + 5)
    assert settled is not None
    assert due_at(settled) == now + 5
    gone = at(settled, now + 5)
    assert (gone.expired, gone.publications) == (True, ())
    assert WATCHES not in gone.document


def test_when_the_grace_is_over_it_goes_and_that_is_announced_once() -> None:
    settings: Document = {**AHEAD, "whenDeleted": True, "requestedAcks": acks("my-ack")}
    document = made(guests={"a:1": subject(**settings)})
    now, published = 0, 0
    while "a:1" in subjects(document):
        now = due(document)
        taken = at(document, now)
        published += len(taken.publications)
        document = taken.document
    assert now == EXPIRY + GRACE_MS
    assert published > GRACE_MS / (MAX_BACKOFF_MS + 10_000)
    assert WATCHES not in document


def test_without_whendeleted_it_goes_in_silence_when_the_grace_is_over() -> None:
    document = made(guests={"a:1": subject(**AHEAD, requestedAcks=acks("my-ack"))})
    announced = at(document, EXPIRY - BEFORE).document
    gone = at(announced, EXPIRY + GRACE_MS)
    assert (gone.expired, gone.publications) == (True, ())


def test_an_acknowledged_one_goes_at_its_expiry() -> None:
    document = made(guests={"a:1": subject(**AHEAD, requestedAcks=acks("my-ack"))})
    announced = at(document, EXPIRY - BEFORE).document
    settled = answered(announced, "t", [200], EXPIRY - BEFORE + 7)
    assert settled is not None
    assert due_at(settled) == EXPIRY


@pytest.mark.parametrize("status", [408, 424, 429, 500, 503])
def test_an_ack_that_says_not_now_has_it_published_again(status: int) -> None:
    document = made(guests={"a:1": subject(**AHEAD, requestedAcks=acks("my-ack", "other"))})
    now = EXPIRY - BEFORE
    announced = at(document, now).document
    assert due_at(announced) == now + 11_000
    again = answered(announced, "t", [200, status], now + 3)
    assert again is not None
    assert due_at(again) == now + 1_003
    assert at(again, now + 1_003, "u").publications[0].token == "u"


def test_a_time_out_leaves_the_schedule() -> None:
    document = made(guests={"a:1": subject(**AHEAD, requestedAcks=acks("my-ack"))})
    announced = at(document, EXPIRY - BEFORE).document
    assert answered(announced, "t", [408], EXPIRY - BEFORE + 10_000) is None


@pytest.mark.parametrize("status", [204, 302, 400, 403])
def test_every_other_ack_is_final(status: int) -> None:
    document = made(guests={"a:1": subject(**AHEAD, requestedAcks=acks("my-ack"))})
    announced = at(document, EXPIRY - BEFORE).document
    settled = answered(announced, "t", [status], NOW)
    assert settled is not None
    assert due_at(settled) == EXPIRY


def test_acks_of_another_announcement_do_not_count() -> None:
    document = made(guests={"a:1": subject(**AHEAD, requestedAcks=acks("my-ack"))})
    assert answered(document, "", [200], NOW) is None
    announced = at(document, EXPIRY - BEFORE).document
    assert answered(announced, "u", [200], NOW) is None
    again = at(announced, due(announced), "u").document
    assert answered(again, "t", [200], NOW) is None
    assert answered(policy(), "t", [200], NOW) is None


# --- deletion


def test_the_deletion_of_a_subject_is_announced() -> None:
    document = made(guests={"a:1": subject(None, whenDeleted=True), "a:2": subject(None)})
    left = changed(document, NOW + 5, guests={})
    assert due_at(left) == NOW + 5
    taken = at(left, NOW + 6)
    (publication,) = taken.publications
    assert (publication.subject, publication.delete_at) == ("a:1", NOW + 5)
    assert not taken.expired
    assert taken.document == policy(guests={})


def test_so_is_that_by_expiry() -> None:
    document = made(guests={"a:1": subject(whenDeleted=True)})
    taken = at(document, EXPIRY + 3)
    assert taken.expired
    assert [(one.subject, one.delete_at) for one in taken.publications] == [("a:1", EXPIRY)]
    assert WATCHES not in taken.document


def test_so_is_that_of_the_whole_policy() -> None:
    document = made(guests={"a:1": subject(None, whenDeleted=True), "a:2": subject(**AHEAD)})
    left = reschedule(document, tombstone(document), NOW, 0.0)
    taken = at(left, NOW)
    assert [one.subject for one in taken.publications] == ["a:1"]
    assert WATCHES not in taken.document
    assert taken.document["_deleted"]


def test_a_subject_that_is_only_changed_is_not_deleted() -> None:
    document = made(guests={"a:1": subject(None, whenDeleted=True)})
    assert due_at(changed(document, guests={"a:1": subject(None)})) is None
    assert due_at(changed(document, others={"a:1": subject(None, whenDeleted=True)})) is None


def test_one_announcement_for_a_subject_of_several_entries() -> None:
    document = made(
        one={"a:1": subject(None)},
        two={"a:1": subject(None, whenDeleted=True)},
        three={"a:1": subject(whenDeleted=True, **AHEAD)},
    )
    assert len(at(changed(document), NOW).publications) == 1


def test_a_deletion_that_was_announced_ahead_is_not_announced_again() -> None:
    document = made(guests={"a:1": subject(whenDeleted=True, **AHEAD)})
    announced = at(document, EXPIRY - BEFORE).document
    assert due_at(changed(announced, EXPIRY - 1)) is None
    waiting = changed(document, NOW + 1)
    assert len(at(waiting, NOW + 1).publications) == 1


def test_one_that_was_not_acknowledged_is() -> None:
    settings: Document = {**AHEAD, "whenDeleted": True, "requestedAcks": acks("my-ack")}
    announced = at(made(guests={"a:1": subject(**settings)}), EXPIRY - BEFORE).document
    left = changed(announced, EXPIRY - 5)
    taken = at(left, EXPIRY - 5)
    assert taken.publications[0].delete_at == EXPIRY - 5
    assert answered(announced, "t", [200], EXPIRY - 1) is not None


def test_the_announcement_of_a_deletion_is_repeated_until_it_is_acknowledged() -> None:
    settings: Document = {"whenDeleted": True, "requestedAcks": acks("my-ack")}
    document = changed(made(guests={"a:1": subject(None, **settings)}))
    taken = at(document, NOW)
    assert due_at(taken.document) == NOW + 11_000
    again = at(taken.document, NOW + 11_000, "u").document
    assert due_at(again) == NOW + 11_000 + 12_000
    done = answered(again, "u", [200], NOW + 12_000)
    assert done == policy()


def test_it_is_given_up_when_the_grace_is_over() -> None:
    settings: Document = {"whenDeleted": True, "requestedAcks": acks("my-ack")}
    document = changed(made(guests={"a:1": subject(None, **settings)}))
    now = NOW
    while due_at(document) is not None:
        now = due(document)
        document = at(document, now).document
    assert NOW + GRACE_MS - MAX_BACKOFF_MS - 10_000 <= now <= NOW + GRACE_MS


@pytest.mark.parametrize("timeout", ["1ms", "10s", "60s"])
def test_whom_nobody_hears_is_announced_more_and_more_seldom(timeout: str) -> None:
    """Each time is an entry of the journal, for each subject: it must not push out all others."""
    settings: Document = {"whenDeleted": True, "requestedAcks": acks("my-ack", timeout=timeout)}
    document = changed(made(guests={"a:1": subject(None, **settings)}))
    moments: list[int] = []
    while due_at(document) is not None:
        moments.append(due(document))
        document = at(document, moments[-1]).document
    pauses = [later - earlier for earlier, later in pairwise(moments)]
    assert pauses == sorted(pauses)
    assert pauses[0] < 62_000
    assert MAX_BACKOFF_MS <= pauses[-1] <= MAX_BACKOFF_MS + 60_000
    assert len(moments) <= 35


def test_who_is_back_is_not_announced_any_more() -> None:
    settings: Document = {"whenDeleted": True, "requestedAcks": acks("my-ack")}
    document = changed(made(guests={"a:1": subject(None, **settings)}))
    assert due_at(document) == NOW
    assert due_at(changed(document, guests={"a:1": subject(None)})) is None


def test_a_deletion_outlives_other_writes_and_a_policy_that_is_made_again() -> None:
    settings: Document = {"whenDeleted": True, "requestedAcks": acks("my-ack")}
    before = made(guests={"a:1": subject(None, **settings)})
    left = reschedule(before, tombstone(before), NOW, 0.0)
    again = changed(left, NOW + 9)
    assert due_at(again) == NOW
    assert [one.subject for one in at(again, NOW + 9).publications] == ["a:1"]


# --- bounds


def test_one_step_does_not_publish_without_end() -> None:
    people = {f"a:{number}": subject(None, whenDeleted=True) for number in range(250)}
    document = changed(made(guests=people))
    first = at(document, NOW)
    assert len({one.token for one in first.publications}) == PUBLICATIONS
    second = at(first.document, NOW)
    third = at(second.document, NOW)
    published = [one.subject for one in (*first[2], *second[2], *third[2])]
    assert sorted(published) == sorted(people)
    assert WATCHES not in third.document


def test_no_more_acks_are_asked_for_than_there_is_room_for() -> None:
    asking: Document = {"whenDeleted": True, "requestedAcks": acks("my:l")}
    people = {f"a:{number}": subject(None, **asking) for number in range(5)}
    people["a:quiet"] = subject(None, whenDeleted=True)
    document = changed(made(guests=people))
    first = step(document, NOW, "t", 3)
    assert first is not None
    told = [one.subject for one in first.publications]
    assert told == ["a:0", "a:1", "a:2", "a:quiet"]
    assert due(first.document) == NOW
    assert step(first.document, NOW, "u", 0) is None
    second = step(first.document, NOW, "u", 3)
    assert second is not None
    assert [one.subject for one in second.publications] == ["a:3", "a:4"]


def test_without_room_subjects_expire_nevertheless_if_that_asks_for_nothing() -> None:
    asking = {"whenDeleted": True, "requestedAcks": acks("my:l")}
    document = made(
        guests={
            "a:plain": subject(NOW + 1),
            "a:told": subject(NOW + 1, whenDeleted=True),
            "a:asks": subject(NOW + 1, **asking),
        }
    )
    taken = step(document, NOW + 1, "t", 0)
    assert taken is not None
    assert subjects(taken.document) == ["a:owner", "a:asks"]
    assert [one.subject for one in taken.publications] == ["a:told"]
    last = at(taken.document, NOW + 1)
    assert subjects(last.document) == ["a:owner"]
    assert [one.subject for one in last.publications] == ["a:asks"]


def test_what_is_kept_of_the_deleted_is_bounded() -> None:
    label = "x" * 160
    document = policy()
    for number in range(600):
        settings: Document = {
            "whenDeleted": True,
            "requestedAcks": acks(*[label + str(n) for n in range(5)]),
        }
        document = changed(document, guests={f"a:{number}": subject(None, **settings)})
    kept = document[WATCHES]
    assert kept[-1][0] == "a:598"
    assert len(str(kept)) < 1.2 * MAX_DELETED_BYTES
    assert len(kept) > 100
