"""Sessions of one process are kept apart: what goes wrong with one is no concern of the others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from acks.headers import next_correlation_id
from acks.journal import LIVE_EVENT, MESSAGE, EntryMeta
from acks.signals import Acknowledgement
from app.backlog import Backlog, Job
from app.offers import Verdict
from app.session import Delivery, Session, Subscription
from tests.app.test_sessions import LONG, META, Process, got, rql

Told = list[tuple[str, list[str]]]


def member(process: Process, group: str, *labels: str, subscribed: bool = True) -> Session:
    """A session that is, or wants to be, a member of a group."""
    session = Session(("s:1",), labels, outbox_bytes=1_000_000)
    session.group = group
    process.sessions.add(session)
    if subscribed:
        process.sessions.subscribe(session, Subscription())
    return session


def shared(process: Process) -> Told:
    """The groups that are told of an entry, and with which labels."""
    told: Told = []

    def on_shared(group: str, labels: list[str], *_: Any) -> None:
        told.append((group, labels))

    process.sessions.on_shared = on_shared
    return told


def asking(*labels: str) -> EntryMeta:
    return META._replace(requested_acks=labels)


# --- groups


async def test_who_may_not_join_takes_no_events_from_the_members() -> None:
    process = Process()
    told = shared(process)
    real = member(process, "workers", "my:work")
    stranger = member(process, "workers", "my:other", subscribed=False)
    process.route(asking("my:other"), 1)
    assert len(await got(real)) == 1, "nothing of the group's is asked for"
    process.sessions.remove(stranger)
    told.clear()
    process.route(asking("my:other"), 2)
    assert len(await got(real)) == 1
    assert told == []
    process.route(asking("my:work"), 3)
    assert await got(real) == []
    assert told == [("workers", ["my:work"])]


async def test_another_name_does_not_take_the_labels_from_a_group() -> None:
    process = Process()
    told = shared(process)
    stranger = member(process, "others", "my:work", subscribed=False)
    real = member(process, "workers", "my:work")
    process.route(asking("my:work"), 1)
    assert ("workers", ["my:work"]) in told
    process.sessions.remove(stranger)
    told.clear()
    process.route(asking("my:work"), 2)
    assert told == [("workers", ["my:work"])]
    assert await got(real) == []


async def test_members_that_are_gone_leave_nothing_behind() -> None:
    process = Process()
    told = shared(process)
    both = [member(process, "workers", "my:work", "my:more") for _ in range(2)]
    for one in both:
        process.sessions.remove(one)
        process.sessions.remove(one)
    process.route(asking("my:work", "my:more"), 1)
    assert told == []
    assert not process.sessions._grouped
    assert not process.sessions._members


# --- a session that goes wrong


async def test_one_session_that_fails_takes_the_signal_from_nobody_else() -> None:
    process = Process()

    def render(_: Delivery) -> bytes | None:
        raise RuntimeError("a defect of ours")

    bad, worse = process.session("my:ack"), process.session()
    good = process.session(filter=rql("exists(attributes/n)"))
    for session in (bad, worse):
        session.render = render
        session.look()
    assert process.offer(worse, META, {"n": 1}) == [Verdict.FAILED]
    process.route(asking("my:ack"), {"n": 1})
    assert len(await got(good)) == 1
    assert bad.closing is not None, "it may come back for what it has missed"
    assert process.acks == []


async def test_a_job_that_cannot_begin_holds_up_none_after_it() -> None:
    done: list[int] = []
    idle = asyncio.Event()

    def job(number: int) -> Job:
        def begin() -> None:
            if number == 1:
                raise RuntimeError("one bad job")

        async def finish() -> None:
            done.append(number)

        return Job(100, begin, finish, lambda: None)

    backlog = Backlog(1_000_000, idle.set, "test")
    for number in range(4):
        assert backlog.push(job(number))
    async with asyncio.timeout(5):
        await idle.wait()
    assert done == [0, 1, 2, 3]


# --- a session that has lost its label


async def test_who_has_lost_a_label_acknowledges_no_more() -> None:
    process = Process()
    session = process.session("my:ack")
    process.route(asking("my:ack"), 1)
    await got(session)
    session.lost()
    assert session.forward(Acknowledgement("my:ack", META.thing_id, "c", 200)) is None


async def test_nothing_is_acknowledged_for_who_has_lost_a_label() -> None:
    process = Process()
    unsubscribed = process.session("my:ack", kinds=(MESSAGE,))
    filtering = process.session("my:other", filter=rql("eq(attributes/text,'y')"))
    process.route(asking("my:other"), LONG)
    for session in (unsubscribed, filtering):
        session.lost()
    process.route(asking("my:ack", "my:other"), 1)
    process.route(asking("my:other")._replace(kind=LIVE_EVENT), 1)
    process.sessions.remove(filtering)
    assert process.acks == []


# --- many signals with one correlation-id


async def test_each_signal_has_an_id_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking for a free id must not take longer with every signal that is open."""
    tried = 0

    def counted(taken: str) -> str:
        nonlocal tried
        tried += 1
        return next_correlation_id(taken)

    monkeypatch.setattr("app.session.next_correlation_id", counted)
    session, asked, count = Process().session("my:ack"), asking("my:ack"), 500

    def expected() -> str:
        return session.expect(asked, ("my:ack",), 0)

    names = [expected() for _ in range(count)]
    assert names[:3] == ["c", "c#0", "c#1"]
    assert len(set(names)) == count
    assert tried <= count
    ack = Acknowledgement("my:ack", META.thing_id, "c", 200)
    acknowledged = {"c", "c#1", names[-1]}
    for name in acknowledged:
        assert session.forward(ack._replace(correlation_id=name)) is not None
        assert session.forward(ack._replace(correlation_id=name)) is None
    assert expected() == "c"
    assert expected() not in set(names) - acknowledged


async def test_what_is_known_of_ids_goes_with_them() -> None:
    session, ack = Process().session("my:ack"), Acknowledgement("my:ack", META.thing_id, "c", 200)
    for number in range(1000):
        asked = asking("my:ack")._replace(correlation_id=str(number))
        for name in [session.expect(asked, ("my:ack",), 0) for _ in range(2)]:
            assert session.forward(ack._replace(correlation_id=name)) is not None
    assert not session._forwarders
    assert len(session._last) < 200
