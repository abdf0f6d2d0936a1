"""Ditto's examples of the search in Ditto Protocol: read, and written again as they are."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft4Validator

from acks.errors import CATALOGUE, GatewayError, error
from acks.frame_head import read_head
from acks.protocol import read_topic
from acks.search_protocol import (
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
from acks.search_request import search_request
from tests.contract.ditto import ditto_file
from tests.gateways import Json

_PAYLOADS = {
    "subscribe": "subscribe-payload",
    "request": "request-payload",
    "cancel": "subscriptionid",
    "created": "subscriptionid",
    "next": "next-payload",
    "complete": "subscriptionid",
    "failed": "failed-payload",
}
"""Ditto's schema of the value, by the last part of the topic."""


@pytest.fixture(scope="module")
def examples() -> dict[str, Json]:
    """The messages by the last part of their topics."""
    rows = map(json.loads, ditto_file("protocol-examples.jsonl").read_text().splitlines())
    found = {
        row["message"]["topic"].rpartition("/")[2]: row["message"]
        for row in rows
        if row["kind"] == "search"
    }
    assert set(found) == {*_PAYLOADS, "errors"}
    return found


def read(message: Json) -> SearchCommand:
    return read_search(message, read_topic(message))


def headers_after(message: Json) -> dict[str, str]:
    """The headers of what follows from a command."""
    return answer_headers(read_head(message, {}, 5_120, "fresh"))


def check(action: str, message: Json) -> None:
    """Assert that a message's value fits Ditto's schema."""
    schema = json.loads(
        ditto_file(f"jsonschema/protocol-search-{_PAYLOADS[action]}.json").read_text()
    )
    problems = [
        problem.message for problem in Draft4Validator(schema).iter_errors(message["value"])
    ]
    assert problems == []


def test_commands(examples: dict[str, Json]) -> None:
    asked = read(examples["subscribe"])
    assert asked == Subscribe(
        "eq(/attributes/temperature,32)",
        "size(10),sort(+thingId)",
        ("org.eclipse.ditto",),
        "attributes",
    )
    request = search_request(
        ("nginx:ditto",),
        1_000,
        filters=[asked.filter or ""],
        options=asked.options or "",
        fields=asked.fields,
        namespaces=asked.namespaces,
    )
    assert (request.options.size, request.namespaces) == (10, frozenset({"org.eclipse.ditto"}))
    assert read(examples["request"]) == Request("24601", 3)
    assert read(examples["cancel"]) == Cancel("24601")


def test_messages(examples: dict[str, Json]) -> None:
    asked, given = headers_after(examples["subscribe"]), headers_after(examples["request"])
    with pytest.raises(GatewayError) as caught:
        Demand().add(0)
    items = examples["next"]["value"]["items"]
    ours = {
        "created": created("24601", asked),
        "next": next_page("24601", items, given),
        "complete": complete("24601", given),
        "failed": failed("24601", caught.value, given),
    }
    for action, message in ours.items():
        assert message == examples[action], action
        check(action, message)


@pytest.mark.parametrize("action", ["subscribe", "request", "cancel"])
def test_their_schemas_fit_what_we_read(examples: dict[str, Json], action: str) -> None:
    check(action, examples[action])


def test_the_error_of_an_option(examples: dict[str, Json]) -> None:
    value: Any = examples["errors"]["value"]
    problem = error(value["error"], reason="")
    assert CATALOGUE[value["error"]].status == value["status"] == problem.status
