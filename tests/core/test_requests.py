"""Frames that ask for something: spec websocket-... 1.4; acks-and-http 5, 7, 9."""

from __future__ import annotations

from typing import Any

import pytest

from acks.errors import GatewayError
from acks.frame_head import FrameHead, frame_options
from acks.protocol import read_topic
from acks.requests import (
    Asker,
    is_for_many,
    read_command,
    read_live_event,
    read_message,
    read_part,
    read_queries,
    read_query,
)
from acks.signals import Command, Live, Query

ASKER = Asker(("nginx:ditto",), "session-1", 0)
OPTIONS = frame_options(False, None, None, None, "documented", 60_000, 60_000)
HEAD = FrameHead({}, {"x-a": "b"}, "c")


def frame(topic: str, path: str = "/", **fields: Any) -> dict[str, Any]:
    return {"topic": topic, "path": path, **fields}


def command(
    action: str, path: str = "/", known: dict[str, str] | None = None, **fields: Any
) -> Command:
    envelope = frame(f"ns/n/things/twin/commands/{action}", path, **fields)
    head = HEAD._replace(known=known or {})
    return read_command(envelope, read_topic(envelope), head, OPTIONS, ASKER)


def query(path: str = "/", known: dict[str, str] | None = None, **fields: Any) -> Query:
    envelope = frame("ns/n/things/twin/commands/retrieve", path, **fields)
    head = HEAD._replace(known=known or {})
    return read_query(envelope, read_topic(envelope), head, 1000, ASKER)


def message(
    topic: str = "ns/n/things/live/messages/ask",
    path: str = "/inbox/messages/ask",
    known: dict[str, str] | None = None,
    **fields: Any,
) -> Live:
    envelope = frame(topic, path, **fields)
    head = HEAD._replace(known=known or {})
    return read_message(envelope, read_topic(envelope), head, OPTIONS, ASKER, "now")


def event(action: str, path: str = "/attributes/a", **fields: Any) -> Live:
    envelope = frame(f"ns/n/things/live/events/{action}", path, **fields)
    return read_live_event(envelope, read_topic(envelope), HEAD, ASKER, 3000)


def refused(call: Any, *arguments: Any, **fields: Any) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        call(*arguments, **fields)
    return caught.value


# --- paths


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("/", ()),
        ("", ()),
        ("/attributes", ("attributes",)),
        ("attributes/a", ("attributes", "a")),
        ("/attributes/a/", ("attributes", "a")),
        ("/attributes/a~1b~0c", ("attributes", "a/b~c")),
        ("/attributes/a%2Fb", ("attributes", "a%2Fb")),
        ("/features/f/desiredProperties/x/y", ("features", "f", "desiredProperties", "x", "y")),
        ("/policyId", ("policyId",)),
        ("/definition", ("definition",)),
    ],
)
def test_parts(path: str, part: tuple[str, ...]) -> None:
    assert read_part(frame("t", path)) == part


@pytest.mark.parametrize("path", ["/nonsense", "/features/f/nonsense", "/policyId/a", "/_policy"])
def test_parts_that_things_do_not_have(path: str) -> None:
    problem = refused(read_part, frame("a/b/things/twin/commands/modify", path))
    assert (problem.status, problem.code) == (400, "protocoladapter:unknown.topicpath")
    assert problem.message == (
        "The topic 'a/b/things/twin/commands/modify' is not supported in combination with the "
        f"path '{path}'."
    )


def test_paths_that_are_none() -> None:
    assert refused(read_part, {"topic": "t"}).code == "json.field.missing"
    assert refused(read_part, {"topic": "t", "path": 5}).code == "json.format.invalid"
    assert refused(read_part, frame("t", "/attributes//a")).code == "json.pointer.invalid"


# --- commands


def test_a_modify_is_a_put() -> None:
    assert command("modify", "/attributes/a", value={"b": 1}) == Command(
        "ns:n", ("attributes", "a"), {"b": 1}, "c", OPTIONS, ("nginx:ditto",), {"x-a": "b"},
        None, "session-1",
    )  # fmt: skip
    assert command("modify", "/attributes/a", value=None).value is None


def test_other_changes() -> None:
    created = command("create", value={"attributes": {}, "policyId": "ns:p", "gone": 1})
    assert (created.action, created.value) == (
        "create",
        {"thingId": "ns:n", "policyId": "ns:p", "attributes": {}},
    )
    merged = command("merge", "/features", value={"f": None})
    assert (merged.action, merged.value) == ("merge", {"f": None})
    deleted = command("delete", "/attributes/a", value="ignored")
    assert (deleted.action, deleted.value) == ("delete", None)


def test_the_policy_of_a_new_thing() -> None:
    entry = {
        "subjects": {"nginx:ditto": {"type": "t"}},
        "resources": {"policy:/": {"grant": ["READ", "WRITE"], "revoke": []}},
    }
    made = command("create", value={"_policy": {"entries": {"a": entry}}})
    assert made.policy is not None
    assert "a" in made.policy["entries"]


def test_conditions_of_a_command() -> None:
    checks = command(
        "delete", known={"condition": "exists(attributes/a)", "if-match": '"rev:1"'}
    ).checks
    assert checks is not None
    assert checks.if_match == ('"rev:1"',)
    assert checks.condition is not None


@pytest.mark.parametrize(
    ("arguments", "fields", "code"),
    [
        (("modify",), {}, "json.field.missing"),
        (("create", "/attributes"), {"value": {}}, "protocoladapter:unknown.topicpath"),
        (("migrate",), {"value": {}}, "protocoladapter:unknown.topicpath"),
        (("modify",), {"value": {"thingId": "ns:other"}}, "things:id.notsettable"),
        (("modify",), {"value": 5}, "json.format.invalid"),
        (("merge",), {"value": None}, "things:merge.invalid"),
        (("modify", "/policyId"), {"value": "x"}, "json.format.invalid"),
        (("modify",), {"value": {"_copyPolicyFrom": "a:b"}}, "json.format.invalid"),
        (
            ("modify",),
            {"value": {}, "known": {"live-channel-condition": "x"}},
            "things:live.channelcondition.notallowed",
        ),
        (("modify",), {"value": {}, "known": {"dry-run": "true"}}, "header.invalid"),
        (("delete",), {"known": {"condition": "eq("}}, "rql.expression.invalid"),
        (("delete",), {"known": {"if-match": "x"}}, "header.invalid"),
    ],
)
def test_commands_that_are_refused(arguments: Any, fields: Any, code: str) -> None:
    assert refused(command, *arguments, **fields).code == code


def test_the_topic_names_a_thing() -> None:
    envelope = frame("1ns/n/things/twin/commands/delete")
    problem = refused(read_command, envelope, read_topic(envelope), HEAD, OPTIONS, ASKER)
    assert (problem.status, problem.code) == (400, "things:id.invalid")


# --- queries


def test_a_query() -> None:
    found = query("/attributes", fields="a,b(c)", known={"if-none-match": '"x"'})
    assert (found.thing_id, found.path, found.timeout_ms) == ("ns:n", ("attributes",), 1000)
    assert found.fields is not None
    assert found.fields.pointers == (("a",), ("b", "c"))
    assert found.checks is not None
    assert query(fields="").fields is None


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"known": {"response-required": "false"}}, "command.headers.invalid"),
        ({"known": {"at-historical-revision": "5"}}, "header.invalid"),
        ({"fields": 5}, "json.format.invalid"),
        ({"fields": "a("}, "json.fieldselector.invalid"),
    ],
)
def test_queries_that_are_refused(fields: Any, code: str) -> None:
    assert refused(query, **fields).code == code


def many(value: Any, path: str = "/", known: Any = None, **fields: Any) -> list[Query]:
    envelope = frame("_/_/things/twin/commands/retrieve", path, value=value, **fields)
    assert is_for_many(envelope, read_topic(envelope))
    return read_queries(envelope, HEAD._replace(known=known or {}), 1000, ASKER)


def test_a_query_for_several_things() -> None:
    found = many({"thingIds": ["a:b", "c:d", "a:b"]}, fields="thingId", known={"if-match": '"x"'})
    assert [one.thing_id for one in found] == ["a:b", "c:d"]
    assert {one.checks for one in found} == {None}
    assert all(one.fields is not None for one in found)
    assert many({"thingIds": []}) == []


@pytest.mark.parametrize(
    ("topic", "value", "several"),
    [
        ("_/_", None, True),
        ("ns/_", {"thingIds": []}, True),
        ("ns/_", None, False),
        ("ns/n", {"thingIds": []}, False),
    ],
)
def test_a_thing_may_be_called_like_the_sign_for_several(
    topic: str, value: Any, several: bool
) -> None:
    envelope = frame(f"{topic}/things/twin/commands/retrieve", value=value)
    assert is_for_many(envelope, read_topic(envelope)) == several


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (None, "json.field.missing"),
        ({}, "json.field.missing"),
        ({"thingIds": "a:b"}, "json.format.invalid"),
        ({"thingIds": [5]}, "json.format.invalid"),
        ({"thingIds": ["b"]}, "things:id.invalid"),
        ({"thingIds": [f"a:{n}" for n in range(501)]}, "request.toolarge"),
    ],
)
def test_queries_for_several_that_are_refused(value: Any, code: str) -> None:
    assert refused(many, value).code == code


def test_several_things_have_no_parts_and_no_condition() -> None:
    ids = {"thingIds": ["a:b"]}
    assert refused(many, ids, "/attributes").code == "protocoladapter:unknown.topicpath"
    assert refused(many, ids, known={"condition": "eq(attributes/a,1)"}).code == "header.invalid"


# --- messages


def test_a_message() -> None:
    found = message(
        value="hi", known={"content-type": "text/plain", "condition": "eq(_revision,1)"}
    )
    assert found[:6] == ("ns:n", "messages", "ask", "/inbox/messages/ask", "hi", "c")
    assert found.headers == {
        "x-a": "b",
        "ditto-message-direction": "TO",
        "ditto-message-subject": "ask",
        "ditto-message-thing-id": "ns:n",
        "timestamp": "now",
        "content-type": "text/plain",
    }
    assert (found.origin, found.subjects) == ("session-1", ("nginx:ditto",))
    assert found.checks is not None


def test_a_message_from_a_feature() -> None:
    found = message("ns/n/things/live/messages/a/b", "/features/l~1amp/outbox/messages/a/b")
    assert (found.action, found.path) == ("a/b", "/features/l~1amp/outbox/messages/a/b")
    assert found.headers["ditto-message-feature-id"] == "l/amp"
    assert found.headers["ditto-message-direction"] == "FROM"
    assert found.value is None


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/inbox/messages/other", "protocoladapter:unknown.topicpath"),
        ("/inbox/ask", "protocoladapter:unknown.topicpath"),
        ("/attributes/a", "protocoladapter:unknown.topicpath"),
        ("/features/inbox/messages/ask", "protocoladapter:unknown.topicpath"),
        ("/features//inbox/messages/ask", "protocoladapter:unknown.topicpath"),
        ("/", "protocoladapter:unknown.topicpath"),
        ("/inbox/messages/", "messages:subject.invalid"),
    ],
)
def test_paths_of_no_message(path: str, code: str) -> None:
    assert refused(message, path=path).code == code


@pytest.mark.parametrize(
    ("value", "content_type", "fits"),
    [
        ("x" * 256_000, "text/plain", True),
        ("x" * 256_001, "text/plain", False),
        ("ü" * 128_001, "text/plain", False),
        ("AAAA" * 85_333, "application/octet-stream", True),  # 255,999 bytes in base64
        ("AAAA" * 85_334, "application/octet-stream", False),
        ("!" * 256_001, "application/octet-stream", False),
        (["x" * 255_996], "application/json", True),
        (["x" * 255_997], "application/json", False),
        (5, "application/json", True),
    ],
)
def test_payloads_are_bounded(value: Any, content_type: str, fits: bool) -> None:
    known = {"content-type": content_type}
    if fits:
        assert message(value=value, known=known).value == value
    else:
        problem = refused(message, value=value, known=known)
        assert (problem.status, problem.code) == (413, "messages:payload.toolarge")


# --- live events


def test_a_live_event() -> None:
    found = event("modified", value=5, revision=7, timestamp="2026-01-01T00:00:00Z")
    assert found[:6] == ("ns:n", "events", "modified", "/attributes/a", 5, "c")
    assert (found.revision, found.timestamp) == (7, "2026-01-01T00:00:00Z")
    assert found.headers["content-type"] == "application/json"
    assert (found.options.requested_acks, found.options.response_required) == ((), False)
    merged = event("merged", "/", value={"attributes": {"a": None}})
    assert merged.headers["content-type"] == "application/merge-patch+json"
    deleted = event("deleted", "/", value="ignored")
    assert deleted.value is None
    assert "content-type" not in deleted.headers


@pytest.mark.parametrize(
    ("arguments", "fields", "code"),
    [
        (("modified",), {}, "json.field.missing"),
        (("migrated",), {"value": 1}, "protocoladapter:unknown.topicpath"),
        (("created", "/"), {"value": 1}, "json.format.invalid"),
        (("modified", "/x"), {"value": 1}, "protocoladapter:unknown.topicpath"),
        (("modified",), {"value": 1, "revision": "7"}, "json.format.invalid"),
        (("modified",), {"value": 1, "revision": -7}, "json.format.invalid"),
        (("modified",), {"value": 1, "timestamp": 7}, "json.format.invalid"),
    ],
)
def test_live_events_that_are_refused(arguments: Any, fields: Any, code: str) -> None:
    assert refused(event, *arguments, **fields).code == code
