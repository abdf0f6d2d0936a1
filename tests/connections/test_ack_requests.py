"""The acks that a source requests for its messages (spec websocket-... 4.2)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from acks.errors import GatewayError
from connections.mapping.ack_requests import can_request, parse_ack_filter, request_acks
from connections.placeholders.lookups import Scope
from connections.placeholders.templates import PlaceholderError

MODIFY = "ns/n/things/twin/commands/modify"
QOS = "fn:filter(header:mqtt.qos,'ne','0')"


def labels(
    headers: Any,
    includes: tuple[str, ...] = (),
    ack_filter: str | None = None,
    topic: str = MODIFY,
    **more: Any,
) -> Any:
    envelope = {"topic": topic, "headers": headers, "path": "/", **more}
    scope = Scope("C", datetime(2026, 1, 1, tzinfo=UTC), {"mqtt.qos": "1"})
    found = request_acks(envelope, includes, parse_ack_filter(ack_filter), scope)
    return (found["headers"] or {}).get("requested-acks")


def test_includes_are_added_to_what_the_message_asks_for() -> None:
    assert labels({}, ("aaa", "bbb")) == ["aaa", "bbb"]
    assert labels(None, ("aaa",)) == ["aaa"]
    assert labels({"requested-acks": ["bbb", "aaa"]}, ("aaa", "ccc")) == ["bbb", "aaa", "ccc"]
    assert labels({"Requested-Acks": '["bbb"]'}, ("aaa",)) == ["bbb", "aaa"]
    assert labels({"requested-acks": None}, ("aaa",)) == ["aaa"]


def test_a_message_that_wants_no_acks_gets_none() -> None:
    assert labels({"requested-acks": []}, ("aaa",)) == []
    assert labels({"requested-acks": []}, ("aaa",), QOS) == []


@pytest.mark.parametrize(
    ("topic", "more", "can"),
    [
        (MODIFY, {}, True),
        ("ns/n/things/twin/commands/merge", {}, True),
        ("ns/n/things/twin/commands/retrieve", {}, False),
        ("ns/n/things/live/commands/retrieve", {}, True),
        ("ns/n/things/live/commands/retrieve", {"status": 200}, False),
        ("ns/n/things/live/messages/ask", {}, True),
        ("ns/n/things/live/events/modified", {}, False),
        ("ns/n/things/twin/acks/aaa", {"status": 200}, False),
        ("ns/n/policies/commands/modify", {}, False),
        ("nonsense", {}, False),
        (None, {}, False),
    ],
)
def test_only_some_messages_can_ask_for_acks(topic: str, more: dict[str, Any], can: bool) -> None:
    envelope = {"topic": topic, **more}
    assert can_request(envelope) is can
    assert labels({}, ("aaa",), topic=topic, **more) == (["aaa"] if can else None)


def test_a_filter_that_gives_nothing_takes_all_acks_away() -> None:
    never = "fn:filter(header:mqtt.qos,'eq','0')"
    assert labels({}, (), never) == []
    assert labels({}, ("aaa",), never) == []
    assert labels({"requested-acks": ["aaa"]}, (), never) == []


def test_a_filter_that_passes_leaves_things_as_they_are() -> None:
    assert labels({}, (), QOS) is None
    assert labels({}, ("aaa",), QOS) == ["aaa"]
    assert labels({"requested-acks": ["aaa"]}, ("bbb",), "{{ " + QOS + " }}") == ["aaa", "bbb"]


def test_a_filter_can_put_something_else_in_place() -> None:
    default = "fn:delete() | fn:default('[\"ccc\"]')"
    assert labels({"requested-acks": ["aaa"]}, (), default) == []
    replace = "fn:replace('aaa','ccc')"
    assert labels({"requested-acks": ["aaa"]}, (), replace) == ["ccc"]


def test_only_the_first_result_of_a_filter_counts() -> None:
    two = "fn:replace(']',']~[]') | fn:split('~')"
    assert labels({"requested-acks": ["aaa"]}, (), two) == ["aaa"]


@pytest.mark.parametrize("given", ["aaa", "[", {"a": 1}, 5, ["no label"], [5], '{"a":1}'])
def test_what_is_no_list_of_labels_is_refused(given: Any) -> None:
    with pytest.raises(GatewayError) as caught:
        labels({"requested-acks": given}, ("aaa",))
    assert caught.value.code == "header.invalid"


def test_without_anything_to_do_nothing_is_looked_at() -> None:
    envelope = {"topic": MODIFY, "headers": {"requested-acks": "nonsense"}}
    scope = Scope("C", datetime(2026, 1, 1, tzinfo=UTC))
    assert request_acks(envelope, (), None, scope) is envelope
    broken = {"topic": MODIFY, "headers": "nonsense"}
    assert request_acks(broken, ("aaa",), None, scope) is broken


def test_the_message_itself_is_not_changed() -> None:
    envelope = {"topic": MODIFY, "headers": {"requested-acks": ["aaa"]}}
    request_acks(envelope, ("bbb",), None, Scope("C", datetime(2026, 1, 1, tzinfo=UTC)))
    assert envelope == {"topic": MODIFY, "headers": {"requested-acks": ["aaa"]}}


def test_a_filter_that_cannot_be_read_is_refused() -> None:
    assert parse_ack_filter("") is None
    with pytest.raises(PlaceholderError):
        parse_ack_filter("fn:filter(jwt:sub,'eq','x')")
