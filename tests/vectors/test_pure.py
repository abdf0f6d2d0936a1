"""The vectors that concern pure rules of the core."""

from __future__ import annotations

import json
from typing import Any

import pytest

from acks.aggregator import Aggregator, combined_status, http_answer
from acks.errors import GatewayError, error
from acks.headers import (
    Setter,
    check_requested_acks,
    complete,
    http_options,
    next_correlation_id,
    parse_boolean,
    parse_duration_ms,
    parse_requested_acks,
    split_list,
    visible_acks,
)
from acks.labels import check_labels, custom
from acks.policy import Policy, split_resource
from acks.protocol import read_ack, read_topic
from acks.signals import Acknowledgement, Response
from tests.vectors import load

Json = Any


@pytest.mark.parametrize(
    ("given", "expected"),
    [p for p in load("label", "ack.label") if "parseAckRequest" not in p.values[0]],
)
def test_label(given: Json, expected: Json) -> None:
    label = given["label"] if isinstance(given, dict) else given
    valid = expected if isinstance(expected, bool) else expected.get("valid", expected.get("ok"))
    if valid:
        assert check_labels([label]) == (label,)
        return
    with pytest.raises(GatewayError) as caught:
        check_labels([label])
    assert (caught.value.status, caught.value.code) == (400, "acknowledgement:label.invalid")
    if isinstance(expected, dict) and "message" in expected:
        assert caught.value.message == expected["message"]


@pytest.mark.parametrize(("given", "expected"), load("requested-acks-header"))
def test_requested_acks_header(given: Json, expected: Json) -> None:
    def read() -> tuple[str, ...]:
        if given["channel"] == "http":
            return parse_requested_acks(given["requested-acks"])
        return check_requested_acks(given["headers"]["requested-acks"])

    if "status" in expected:
        with pytest.raises(GatewayError) as caught:
            read()
        problem = caught.value
        assert (problem.status, problem.code) == (expected["status"], expected["error"])
        assert problem.extras["invalidHeaderKey"] == expected["invalidHeaderKey"]
        assert problem.message == expected.get("message", problem.message)
        assert problem.description == expected.get("description", problem.description)
        assert expected.get("messageContains", "") in problem.message
    elif "normalized" in expected and given["channel"] == "http":
        assert split_list(given["requested-acks"]) == expected["normalized"]
    else:
        assert list(read()) == expected.get("effectiveRequests", expected.get("normalized"))


@pytest.mark.parametrize(
    ("given", "expected"), [p for p in load("duration") if "op" not in p.values[0]]
)
def test_duration(given: Json, expected: Json) -> None:
    if "millis" in expected:
        assert parse_duration_ms(given["value"]) == expected["millis"]
        return
    with pytest.raises(GatewayError) as caught:
        parse_duration_ms(given["value"])
    assert caught.value.code == "timeout.invalid"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        p
        for p in load("timeout-header")
        if isinstance(p.values[0].get("timeout"), str) or "PUT" in p.values[0].get("http", "")
    ],
)
def test_timeout_header(given: Json, expected: Json) -> None:
    text = given.get("timeout") or given["http"].partition("timeout=")[2] or None

    def read() -> int:
        return http_options(Setter.TWIN_MODIFY, None, None, text).timeout_ms

    if "status" not in expected:
        assert read() == expected.get("effectiveMillis", read())
        return
    with pytest.raises(GatewayError) as caught:
        read()
    problem = caught.value
    assert (problem.status, problem.code) == (expected["status"], expected["error"])
    assert problem.message == expected.get("message", problem.message)
    assert expected.get("messageContains", "") in problem.message


_SETTERS = {"twin-modify": Setter.TWIN_MODIFY}


@pytest.mark.parametrize(("given", "expected"), load("ack-request-setter"))
def test_setter(given: Json, expected: Json) -> None:
    acks = given.get("requested-acks")
    timeout = given.get("timeout")
    done = complete(
        _SETTERS.get(given.get("setter", "live"), Setter.LIVE),
        None if acks is None else tuple(acks),
        given.get("response-required"),
        None if timeout is None else parse_duration_ms(timeout),
        "ditto",
    )
    if "requested-acks" in expected:
        assert list(done.requested_acks) == expected["requested-acks"]
    if "response-required" in expected:
        assert done.response_required == expected["response-required"]
    assert {"requested-acks", "response-required", "clientError", "valid"} & set(expected)


@pytest.mark.parametrize(("given", "expected"), load("acknowledgements-status"))
def test_combined_status(given: Json, expected: Json) -> None:
    if "statuses" in given:
        assert combined_status(given["statuses"]) == expected["status"]
    elif "op" in given:
        acks = {ack["label"]: ack["status"] for ack in given["acks"]}
        chosen = {
            "missingLabels": [label for label, status in acks.items() if status == 408],
            "successful": [label for label, status in acks.items() if 200 <= status < 300],
        }
        assert chosen[given["op"]] == expected
    else:
        # Every ack of an aggregate is for the aggregator's own thing, by construction.
        assert Aggregator("a:a", "c", ("x",), 1).thing_id == "a:a"


def _ack(data: Json) -> Acknowledgement:
    return Acknowledgement(
        data["label"], "ns:n", "c", data["status"], data.get("payload"), data.get("headers", {})
    )


@pytest.mark.parametrize(("given", "expected"), load("aggregator"))
def test_aggregator(given: Json, expected: Json) -> None:
    timeout = given.get("timeoutMillis") or parse_duration_ms(given.get("timeout", "60s"))
    aggregator = Aggregator("ns:n", "c", tuple(given["requested"]), timeout)
    received = given["received"]
    if isinstance(received, str):
        # A live response alone is the answer itself, not an aggregate.
        outcome = aggregator.respond(Response(204, None, {}))
        assert given["requested"] == ["live-response"]
        ack = Acknowledgement("live-response", "ns:n", "c", 204)
        outcome = outcome or aggregator.receive(ack)
        assert outcome is not None
        assert http_answer(outcome, True, {}).body is None
        assert outcome.status == 204
        return
    for data in received:
        if data.get("atMillis", 0) > timeout:
            break
        aggregator.receive(_ack(data))
    if expected.get("complete") is False:
        assert aggregator.outcome is None
        return
    if aggregator.outcome is None:
        aggregator.expire()
    outcome = aggregator.outcome
    assert outcome is not None
    _check_outcome(outcome, expected)


def _check_outcome(outcome: Any, expected: Json) -> None:
    acks = [{"label": a.label, "status": a.status} for a in outcome.acks]
    checked = False
    if "failed" in expected and outcome.error is None:
        failed = [ack for ack in acks if not 200 <= ack["status"] < 300]
        assert failed == [{"label": f["label"], "status": f["status"]} for f in expected["failed"]]
        checked = True
    if "failed" in expected and outcome.error is not None:
        assert [f["status"] for f in expected["failed"]] == [outcome.status]
        checked = True
    if "acks" in expected:
        assert acks == expected["acks"]
        checked = True
    if "successfulOrder" in expected:
        assert [ack["label"] for ack in acks] == expected["successfulOrder"]
        checked = True
    if "status" in expected:
        assert outcome.status == expected["status"]
        checked = True
    if "error" in expected:
        assert outcome.error.code == expected["error"]
        assert outcome.error.message == expected["message"]
    if isinstance(expected.get("successful"), bool):
        assert outcome.success == expected["successful"]
        checked = True
    assert checked, expected


@pytest.mark.parametrize(("given", "expected"), load("http-outcome"))
def test_http_outcome(given: Json, expected: Json) -> None:
    timeout_ms = parse_duration_ms(given["timeout"])
    options = complete(
        Setter.TWIN_MODIFY, tuple(given["requested-acks"]), given["response-required"], timeout_ms
    )
    status = 400
    if timeout_ms or not (options.requested_acks or options.response_required):
        aggregator = Aggregator(
            "ns:n", "c", options.requested_acks, timeout_ms, options.response_required
        )
        if given["backend"].startswith("204"):
            outcome = aggregator.respond(Response(204, None, {}))
        else:
            outcome = aggregator.fail(error("things:thing.notfound", thing_id="ns:n"))
        assert outcome is not None
        status = http_answer(outcome, options.response_required, {}).status
    assert status == expected["status"]


@pytest.mark.parametrize(("given", "expected"), load("policy.permission"))
def test_policy(given: Json, expected: bool) -> None:
    policy = Policy(given["policy"])
    kind, path = split_resource(given["resource"])
    partial = given["check"] != "unrestricted"
    allowed = all(
        policy.may(tuple(given["subjects"]), permission, kind, path, partial)
        for permission in given["permissions"]
    )
    assert allowed == expected


@pytest.mark.parametrize(("given", "expected"), load("ws-ack-incoming"))
def test_incoming_ack(given: Json, expected: Json) -> None:
    ack = given.get("ack", {})
    envelope: dict[str, Any] = {
        "topic": given.get("topic", f"ns/n/things/twin/acks/{ack.get('label')}"),
        "headers": {"correlation-id": ack.get("correlation-id", "c")},
        "path": "/",
    }
    if not given.get("statusMissing"):
        envelope["status"] = ack["status"]
    declared = frozenset(given.get("declared", ()))
    if "error" not in expected:
        # Whether something with this correlation-id is open is the session's business.
        assert read_ack(envelope, read_topic(envelope), declared).label == ack["label"]
        return
    with pytest.raises(GatewayError) as caught:
        read_ack(envelope, read_topic(envelope), declared)
    assert (caught.value.status, caught.value.code) == (expected["status"], expected["error"])
    assert caught.value.message == expected.get("message", caught.value.message)


def _deliveries(key: str) -> list[Any]:
    return [p for p in load("ws-delivery") if key in p.values[1]]


@pytest.mark.parametrize(("given", "expected"), _deliveries("delivered requested-acks"))
def test_delivered_acks(given: Json, expected: Json) -> None:
    shown = visible_acks(custom(given["event requested-acks"]), frozenset(given["declared"]))
    assert list(shown or ()) == expected["delivered requested-acks"]


@pytest.mark.parametrize(("given", "expected"), _deliveries("rewritten"))
def test_rewritten_correlation_id(given: Json, expected: Json) -> None:
    taken = given["correlation-id of a second colliding signal"]
    assert next_correlation_id(taken) == expected["rewritten"]


@pytest.mark.parametrize(("given", "expected"), load("error-json"))
def test_error_json(given: Json, expected: Json) -> None:
    if "timeoutMillis" in given:
        problem = error("acknowledgement:request.timeout", timeout_ms=given["timeoutMillis"])
        assert f"<{expected['rendered']}>" in problem.message.replace(
            f"of {expected['rendered']}.", f"of <{expected['rendered']}>."
        )
        return
    facts: dict[str, Any] = {"label": "X", "correlation_id": "X", "timeout_ms": 1}
    problem = error(given["error"], **facts)
    body = problem.to_json()
    assert {key: body[key] for key in expected} == expected
    assert list(body)[:3] == ["status", "error", "message"]
    json.dumps(body)


@pytest.mark.parametrize(
    ("given", "expected"),
    [p for p in load("header-validation") if "response-required" in p.values[0]],
)
def test_boolean(given: Json, expected: Json) -> None:
    text = given["response-required"]
    if expected["valid"]:
        assert parse_boolean("response-required", text) == (text == "true")
        return
    with pytest.raises(GatewayError) as caught:
        parse_boolean("response-required", text)
    assert caught.value.message == expected["message"]
