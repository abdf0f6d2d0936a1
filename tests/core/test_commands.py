"""What every wire checks of a command or query: spec acks-and-http 2.3, 9; websocket-... 5.5, 7."""

from __future__ import annotations

from typing import Any

import pytest

from acks.commands import MAX_IDS, check_ids, check_query, make_command, make_query, parse_checks
from acks.errors import GatewayError
from acks.frame_head import FrameHead
from acks.headers import AckOptions
from acks.signals import Command

OPTIONS = AckOptions(("twin-persisted",), True, 1000)
SUBJECTS = ("nginx:ditto",)
FULL = {"grant": ["READ", "WRITE"], "revoke": []}
ENTRY = {"subjects": {"nginx:ditto": {"type": "t"}}, "resources": {"policy:/": FULL}}


def command(action: str, value: Any, *path: str, **known: str) -> Command:
    head = FrameHead(known, {"x-a": "b"}, "c")
    return make_command(head, OPTIONS, SUBJECTS, None, "ns:n", path, action, value, 0, "session")


def test_a_command_has_what_its_request_says() -> None:
    made = command("put", {"attributes": {}, "unknown": 1})
    assert made.value == {"thingId": "ns:n", "attributes": {}}
    assert (made.thing_id, made.path, made.action) == ("ns:n", (), "put")
    assert (made.correlation_id, made.headers, made.origin) == ("c", {"x-a": "b"}, "session")
    assert (made.policy, made.allow_lockout) == (None, False)
    assert command("delete", None, "attributes", "a").value is None
    assert command("merge", None, "attributes").value is None


def test_a_policy_comes_along() -> None:
    made = command(
        "put", {"_policy": {"entries": {"a": ENTRY}}}, **{"allow-policy-lockout": "true"}
    )
    assert made.policy is not None
    assert list(made.policy["entries"]) == ["a"]
    assert made.allow_lockout
    assert "_policy" not in made.value
    # In a part of a thing it is a name like any other.
    assert command("put", {"_policy": 1}, "attributes").policy is None


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ({"_copyPolicyFrom": "a:b"}, "json.format.invalid"),
        ({"_policy": {"policyId": "ns:x", "entries": {"a": ENTRY}}}, "policies:entry.invalid"),
        ({"_policy": {"entries": {"a": ENTRY}}, "policyId": "ns:x"}, "policies:entry.invalid"),
        ({"thingId": "ns:x"}, "things:id.notsettable"),
    ],
)
def test_things_that_are_refused(value: Any, code: str) -> None:
    with pytest.raises(GatewayError) as caught:
        command("create", value)
    assert caught.value.code == code


def test_preconditions_are_read_only_if_there_are_some() -> None:
    assert parse_checks({}) is None
    assert parse_checks({"timeout": "1", "requested-acks": "[]"}) is None
    checks = parse_checks({"if-match": '"a"', "if-equal": "skip"})
    assert checks is not None
    assert (checks.if_match, checks.if_equal) == (('"a"',), "skip")


@pytest.mark.parametrize(
    ("name", "status", "code"),
    [
        ("live-channel-condition", 405, "things:live.channelcondition.notallowed"),
        ("dry-run", 400, "header.invalid"),
        ("put-metadata", 400, "header.invalid"),
        ("delete-metadata", 400, "header.invalid"),
        ("merge-thing-patch-conditions", 400, "header.invalid"),
    ],
)
def test_headers_that_a_command_may_not_have(name: str, status: int, code: str) -> None:
    with pytest.raises(GatewayError) as caught:
        parse_checks({name: "x"})
    assert (caught.value.status, caught.value.code) == (status, code)


def test_queries() -> None:
    head = FrameHead({"if-none-match": '"a"'}, {}, "c")
    query = make_query(head, 500, SUBJECTS, "ns:n", ("attributes",), None)
    assert (query.timeout_ms, query.correlation_id, query.subjects) == (500, "c", SUBJECTS)
    assert query.checks is not None
    check_query({"response-required": "true"})
    for known, code in (
        ({"response-required": "false"}, "command.headers.invalid"),
        ({"at-historical-revision": "1"}, "header.invalid"),
        ({"at-historical-timestamp": "x"}, "header.invalid"),
    ):
        with pytest.raises(GatewayError) as caught:
            check_query(known)
        assert caught.value.code == code


def test_ids() -> None:
    assert check_ids(["a:b", "c:d", "a:b"], {}) == ["a:b", "c:d"]
    ids = [f"a:{n}" for n in range(MAX_IDS)]
    assert check_ids(ids, {}) == ids
    for wrong, known, code in (
        ([*ids, "b:b"], {}, "request.toolarge"),
        (["b"], {}, "things:id.invalid"),
        (["a:b"], {"condition": "eq(_revision,1)"}, "header.invalid"),
    ):
        with pytest.raises(GatewayError) as caught:
            check_ids(wrong, known)
        assert caught.value.code == code
