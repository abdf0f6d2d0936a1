"""Policies in Ditto Protocol: what frames ask for, and what answers them."""

from __future__ import annotations

from typing import Any

import pytest

from acks.errors import GatewayError, error
from acks.fields import parse_fields
from acks.journal import ANNOUNCEMENT, EntryMeta
from acks.policy_protocol import (
    PolicyRequest,
    announcement_envelope,
    header_texts,
    policy_error,
    policy_response,
    read_policy_request,
)
from acks.resources import ABSENT
from acks.signals import Response
from acks.topic import parse_topic

COMMANDS = "ns/p/policies/commands"


def read(action: str, path: Any = "/", **fields: Any) -> PolicyRequest:
    topic = f"{COMMANDS}/{action}"
    return read_policy_request({"topic": topic, "path": path, **fields}, parse_topic(topic))


def refused(action: str, path: Any = "/", **fields: Any) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        read(action, path, **fields)
    return caught.value


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("", ()),
        ("/", ()),
        ("/entries", ("entries",)),
        ("/entries/l", ("entries", "l")),
        ("/entries/a~1b~0c", ("entries", "a/b~c")),
        ("/entries/l/subjects", ("entries", "l", "subjects")),
        ("/entries/l/subjects/a:b/c", ("entries", "l", "subjects", "a:b/c")),
        ("/entries/l/subjects/a:b~1c", ("entries", "l", "subjects", "a:b/c")),
        ("/entries/l/resources", ("entries", "l", "resources")),
        ("/entries/l/resources/thing:/", ("entries", "l", "resources", "thing:/")),
        ("/entries/l/resources/thing:/a~1b/c", ("entries", "l", "resources", "thing:/a~1b/c")),
    ],
)
def test_paths(path: str, part: tuple[str, ...]) -> None:
    request = read("retrieve", path)
    assert request == PolicyRequest("ns:p", "retrieve", part, path, ABSENT, None)


def test_values_and_fields() -> None:
    assert read("create", "/", value={"entries": {}}).value == {"entries": {}}
    assert read("modify", "/entries/l", value=None).value is None
    assert read("retrieve", "/", fields="policyId,_revision").fields == parse_fields(
        "policyId,_revision"
    )
    assert read("delete", "/entries/l", value=1, fields="a").value is ABSENT


@pytest.mark.parametrize("action", ["create", "modify"])
def test_a_change_needs_its_value(action: str) -> None:
    problem = refused(action)
    assert (problem.code, problem.message) == (
        "json.field.missing",
        "JSON did not include required </value> field!",
    )


@pytest.mark.parametrize(
    ("action", "path"),
    [
        ("create", "/entries"),
        ("delete", "/entries"),
        ("delete", "/entries/l/subjects"),
        ("delete", "/entries/l/resources"),
    ],
)
def test_what_cannot_be_done_there(action: str, path: str) -> None:
    problem = refused(action, path, value={})
    assert problem.code == "protocoladapter:unknown.topicpath"
    assert problem.message == (
        f"The topic '{COMMANDS}/{action}' is not supported in combination with the path '{path}'."
    )
    assert problem.description == f"Nothing is there to {action}."


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/imports", "imports are not supported"),
        ("/imports/ns:other", "imports are not supported"),
        ("/import/ns:other", "imports are not supported"),
        ("/actions/activateTokenIntegration", "actions are not supported"),
        ("/entries/l/actions/activateTokenIntegration", "actions are not supported"),
        ("/entries/l/namespaces", "namespaces are not supported"),
        ("/entries/l/references", "References"),
        ("/entries/l/allowedAdditions", "Allowed additions"),
        ("/entries/l/importable", "with the whole entry"),
        ("/policyId", "has entries"),
        ("/entries//x", "has entries"),
        ("entries", "begins with a slash"),
    ],
)
def test_paths_that_lead_nowhere_say_why(path: str, words: str) -> None:
    problem = refused("modify", path, value={})
    assert problem.code == "protocoladapter:unknown.topicpath"
    assert f"path '{path}'" in problem.message
    assert words in (problem.description or "")


@pytest.mark.parametrize("topic", ["merge", "migrate"])
def test_commands_that_policies_do_not_take(topic: str) -> None:
    problem = refused(topic, value={})
    assert (problem.code, problem.message) == (
        "protocoladapter:unknown.topicpath",
        f"The topic path '{COMMANDS}/{topic}' is not supported.",
    )


@pytest.mark.parametrize("topic", ["ns/p/policies/announcements/x", "ns/p/policies/errors"])
def test_frames_that_are_no_commands(topic: str) -> None:
    with pytest.raises(GatewayError) as caught:
        read_policy_request({"topic": topic, "path": "/"}, parse_topic(topic))
    assert caught.value.code == "protocoladapter:unknown.topicpath"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"path": None}, "json.field.missing"),
        ({"path": 7}, "json.format.invalid"),
        ({"path": "/", "fields": 7}, "json.format.invalid"),
        ({"path": "/", "fields": "a("}, "json.fieldselector.invalid"),
        ({"path": "/", "status": 200}, "protocoladapter:unknown.topicpath"),
        ({"path": "/entries/l/resources/car:/"}, "policies:entry.invalid"),
    ],
)
def test_malformed_frames(fields: dict[str, Any], code: str) -> None:
    assert refused("retrieve", **fields).code == code


def test_an_id_that_is_none() -> None:
    topic = "0ns/p/policies/commands/retrieve"
    with pytest.raises(GatewayError) as caught:
        read_policy_request({"topic": topic, "path": "/"}, parse_topic(topic))
    assert caught.value.code == "policies:id.invalid"


def test_headers_as_texts() -> None:
    given = {"a": "x", "response-required": False, "timeout": 5, "requested-acks": ["b"]}
    assert header_texts(given) == {
        "a": "x",
        "response-required": "false",
        "timeout": "5",
        "requested-acks": '["b"]',
    }


# --- out


def test_a_response_with_and_without_a_value() -> None:
    request = read("modify", "/entries/l", value={})
    made = policy_response(request, Response(201, {"a": 1}, {"etag": '"x"'}), "c")
    assert made == {
        "topic": f"{COMMANDS}/modify",
        "headers": {
            "correlation-id": "c",
            "response-required": False,
            "etag": '"x"',
            "content-type": "application/json",
        },
        "path": "/entries/l",
        "value": {"a": 1},
        "status": 201,
    }
    assert list(made) == ["topic", "headers", "path", "value", "status"]
    changed = policy_response(request, Response(204, None, {}), "c")
    assert "value" not in changed
    assert changed["headers"] == {"correlation-id": "c", "response-required": False}


def test_an_error() -> None:
    problem = error("policies:policy.conflict", policy_id="ns:p")
    assert policy_error(problem, "c", "ns:p") == {
        "topic": "ns/p/policies/errors",
        "headers": {
            "correlation-id": "c",
            "response-required": False,
            "content-type": "application/json",
        },
        "path": "/",
        "value": problem.to_json(),
        "status": 409,
    }


def test_an_announcement() -> None:
    meta = EntryMeta(
        "ns:p", "subjectDeletion", "/", 0, "2026-01-01T00:00:00Z", "c", ("my-ack",), "node", 0,
        ("a:b",), ANNOUNCEMENT,
    )  # fmt: skip
    value = {"deleteAt": "2026-01-01T00:00:00Z", "subjectIds": ["a:b"]}
    assert announcement_envelope(meta, {"x": "y"}, value, ("my-ack",), "c#0") == {
        "topic": "ns/p/policies/announcements/subjectDeletion",
        "headers": {
            "correlation-id": "c#0",
            "response-required": False,
            "requested-acks": ("my-ack",),
            "x": "y",
            "content-type": "application/json",
        },
        "path": "/",
        "value": value,
    }
    assert "requested-acks" not in announcement_envelope(meta, {}, value, None, "c")["headers"]
