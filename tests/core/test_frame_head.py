"""Headers of frames: spec websocket-... 1.1, 1.4; acks-and-http 1.4, 2."""

from __future__ import annotations

from typing import Any

import pytest

from acks.errors import GatewayError
from acks.frame_head import FrameHead, frame_options, read_head, session_defaults
from acks.headers import AckOptions

RULES = ("documented", 60_000, 60_000)


def head(headers: Any, defaults: dict[str, str] | None = None, limit: int = 5_120) -> FrameHead:
    return read_head({"headers": headers}, defaults or {}, limit, "fresh")


def options(
    acks: str | None = None,
    required: str | None = None,
    timeout: str | None = None,
    *,
    live: bool = False,
    rules: Any = RULES,
) -> AckOptions:
    return frame_options(live, acks, required, timeout, *rules)


def test_defaults_of_the_upgrade_request() -> None:
    known = {
        "requested-acks": "my:ack,,other", "timeout": "10s", "condition": "eq(a,1)",
        "declared-acks": "x", "accept": "y", "content-type": "z", "x-correlation-id": "c",
        "host": "h", "if-match": '"a"', "correlation-id": "mine",
    }  # fmt: skip
    assert session_defaults(known) == {
        "requested-acks": '["my:ack", "other"]',
        "timeout": "10s",
        "condition": "eq(a,1)",
        "if-match": '"a"',
        "correlation-id": "mine",
    }


@pytest.mark.parametrize(
    ("known", "code"),
    [
        ({"requested-acks": "a"}, "header.invalid"),
        ({"response-required": "yes"}, "header.invalid"),
        ({"channel": "alive"}, "header.invalid"),
        ({"live-channel-timeout-strategy": "what"}, "header.invalid"),
        ({"timeout": "soon"}, "timeout.invalid"),
    ],
)
def test_defaults_that_no_command_can_have(known: dict[str, str], code: str) -> None:
    with pytest.raises(GatewayError) as caught:
        session_defaults(known)
    assert (caught.value.status, caught.value.code) == (400, code)


def test_headers_of_the_frame_win() -> None:
    found = head(
        {"Timeout": 5, "correlation-id": "mine", "Response-Required": False, "x-gone": None},
        {"timeout": "10s", "condition": "eq(a,1)", "correlation-id": "session"},
    )
    assert found.known == {
        "timeout": "5",
        "condition": "eq(a,1)",
        "correlation-id": "mine",
        "response-required": "false",
    }
    assert found.correlation_id == "mine"
    assert head({}, {"correlation-id": "session"}).correlation_id == "session"
    assert head(None).correlation_id == head({"correlation-id": ""}).correlation_id == "fresh"


def test_unknown_headers_travel_on_as_text() -> None:
    found = head({
        "X-Number": 5, "x-json": {"a": [1, "ü"]}, "x-flag": True, "x-text": "t", "version": 2,
        "host": "h", "ditto-originator": "me", "ETag": "t", "ditto-weak-ack": True,
    })  # fmt: skip
    assert found.carried == {
        "X-Number": "5",
        "x-json": '{"a":[1,"ü"]}',
        "x-flag": "true",
        "x-text": "t",
        "version": "2",
    }
    assert found.known == {}


@pytest.mark.parametrize("value", [["my:ack", "b:c"], '["my:ack", "b:c"]'])
def test_requested_acks_are_an_array_or_the_text_of_one(value: Any) -> None:
    text = head({"requested-acks": value}).known["requested-acks"]
    assert options(text).requested_acks == ("my:ack", "b:c")


@pytest.mark.parametrize(("value", "shown"), [("a,b", "a,b"), ("", ""), (5, "5"), ({}, "{}")])
def test_requested_acks_that_are_no_array(value: Any, shown: str) -> None:
    with pytest.raises(GatewayError) as caught:
        head({"requested-acks": value})
    problem = caught.value
    assert (problem.status, problem.code) == (400, "header.invalid")
    assert problem.message == (
        f"The value '{shown}' of the header 'requested-acks' is not a valid JSON array."
    )
    assert problem.extras == {"invalidHeaderKey": "requested-acks"}


@pytest.mark.parametrize("headers", [[], "a", 5])
def test_headers_that_are_no_object(headers: Any) -> None:
    with pytest.raises(GatewayError) as caught:
        head(headers)
    assert caught.value.code == "json.format.invalid"


def test_headers_are_bounded() -> None:
    assert head({"x": "y" * 99}, limit=100).carried
    with pytest.raises(GatewayError) as caught:
        head({"x": "y" * 100}, limit=100)
    assert (caught.value.status, caught.value.code) == (431, "headers.too.large")
    with pytest.raises(GatewayError):
        head({"x": ["y" * 10] * 10}, limit=100)


def test_options_are_completed() -> None:
    assert options() == AckOptions(("twin-persisted",), True, 60_000)
    assert options(live=True) == AckOptions(
        ("live-response",), True, 60_000, given=(("channel", "live"),)
    )
    assert options('["my:ack"]', timeout="10s") == AckOptions(
        ("my:ack",), True, 10_000, ("my:ack",), (("timeout", "10s"),)
    )


def test_long_timeouts_are_cut() -> None:
    assert options(timeout="64s").timeout_ms == 64_000
    assert options(timeout="65s").timeout_ms == options(timeout="2h").timeout_ms == 65_000
    assert options(rules=("ditto", 60_000, 60_000)).timeout_ms == 65_000


@pytest.mark.parametrize("timeout", ["0", "0ms", "1s", None])
@pytest.mark.parametrize("acks", ['["my:ack"]', '["twin-persisted"]'])
def test_acks_take_a_response(acks: str, timeout: str | None) -> None:
    with pytest.raises(GatewayError) as caught:
        options(acks, "false", timeout)
    problem = caught.value
    assert (problem.status, problem.code) == (400, "header.invalid")
    if timeout in ("0", "0ms"):
        assert problem.extras == {"invalidHeaderKey": "timeout"}
    else:
        assert problem.to_json() == {
            "status": 400,
            "error": "header.invalid",
            "message": "For WebSocket, it is forbidden to request acknowledgements while "
            "'response-required' is set to false.",
            "description": "Please set 'requested-acks' to [] or 'response-required' to true.",
            "invalidHeaderKey": "requested-acks",
        }


def test_what_defaulting_takes_away_is_not_requested() -> None:
    assert options('["live-response"]', "false").requested_acks == ()
    assert options('["live-response"]', "false", live=True).requested_acks == ()
    with pytest.raises(GatewayError):
        options('["live-response", "twin-persisted", "FOO"]', "false", live=True)
