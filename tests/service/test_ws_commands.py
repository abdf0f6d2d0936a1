"""Commands on things over WebSocket: what is answered, and how."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.callers import Caller, check_error, topic_of
from tests.gateways import Gateway, Json, Subscriber, ack_all, new_id, new_label, thing

FULL = {"grant": ["READ", "WRITE"], "revoke": []}


def policy(**others: Json) -> Json:
    """A policy with everything for ditto and these resources for user2."""
    everything = {"thing:/": FULL, "policy:/": FULL, "message:/": FULL}
    entries = {"owner": {"subjects": {"nginx:ditto": {"type": "t"}}, "resources": everything}}
    if others:
        entries["other"] = {"subjects": {"nginx:user2": {"type": "t"}}, "resources": others}
    return {"entries": entries}


async def test_a_thing_from_its_creation_to_its_end(gateway: Gateway) -> None:
    name = new_id()
    async with Caller.open(gateway) as caller:
        created = await caller.ask(
            topic_of(name, "create"), value={"attributes": {"a": 1}}, headers={"x-a": "b"}
        )
        assert created["value"] == {"thingId": name, "policyId": name, "attributes": {"a": 1}}
        assert list(created) == ["topic", "headers", "path", "value", "status"]
        assert (created["topic"], created["path"]) == (topic_of(name, "create"), "/")
        assert created["status"] == 201
        headers = created["headers"]
        del headers["correlation-id"]
        assert headers == {
            "response-required": False,
            "x-a": "b",
            "etag": '"rev:1"',
            "entity-revision": 1,
            "ditto-originator": "nginx:ditto",
            "content-type": "application/json",
        }
        again = await caller.ask(topic_of(name, "create"), value={})
        check_error(again, 409, "things:thing.conflict")
        assert again["topic"] == topic_of(name, criterion="errors")
        read = await caller.ask(topic_of(name, "retrieve"))
        assert (read["status"], read["value"]) == (200, created["value"])
        deleted = await caller.ask(topic_of(name, "delete"))
        assert (deleted["status"], "value" in deleted) == (204, False)
        check_error(await caller.ask(topic_of(name, "retrieve")), 404, "things:thing.notfound")


PARTS: list[tuple[str, str, Any, int]] = [
    ("modify", "/attributes/a", 5, 201),
    ("modify", "/attributes/a", None, 204),
    ("modify", "/attributes/a", {"b": [1, "ü"]}, 204),
    ("merge", "/attributes/a", {"c": True}, 204),
    ("modify", "/attributes", {"a": 1}, 204),
    ("merge", "/attributes", {"b": 2}, 204),
    ("modify", "/definition", "ns:n:1.0", 201),
    ("merge", "/definition", "ns:n:2.0", 204),
    ("modify", "/features", {"f": {"properties": {"x": 1}}}, 201),
    ("merge", "/features", {"g": {}}, 204),
    ("modify", "/features/f", {"properties": {"x": 2}}, 204),
    ("modify", "/features/f/definition", ["ns:n:1.0"], 201),
    ("modify", "/features/f/properties", {"x": {"y": 1}}, 204),
    ("modify", "/features/f/properties/x/y", 2, 204),
    ("merge", "/features/f/properties/x", {"z": 3}, 204),
    ("modify", "/features/f/desiredProperties", {"x": 1}, 201),
    ("modify", "/features/f/desiredProperties/x", 2, 204),
    ("merge", "/", {"attributes": {"c": 3}}, 204),
    ("modify", "/", {"attributes": {"a": 1}}, 204),
]


async def test_every_part_of_a_thing_can_be_changed_and_read(
    gateway: Gateway, client: httpx.AsyncClient
) -> None:
    name = new_id()
    async with Caller.open(gateway) as caller:
        await caller.ask(topic_of(name, "modify"), value={"attributes": {}})
        for action, path, value, status in PARTS:
            done = await caller.ask(topic_of(name, action), path, value=value)
            assert (done["status"], done["path"]) == (status, path), (action, path, done)
            assert done["topic"] == topic_of(name, action)
            if status == 201:
                assert done["value"] == value
            read = await caller.ask(topic_of(name, "retrieve"), path)
            over_http = await client.get(thing(name, path.rstrip("/")))
            assert read["value"] == over_http.json()
            assert read["headers"]["etag"] == over_http.headers["etag"]
            if action == "modify" and path != "/":
                assert read["value"] == value
        for path in ("/attributes/a", "/attributes"):
            assert (await caller.ask(topic_of(name, "delete"), path))["status"] == 204
            gone = await caller.ask(topic_of(name, "retrieve"), path)
            kind = "attribute" if path.endswith("/a") else "attributes"
            check_error(gone, 404, f"things:{kind}.notfound")


async def test_fields_are_selected(gateway: Gateway) -> None:
    name = new_id()
    async with Caller.open(gateway) as caller:
        await caller.ask(topic_of(name, "modify"), value={"attributes": {"a": 1, "b": 2}})
        topic = topic_of(name, "retrieve")
        read = await caller.ask(topic, fields="thingId,attributes(a),_revision")
        assert read["value"] == {"thingId": name, "attributes": {"a": 1}, "_revision": 1}
        shown = await caller.ask(topic, fields="_policy")
        assert list(shown["value"]["_policy"]["entries"]) == ["DEFAULT"]
        assert (await caller.ask(topic, "/attributes", fields="b"))["value"] == {"b": 2}
        wrong = await caller.ask(topic, fields="a(")
        check_error(wrong, 400, "json.fieldselector.invalid")


async def test_several_things_are_read_at_once(gateway: Gateway) -> None:
    names = [new_id() for _ in range(3)]
    topic = "_/_/things/twin/commands/retrieve"
    async with Caller.open(gateway) as caller, Caller.open(gateway, user="user2") as stranger:
        for name in names[:2]:
            await caller.tell(topic_of(name, "modify"), value={"attributes": {"a": name}})
        read = await caller.ask(topic, value={"thingIds": names}, fields="thingId")
        assert read["value"] == [{"thingId": name} for name in names[:2]]
        assert (read["topic"], read["path"], read["status"]) == (topic, "/", 200)
        assert (await stranger.ask(topic, value={"thingIds": names}))["value"] == []
        assert (await caller.ask(topic, value={"thingIds": []}))["value"] == []
        missing = await caller.ask(topic)
        check_error(missing, 400, "json.field.missing")
        assert missing["topic"] == "unknown/unknown/things/twin/errors"


async def test_conditions_are_those_of_http(gateway: Gateway) -> None:
    name = new_id()
    async with Caller.open(gateway) as caller:
        await caller.ask(topic_of(name, "modify"), value={"attributes": {"a": 1}})

        async def ask(action: str, path: str = "/", **headers: str) -> Json:
            value = {} if action == "retrieve" or action == "delete" else {"value": 2}
            sent = {key.replace("_", "-"): text for key, text in headers.items()}
            return await caller.ask(topic_of(name, action), path, headers=sent, **value)

        for headers in (
            {"if_match": '"rev:7"'},
            {"If_None_Match": "*"},
            {"condition": "eq(attributes/a,7)"},
        ):
            failed = await ask("modify", "/attributes/a", **headers)
            code = "condition" if "condition" in headers else "precondition"
            check_error(failed, 412, f"things:{code}.failed")
            assert ("etag" in failed["headers"]) == (code == "precondition")
        same = await caller.ask(
            topic_of(name, "modify"), "/attributes/a", value=1, headers={"if-equal": "skip"}
        )
        check_error(same, 412, "things:precondition.failed")
        assert (await ask("modify", "/attributes/a", condition="eq(attributes/a,1)"))[
            "status"
        ] == 204
        tag = (await ask("retrieve"))["headers"]["etag"]
        check_error(
            await ask("retrieve", if_none_match=tag), 304, "things:precondition.notmodified"
        )
        assert (await ask("delete", if_match=tag))["status"] == 204


async def test_what_may_not_be_read_or_written(gateway: Gateway, client: httpx.AsyncClient) -> None:
    name = new_id()
    part = {"thing:/attributes/open": {"grant": ["READ"], "revoke": []}}
    attributes = {"open": 1, "closed": 2}
    made = await client.put(thing(name), json={"_policy": policy(**part), "attributes": attributes})
    assert made.status_code == 201
    async with Caller.open(gateway, user="user2") as other:
        seen = await other.ask(topic_of(name, "retrieve"))
        assert seen["value"] == {"thingId": name, "attributes": {"open": 1}}
        hidden = await other.ask(topic_of(name, "retrieve"), "/attributes/closed")
        check_error(hidden, 404, "things:attribute.notfound")
        denied = await other.ask(topic_of(name, "modify"), "/attributes/open", value=5)
        check_error(denied, 403, "things:attribute.notmodifiable")
        check_error(await other.ask(topic_of(name, "delete")), 403, "things:thing.notdeletable")


async def test_policies_and_the_things_that_name_them_come_in_order(gateway: Gateway) -> None:
    name, policy_id = new_id(), new_id()
    namespace, _, local = policy_id.partition(":")
    commands = f"{namespace}/{local}/policies/commands"
    async with Caller.open(gateway) as caller:
        created = await caller.tell(f"{commands}/create", value=policy())
        made = await caller.tell(topic_of(name, "create"), value={"policyId": policy_id})
        read = await caller.tell(f"{commands}/retrieve", "/entries/owner/subjects")
        assert (await caller.answer(created))["status"] == 201
        assert (await caller.answer(made))["value"]["policyId"] == policy_id
        assert list((await caller.answer(read))["value"]) == ["nginx:ditto"]
        missing = await caller.ask(f"{commands}/retrieve", "/entries/other")
        assert missing["topic"] == f"{namespace}/{local}/policies/errors"
        wrong = await caller.ask(f"{commands}/modify", value={"entries": {"": {}}})
        check_error(wrong, 400, "json.pointer.invalid")
        assert wrong["topic"] == f"{namespace}/{local}/policies/errors"


MODIFY = "a/b/things/twin/commands/modify"


@pytest.mark.parametrize(
    ("topic", "fields", "status", "code"),
    [
        (MODIFY, {}, 400, "json.field.missing"),
        (MODIFY, {"status": 204}, 400, "protocoladapter:unknown.topicpath"),
        (MODIFY, {"value": {"thingId": "a:c"}}, 400, "things:id.notsettable"),
        (MODIFY, {"value": {"attributes": {"": 1}}}, 400, "json.pointer.invalid"),
        (MODIFY, {"value": {"attributes": {"a": 2**64}}}, 400, "json.invalid"),
        ("a/b/things/live/commands/create", {"value": {}}, 405, "things:thing.notcreatable"),
        ("a/b/things/twin/commands/migrate", {}, 400, "protocoladapter:unknown.topicpath"),
        ("a/b/things/twin/messages/ask", {}, 400, "protocoladapter:unknown.topicpath"),
        ("a/b/things/twin/events/modified", {"value": 1}, 400, "protocoladapter:unknown.topicpath"),
        ("1/b/things/twin/commands/delete", {}, 400, "things:id.invalid"),
    ],
)
async def test_commands_that_are_refused(
    gateway: Gateway, topic: str, fields: Json, status: int, code: str
) -> None:
    async with Caller.open(gateway) as caller:
        problem = await caller.ask(topic, **fields)
        check_error(problem, status, code)
        assert problem["topic"] == "/".join((*topic.split("/")[:4], "errors"))


@pytest.mark.parametrize(
    "topic",
    [
        "a/b/things/twin/commands/sing",
        "_/_/things/live/search/subscribe",
        "_/_/things/twin/search/next",
        "a/b/things/twin/streaming/cancel",
        "_/b/connections/announcements/x",
        "a/b/things/live/errors",
    ],
)
async def test_topics_that_are_not_served(gateway: Gateway, topic: str) -> None:
    async with Caller.open(gateway) as caller:
        problem = await caller.ask(topic, value={})
        value = check_error(problem, 400, "protocoladapter:unknown.topicpath")
        assert value["message"] == f"The topic path '{topic}' is not supported."
        assert problem["topic"] == "unknown/unknown/things/twin/errors"


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"requested-acks": "a,b"}, 400, "header.invalid"),
        ({"requested-acks": ["x"]}, 400, "header.invalid"),
        ({"requested-acks": [5]}, 400, "header.invalid"),
        ({"response-required": 5}, 400, "header.invalid"),
        ({"timeout": "soon"}, 400, "timeout.invalid"),
        ({"channel": "alive"}, 400, "header.invalid"),
        ({"x": "y" * 6000}, 431, "headers.too.large"),
        ({"dry-run": True}, 400, "header.invalid"),
        ({"if-equal": "maybe"}, 400, "header.invalid"),
        ({"condition": "eq("}, 400, "rql.expression.invalid"),
        ({"live-channel-condition": "x"}, 405, "things:live.channelcondition.notallowed"),
        ([], 400, "json.format.invalid"),
    ],
)
async def test_headers_that_are_refused(
    gateway: Gateway, headers: Any, status: int, code: str
) -> None:
    async with Caller.open(gateway) as caller:
        if isinstance(headers, dict):
            headers = {"correlation-id": "c", **headers}
        topic = topic_of("ns:n", "modify")
        await caller.send({"topic": topic, "headers": headers, "path": "/", "value": {}})
        await caller.command("STOP-SEND-EVENTS")
        (problem,) = caller.frames
        check_error(problem, status, code)
        assert problem["topic"] == "ns/n/things/twin/errors"
        if isinstance(headers, dict):
            assert problem["headers"]["correlation-id"] == "c"


ANY_COMMAND = [
    ("a/b/things/twin/commands/modify", "/", {"value": {}}),
    ("a/b/things/twin/commands/retrieve", "/", {}),
    ("_/_/things/twin/commands/retrieve", "/", {"value": {"thingIds": ["a:b"]}}),
    ("a/b/things/live/commands/retrieve", "/", {}),
    ("a/b/things/live/messages/ask", "/inbox/messages/ask", {"value": 1}),
    ("a/b/things/live/events/modified", "/attributes/a", {"value": 1}),
    ("a/b/policies/commands/retrieve", "/", {}),
]


@pytest.mark.parametrize(("topic", "path", "fields"), ANY_COMMAND)
@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"response-required": "5"}, "header.invalid"),
        ({"requested-acks": "abc,def"}, "header.invalid"),
        ({"requested-acks": ["a?"]}, "header.invalid"),
        ({"timeout": "1a"}, "timeout.invalid"),
        ({"channel": "alive"}, "header.invalid"),
        ({"live-channel-timeout-strategy": "what"}, "header.invalid"),
        ({"if-none-match": "a"}, "header.invalid"),
    ],
)
async def test_values_that_a_header_cannot_have_are_refused_whatever_is_asked_for(
    gateway: Gateway, topic: str, path: str, fields: Json, headers: Json, code: str
) -> None:
    async with Caller.open(gateway) as caller:
        check_error(await caller.ask(topic, path, headers=headers, **fields), 400, code)


async def test_large_things_are_refused(gateway: Gateway) -> None:
    name = new_id()
    async with Caller.open(gateway) as caller:
        value = {"attributes": {"a": "x" * 102_400}}
        problem = await caller.ask(topic_of(name, "modify"), value=value)
        check_error(problem, 413, "things:thing.toolarge")
        value = {"attributes": {"a": "x" * 100_000}}
        assert (await caller.ask(topic_of(name, "modify"), value=value))["status"] == 201


# --- acks (the table of the seed, and spec acks-and-http 4)

TWIN = ["twin-persisted"]


@pytest.mark.parametrize("exists", [True, False], ids=["204", "404"])
@pytest.mark.parametrize(
    ("required", "acks", "timeout", "expected"),
    [
        (False, [], "0s", None),
        (False, [], "1m", None),
        (False, TWIN, "0s", 400),
        (False, TWIN, "1m", 400),
        (True, [], "0s", 400),
        (True, [], "1m", "backend"),
        (True, TWIN, "0s", 400),
        (True, TWIN, "1m", "backend"),
    ],
)
async def test_the_table_of_header_interactions(
    gateway: Gateway,
    client: httpx.AsyncClient,
    required: bool,
    acks: list[str],
    timeout: str,
    expected: Any,
    exists: bool,
) -> None:
    name = new_id()
    if exists:
        await client.put(thing(name), json={"attributes": {"a": 1}})
    headers = {"response-required": required, "requested-acks": acks, "timeout": timeout}
    async with Caller.open(gateway) as caller:
        sent = await caller.tell(
            topic_of(name, "modify"), "/attributes/a", value=2, headers=headers
        )
        if expected is None:
            await caller.ask(topic_of(name, "retrieve"))  # waits for the change
            assert caller.answers(sent) == []
            if exists:
                assert (await client.get(thing(name, "/attributes/a"))).json() == 2
            return
        answer = await caller.answer(sent)
    if expected == 400:
        value = check_error(answer, 400, "header.invalid")
        zero = timeout == "0s"
        assert value["invalidHeaderKey"] == ("timeout" if zero else "requested-acks")
        if zero:
            assert value["message"] == (
                "The value of the header 'timeout' must not be zero if response or "
                "acknowledgements are requested."
            )
        else:
            assert value["message"] == (
                "For WebSocket, it is forbidden to request acknowledgements while "
                "'response-required' is set to false."
            )
            assert value["description"] == (
                "Please set 'requested-acks' to [] or 'response-required' to true."
            )
        assert answer["topic"] == topic_of(name, criterion="errors")
        return
    assert answer["status"] == (204 if exists else 404)
    if exists:
        assert answer["topic"] == topic_of(name, "modify")
    else:
        check_error(answer, 404, "things:thing.notfound")


async def test_acks_are_aggregated(gateway: Gateway) -> None:
    name, label, other = new_id(), new_label(), new_label()

    def ack(event: Json, wanted: str) -> Json:
        good = {"status": 200, "value": {"seen": True}, "headers": {"x-b": "c"}}
        return good if wanted == label else {"status": 503}

    async with (
        Subscriber.open(gateway, label, other, ack=ack),
        Caller.open(gateway) as caller,
    ):
        topic = topic_of(name, "modify")

        async def ask(*labels: str, **headers: str) -> Json:
            sent = {"requested-acks": list(labels), **headers}
            return await caller.ask(topic, value={}, headers=sent)

        answer = await ask(*TWIN, label, timeout="10s")
        correlation_id = answer["headers"].pop("correlation-id")
        assert answer == {
            "topic": topic_of(name, criterion="acks"),
            "headers": {
                "response-required": False,
                "timeout": "10s",
                "content-type": "application/json",
            },
            "path": "/",
            "value": {
                "twin-persisted": {
                    "status": 201,
                    "payload": {"thingId": name, "policyId": name},
                    "headers": {
                        "correlation-id": correlation_id,
                        "response-required": False,
                        "etag": '"rev:1"',
                        "entity-revision": 1,
                        "ditto-originator": "nginx:ditto",
                    },
                },
                label: {
                    "status": 200,
                    "payload": {"seen": True},
                    "headers": {
                        "correlation-id": correlation_id,
                        "response-required": False,
                        "x-b": "c",
                    },
                },
            },
            "status": 200,
        }
        assert list(answer) == ["topic", "headers", "path", "value", "status"]
        single = await ask(label)
        assert (single["status"], list(single["value"])) == (200, [label])
        assert single["topic"].endswith("/things/twin/acks")
        mixed = await ask(label, other)
        assert (mixed["status"], mixed["value"][other]["status"]) == (424, 503)
        assert (await ask(other))["status"] == 503
        late = await ask("nobody:there", timeout="300ms")
        assert late["status"] == 408
        entry = late["value"]["nobody:there"]
        assert entry["payload"]["message"] == (
            "The acknowledgement request reached the specified timeout of 300ms."
        )
        assert (await ask(*TWIN))["topic"] == topic


async def test_errors_of_the_change_are_the_answer_to_requested_acks(gateway: Gateway) -> None:
    async with Caller.open(gateway) as caller:
        answer = await caller.ask(
            topic_of(new_id(), "modify"), "/attributes/a", value=1,
            headers={"requested-acks": ["twin-persisted", "nobody:there"]},
        )  # fmt: skip
        check_error(answer, 404, "things:thing.notfound")


async def test_a_correlation_id_that_is_open_is_refused_with_acks(gateway: Gateway) -> None:
    name = new_id()
    headers = {"requested-acks": ["nobody:there"], "timeout": "1s", "correlation-id": "same"}
    async with Caller.open(gateway) as caller:
        for _ in range(2):
            await caller.tell(topic_of(name, "modify"), value={}, headers=headers)
        problem = await caller.answer("same")
        check_error(problem, 409, "acknowledgement:request.duplicate.correlation-id")
        assert (await caller.answer("same", 2))["status"] == 408


async def test_a_session_does_not_get_its_own_event_nor_its_own_label(gateway: Gateway) -> None:
    label, name = new_label(), new_id()
    async with Caller.open(gateway, f"?declared-acks={label}") as caller:
        await caller.command("START-SEND-EVENTS")
        headers = {"requested-acks": [label], "timeout": "500ms"}
        answer = await caller.ask(topic_of(name, "modify"), value={}, headers=headers)
        assert answer["status"] == 408
        assert answer["value"][label]["status"] == 408
        assert "ditto-weak-ack" not in answer["value"][label]["headers"]
        assert len(caller.frames) == 1
        async with Subscriber.open(gateway) as other:
            await caller.ask(topic_of(name, "modify"), value={})
            assert (await other.event())["revision"] == 2


async def test_headers_travel_into_the_event(gateway: Gateway) -> None:
    headers = {"X-Text": "a", "x-json": {"b": 1}, "version": 2, "timeout": 5, "condition": None}
    async with Subscriber.open(gateway) as subscriber, Caller.open(gateway) as caller:
        await caller.ask(topic_of(new_id(), "modify"), value={}, headers=headers)
        shown = (await subscriber.event())["headers"]
    assert (shown["X-Text"], shown["version"]) == ("a", "2")
    assert json.loads(shown["x-json"]) == {"b": 1}
    assert "timeout" not in shown


async def test_a_response_that_is_not_wanted_is_not_sent(gateway: Gateway) -> None:
    async with Caller.open(gateway) as caller:
        silent = {"response-required": False}
        name = new_id()
        await caller.tell(topic_of(name, "modify"), value={}, headers=silent)
        await caller.tell(topic_of(name, "create"), value={}, headers=silent)
        await caller.tell(topic_of(name, "delete"), "/attributes/a", headers=silent)
        read = await caller.ask(topic_of(name, "retrieve"))
        assert read["value"]["thingId"] == name
        assert caller.frames == [read]
        refused = await caller.ask(topic_of(name, "retrieve"), headers=silent)
        check_error(refused, 400, "command.headers.invalid")


async def test_acks_come_from_subscribers_of_another_process(
    gateway: Gateway, sibling: Gateway
) -> None:
    label = new_label()
    async with Subscriber.open(sibling, label, ack=ack_all), Caller.open(gateway) as caller:
        headers = {"requested-acks": ["twin-persisted", label], "timeout": "10s"}
        answer = await caller.ask(topic_of(new_id(), "modify"), value={}, headers=headers)
    assert answer["status"] == 200
    assert [entry["status"] for entry in answer["value"].values()] == [201, 200]
