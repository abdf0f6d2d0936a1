"""Accepted requests: what has become of one is a function of its record and the time."""

from __future__ import annotations

import json
from typing import Any

import pytest

from acks.accepted import (
    Accepted,
    Came,
    accept,
    field_of,
    read_request,
    read_value,
    request_json,
    value_json,
)
from acks.aggregator import http_answer
from acks.errors import GatewayError, error
from acks.headers import Setter, http_options
from acks.live import INVALID_RESPONSE
from acks.signals import Acknowledgement, Command, Live, Response

THING = "org.example:t"
CID = "c/1"
BEGUN, DEADLINE, KEEP = 1_700_000_000_000, 1_700_000_010_000, 300_000
CREATED = Response(201, {"thingId": THING}, {"correlation-id": CID, "etag": '"rev:1"'})


def accepted(requested: str | None, *came: Any, required: str | None = None) -> Accepted:
    options = http_options(Setter.TWIN_MODIFY, requested, required, "10")
    command = Command(THING, (), {}, CID, options, ("nginx:me", "group:all"))
    request = accept(command, timeout_ms=10_000, keep_ms=KEEP, location="http://here/t")
    return request._replace(
        accepted_ms=BEGUN,
        deadline_ms=DEADLINE,
        came=tuple(Came(number, thing) for number, thing in enumerate(came, 1)),
    )


def custom(label: str, status: int = 200, payload: Any = None) -> Acknowledgement:
    return Acknowledgement(label, THING, CID, status, payload, {"correlation-id": CID})


@pytest.mark.parametrize(
    ("requested", "required", "own", "others"),
    [
        (None, None, True, ()),
        ("twin-persisted,ack-a", None, True, ("ack-a",)),
        ("ack-a,ack-b", None, False, ("ack-a", "ack-b")),
        ("", None, True, ()),
        (None, "false", True, ()),
    ],
)
def test_who_owes_what(
    requested: str | None, required: str | None, own: bool, others: tuple[str, ...]
) -> None:
    request = accepted(requested, required=required)
    assert (request.own, request.others) == (own, others)


def test_a_pending_request_shows_what_came_and_what_is_owed() -> None:
    request = accepted("twin-persisted,ack-a,ack-b", custom("ack-b", 201, {"x": 1}), CREATED)
    assert request.to_json(DEADLINE) == {
        "correlationId": CID,
        "thingId": THING,
        "state": "pending",
        "requestedAcks": ["twin-persisted", "ack-a", "ack-b"],
        "acks": {
            "ack-b": {
                "status": 201,
                "payload": {"x": 1},
                "headers": {"correlation-id": CID, "response-required": False},
            },
            "twin-persisted": {
                "status": 201,
                "payload": {"thingId": THING},
                "headers": {
                    "correlation-id": CID,
                    "etag": '"rev:1"',
                    "response-required": False,
                },
            },
        },
        "owed": ["ack-a"],
        "acceptedAt": "2023-11-14T22:13:20.000Z",
        "deadline": "2023-11-14T22:13:30.000Z",
    }
    assert request.outcome(DEADLINE) is None


def test_the_last_ack_makes_the_outcome_and_it_stays() -> None:
    request = accepted(
        "twin-persisted,ack-a", CREATED, custom("ack-a", 403, "no"), custom("ack-a", 200)
    )
    request = request._replace(done_ms=BEGUN + 5)
    for now in (BEGUN, DEADLINE, DEADLINE + 1, DEADLINE + KEEP):
        outcome = request.outcome(now)
        assert outcome is not None
        answer = http_answer(outcome, True, {})
        assert answer.status == 424
        assert answer.body["ack-a"]["payload"] == "no"
        body = request.to_json(now)
        assert (body["state"], body["owed"]) == ("done", [])
        assert body["expiresAt"] == "2023-11-14T22:18:20.005Z"


def test_after_the_deadline_what_is_owed_is_408() -> None:
    request = accepted("twin-persisted,ack-a", CREATED)
    assert request.outcome(DEADLINE) is None
    outcome = request.outcome(DEADLINE + 1)
    assert outcome is not None
    assert outcome.status == 424
    assert [ack.status for ack in outcome.acks] == [201, 408]
    body = request.to_json(DEADLINE + 1)
    assert list(body["acks"]) == ["twin-persisted"], "what came, not what did not"
    assert body["expiresAt"] == "2023-11-14T22:18:30.000Z"


@pytest.mark.parametrize("requested", [None, "twin-persisted"])
def test_a_response_alone_is_the_outcome(requested: str | None) -> None:
    outcome = accepted(requested, CREATED).outcome(BEGUN)
    assert outcome is not None
    assert outcome.response == CREATED


def test_a_request_without_any_wish_is_done_when_processed_and_never_fails_late() -> None:
    request = accepted("", Response(204, None, {}))
    outcome = request.outcome(BEGUN)
    assert outcome is not None
    assert http_answer(outcome, request.response_required, {}).status == 202
    late = accepted("").outcome(DEADLINE + 1)
    assert late is not None
    assert http_answer(late, False, {}).status == 202


def test_an_error_of_ours_is_the_outcome_whatever_else_came() -> None:
    problem = error("things:thing.notfound", thing_id=THING)
    outcome = accepted("twin-persisted,ack-a", custom("ack-a"), problem).outcome(BEGUN)
    assert outcome is not None
    assert outcome.error is problem


def test_a_response_that_was_not_asked_for_is_no_ack() -> None:
    request = accepted("ack-a", CREATED)
    assert request.outcome(BEGUN) is None
    assert request.to_json(BEGUN)["acks"] == {}
    assert request.events(BEGUN) == []


def test_only_its_requester_may_read_it() -> None:
    request = accepted(None)
    assert request.readable_by(("x", "nginx:me"))
    assert not request.readable_by(("group:all", "nginx:other"))


def test_steps_are_numbered_and_can_be_taken_up_in_the_middle() -> None:
    request = accepted("twin-persisted,ack-a,ack-b", custom("ack-a"), CREATED)
    steps = request.events(BEGUN)
    assert [(step.number, step.kind) for step in steps] == [(1, "ack"), (2, "ack")]
    assert [step.request.to_json(step.at_ms)["owed"] for step in steps] == [
        ["twin-persisted", "ack-b"],
        ["ack-b"],
    ]
    assert [step.number for step in request.events(BEGUN, 1)] == [2]
    assert request.events(BEGUN, 2) == []
    late = request.events(DEADLINE + 1, 2)
    assert [(step.number, step.kind) for step in late] == [(3, "outcome")]
    done = accepted("twin-persisted,ack-a,ack-b", custom("ack-a"), CREATED, custom("ack-b"))
    assert [(step.number, step.kind) for step in done.events(DEADLINE + 1, 1)] == [
        (2, "ack"),
        (3, "outcome"),
    ]
    assert done.events(DEADLINE + 1, 3) == []


def test_steps_before_an_error_stay_steps() -> None:
    problem = error("things:thing.notfound", thing_id=THING)
    steps = accepted("twin-persisted,ack-a", custom("ack-a"), problem).events(DEADLINE + 1)
    assert [(step.number, step.kind) for step in steps] == [(1, "ack"), (2, "outcome")]


def live(requested: str | None, *came: Any) -> Accepted:
    options = http_options(Setter.LIVE, requested, None, "10")
    signal = Live(THING, "messages", "ask", "/inbox/messages/ask", 1, CID, options, ("nginx:me",))
    request = accept(signal, timeout_ms=10_000, keep_ms=KEEP)
    return request._replace(
        deadline_ms=DEADLINE,
        came=tuple(Came(number, thing) for number, thing in enumerate(came, 1)),
    )


def test_a_message_waits_for_its_response() -> None:
    request = live(None)
    assert (request.labels, request.own, request.others) == (
        ("live-response",),
        False,
        ("live-response",),
    )
    answered = live(None, custom("live-response", 200, "hi")).outcome(BEGUN)
    assert answered is not None
    assert answered.acks[0].payload == "hi"


def test_a_refused_response_is_named_when_the_time_is_up() -> None:
    request = live(None)._replace(refused="It is another thing.")
    assert request.outcome(DEADLINE) is None
    outcome = request.outcome(DEADLINE + 1)
    assert outcome is not None
    assert outcome.error is not None
    assert outcome.error.description is not None
    assert "It is another thing." in outcome.error.description


def stored(value: object) -> Any:
    return json.loads(json.dumps(value))


def test_a_record_is_read_back_as_it_was_written() -> None:
    request = accepted("twin-persisted,ack-a")
    again = read_request(CID, stored(request_json(request)), KEEP)
    assert again._replace(accepted_ms=BEGUN, deadline_ms=DEADLINE) == request
    ack = custom("ack-a", 200, [1])
    assert field_of(ack) == "ack:ack-a"
    assert read_value(request, "ack:ack-a", stored(value_json(ack))) == ack
    bare = custom("ack-a")
    assert read_value(request, "ack:ack-a", stored(value_json(bare))) == bare
    assert field_of(CREATED) == "response"
    response = read_value(request, "response", stored(value_json(CREATED)))
    assert isinstance(response, Response)
    assert response.headers == {**CREATED.headers, "location": "http://here/t"}
    notice = Acknowledgement(INVALID_RESPONSE, THING, CID, 400, "why")
    assert (field_of(notice), value_json(notice)) == ("refused", "why")


def test_errors_are_read_back_also_those_of_a_newer_node() -> None:
    request = accepted(None)
    for problem in (
        error("acknowledgement:label.invalid", label="a b"),
        error("header.invalid", value="1", header="x", type="y", extras={"invalidHeaderKey": "x"}),
    ):
        assert field_of(problem) == "error"
        again = read_value(request, "error", stored(value_json(problem)))
        assert isinstance(again, GatewayError)
        assert again.to_json() == problem.to_json()
    newer = {"status": 418, "error": "of:tomorrow", "message": "m", "href": "h", "more": 1}
    again = read_value(request, "error", newer)
    assert isinstance(again, GatewayError)
    assert (again.status, again.to_json()) == (418, newer)
