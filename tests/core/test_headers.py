"""The three headers: the seed's tables, query parameters, what travels."""

from __future__ import annotations

import pytest

from acks.errors import GatewayError
from acks.headers import (
    Setter,
    check_zero_timeout,
    complete,
    http_options,
    next_correlation_id,
    parse_declared_acks,
    split_list,
    travels,
    visible_acks,
)

# Seed, "Default header values": (response-required, requested-acks, timeout) as given
DEFAULTS = [
    ((None, None, None), (True, ("twin-persisted",), 60_000)),
    ((None, None, 0), (False, (), 0)),
    ((None, (), None), (False, (), 60_000)),
    ((None, ("my-ack",), None), (True, ("my-ack",), 60_000)),
    ((False, None, None), (False, (), 60_000)),
    ((True, None, None), (True, ("twin-persisted",), 60_000)),
    ((False, None, 0), (False, (), 0)),
    ((True, (), 5000), (True, (), 5000)),
    ((False, ("my-ack",), 5000), (False, ("my-ack",), 5000)),
]


@pytest.mark.parametrize(("given", "expected"), DEFAULTS)
def test_documented_defaults(given: tuple, expected: tuple) -> None:  # type: ignore[type-arg]
    response_required, acks, timeout = given
    done = complete(Setter.TWIN_MODIFY, acks, response_required, timeout)
    assert (done.response_required, done.requested_acks, done.timeout_ms) == expected
    check_zero_timeout(done)


def test_empty_acks_keep_the_response_with_dittos_defaults() -> None:
    assert complete(Setter.TWIN_MODIFY, (), None, None, "ditto").response_required
    assert not complete(Setter.TWIN_MODIFY, (), None, None, "documented").response_required


@pytest.mark.parametrize(
    ("acks", "response_required"),
    [("", "true"), ("my-ack", "true"), ("my-ack", "false"), ("my-ack", None), (None, "true")],
)
def test_zero_timeout_with_something_to_wait_for(
    acks: str | None, response_required: str | None
) -> None:
    with pytest.raises(GatewayError) as caught:
        http_options(Setter.TWIN_MODIFY, acks, response_required, "0")
    assert caught.value.to_json() == {
        "status": 400,
        "error": "header.invalid",
        "message": "The value of the header 'timeout' must not be zero if response or "
        "acknowledgements are requested.",
        "description": "Please provide a positive timeout.",
        "invalidHeaderKey": "timeout",
    }


def test_timeout_bounds() -> None:
    assert http_options(Setter.TWIN_MODIFY, None, None, "60s").timeout_ms == 60_000
    with pytest.raises(GatewayError) as caught:
        http_options(Setter.TWIN_MODIFY, None, None, "61s")
    assert caught.value.code == "gateway:timeout.invalid"
    assert "<61,000ms>" in caught.value.message


def test_the_given_timeout_is_repeated_as_it_was_written() -> None:
    assert http_options(Setter.TWIN_MODIFY, None, None, "42s").given == (("timeout", "42s"),)
    assert http_options(Setter.TWIN_MODIFY, None, None, None).given == ()


def test_lists() -> None:
    assert split_list('["a","b"]') == ["a", "b"]
    assert split_list("a, b ,,c") == ["a", "b", "c"]
    assert split_list("[a,b]") == ["[a", "b]"]
    assert split_list("null") == []
    assert parse_declared_acks("my:ack,my:ack,other") == ("my:ack", "other")
    with pytest.raises(GatewayError) as caught:
        parse_declared_acks("[1]")
    assert "<declared-acks>" in caught.value.message


def test_what_travels_with_the_signal() -> None:
    assert travels("x-shift")
    assert travels("traceparent")
    names = "authorization cookie host user-agent etag ditto-origin if-match requested-acks"
    for name in [*names.split(), "sec-fetch-mode"]:
        assert not travels(name), name
    assert travels("diverted-response-from-connection")
    for name in (
        "divert-response-to-connection",
        "divert-expected-response-types",
        "ditto-pre-defined-extra-fields",
        "ditto-pre-defined-extra-fields-object",
    ):
        assert not travels(name), name


def test_a_subscriber_sees_its_own_labels_only() -> None:
    declared = frozenset({"my:ack"})
    assert visible_acks(("my:ack", "other:ack"), declared) == ("my:ack",)
    assert visible_acks(("other:ack",), declared) == ()
    assert visible_acks((), declared) is None


def test_correlation_ids_in_use_are_numbered() -> None:
    assert next_correlation_id("c") == "c#0"
    assert next_correlation_id("c#0") == "c#1"
    assert next_correlation_id("c#x") == "c#x#0"
