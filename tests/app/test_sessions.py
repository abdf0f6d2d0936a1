"""Who of the sessions of a process gets which entry, in what order, and what is said if not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from acks.envelopes import WEAK_FILTERED, WEAK_UNSUBSCRIBED
from acks.journal import ANNOUNCEMENT, COMMAND, EVENT, LIVE_EVENT, MESSAGE, EntryMeta
from acks.rql import EVENT_PREFIXES, Predicate, parse_checked
from acks.signals import Acknowledgement
from app.backlog import AHEAD, Backlog, Job
from app.offers import HEAVY, Verdict
from app.session import Delivery, Session, Subscription
from app.sessions import Sessions
from tests.servers import wait_for

Json = Any
META = EntryMeta(
    "org.example:lamp", "modified", "/attributes", 5, "2026-01-01T10:00:00Z", "c", (), "node", 0,
    ("s:1",),
)  # fmt: skip
LONG = {"text": "x" * HEAVY}
"""A value that takes a filter too long for one go with others."""
PART = (
    (("s:1",), ("/",), ()),
    (("s:2",), ("/attributes/open",), ()),
    (("s:3",), (), ("/attributes/open",)),
)
"""``s:1`` reads everything, ``s:2`` one attribute; whoever is also ``s:3`` does not."""


def rql(text: str) -> Predicate:
    return parse_checked(text, EVENT_PREFIXES)


class Process:
    """The sessions of a process, and the acks that were sent for them."""

    def __init__(self) -> None:
        self.acks: list[Acknowledgement] = []
        self.sessions = Sessions(lambda _, ack: self.acks.append(ack), lambda: True)

    def session(
        self,
        *labels: str,
        subjects: tuple[str, ...] = ("s:1",),
        room: int = 1_000_000,
        **wanted: Any,
    ) -> Session:
        """A session that wants events, and other kinds if ``kinds`` says so."""
        session = Session(subjects, labels, outbox_bytes=room)
        self.sessions.add(session)
        kinds = wanted.pop("kinds", (EVENT,))
        for kind in kinds:
            self.sessions.subscribe(session, Subscription(**wanted), kind)
        return session

    def route(self, meta: EntryMeta, value: Json = None) -> None:
        """Have an entry read from the journal."""
        self.sessions.route(0, b"1-0", fields(meta, value))

    def offer(self, session: Session, meta: EntryMeta, value: Json = None) -> list[Verdict]:
        """Offer an entry to one session; the verdicts appear in the list."""
        verdicts: list[Verdict] = []
        self.sessions.offer(
            session, 3, b"7-1", fields(meta, value), verdicts.append, redelivered=True
        )
        return verdicts


def fields(meta: EntryMeta, value: Json) -> list[bytes]:
    found = [b"m", json.dumps(meta.to_json()).encode(), b"h", b'{"ditto-originator":"s:1"}']
    return found if value is None else [*found, b"v", json.dumps(value).encode()]


async def got(session: Session) -> list[Json]:
    """What is in its outbox when nothing waits in front of it."""
    await wait_for(lambda: session.backlog is None)
    session.put(b'"end"')
    return [json.loads(frame) for frame in await session.frames()][:-1]


async def values(session: Session) -> list[Json]:
    return [envelope.get("value") for envelope in await got(session)]


# --- filters


async def test_a_filter_chooses_and_its_label_is_answered_for() -> None:
    process = Process()
    session = process.session("my:ack", filter=rql("gt(attributes/n,2)"))
    for number in range(5):
        meta = META._replace(requested_acks=("my:ack",), correlation_id=f"c{number}")
        process.route(meta, {"n": number})
    assert await values(session) == [{"n": 3}, {"n": 4}]
    assert [ack.correlation_id for ack in process.acks] == ["c0", "c1", "c2"]
    [ack] = {(ack.label, ack.status, ack.payload) for ack in process.acks}
    assert ack == ("my:ack", 200, WEAK_FILTERED)
    assert process.acks[0].headers == {
        "ditto-originator": "s:1",
        "correlation-id": "c0",
        "response-required": False,
        "ditto-weak-ack": True,
    }
    assert process.sessions.weak == {Verdict.FILTERED: 3}


async def test_a_filter_of_one_session_is_no_concern_of_others() -> None:
    process = Process()
    picky, other = process.session(filter=rql("eq(attributes/n,0)")), process.session()
    process.route(META, {"n": 1})
    assert await values(picky) == []
    assert await values(other) == [{"n": 1}]


@pytest.mark.parametrize("kind", [MESSAGE, COMMAND, LIVE_EVENT])
async def test_filters_of_live_signals(kind: str) -> None:
    process = Process()
    path = "/inbox/messages/modify" if kind == MESSAGE else "/attributes"
    action = "modified" if kind == LIVE_EVENT else "modify"
    text = f"and(eq(topic:action-subject,'{action}'),eq(entity:name,'lamp'))"
    session = process.session(kinds=(kind,), filter=rql(text))
    live = META._replace(kind=kind, action=action, path=path)
    process.route(live, 1)
    process.route(live._replace(thing_id="org.example:other"), 2)
    assert await values(session) == [1]


async def test_a_filter_that_takes_too_long_does_not_fit() -> None:
    process = Process()
    slow = " and(" + ",".join(["not(like(attributes/list,'*y*'))"] * 20) + ")"
    session, other = process.session("my:ack", filter=rql(slow)), process.session()
    value = {"list": ["x" * 50] * 2_000}
    process.route(META._replace(requested_acks=("my:ack",)), value)
    assert await values(session) == []
    assert await values(other) == [value]
    assert [ack.payload for ack in process.acks] == [WEAK_FILTERED]


async def test_what_takes_long_keeps_the_order_and_its_label_waits_for_the_decision() -> None:
    process = Process()
    filtered = Subscription(filter=rql("exists(attributes/text)"))
    session = process.session("my:ack", kinds=(MESSAGE,))
    process.sessions.subscribe(session, filtered)
    asked = META._replace(requested_acks=("my:ack",))
    message = META._replace(kind=MESSAGE, action="ask", path="/inbox/messages/ask")
    process.route(asked, {"no": LONG})
    process.route(META, LONG)
    process.route(message, "after")
    assert session.backlog is not None
    assert process.acks == []
    assert await values(session) == [LONG, "after"]
    assert [ack.payload for ack in process.acks] == [WEAK_FILTERED]
    process.route(message, "at once")
    assert session.backlog is None
    assert await values(session) == ["at once"]


async def test_a_stop_reaches_what_waits() -> None:
    process = Process()
    session = process.session("my:ack", filter=rql("exists(attributes/text)"))
    process.route(META._replace(requested_acks=("my:ack",)), LONG)
    process.sessions.unsubscribe(session)
    assert await got(session) == []
    assert [ack.payload for ack in process.acks] == [WEAK_UNSUBSCRIBED]
    assert process.sessions.weak == {Verdict.UNSUBSCRIBED: 1}


@pytest.mark.parametrize("ends", ["unsubscribes", "subscribes anew"])
async def test_a_decision_that_comes_too_late(ends: str) -> None:
    process = Process()
    session = process.session(filter=rql("exists(attributes/text)"))
    async with process.sessions._offers.turn:
        verdicts = process.offer(session, META, LONG)
        for _ in range(5):
            await asyncio.sleep(0)  # it has come so far that it waits for its turn
        if ends == "unsubscribes":
            process.sessions.unsubscribe(session)
        else:
            never = Subscription(filter=rql("eq(topic:action,'deleted')"))
            process.sessions.subscribe(session, never)
    assert await got(session) == []
    assert verdicts == [Verdict.UNSUBSCRIBED if ends == "unsubscribes" else Verdict.FILTERED]


async def test_a_new_subscription_reaches_what_waits() -> None:
    process = Process()
    session = process.session(filter=rql("exists(attributes/text)"))
    process.route(META, LONG)
    process.sessions.subscribe(session, Subscription(filter=rql("eq(topic:action,'deleted')")))
    assert await got(session) == []


# --- what may be read


async def test_parts_of_an_event() -> None:
    process = Process()
    whole = process.session()
    part = process.session(subjects=("s:2",))
    nothing = process.session("my:ack", subjects=("s:2", "s:3"))
    meta = META._replace(readers=("s:1", "s:2"), rules=PART, requested_acks=("my:ack",))
    process.route(meta, {"open": 1, "closed": 2})
    assert await values(whole) == [{"open": 1, "closed": 2}]
    assert await values(part) == [{"open": 1}]
    assert await values(nothing) == []
    assert [ack.payload for ack in process.acks] == [WEAK_FILTERED]
    assert process.sessions.weak == {Verdict.HIDDEN: 1}


async def test_a_deletion_reaches_part_readers() -> None:
    process = Process()
    part = process.session(subjects=("s:2",))
    gone = META._replace(action="deleted", readers=("s:1", "s:2"), rules=PART)
    for path in ("/attributes", "/attributes/open/deep", "/attributes/closed", "/features"):
        process.route(gone._replace(path=path))
    assert [envelope["path"] for envelope in await got(part)] == [
        "/attributes",
        "/attributes/open/deep",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "eq(attributes/closed,2)",
        "exists(attributes/closed)",
        "like(attributes/closed,'*')",
        "not(ne(attributes/closed,2))",
    ],
)
async def test_a_filter_does_not_tell_what_is_hidden(text: str) -> None:
    process = Process()
    part = process.session(subjects=("s:2",), filter=rql(text))
    whole = process.session(filter=rql(text))
    meta = META._replace(readers=("s:1", "s:2"), rules=PART)
    value = {"open": 1, "closed": 2}
    process.route(meta, {"open": 1, "closed": "2" if "like" in text else 2})
    assert await values(part) == []
    assert len(await values(whole)) == 1
    negated = process.session(subjects=("s:2",), filter=rql(f"not({text})"))
    process.route(meta, value)
    assert await values(negated) == [{"open": 1}]


async def test_null_is_a_value() -> None:
    process = Process()
    part = process.session(subjects=("s:2",), filter=rql("eq(attributes/open,null)"))
    merged = META._replace(action="merged", readers=("s:1", "s:2"), rules=PART)
    process.sessions.route(
        0, b"1-0", [*fields(merged._replace(path="/attributes/open"), None), b"v", b"null"]
    )
    process.route(merged, {"open": None, "closed": None})
    first, second = await got(part)
    assert "value" in first
    assert first["value"] is None
    assert second["value"] == {"open": None}


# --- own signals, live events, announcements


async def test_a_session_does_not_get_what_it_has_caused() -> None:
    process = Process()
    own, other = process.session("my:own"), process.session("my:other")
    labels = ("my:own", "my:other")
    process.route(META._replace(session=own.id, requested_acks=labels), 1)
    assert await got(own) == []
    [event] = await got(other)
    assert event["headers"]["requested-acks"] == ["my:other"]
    assert process.acks == []
    process.sessions.unsubscribe(own)
    process.route(META._replace(session=own.id, requested_acks=("my:own",)), 1)
    assert process.acks == []


async def test_a_live_event_awaits_the_labels_but_no_response() -> None:
    process = Process()
    session = process.session("my:ack", kinds=(LIVE_EVENT,))
    events_only = process.session("my:events")
    labels = ("my:ack", "my:events")
    process.route(META._replace(kind=LIVE_EVENT, revision=0, requested_acks=labels), 1)
    [event] = await got(session)
    assert event["topic"] == "org.example/lamp/things/live/events/modified"
    assert event["headers"]["requested-acks"] == ["my:ack"]
    ack = Acknowledgement("my:ack", "org.example:lamp", "c", 200)
    assert session.forward(ack) is not None
    assert await got(events_only) == []
    assert [(ack.label, ack.payload) for ack in process.acks] == [("my:events", WEAK_UNSUBSCRIBED)]


async def test_an_announcement_goes_to_the_subjects_it_is_about() -> None:
    process = Process()
    session = process.session("my:ack", kinds=(ANNOUNCEMENT,), filter=rql("eq(topic:action,'x')"))
    elsewhere = process.session(kinds=(ANNOUNCEMENT,), namespaces=frozenset({"org.other"}))
    others = process.session(kinds=(ANNOUNCEMENT,), subjects=("s:2",))
    announced = META._replace(
        thing_id="org.example:policy", kind=ANNOUNCEMENT, action="subjectDeletion", path="/",
        requested_acks=("my:ack",),
    )  # fmt: skip
    process.route(announced, {"deleteAt": "2026-01-01T11:00:00Z", "subjectIds": ["s:1"]})
    [envelope] = await got(session)
    assert envelope["topic"] == "org.example/policy/policies/announcements/subjectDeletion"
    assert envelope["headers"]["requested-acks"] == ["my:ack"]
    assert envelope["value"]["subjectIds"] == ["s:1"]
    assert await got(elsewhere) == []
    assert await got(others) == []
    assert session.forward(Acknowledgement("my:ack", "org.example:policy", "c", 200)) is not None


# --- offers


async def test_what_becomes_of_an_offer() -> None:
    process = Process()
    kinds = (EVENT, COMMAND)
    session = process.session("my:ack", kinds=kinds, filter=rql("ne(attributes/n,0)"))
    asked = META._replace(requested_acks=("my:ack",), readers=("s:1", "s:2"))
    part = process.session(subjects=("s:2",))
    offer = process.offer
    assert offer(session, asked, {"n": 1}) == [Verdict.DELIVERED]
    assert offer(session, asked, {"n": 0}) == [Verdict.FILTERED]
    assert offer(session, asked._replace(session=session.id), {"n": 1}) == [Verdict.OWN]
    assert offer(session, asked._replace(readers=("s:2",)), {"n": 1}) == [Verdict.UNAUTHORIZED]
    live = asked._replace(kind=COMMAND, action="modify")
    assert offer(session, live._replace(revoked=("s:1",)), {"n": 1}) == [Verdict.UNAUTHORIZED]
    assert offer(session, asked._replace(kind=MESSAGE), {"n": 1}) == [Verdict.UNSUBSCRIBED]
    assert offer(part, asked._replace(rules=PART), {"closed": 1}) == [Verdict.HIDDEN]
    [event] = await got(session)
    assert event["headers"]["ackgate-redelivered"] is True
    session.close(1000, "")
    assert offer(session, asked, {"n": 1}) == [Verdict.CLOSED]
    assert process.acks == []  # what to do about its labels is left to whoever offers


async def test_an_offer_comes_after_what_was_routed() -> None:
    process = Process()
    session = process.session(filter=rql("exists(attributes/text)"))
    process.route(META, LONG)
    verdicts = process.offer(session, META, {"text": "offered"})
    assert verdicts == []
    assert await values(session) == [LONG, {"text": "offered"}]
    assert verdicts == [Verdict.DELIVERED]


async def test_what_waits_for_a_session_that_ends_is_given_up_once() -> None:
    process = Process()
    session = process.session("my:ack", filter=rql("exists(attributes/text)"))
    found = [process.offer(session, META, LONG) for _ in range(3)]
    await asyncio.sleep(0)
    process.sessions.remove(session)
    for _ in range(5):
        await asyncio.sleep(0)
    assert [verdicts[-1:] for verdicts in found[1:]] == [[Verdict.CLOSED]] * 2
    assert {len(verdicts) for verdicts in found} == {1}
    assert process.acks == []


async def test_more_than_may_wait_ends_this_session_alone() -> None:
    process = Process()
    session = process.session(filter=rql("exists(attributes/text)"), room=3 * HEAVY)
    other = process.session()
    for _ in range(5):
        process.route(META, LONG)
    assert session.closing is not None
    assert session.closing[0] == 1013
    assert await values(other) == [LONG] * 5
    assert process.offer(session, META, LONG) == [Verdict.CLOSED]


async def test_a_session_with_a_form_of_its_own() -> None:
    process = Process()
    session = process.session(subjects=("s:2",))
    deliveries: list[Delivery] = []

    def render(delivery: Delivery) -> bytes | None:
        deliveries.append(delivery)
        return json.dumps(delivery.parsed()).encode() if delivery.parsed()["open"] else None

    session.render = render
    session.look()
    meta = META._replace(readers=("s:1", "s:2"), rules=PART)
    assert process.offer(session, meta, {"open": 1, "closed": 2}) == [Verdict.DELIVERED]
    assert process.offer(session, meta, {"open": 0}) == [Verdict.FILTERED]
    assert await got(session) == [{"open": 1}]
    assert (deliveries[0].shard, deliveries[0].entry_id) == (3, b"7-1")


# --- the backlog itself


async def test_jobs_are_begun_together_and_finished_in_order() -> None:
    said: list[str] = []
    idle = asyncio.Event()
    gate = asyncio.Event()

    def job(number: int) -> Job:
        async def finish() -> None:
            await gate.wait()
            said.append(f"finish {number}")
            if number == 1:
                raise RuntimeError("one bad job")

        def say(word: str) -> Callable[[], None]:
            return lambda: said.append(f"{word} {number}")

        return Job(100, say("begin"), finish, say("give up"))

    backlog = Backlog(10_000_000, idle.set, "test")
    for number in range(AHEAD + 2):
        assert backlog.push(job(number))
    await asyncio.sleep(0)
    assert said == [f"begin {number}" for number in range(AHEAD)]
    gate.set()
    async with asyncio.timeout(10):
        await idle.wait()
    assert [word for word in said if word.startswith("finish")] == [
        f"finish {number}" for number in range(AHEAD + 2)
    ]
    assert not [word for word in said if word.startswith("give")]
