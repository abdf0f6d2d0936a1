"""The targets of a connection: who gets what, and which acks are given for those who do not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from acks.envelopes import WEAK_DROPPED, WEAK_UNSUBSCRIBED
from acks.errors import error
from acks.journal import ANNOUNCEMENT, COMMAND, EVENT, LIVE_EVENT, MESSAGE, EntryMeta
from acks.live import LiveResponse
from acks.signals import Acknowledgement
from app.crew import Crew, TargetSession, failed_ack, subscriptions_of
from app.offers import Verdict
from connections.model import Connection, Source, Target, Topic, Uri
from tests.app.test_sessions import LONG, META, PART, Json, Process, got, rql, values

EVENTS, MESSAGES = "_/_/things/twin/events", "_/_/things/live/messages"
ROOM = 1_000_000


def topic(path: str = EVENTS, **parameters: Any) -> Topic:
    return Topic(path, frozenset(parameters.pop("namespaces", ())), **parameters)


def target(
    *topics: Topic, subjects: tuple[str, ...] = ("s:1",), issued: str | None = None, index: int = 0
) -> Target:
    return Target(index, "address", topics or (topic(),), subjects, issued=issued)


def crew_of(
    process: Process, *targets: Target, declared: tuple[str, ...] = (), name: str = "mine",
    owned: bool = True, room: int = ROOM,
) -> Crew:  # fmt: skip
    """A crew that is there and, if ``owned``, has its labels."""
    numbered = tuple(
        Target(number, one.address, one.topics, one.subjects, issued=one.issued)
        for number, one in enumerate(targets)
    )
    source = Source(0, ("from",), ("s:1",), declared=declared)
    uri = Uri("tcp", "localhost", 1883)
    connection = Connection(name, "mqtt", True, uri, (source,), numbered)
    crew = Crew(connection, outbox_bytes=room)
    process.sessions.add_crew(crew)
    if owned:
        process.sessions.crew_claimed(crew)
    return crew


def asking(*labels: str, **more: Any) -> EntryMeta:
    return META._replace(requested_acks=labels, **more)


def weak(process: Process) -> list[tuple[str, Json]]:
    """The weak acks that were sent: labels and payloads."""
    assert all(ack.headers["ditto-weak-ack"] is True for ack in process.acks)
    return [(ack.label, ack.payload) for ack in process.acks]


# --- who gets what


async def test_each_target_gets_what_it_wants_and_may_see() -> None:
    process = Process()
    crew = crew_of(
        process,
        target(),
        target(topic(filter="eq(attributes/n,1)")),
        target(topic(MESSAGES)),
        target(subjects=("s:9",)),
        target(topic(namespaces=["elsewhere"])),
    )
    other = process.session()
    process.route(META, {"n": 1})
    process.route(META, {"n": 2})
    process.route(META._replace(kind=MESSAGE, action="ask", path="/inbox/messages/ask"), "hello")
    found = [await values(session) for session in crew.sessions.values()]
    assert found == [[{"n": 1}, {"n": 2}], [{"n": 1}], ["hello"], [], []]
    assert await values(other) == [{"n": 1}, {"n": 2}]


async def test_filters_of_targets_know_the_thing_and_its_features() -> None:
    process = Process()
    crew = crew_of(
        process,
        target(topic(filter="and(eq(thing:id,'org.example:lamp'),eq(thing:name,'lamp'))")),
        target(topic(filter="eq(feature:id,'a')")),
        target(topic(filter="eq(feature:id,'c')")),
    )
    session = process.session(filter=rql("exists(thing:id)"))
    process.route(META._replace(path="/features"), {"a": {}, "b": {}})
    process.route(META._replace(path="/features/c"), {})
    found = [await values(one) for one in crew.sessions.values()]
    assert found == [[{"a": {}, "b": {}}, {}], [{"a": {}, "b": {}}], [{}]]
    assert await values(session) == []


async def test_partial_reads_are_those_of_each_target() -> None:
    process = Process()
    crew = crew_of(
        process, target(), target(subjects=("s:2",)), target(subjects=("s:2", "s:3")),
        declared=("mine:it",),
    )  # fmt: skip
    meta = asking("mine:it", readers=("s:1", "s:2"), rules=PART)
    process.route(meta, {"open": 1, "closed": 2})
    found = [await values(session) for session in crew.sessions.values()]
    assert found == [[{"open": 1, "closed": 2}], [{"open": 1}], []]
    assert process.acks == []


async def test_labels_are_shown_to_the_target_that_issues_them_or_to_all() -> None:
    process = Process()
    crew = crew_of(
        process, target(issued="mine:a"), target(issued="mine:b"), declared=("mine:all",)
    )
    process.route(asking("mine:a", "mine:b", "mine:all", "other"), 1)
    shown = [(await got(session))[0]["headers"] for session in crew.sessions.values()]
    assert [headers["requested-acks"] for headers in shown] == [
        ["mine:a", "mine:all"],
        ["mine:b", "mine:all"],
    ]
    assert [headers["correlation-id"] for headers in shown] == ["c", "c"]


async def test_what_a_connection_has_sent_comes_to_none_of_its_targets() -> None:
    process = Process()
    crew = crew_of(process, target(), target(issued="mine:a"), declared=("mine:all",))
    other = crew_of(process, target(), name="other")
    process.route(asking("mine:a", "mine:all", session=crew.origin), 1)
    assert [await values(session) for session in crew.sessions.values()] == [[], []]
    assert await values(other.sessions[0]) == [1]
    assert process.acks == []


async def test_what_a_connection_has_sent_is_acknowledged_by_others() -> None:
    process = Process()
    crew = crew_of(process, target())
    other = crew_of(process, target(issued="other:a"), target(issued="other:b"), name="other")
    other.wants[1].clear()
    process.sessions.unsubscribe(other.sessions[1])
    process.route(asking("other:a", "other:b", session=crew.origin), 1)
    assert await values(other.sessions[0]) == [1]
    assert weak(process) == [("other:b", WEAK_UNSUBSCRIBED)]


# --- weak acks


@pytest.mark.parametrize(
    ("wanted", "meta", "text"),
    [
        (target(topic(MESSAGES), issued="mine:a"), META, WEAK_UNSUBSCRIBED),
        (target(topic(namespaces=["no"]), issued="mine:a"), META, WEAK_UNSUBSCRIBED),
        (target(subjects=("s:9",), issued="mine:a"), META, WEAK_UNSUBSCRIBED),
        (target(topic(filter="eq(attributes/n,2)"), issued="mine:a"), META, WEAK_DROPPED),
        (
            target(subjects=("s:2",), issued="mine:a"),
            META._replace(readers=("s:1", "s:2"), rules=PART),
            WEAK_DROPPED,
        ),
    ],
)
async def test_an_issued_label_is_acknowledged_weakly_if_its_target_gets_nothing(
    wanted: Target, meta: EntryMeta, text: str
) -> None:
    process = Process()
    crew_of(process, target(), wanted)
    process.route(meta._replace(requested_acks=("mine:a",)), {"n": 1})
    assert weak(process) == [("mine:a", text)]
    assert process.sessions.weak.total() == 1


async def test_a_declared_label_is_acknowledged_weakly_only_if_no_target_gets_it() -> None:
    process = Process()
    picky = target(topic(filter="eq(attributes/n,2)"))
    crew = crew_of(process, target(topic(MESSAGES)), picky, declared=("mine:all",))
    process.route(asking("mine:all", correlation_id="c1"), {"n": 1})
    process.route(asking("mine:all", correlation_id="c2"), {"n": 2})
    assert weak(process) == [("mine:all", WEAK_DROPPED)]
    assert process.acks[0].correlation_id == "c1"
    assert await values(crew.sessions[1]) == [{"n": 2}]


async def test_a_decision_that_takes_long_is_waited_for() -> None:
    process = Process()
    slow = target(topic(filter="exists(attributes/other)"))
    crew = crew_of(process, target(topic(MESSAGES)), slow, declared=("mine:all",))
    process.route(asking("mine:all"), LONG)
    assert process.acks == []
    assert await values(crew.sessions[1]) == []
    assert weak(process) == [("mine:all", WEAK_DROPPED)]


async def test_a_connection_without_targets_gets_nothing_that_it_could_acknowledge() -> None:
    process = Process()
    crew = crew_of(process, declared=("mine:all",))
    process.route(asking("mine:all"), 1)
    assert weak(process) == [("mine:all", WEAK_UNSUBSCRIBED)]
    process.sessions.remove_crew(crew)
    process.route(asking("mine:all"), 1)
    assert len(process.acks) == 1
    assert len(process.sessions) == 0


async def test_without_its_labels_a_crew_acknowledges_nothing() -> None:
    process = Process()
    crew = crew_of(process, target(issued="mine:a"), declared=("mine:all",), owned=False)
    process.route(asking("mine:a", "mine:all"), 1)
    [event] = await got(crew.sessions[0])
    assert event["headers"]["requested-acks"] == []
    assert crew.forward(Acknowledgement("mine:a", META.thing_id, "c", 200)) is None
    process.sessions.crew_claimed(crew)
    process.route(asking("mine:a", "mine:all"), 2)
    [event] = await got(crew.sessions[0])
    assert event["headers"]["requested-acks"] == ["mine:a", "mine:all"]
    process.sessions.crew_lost(crew)
    process.route(asking("mine:a"), 3)
    process.sessions.unsubscribe(crew.sessions[0])
    process.route(asking("mine:a", "mine:all"), 4)
    assert process.acks == []


async def test_an_event_that_cannot_be_enriched_is_a_failed_ack() -> None:
    process = Process()
    crew = crew_of(process, target(issued="mine:a"), declared=("mine:all",))
    session = crew.sessions[0]
    assert isinstance(session, TargetSession)
    problem = error("signal.enrichment.failed", thing_id=META.thing_id, reason="It is gone.")
    session.failed(META, problem)
    sent: list[tuple[str, Verdict, object]] = []
    judge = crew.judge(("mine:a", "mine:all"), lambda *ack: sent.append(ack))
    judge(session)(Verdict.FAILED)
    assert sent == [
        ("mine:a", Verdict.FAILED, problem),
        ("mine:all", Verdict.FAILED, problem),
    ]
    made = failed_ack(META, "mine:a", problem, {"a": "b"})
    assert (made.label, made.status, made.headers) == ("mine:a", problem.status, {"a": "b"})
    assert made.payload.startswith(
        "Acknowledgement was issued automatically as failed ack, because"
    )
    assert made.payload.endswith(problem.message)
    assert session.put(b"{}"), "there is no error for the broker"
    assert [json.loads(frame) for frame in await session.frames()] == [{}]


async def test_a_target_without_room_drops_and_stays() -> None:
    process = Process()
    crew = crew_of(process, target(issued="mine:a"), room=1_500)
    session = crew.sessions[0]
    for number in range(5):
        process.route(asking("mine:a", correlation_id=f"c{number}"), {"text": "x" * 300})
    assert session.closing is None
    assert session.dropped > 0
    assert process.acks == [], "it was relevant: whoever asked may try again"
    assert len(await values(session)) + session.dropped == 5
    process.route(asking("mine:a", correlation_id="later"), 1)
    assert await values(session) == [1]


# --- acks of the connection


def ack(label: str, correlation_id: str = "c", thing_id: str = META.thing_id) -> Acknowledgement:
    return Acknowledgement(label, thing_id, correlation_id, 204)


async def test_an_ack_of_a_source_goes_for_the_target_that_was_given_the_signal() -> None:
    process = Process()
    crew = crew_of(process, target(topic(MESSAGES)), target(), declared=("mine:all",))
    process.route(asking("mine:all"), 1)
    assert crew.forward(ack("mine:all", "unknown")) is None
    assert crew.forward(ack("mine:other")) is None
    routed = crew.forward(ack("mine:all"))
    assert routed is not None
    assert (routed[0], routed[1].label, routed[1].status) == ("node", "mine:all", 204)
    assert crew.forward(ack("mine:all")) is None


async def test_one_id_for_signals_of_several_things() -> None:
    process = Process()
    crew = crew_of(
        process, target(topic(filter="eq(thingId,'org.example:lamp')")),
        target(topic(filter="eq(thingId,'org.example:door')")), declared=("mine:all",),
    )  # fmt: skip
    process.route(asking("mine:all", origin="a"), 1)
    process.route(asking("mine:all", origin="b", thing_id="org.example:door"), 2)
    routed = crew.forward(ack("mine:all", thing_id="org.example:door"))
    assert routed is not None
    assert (routed[0], routed[1].thing_id) == ("b", "org.example:door")
    routed = crew.forward(ack("mine:all"))
    assert routed is not None
    assert (routed[0], routed[1].thing_id) == ("a", "org.example:lamp")


async def test_a_live_response_of_a_source() -> None:
    process = Process()
    crew = crew_of(process, target(), target(topic(MESSAGES)))
    message = META._replace(
        kind=MESSAGE, action="ask", path="/inbox/messages/ask", answered=True, revision=0
    )
    process.route(message, "how?")
    path = "/inbox/messages/ask"
    answer = LiveResponse(META.thing_id, "messages", "ask", path, "c", 418, "so", {})
    routed = crew.answer(answer)
    assert routed is not None
    assert (routed[1].label, routed[1].status, routed[1].payload) == ("live-response", 418, "so")
    assert crew.answer(answer) is None


# --- topics


def test_kinds_of_topics() -> None:
    names = ("twin/events", "live/messages", "live/commands", "live/events")
    paths = [*(f"_/_/things/{name}" for name in names), "_/_/policies/announcements"]
    paths.append("_/_/connections/announcements")
    wanted = subscriptions_of(target(*(topic(path) for path in paths)))
    assert list(wanted) == [EVENT, MESSAGE, COMMAND, LIVE_EVENT, ANNOUNCEMENT]
    assert all(one.plain for one in wanted.values())


@pytest.mark.parametrize(
    ("topics", "things"),
    [
        ([topic()], "abc"),
        ([topic(namespaces=["a", "b"])], "ab"),
        ([topic(namespaces=["a"]), topic(filter="eq(thingId,'c:x')")], "ac"),
        ([topic(namespaces=["a"], filter="eq(thingId,'c:x')"), topic(namespaces=["b"])], "b"),
        ([topic(filter="eq(thingId,'c:x')"), topic()], "abc"),
    ],
)
async def test_several_topics_of_one_kind_are_one_wish(topics: list[Topic], things: str) -> None:
    process = Process()
    crew = crew_of(process, target(*topics))
    for namespace in "abc":
        process.route(META._replace(thing_id=f"{namespace}:x"), namespace)
    assert await values(crew.sessions[0]) == list(things)
