"""The search in Ditto Protocol: what frames ask for, what follows, and when nothing may."""

from __future__ import annotations

from typing import Any

import pytest

from acks.errors import GatewayError, error
from acks.frame_head import read_head
from acks.search_protocol import (
    MAX_DEMAND,
    Cancel,
    Demand,
    Request,
    SearchCommand,
    Subscribe,
    answer_headers,
    complete,
    created,
    failed,
    next_page,
    read_search,
)
from acks.topic import parse_topic


def read(
    action: str, value: Any = None, *, place: str = "_/_", path: Any = "/", **fields: Any
) -> SearchCommand:
    topic = f"{place}/things/twin/search/{action}"
    frame = {"topic": topic, "path": path, "value": value, **fields}
    return read_search(frame, parse_topic(topic))


def refused(*args: Any, **fields: Any) -> tuple[str, str]:
    with pytest.raises(GatewayError) as caught:
        read(*args, **fields)
    return caught.value.code, caught.value.description or ""


def test_a_search_with_everything() -> None:
    value = {"filter": "exists(attributes)", "options": "size(1)", "namespaces": ["a.b", "c"]}
    asked = read("subscribe", value, fields="attributes,thingId")
    assert asked == Subscribe("exists(attributes)", "size(1)", ("a.b", "c"), "attributes,thingId")


@pytest.mark.parametrize(
    "value",
    [None, {}, {"filter": None, "options": None, "namespaces": None}, {"namespaces": [], "x": 1}],
)
def test_a_search_for_everything(value: Any) -> None:
    assert read("subscribe", value) == Subscribe()


def test_a_namespace_of_the_topic_counts_if_the_value_names_none() -> None:
    assert read("subscribe", {}, place="a.b/_") == Subscribe(namespaces=("a.b",))
    named = read("subscribe", {"namespaces": ["c"]}, place="a.b/_")
    assert named == Subscribe(namespaces=("c",))


def test_requests_and_cancels() -> None:
    assert read("request", {"subscriptionId": "7", "demand": 3}) == Request("7", 3)
    assert read("request", {"subscriptionId": "7", "demand": -1}) == Request("7", -1)
    assert read("cancel", {"subscriptionId": "7"}) == Cancel("7")


@pytest.mark.parametrize(
    ("action", "value", "code", "named"),
    [
        ("subscribe", [], "json.format.invalid", "JSON object"),
        ("subscribe", {"filter": 1}, "json.format.invalid", "value/filter"),
        ("subscribe", {"options": ["size(1)"]}, "json.format.invalid", "value/options"),
        ("subscribe", {"namespaces": "a"}, "json.format.invalid", "value/namespaces"),
        ("subscribe", {"namespaces": ["a", 1]}, "json.format.invalid", "value/namespaces"),
        ("request", None, "json.field.missing", ""),
        ("request", "7", "json.format.invalid", "JSON object"),
        ("request", {"demand": 1}, "json.field.missing", ""),
        ("request", {"subscriptionId": "7"}, "json.field.missing", ""),
        ("request", {"subscriptionId": 7, "demand": 1}, "json.format.invalid", "subscriptionId"),
        ("request", {"subscriptionId": "7", "demand": "1"}, "json.format.invalid", "value/demand"),
        ("request", {"subscriptionId": "7", "demand": 1.5}, "json.format.invalid", "value/demand"),
        ("request", {"subscriptionId": "7", "demand": True}, "json.format.invalid", "value/demand"),
        ("cancel", {}, "json.field.missing", ""),
        ("cancel", None, "json.field.missing", ""),
        ("next", {"subscriptionId": "7", "items": []}, "protocoladapter:unknown.topicpath", "next"),
    ],
)
def test_what_is_no_search(action: str, value: Any, code: str, named: str) -> None:
    found, description = refused(action, value)
    assert found == code
    assert named in description


def test_topics_and_paths_of_a_search() -> None:
    unknown = "protocoladapter:unknown.topicpath"
    assert refused("subscribe", {}, place="org.example/lamp")[0] == unknown
    assert refused("subscribe", {}, path="/attributes")[0] == unknown
    assert refused("subscribe", {}, path=7)[0] == unknown
    assert refused("subscribe", {}, path=None)[0] == "json.field.missing"
    assert refused("subscribe", {}, fields=["thingId"])[0] == "json.format.invalid"


# --- what may be sent


def test_requests_add_up() -> None:
    demand = Demand()
    assert demand.add(2)
    assert demand.add(1)
    demand.sent()
    assert demand.owed == 2


def test_as_many_as_can_be_owed_is_without_bound() -> None:
    demand = Demand()
    demand.add(5)
    demand.add(2**64 - 1)
    demand.sent()
    assert demand.owed == MAX_DEMAND


@pytest.mark.parametrize("pages", [0, -1, -(2**63)])
def test_less_than_one_page_cannot_be_requested(pages: int) -> None:
    with pytest.raises(GatewayError) as caught:
        Demand().add(pages)
    assert caught.value.code == "thing-search:subscription.protocol.error"
    assert caught.value.message.startswith("Rule 3.9")


def test_nothing_is_owed_after_the_end() -> None:
    demand = Demand()
    demand.add(3)
    assert demand.end()
    assert not demand.end()
    assert demand.owed == 0
    with pytest.raises(GatewayError) as caught:
        demand.add(1)
    assert caught.value.code == "thing-search:subscription.protocol.error"
    assert "over" in caught.value.message
    assert demand.owed == 0


def test_a_first_request_may_cross_the_end() -> None:
    demand = Demand()
    demand.end()
    assert not demand.add(1)
    with pytest.raises(GatewayError):
        demand.add(1)


# --- out


def test_messages() -> None:
    headers = {"content-type": "application/json", "correlation-id": "c"}
    base = {"headers": headers, "path": "/"}
    topic = "_/_/things/twin/search"
    assert created("7", headers) == {
        **base, "topic": f"{topic}/created", "value": {"subscriptionId": "7"},
    }  # fmt: skip
    items = [{"thingId": "a:b"}]
    assert next_page("7", items, headers) == {
        **base, "topic": f"{topic}/next", "value": {"subscriptionId": "7", "items": items},
    }  # fmt: skip
    assert complete("7", headers) == {
        **base, "topic": f"{topic}/complete", "value": {"subscriptionId": "7"},
    }  # fmt: skip
    problem = error("too.many.requests")
    assert failed("7", problem, headers) == {
        **base,
        "topic": f"{topic}/failed",
        "value": {"subscriptionId": "7", "error": problem.to_json()},
    }


def test_headers_are_those_of_the_command_that_it_follows_from() -> None:
    given = {"Correlation-ID": "c", "my-header": "x", "timeout": "5s", "response-required": True}
    head = read_head({"headers": given}, {}, 1_000, "fresh")
    assert answer_headers(head) == {
        "my-header": "x", "content-type": "application/json", "correlation-id": "c",
    }  # fmt: skip
    assert answer_headers(read_head({}, {}, 1_000, "fresh")) == {"content-type": "application/json"}
