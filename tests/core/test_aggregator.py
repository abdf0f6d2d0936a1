"""Aggregator and its rendering for HTTP: spec acks-and-http 4, and the seed's two examples."""

from __future__ import annotations

from typing import Any

from acks.aggregator import Aggregator, Outcome, aggregate_json, http_answer
from acks.errors import error
from acks.signals import Acknowledgement, Response

CID = "db878735-4957-4fd9-92dc-6f09bb12a093"
THING = "org.eclipse.ditto:thing-1"
CREATED = Response(
    201,
    {"thingId": THING, "policyId": THING},
    {
        "correlation-id": CID,
        "response-required": False,
        "etag": '"rev:1"',
        "location": f"http://127.0.0.1:8080/api/2/things/{THING}",
    },
)


def custom(label: str, status: int = 200, payload: Any = None) -> Acknowledgement:
    return Acknowledgement(label, THING, CID, status, payload, {"correlation-id": CID})


def two_acks() -> Aggregator:
    return Aggregator(THING, CID, ("twin-persisted", "my-custom-ack"), 42_000)


PERSISTED = {
    "status": 201,
    "payload": {"thingId": THING, "policyId": THING},
    "headers": {
        "correlation-id": CID,
        "response-required": False,
        "etag": '"rev:1"',
        "location": f"http://127.0.0.1:8080/api/2/things/{THING}",
    },
}


def test_seed_example_two_successful_acks() -> None:
    aggregator = two_acks()
    assert aggregator.respond(CREATED) is None
    assert aggregator.missing == ("my-custom-ack",)
    outcome = aggregator.receive(custom("my-custom-ack", 200, {"outcome": "green"}))
    assert outcome is not None
    answer = http_answer(outcome, True, {})
    assert answer.status == 200
    assert answer.body == {
        "twin-persisted": PERSISTED,
        "my-custom-ack": {
            "status": 200,
            "payload": {"outcome": "green"},
            "headers": {"correlation-id": CID, "response-required": False},
        },
    }
    assert list(answer.body) == ["twin-persisted", "my-custom-ack"]
    assert list(answer.body["twin-persisted"]) == ["status", "payload", "headers"]


def test_seed_example_one_ack_times_out() -> None:
    aggregator = two_acks()
    aggregator.respond(CREATED)
    outcome = aggregator.expire()
    assert outcome is not None
    answer = http_answer(outcome, True, {})
    assert answer.status == 424
    assert answer.body == {
        "twin-persisted": PERSISTED,
        "my-custom-ack": {
            "status": 408,
            "payload": {
                "status": 408,
                "error": "acknowledgement:request.timeout",
                "message": "The acknowledgement request reached the specified timeout of 42,000ms.",
                "description": "Try increasing the timeout and make sure that the requested "
                "acknowledgement is sent back in time.",
            },
            "headers": {"correlation-id": CID, "response-required": False},
        },
    }


def test_negative_ack_makes_424_with_its_own_entry() -> None:
    aggregator = two_acks()
    aggregator.respond(CREATED)
    outcome = aggregator.receive(custom("my-custom-ack", 403, "no"))
    assert outcome is not None
    answer = http_answer(outcome, True, {})
    assert answer.status == 424
    assert answer.body["my-custom-ack"]["status"] == 403
    assert answer.body["my-custom-ack"]["payload"] == "no"


def test_single_custom_ack_answers_with_its_own_status_and_payload() -> None:
    aggregator = Aggregator(THING, CID, ("my-ack",), 1000)
    assert aggregator.respond(CREATED) is None
    outcome = aggregator.receive(custom("my-ack", 202, {"outcome": "green"}))
    assert outcome is not None
    answer = http_answer(outcome, True, {})
    assert (answer.status, answer.body) == (202, {"outcome": "green"})


def test_single_custom_ack_that_never_comes_is_the_timeout_error() -> None:
    outcome = Aggregator(THING, CID, ("my-ack",), 500).expire()
    assert outcome is not None
    answer = http_answer(outcome, True, {})
    assert answer.status == 408
    assert answer.body["error"] == "acknowledgement:request.timeout"
    assert "500ms" in answer.body["message"]


def test_a_204_ack_has_no_body() -> None:
    outcome = Aggregator(THING, CID, ("my-ack",), 500).receive(custom("my-ack", 204, "x"))
    assert outcome is not None
    assert http_answer(outcome, True, {}).body is None


def test_twin_persisted_alone_is_the_plain_response() -> None:
    outcome = Aggregator(THING, CID, ("twin-persisted",), 1000).respond(CREATED)
    assert outcome is not None
    answer = http_answer(outcome, True, {"timeout": "1s"})
    assert (answer.status, answer.body) == (201, CREATED.payload)
    assert answer.headers["etag"] == '"rev:1"'
    assert answer.headers["timeout"] == "1s"


def test_twin_persisted_alone_times_out_as_the_command() -> None:
    outcome = Aggregator(THING, CID, ("twin-persisted",), 1337).expire()
    assert outcome is not None
    assert http_answer(outcome, True, {}).body["error"] == "command.timeout"


def test_error_of_our_own_processing_ends_everything_at_once() -> None:
    aggregator = two_acks()
    aggregator.receive(custom("my-custom-ack"))
    outcome = aggregator.fail(error("things:thing.notfound", thing_id=THING))
    assert outcome is not None
    answer = http_answer(outcome, True, {})
    assert (answer.status, answer.body["error"]) == (404, "things:thing.notfound")
    assert aggregator.fail(error("things:thing.notfound", thing_id=THING)) is None
    assert aggregator.expire() is None


def test_nothing_counts_after_the_outcome() -> None:
    aggregator = two_acks()
    first = aggregator.expire()
    assert aggregator.receive(custom("my-custom-ack")) is None
    assert aggregator.respond(CREATED) is None
    assert aggregator.outcome is first


def test_without_response_and_acks_the_answer_is_202() -> None:
    done = Aggregator(THING, CID, (), 1000, response_required=False)
    outcome = done.respond(CREATED)
    assert outcome is not None
    assert http_answer(outcome, False, {"correlation-id": CID}).status == 202
    assert http_answer(outcome, False, {"correlation-id": CID}).headers == {}
    late = Aggregator(THING, CID, (), 3000, response_required=False).expire()
    assert late is not None
    assert http_answer(late, False, {}).status == 202


def test_response_not_required_renders_minimal_bodies() -> None:
    headers = {"correlation-id": CID}
    failed = (custom("a-label", 200), custom("b-label", 500, "why"))
    answer = http_answer(Outcome(424, failed), False, headers)
    assert answer.status == 424
    assert answer.body == {
        "a-label": {"status": 200, "headers": {"response-required": False}},
        "b-label": {"status": 500, "headers": {"response-required": False}},
    }
    assert http_answer(Outcome(500, failed[1:]), False, headers).body is None
    assert http_answer(Outcome(200, failed[:1]), False, headers).status == 202


def test_same_label_twice_becomes_an_array() -> None:
    body = aggregate_json([custom("aaa"), custom("aaa", 403), custom("aaa", 404)])
    assert [entry["status"] for entry in body["aaa"]] == [200, 403, 404]


def test_requested_acks_are_not_repeated_inside_an_entry() -> None:
    ack = Acknowledgement("aaa", THING, CID, 200, None, {"requested-acks": ["x"], "y": "z"})
    assert aggregate_json([ack])["aaa"]["headers"] == {"y": "z", "response-required": False}


def test_weak_is_read_from_the_header_whatever_its_case() -> None:
    for value, weak in ((True, True), ("TRUE", True), ("false", False)):
        ack = Acknowledgement("aaa", THING, CID, 200, None, {"ditto-weak-ack": value})
        assert ack.weak is weak
    assert not custom("aaa").weak
