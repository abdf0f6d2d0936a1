"""Policy commands in Ditto Protocol against a store: the same answers as over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from acks.envelopes import Envelope
from acks.topic import parse_topic
from app.api.auth import Principal
from app.api.http import Rules
from app.api.ws_policies import PolicyCommands
from app.store.policies import PolicyStore
from app.store.redis_client import Redis

ALL = {"grant": ["READ", "WRITE"], "revoke": []}
READ = {"grant": ["READ"], "revoke": []}
OWNER = {"subjects": {"a:me": {"type": "t"}}, "resources": {"policy:/": ALL, "thing:/": ALL}}
GUEST = {"subjects": {"a:guest": {"type": "t"}}, "resources": {"policy:/entries/owner": READ}}
POLICY = {"entries": {"owner": OWNER, "guest": GUEST}}
ME = Principal("me", ("a:me",), operator=False)
OTHER = Principal("other", ("a:other",), operator=False)


class Commands:
    """Sends frames about one policy."""

    def __init__(self, redis: Redis, prefix: str) -> None:
        store = PolicyStore(redis, prefix, 4)
        self.commands = PolicyCommands(store, Rules("documented", 60_000, 10_000), 5_000)

    async def maybe(
        self,
        action: str,
        path: str = "/",
        *,
        who: Principal = ME,
        headers: dict[str, Any] | None = None,
        **fields: Any,
    ) -> Envelope | None:
        topic = f"ns/p/policies/commands/{action}"
        envelope = {"topic": topic, "path": path, **fields}
        sent = {"correlation-id": "c", **(headers or {})}
        answer = await self.commands.answer(envelope, parse_topic(topic), sent, who.subjects)
        return answer.envelope

    async def send(self, action: str, path: str = "/", **options: Any) -> Envelope:
        answer = await self.maybe(action, path, **options)
        assert answer is not None
        assert answer["headers"]["correlation-id"] == "c"
        assert answer["headers"]["response-required"] is False
        return answer

    async def error(self, action: str, path: str = "/", **options: Any) -> tuple[int, str]:
        answer = await self.send(action, path, **options)
        assert (answer["topic"], answer["path"]) == ("ns/p/policies/errors", "/")
        assert answer["status"] == answer["value"]["status"]
        return answer["status"], answer["value"]["error"]


@pytest.fixture
def policy(redis: Redis, prefix: str) -> Commands:
    return Commands(redis, prefix)


@pytest.fixture
async def made(policy: Commands) -> Commands:
    assert (await policy.send("create", value=POLICY))["status"] == 201
    return policy


async def test_the_life_of_a_policy(policy: Commands) -> None:
    created = await policy.send("create", value=POLICY)
    assert created["topic"] == "ns/p/policies/commands/create"
    assert (created["path"], created["status"]) == ("/", 201)
    assert created["value"] == {"policyId": "ns:p", **POLICY}
    assert created["headers"]["etag"] == '"rev:1"'
    assert created["headers"]["entity-revision"] == 1
    assert await policy.error("create", value=POLICY) == (409, "policies:policy.conflict")
    changed = await policy.send("modify", value={"entries": {"owner": OWNER}})
    assert (changed["status"], "value" in changed) == (204, False)
    assert changed["headers"]["etag"] == '"rev:2"'
    read = await policy.send("retrieve")
    assert (read["status"], read["value"]["entries"]) == (200, {"owner": OWNER})
    chosen = await policy.send("retrieve", fields="policyId,_revision")
    assert chosen["value"] == {"policyId": "ns:p", "_revision": 2}
    assert (await policy.send("delete"))["status"] == 204
    assert await policy.error("retrieve") == (404, "policies:policy.notfound")
    assert (await policy.send("create", value=POLICY))["headers"]["entity-revision"] == 4


async def test_modify_makes_a_policy_that_is_not_there(policy: Commands) -> None:
    assert (await policy.send("modify", value=POLICY))["status"] == 201


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("/entries/new", GUEST),
        ("/entries/owner/subjects/a:b", {"type": "x"}),
        ("/entries/owner/resources/thing:/attributes/a", READ),
    ],
)
async def test_parts_that_come_and_go(made: Commands, path: str, value: Any) -> None:
    created = await made.send("modify", path, value=value)
    assert (created["status"], created["path"], created["value"]) == (201, path, value | {})
    assert created["headers"]["etag"].startswith('"hash:')
    assert (await made.send("modify", path, value=value))["status"] == 204
    assert (await made.send("retrieve", path))["value"] == value
    assert (await made.send("delete", path))["status"] == 204
    assert (await made.error("retrieve", path))[0] == 404
    assert (await made.error("delete", path))[0] == 404


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("/entries", {"owner": OWNER}),
        ("/entries/guest/subjects", {"a:b": {"type": "x"}}),
        ("/entries/guest/resources", {"thing:/": READ}),
    ],
)
async def test_parts_that_are_always_there(made: Commands, path: str, value: Any) -> None:
    assert (await made.send("modify", path, value=value))["status"] == 204
    assert (await made.send("retrieve", path))["value"] == value


async def test_the_requester_has_a_placeholder(made: Commands) -> None:
    path = "/entries/guest/subjects/{{ request:subjectId }}"
    assert (await made.send("modify", path, value={"type": "x"}))["status"] == 201
    subjects = (await made.send("retrieve", "/entries/guest/subjects"))["value"]
    assert list(subjects) == ["a:guest", "a:me"]


async def test_permissions(made: Commands) -> None:
    guest = Principal("guest", ("a:guest",), operator=False)
    seen = await made.send("retrieve", who=guest)
    assert seen["value"] == {"policyId": "ns:p", "entries": {"owner": OWNER}}
    assert await made.error("retrieve", who=OTHER) == (404, "policies:policy.notfound")
    path = "/entries/owner/subjects/a:b"
    assert await made.error("modify", path, who=guest, value={"type": "x"}) == (
        403,
        "policies:subject.notmodifiable",
    )
    assert await made.error("delete", who=OTHER) == (403, "policies:policy.notmodifiable")


async def test_nobody_locks_himself_out_by_accident(made: Commands) -> None:
    other = {"entries": {"owner": {**OWNER, "subjects": {"a:other": {"type": "t"}}}}}
    refused = (403, "policies:policy.modificationinvalid")
    assert await made.error("modify", value=other) == refused
    allowed = await made.send("modify", value=other, headers={"allow-policy-lockout": True})
    assert allowed["status"] == 204


async def test_conditions(made: Commands) -> None:
    old = {"if-match": '"rev:7"'}
    failed = (412, "policies:precondition.failed")
    assert await made.error("modify", value=POLICY, headers=old) == failed
    assert await made.error("retrieve", headers=old) == failed
    known = await made.error("retrieve", headers={"if-none-match": '"rev:1"'})
    assert known == (304, "policies:precondition.notmodified")
    fits = await made.send("modify", value=POLICY, headers={"if-match": '"rev:1"'})
    assert fits["headers"]["etag"] == '"rev:2"'
    equal = await made.error("modify", value=POLICY, headers={"if-equal": "skip"})
    assert equal == failed


async def test_headers_are_bounded_as_for_things(made: Commands) -> None:
    for value in ("x" * 5_000, {"a": ["x" * 5_000]}):
        refused = await made.error("retrieve", headers={"mine": value})
        assert refused == (431, "headers.too.large")
    assert (await made.send("retrieve", headers={"mine": "x" * 4_900}))["status"] == 200


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"path": "/imports"}, "protocoladapter:unknown.topicpath"),
        ({"headers": {"condition": "exists(attributes)"}}, "header.invalid"),
        ({"headers": {"dry-run": True}}, "header.invalid"),
        ({"headers": {"timeout": "0"}}, "header.invalid"),
        ({"headers": {"timeout": "2m"}}, "gateway:timeout.invalid"),
        ({"headers": {"timeout": "x"}}, "timeout.invalid"),
        ({"headers": {"if-match": "x"}}, "header.invalid"),
        ({"headers": {"response-required": "no"}}, "header.invalid"),
        ({"fields": "("}, "json.fieldselector.invalid"),
    ],
)
async def test_what_is_refused(made: Commands, options: dict[str, Any], code: str) -> None:
    assert await made.error("retrieve", **options) == (400, code)


@pytest.mark.parametrize("field", ["namespaces", "references", "allowedAdditions"])
async def test_what_http_does_not_serve_is_not_served_here(made: Commands, field: str) -> None:
    answer = await made.send("modify", "/entries/guest", value={**GUEST, field: ["x"]})
    assert answer["value"]["error"] == "policies:entry.invalid"
    assert f"('{field}') are not supported yet" in answer["value"]["description"]


async def test_no_response_is_wanted(made: Commands) -> None:
    """Nothing comes, not even an error (spec acks-and-http 2.6)."""
    quiet = {"response-required": False}
    assert await made.maybe("modify", value={"entries": {"owner": OWNER}}, headers=quiet) is None
    assert (await made.send("retrieve"))["value"]["entries"] == {"owner": OWNER}
    assert await made.maybe("modify", value={}, headers=quiet) is None
    assert await made.maybe("retrieve", headers=quiet) is None


async def test_ack_requests_mean_nothing(made: Commands) -> None:
    headers = {"requested-acks": ["my-ack"], "timeout": "5s"}
    assert (await made.send("retrieve", headers=headers))["status"] == 200
