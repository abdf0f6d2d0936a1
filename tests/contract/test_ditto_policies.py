"""Ditto's own examples of policies in Ditto Protocol: read, and written again as they were."""

from __future__ import annotations

import json

import pytest

from acks.errors import CATALOGUE, GatewayError, error
from acks.journal import ANNOUNCEMENT, EntryMeta
from acks.policy_protocol import (
    announcement_envelope,
    policy_error,
    policy_response,
    read_policy_request,
)
from acks.resources import ABSENT
from acks.signals import Response
from acks.topic import parse_topic
from tests.contract.ditto import ditto_file
from tests.gateways import Json

NOT_HERE = ("/import", "/references")
"""Parts of paths that this gateway refuses."""
ERRORS_OF_DITTO = ("policies:policy.toomanymodifyingrequests",)
"""Errors that cannot happen here: changes of a policy do not wait in a queue."""
HEADERS_OF_OURS = {"response-required": False, "content-type": "application/json"}


@pytest.fixture(scope="module")
def examples() -> list[tuple[str, Json]]:
    """(kind, message) of all examples of the group."""
    lines = ditto_file("protocol-examples.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    found = [
        (row["kind"], row["message"])
        for row in rows
        if isinstance(row["message"], dict) and "/policies/" in row["message"].get("topic", "")
    ]
    assert len(found) > 80
    return found


def is_here(message: Json) -> bool:
    return not any(part in message["path"] for part in NOT_HERE)


def bare(envelope: Json) -> Json:
    """Without the headers that this gateway adds."""
    headers = {k: v for k, v in envelope["headers"].items() if k not in HEADERS_OF_OURS}
    return {**envelope, "headers": headers}


def test_commands(examples: list[tuple[str, Json]]) -> None:
    read = 0
    for kind, message in examples:
        if kind != "command":
            continue
        topic = parse_topic(message["topic"])
        if not is_here(message):
            with pytest.raises(GatewayError) as caught:
                read_policy_request(message, topic)
            assert caught.value.code == "protocoladapter:unknown.topicpath"
            continue
        request = read_policy_request(message, topic)
        read += 1
        assert request.policy_id == "org.eclipse.ditto:the_policy_id"
        assert message["topic"].endswith(f"/policies/commands/{request.action}")
        assert request.path == message["path"]
        assert "/" + "/".join(request.part) == message["path"]
        assert message.get("value", ABSENT) == request.value
        assert ("fields" in message) == (request.fields is not None)
    assert read > 15


def test_responses(examples: list[tuple[str, Json]]) -> None:
    written = 0
    for kind, message in examples:
        if kind != "response" or not is_here(message):
            continue
        topic = parse_topic(message["topic"])
        command = {name: message[name] for name in ("topic", "path")} | {"value": None}
        request = read_policy_request(command, topic)
        response = Response(message["status"], message.get("value"), {})
        cid = message["headers"]["correlation-id"]
        assert bare(policy_response(request, response, cid)) == bare(message)
        written += 1
    assert written > 15


def test_errors(examples: list[tuple[str, Json]]) -> None:
    written = 0
    for kind, message in examples:
        if kind != "error" or message["value"]["error"] in ERRORS_OF_DITTO:
            continue
        value, cid = message["value"], message["headers"]["correlation-id"]
        assert CATALOGUE[value["error"]].status == value["status"]
        problem = error(
            value["error"], message=value["message"], description=value.get("description", "")
        )
        made = policy_error(problem, cid, "org.eclipse.ditto:the_policy_id")
        for envelope in (made, message):
            envelope["value"] = {k: v for k, v in envelope["value"].items() if k != "href"}
        assert bare(made) == bare(message)
        written += 1
    assert written > 15


def test_announcements(examples: list[tuple[str, Json]]) -> None:
    written = 0
    for kind, message in examples:
        if kind != "announcement":
            continue
        topic = parse_topic(message["topic"])
        cid = message["headers"]["correlation-id"]
        meta = EntryMeta(
            topic.thing_id, topic.action, message["path"], 0, "", cid, (), "", 0, (), ANNOUNCEMENT
        )
        made = announcement_envelope(meta, {}, message["value"], None, cid)
        assert bare(made) == bare(message)
        written += 1
    assert written
