"""Rules of the specification that the other modules run for single cases: here for all of them."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode
from uuid import UUID

import pytest

from acks.error_kind import is_retryable
from acks.errors import GatewayError, error
from acks.frame_head import frame_options
from acks.headers import DEFAULT_TIMEOUT_MS, Setter, aggregates, complete, travels, visible_acks
from acks.labels import custom
from app.api.http import RequestHead, Rules, shown_headers
from app.api.messages import message_options
from connections.issued import weak_ack
from tests.vectors import load

Json = Any
RULES = Rules("ditto", DEFAULT_TIMEOUT_MS, DEFAULT_TIMEOUT_MS)
ACKS = (
    None, (), ("twin-persisted",), ("live-response",), ("search-persisted",), ("FOO",),
    ("FOO", "live-response"), ("twin-persisted", "FOO"), ("twin-persisted", "live-response"),
    ("live-response", "twin-persisted", "FOO"), ("BAR", "search-persisted", "twin-persisted"),
)  # fmt: skip
SETTERS = {
    Setter.TWIN_MODIFY: ("twin-persisted", {"live-response"}, False),
    Setter.LIVE: ("live-response", {"twin-persisted", "search-persisted"}, True),
}


@pytest.mark.parametrize("setter", SETTERS)
@pytest.mark.parametrize("timeout_ms", [None, 0, 1000])
@pytest.mark.parametrize("wanted", [None, True, False])
@pytest.mark.parametrize("given", ACKS, ids=str)
def test_completion_is_the_algorithm_of_the_specification(
    setter: Setter, timeout_ms: int | None, wanted: bool | None, given: tuple[str, ...] | None
) -> None:
    """2.4, its three steps as they stand there."""
    implicit, negated, bound = SETTERS[setter]
    zero, required = timeout_ms == 0, wanted is not False
    if given is None:
        acks = [implicit] if not zero and required else []
    elif bound and required and given:
        acks = [*given, *([] if implicit in given else [implicit])]
    elif bound and not required:
        acks = [label for label in given if label != implicit]
    else:
        acks = list(given)
    if given and negated & set(given):
        acks = [label for label in given if label not in negated]
    done = complete(setter, given, wanted, timeout_ms, "ditto")
    assert list(done.requested_acks) == acks
    assert done.response_required == (not zero if wanted is None else wanted)
    assert done.timeout_ms == (60_000 if timeout_ms is None else timeout_ms)


@pytest.mark.parametrize(
    ("given", "expected"),
    [p for p in load("requested-acks-external-filter") if "requested-acks" in p.values[0]],
)
def test_external_filter(given: Json, expected: Json) -> None:
    labels = custom(label for label in given["requested-acks"] if label)
    # An array without labels stays one; one that is emptied is left out.
    shown = visible_acks(labels, frozenset(labels)) if given["requested-acks"] else ()
    assert (shown is not None) == expected["headerPresent"]
    assert expected["requested-acks"] == (None if shown is None else list(shown))


_LIVE = ("live", "message")


@pytest.mark.parametrize(("given", "expected"), load("channel-start"))
def test_which_commands_aggregate(given: Json, expected: Json) -> None:
    kind, _, action = given["command"].partition(" ")
    acks = given["requested-acks (after defaulting)"]
    # Questions to the twin and policies have no ack requests, whatever their headers say.
    asks = kind in _LIVE or (kind == "twin" and action != "retrieve")
    setter = Setter.LIVE if kind in _LIVE else Setter.TWIN_MODIFY
    assert (asks and aggregates(setter, acks)) == expected["aggregationStarted"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [p for p in load("timeout-header") if "POST" in p.values[0].get("http", "")],
)
def test_timeout_of_a_message(given: Json, expected: Json) -> None:
    text = given["http"].partition("timeout=")[2] or None
    if "status" not in expected:
        assert message_options(None, None, text, RULES).timeout_ms == expected["effectiveMillis"]
        return
    with pytest.raises(GatewayError) as caught:
        message_options(None, None, text, RULES)
    body = caught.value.to_json()
    assert {name: body[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("given", "expected"), [p for p in load("timeout-header") if "ws-timeout-header" in p.values[0]]
)
def test_timeout_of_a_session(given: Json, expected: Json) -> None:
    text = given["ws-timeout-header"]
    found = frame_options(False, None, None, text, "ditto", 60_000, 60_000)
    assert expected["accepted"]
    assert found.timeout_ms == expected["effectiveMillis"]


@pytest.mark.parametrize(
    ("given", "expected"), [p for p in load("label") if "parseAckRequest" in p.values[0]]
)
def test_ack_requests_that_cannot_be_parsed(given: Json, expected: Json) -> None:
    body = error("acknowledgement:request.parsing.failed", label=given["parseAckRequest"]).to_json()
    assert {name: body[name] for name in expected} == expected


_SHOWN = (
    "correlation-id", "response-required", "dry-run", "channel", "requested-acks", "timeout",
    "location", "traceparent", "tracestate", "diverted-response-from-connection", "etag",
    "ditto-originator", "www-authenticate", "ditto-connection-id", "ditto-metadata",
    "ditto-weak-ack", "live-channel-condition-matched", "historical-headers", "entity-revision",
)  # fmt: skip
_HIDDEN = (
    "accept", "authorization", "if-match", "if-none-match", "if-equal", "declared-acks",
    "put-metadata", "condition", "policy-view", "divert-response-to-connection",
    "ditto-entity-id", "ditto-auth-context", "ditto-read-subjects", "ditto-origin", "ditto-sudo",
    "ditto-reply-target", "x-mine", "host", "content-type",
)  # fmt: skip


def test_headers_of_an_answer_are_the_known_ones_that_clients_see() -> None:
    """1.8; the content type is said by the answer itself."""
    assert shown_headers(dict.fromkeys((*_SHOWN, *_HIDDEN), "x")) == dict.fromkeys(_SHOWN, "x")


@pytest.mark.parametrize(
    ("given", "expected"), [p for p in load("doc-example") if "ackStatus" in p.values[0]]
)
def test_which_statuses_are_tried_again(given: Json, expected: Json) -> None:
    for last in ("00", "03"):
        status = int(given["ackStatus"].replace("xx", last))
        assert is_retryable(status) is expected["shouldRetry"]


def _head(query: str = "", **headers: str) -> RequestHead:
    fields = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
    scope = {"type": "http", "headers": fields, "query_string": query.encode()}
    return RequestHead(scope, 5_120)


@pytest.mark.parametrize(("given", "expected"), load("query-params"))
def test_query_parameters_that_are_headers(given: Json, expected: Json) -> None:
    known = _head(urlencode(given["query"])).known
    taken = {name: text for name, text in known.items() if name in given["configured"]}
    assert taken == expected["headers"]
    assert "content-type" not in known


@pytest.mark.parametrize(
    ("given", "expected"), [p for p in load("correlation-id") if "http headers" in p.values[0]]
)
def test_correlation_id_of_a_request(given: Json, expected: Json) -> None:
    sent = {name.replace("-", "_"): text for name, text in given["http headers"].items()}
    found = _head(**sent).correlation_id
    if expected["correlation-id"] == "random UUID":
        assert str(UUID(found, version=4)) == found
    else:
        assert found == expected["correlation-id"]


@pytest.mark.parametrize(
    ("given", "expected"), [p for p in load("header-translation") if "fromExternal" in p.values[0]]
)
def test_headers_that_go_on(given: Json, expected: Json) -> None:
    assert {name: text for name, text in given["fromExternal"].items() if travels(name)} == (
        expected["kept"]
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [p for p in load("weak-ack") if p.values[0].get("declaredBy") == "connection target"],
)
def test_weak_ack_of_a_target(given: Json, expected: Json) -> None:
    headers = {"correlation-id": "c", "x-mine": "1", "requested-acks": given["requested"]}
    signal = {"topic": "ns/n/things/twin/events/modified", "headers": headers, "path": "/"}
    ack = weak_ack(given["requested"][0], signal, "C")
    wanted = expected["ack"]
    assert (ack.label, ack.status, ack.payload) == (
        wanted["label"],
        wanted["status"],
        wanted["payload"],
    )
    assert wanted["headers+"].items() <= ack.headers.items()
    assert (ack.headers["x-mine"], "requested-acks" in ack.headers) == ("1", False)
