"""Server-sent events on things and messages (spec websocket-... 3)."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.events import STREAM, THINGS, events, put
from tests.gateways import Gateway, check_error, http, new_id, thing
from tests.servers import wait_for


async def test_a_change_is_told_as_the_changed_part_of_its_thing(client: httpx.AsyncClient) -> None:
    name = new_id()
    async with events(client, ids=name) as stream:
        await put(client, name, {"attributes": {"a": 1}})
        await put(client, name, 5, "/attributes/a")
        patch = {"features": {"f": {"properties": {"on": None}}}, "attributes": {"b": "x"}}
        merge = {"content-type": "application/merge-patch+json"}
        answer = await client.patch(thing(name), json=patch, headers=merge)
        assert answer.status_code == 204
        assert (await client.delete(thing(name, "/attributes"))).status_code == 204
        assert (await client.delete(thing(name))).status_code == 204
        await stream.event(count=5)
        assert stream.things == [
            {"thingId": name, "policyId": name, "attributes": {"a": 1}},
            {"thingId": name, "attributes": {"a": 5}},
            {"thingId": name, **patch},
            {"thingId": name},
            {"thingId": name},
        ]
    assert [one.kind for one in stream.told] == [""] * 5
    assert len({one.mark for one in stream.told}) == 5


async def test_the_answer_is_not_stored_or_held_back(client: httpx.AsyncClient) -> None:
    async with client.stream("GET", THINGS, headers={**STREAM, "correlation-id": "s-1"}) as answer:
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["correlation-id"] == "s-1"
        assert "content-length" not in answer.headers


@pytest.mark.parametrize("accept", ["*/*", "application/json", "text/*", ""])
async def test_a_stream_is_asked_for_by_name(client: httpx.AsyncClient, accept: str) -> None:
    name = new_id()
    await put(client, name, {})
    answer = await client.get(thing(name), headers={"accept": accept})
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["thingId"] == name


async def test_only_a_get_is_a_stream(client: httpx.AsyncClient) -> None:
    name = new_id()
    answer = await client.put(thing(name), json={}, headers=STREAM)
    assert answer.status_code == 201
    inbox = thing(name, "/inbox/messages/ask")
    answer = await client.post(inbox, params={"timeout": "0"}, headers=STREAM)
    assert answer.status_code == 202


async def test_one_may_ask_by_query_and_with_other_types(client: httpx.AsyncClient) -> None:
    name = new_id()
    request = client.build_request("GET", thing(name), params={"accept": "text/event-stream"})
    del request.headers["accept"]
    answer = await client.send(request, stream=True)
    await answer.aclose()
    assert answer.headers["content-type"] == "text/event-stream"
    accept = {"accept": 'application/json;q=0.5, TEXT/Event-Stream; x="a,b"'}
    async with client.stream("GET", thing(name), headers=accept) as answer:
        assert answer.headers["content-type"] == "text/event-stream"


async def test_a_silent_stream_gives_signs_of_life(client: httpx.AsyncClient) -> None:
    async with events(client, ids=new_id()) as stream:
        await wait_for(lambda: len(stream.comments) >= 3, 10, "comments")
        assert not stream.told


# --- what is wanted


async def test_streams_of_things_of_one_and_of_a_part(client: httpx.AsyncClient) -> None:
    one, two, three = (new_id() for _ in range(3))
    async with (
        events(client, ids=f"{one},{two}") as both,
        events(client, thing(one)) as whole,
        events(client, thing(one, "/attributes/a%2Fb")) as encoded,
        events(client, thing(one, "/attributes/a~1b/")) as escaped,
        events(client, thing(one, "/_revision")) as revisions,
    ):
        await put(client, three, {})
        await put(client, one, {"attributes": {"a/b": {"c": 1}}})
        await put(client, one, 2, "/attributes/a~1b/c")
        await put(client, one, 3, "/attributes/x")
        await put(client, two, {})
        await both.event(count=4)
        assert [told["thingId"] for told in both.things] == [one, one, one, two]
        await whole.event(count=3)
        await revisions.event(count=3)
        await escaped.event(count=2)
        assert revisions.things == [1, 2, 3]
        assert encoded.things == escaped.things == [{"c": 1}, {"c": 2}]


async def test_fields_select_and_may_leave_nothing(client: httpx.AsyncClient) -> None:
    name = new_id()
    async with (
        events(client, ids=name, fields="attributes/a") as some,
        events(client, ids=name, fields="thingId,features/*/properties/on,_revision") as more,
        events(client, ids=name, fields="_context") as context,
        events(client, thing(name, "/attributes"), fields="b") as below,
    ):
        await put(client, name, {"attributes": {"a": 1, "b": 2}})
        await put(client, name, 3, "/attributes/b")
        await put(client, name, {"properties": {"on": True, "x": 1}}, "/features/f")
        await context.event(count=3)
        await more.event(count=3)
        assert some.things == [{"attributes": {"a": 1}}]
        assert more.things[2] == {
            "thingId": name,
            "features": {"f": {"properties": {"on": True}}},
            "_revision": 3,
        }
        assert below.things == [{"b": 2}, {"b": 3}]
        told = context.things[1]["_context"]
        assert told["topic"] == f"{name.replace(':', '/')}/things/twin/events/modified"
        assert (told["path"], told["value"]) == ("/attributes/b", 3)
        assert told["headers"]["entity-revision"] == 2
        assert told["headers"]["ditto-originator"] == "nginx:ditto"


async def test_filter_and_namespaces_keep_events_back(client: httpx.AsyncClient) -> None:
    name, other = new_id(), new_id("org.other")
    both = f"{name},{other}"
    async with (
        events(client, ids=both, filter='gt(attributes/a,2)') as large,
        events(client, ids=both, namespaces="org.other,org.third") as foreign,
        events(client, f"{THINGS}?ids={both}&filter=gt(attributes/a,2)"
               "&filter=eq(topic:action,'modified')") as narrow,
    ):  # fmt: skip
        await put(client, other, {"attributes": {"a": 1}})
        for value in (1, 3):
            await put(client, name, {"attributes": {"a": value}})
        await put(client, other, {"attributes": {"a": 9}})
        await large.event(count=2)
        await foreign.event(count=2)
        assert [told["attributes"]["a"] for told in large.things] == [3, 9]
        assert [told["attributes"]["a"] for told in foreign.things] == [1, 9]
        await narrow.event(count=2)
        assert [told["attributes"]["a"] for told in narrow.things] == [3, 9]


async def test_extra_fields_come_along(client: httpx.AsyncClient) -> None:
    name = new_id()
    await put(client, name, {"attributes": {"place": {"room": "kitchen"}, "a": 0}})
    async with (
        events(client, ids=name, extraFields="attributes/place,_revision") as enriched,
        events(client, ids=name, extraFields="attributes/place", fields="attributes/a") as some,
        events(
            client, ids=name, extraFields="attributes/place",
            filter='eq(attributes/place/room,"attic")',
        ) as moved,
    ):  # fmt: skip
        await put(client, name, 1, "/attributes/a")
        await put(client, name, "attic", "/attributes/place/room")
        await enriched.event(count=2)
        first, second = enriched.things
        assert first["attributes"] == {
            "a": 1,
            "place": {"room": first["attributes"]["place"]["room"]},
        }
        assert second["attributes"] == {"place": {"room": "attic"}}
        assert second["_revision"] == 3
        await moved.event()
        assert moved.things[-1] == {"thingId": name, "attributes": {"place": {"room": "attic"}}}
        await some.event()
        assert len(some.things) == 1
        assert some.things[0]["attributes"]["a"] == 1


@pytest.mark.parametrize(
    ("path", "params", "code"),
    [
        (THINGS, {"ids": "nonsense"}, "things:id.invalid"),
        (THINGS, {"ids": "a:b,"}, "things:id.invalid"),
        (f"{THINGS}/nonsense", {}, "things:id.invalid"),
        (f"{THINGS}/a:b/attributes//x", {}, "json.pointer.invalid"),
        (THINGS, {"fields": "a("}, "json.fieldselector.invalid"),
        (THINGS, {"extraFields": "nonsense"}, "things:field.selection.invalid"),
        (THINGS, {"namespaces": "org.example,1bad"}, "thing-search:search.namespaces.invalid"),
        (THINGS, {"filter": "eq(a"}, "rql.expression.invalid"),
        (THINGS, {"filter": 'eq(nonsense,"x")'}, "rql.expression.invalid"),
        (THINGS, {"from-historical-revision": "1"}, "header.invalid"),
        (f"{THINGS}/a:b", {"to-historical-revision": "1"}, "header.invalid"),
        (f"{THINGS}/a:b", {"from-historical-timestamp": "x"}, "header.invalid"),
        (f"{THINGS}/a:b", {"to-historical-timestamp": "x"}, "header.invalid"),
        (f"{THINGS}/a:b", {"at-historical-revision": "1"}, "header.invalid"),
        (f"{THINGS}/a:b/inbox/messages", {"filter": "eq(a"}, "rql.expression.invalid"),
    ],
)
async def test_what_cannot_be_read_is_refused_before_the_stream(
    client: httpx.AsyncClient, path: str, params: dict[str, str], code: str
) -> None:
    check_error(await client.get(path, params=params, headers=STREAM), 400, code)


@pytest.mark.parametrize("last", ["1", "nonsense", "1AAAA", "2BQAABQA"])
async def test_what_is_no_bookmark_is_refused(client: httpx.AsyncClient, last: str) -> None:
    answer = await client.get(THINGS, headers={**STREAM, "last-event-id": last})
    body = check_error(answer, 400, "header.invalid")
    assert body["invalidHeaderKey"] == "last-event-id"


async def test_a_stream_is_for_users_only(gateway: Gateway) -> None:
    async with http(gateway, None) as nobody:
        check_error(await nobody.get(THINGS, headers=STREAM), 401, "gateway:authentication.failed")


# --- messages


async def send(client: httpx.AsyncClient, path: str, body: bytes, kind: str) -> None:
    """Send a message that nobody answers."""
    answer = await client.post(
        path, content=body, headers={"content-type": kind}, params={"response-required": "false"}
    )
    assert answer.status_code == 202, answer.text


async def test_messages_are_told_by_subject_and_payload(client: httpx.AsyncClient) -> None:
    name = new_id()
    await put(client, name, {})
    async with events(client, thing(name, "/inbox/messages")) as stream:
        ask = thing(name, "/inbox/messages/ask/me")
        await send(client, ask, b'{"a":\n 1}', "application/json")
        await send(client, ask, "Grüße\r\nan\ralle\n".encode(), "text/plain")
        await send(client, ask, b'"text"', "application/json")
        await send(client, ask, b"\x00\xff", "application/octet-stream")
        answer = await client.post(ask, params={"response-required": "false"})
        assert answer.status_code == 202
        await stream.event(count=5)
    assert {one.kind for one in stream.told} == {"ask/me"}
    assert stream.told[0].data == {"a": 1}
    assert [one.text for one in stream.told[1:]] == ["Grüße\nan\nalle\n", '"text"', "AP8=", ""]


async def test_message_streams_of_a_box_a_feature_and_a_subject(client: httpx.AsyncClient) -> None:
    name = new_id()
    await put(client, name, {"features": {"f/1": {}}})
    paths = {
        "inbox": "/inbox/messages",
        "subject": "/inbox/messages/ask",
        "outbox": "/outbox/messages/",
        "feature": "/features/f~11/outbox/messages",
        "of feature": "/features/f%2F1/outbox/messages/warm",
    }
    found: dict[str, list[str]] = {}
    async with (
        events(client, thing(name, paths["inbox"])) as a,
        events(client, thing(name, paths["subject"])) as b,
        events(client, thing(name, paths["outbox"])) as c,
        events(client, thing(name, paths["feature"])) as d,
        events(client, thing(name, paths["of feature"])) as e,
    ):
        for path in (
            "/inbox/messages/ask", "/inbox/messages/ask/more", "/outbox/messages/ask",
            "/features/f~11/outbox/messages/warm", "/features/f~11/outbox/messages/hot",
            "/features/f~11/inbox/messages/warm",
        ):  # fmt: skip
            await send(client, thing(name, path), path.encode(), "text/plain")
        for stream, count in ((a, 2), (b, 1), (c, 1), (d, 2), (e, 1)):
            await stream.event(count=count)
        for key, stream in zip(paths, (a, b, c, d, e), strict=True):
            found[key] = [one.text for one in stream.told]
    assert found == {
        "inbox": ["/inbox/messages/ask", "/inbox/messages/ask/more"],
        "subject": ["/inbox/messages/ask"],
        "outbox": ["/outbox/messages/ask"],
        "feature": ["/features/f~11/outbox/messages/warm", "/features/f~11/outbox/messages/hot"],
        "of feature": ["/features/f~11/outbox/messages/warm"],
    }


async def test_a_stream_of_messages_tells_nothing_else(client: httpx.AsyncClient) -> None:
    name = new_id()
    await put(client, name, {})
    async with events(
        client, thing(name, "/inbox/messages"), filter="eq(topic:subject,'b')"
    ) as box:
        async with events(client, thing(name)) as changes:
            await put(client, name, 1, "/attributes/a")
            await send(client, thing(name, "/inbox/messages/a"), b"1", "text/plain")
            await send(client, thing(name, "/inbox/messages/b"), b"2", "text/plain")
            await changes.event()
            await box.event()
        assert [(one.kind, one.text) for one in box.told] == [("b", "2")]
        assert changes.things == [{"thingId": name, "attributes": {"a": 1}}]


async def test_claims_and_other_places_are_no_streams(client: httpx.AsyncClient) -> None:
    name = new_id()
    for path in ("/inbox/claim", "/inbox/nonsense", "/features/f/inbox/nonsense"):
        answer = await client.get(thing(name, path), headers=STREAM)
        check_error(answer, 404, "gateway:resource.notfound")


# --- who may see what


def policy(*resources: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """A policy in which ditto may do all, and user2 what the resources say."""
    everything = {"grant": ["READ", "WRITE"], "revoke": []}
    kinds = ("thing:/", "policy:/", "message:/")
    return {
        "entries": {
            "owner": {
                "subjects": {"nginx:ditto": {"type": "t"}},
                "resources": dict.fromkeys(kinds, everything),
            },
            "guest": {"subjects": {"nginx:user2": {"type": "t"}}, "resources": dict(resources)},
        }
    }


READ = {"grant": ["READ"], "revoke": []}
HIDE = {"grant": [], "revoke": ["READ"]}


async def test_everybody_is_told_what_he_may_read(
    client: httpx.AsyncClient, user2: httpx.AsyncClient
) -> None:
    hidden, partly = new_id(), new_id()
    rules = policy(("thing:/attributes", READ), ("thing:/attributes/secret", HIDE))
    async with (
        events(user2, ids=f"{hidden},{partly}") as guest,
        events(user2, thing(partly, "/attributes/secret")) as secret,
        events(user2, ids=partly, extraFields="attributes,features") as enriched,
    ):
        await put(client, hidden, {"attributes": {"a": 1}})
        value = {"attributes": {"open": 1, "secret": 2}, "features": {"f": {}}}
        await put(client, partly, {"_policy": rules, **value})
        await put(client, partly, 3, "/attributes/secret")
        await put(client, partly, {"properties": {}}, "/features/f")
        await put(client, partly, 4, "/attributes/open")
        await guest.event(count=2)
        await enriched.event(count=2)
    assert guest.things[0]["attributes"] == {"open": 1}
    assert "features" not in guest.things[0]
    assert guest.things[1:] == [{"thingId": partly, "attributes": {"open": 4}}]
    assert not secret.told
    assert enriched.things[1] == {"thingId": partly, "attributes": {"open": 4}}


async def test_messages_are_for_those_who_may_read_them(
    client: httpx.AsyncClient, user2: httpx.AsyncClient
) -> None:
    name = new_id()
    await put(client, name, {"_policy": policy(("message:/outbox", READ))})
    async with (
        events(user2, thing(name, "/inbox/messages")) as inbox,
        events(user2, thing(name, "/outbox/messages")) as outbox,
    ):
        await send(client, thing(name, "/inbox/messages/a"), b"1", "text/plain")
        await send(client, thing(name, "/outbox/messages/a"), b"2", "text/plain")
        await outbox.event()
        assert [one.text for one in outbox.told] == ["2"]
        assert not inbox.told
