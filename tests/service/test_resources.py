"""Every resource of a thing and every way to change and read it (spec acks-and-http 9.1)."""

from __future__ import annotations

from typing import Any

import httpx
import orjson
import pytest

from tests.gateways import Gateway, Subscriber, ack_all, check_error, new_id, new_label, thing

MERGE = {"content-type": "application/merge-patch+json"}
JSON = {"content-type": "application/json"}
FEATURE = {
    "definition": ["org.example:lamp:1.0"],
    "properties": {"on": True, "color": {"r": 1, "g": 2}},
    "desiredProperties": {"on": False},
}
WHOLE = {
    "definition": "org.example:house:1.0",
    "attributes": {"a": 1, "b": {"c": [1, 2]}},
    "features": {"lamp": FEATURE},
}


async def patch(client: httpx.AsyncClient, url: str, value: Any, **headers: str) -> httpx.Response:
    return await client.patch(url, content=orjson.dumps(value), headers=MERGE | headers)


async def put(client: httpx.AsyncClient, url: str, value: Any) -> httpx.Response:
    return await client.put(url, content=orjson.dumps(value), headers=JSON)


@pytest.fixture
async def house(client: httpx.AsyncClient) -> str:
    name = new_id()
    assert (await client.put(thing(name), json=WHOLE)).status_code == 201
    return name


PARTS = [
    ("/definition", "org.example:house:1.0", "org.example:house:2.0"),
    ("/attributes", {"a": 1, "b": {"c": [1, 2]}}, {"z": 1}),
    ("/attributes/b/c", [1, 2], {"deep": None}),
    ("/features", {"lamp": FEATURE}, {"other": {}}),
    ("/features/lamp", FEATURE, {"properties": {"x": 1}}),
    ("/features/lamp/definition", ["org.example:lamp:1.0"], ["org.example:lamp:2.0"]),
    ("/features/lamp/properties", FEATURE["properties"], {"x": 1}),
    ("/features/lamp/properties/color/g", 2, "green"),
    ("/features/lamp/desiredProperties", {"on": False}, {"on": True}),
    ("/features/lamp/desiredProperties/on", False, None),
]


@pytest.mark.parametrize(("path", "value", "other"), PARTS)
async def test_a_part_is_read_replaced_deleted_and_made_again(
    client: httpx.AsyncClient, gateway: Gateway, house: str, path: str, value: Any, other: Any
) -> None:
    url = thing(house, path)
    found = await client.get(url)
    assert (found.status_code, found.json()) == (200, value)
    assert found.headers["etag"].startswith('"hash:')

    replaced = await put(client, url, other)
    assert (replaced.status_code, replaced.content) == (204, b"")
    again = await client.get(url)
    assert again.json() == other
    assert again.headers["etag"] == replaced.headers["etag"] != found.headers["etag"]

    deleted = await client.delete(url)
    assert (deleted.status_code, deleted.content) == (204, b"")
    assert (await client.get(url)).status_code == 404
    assert (await client.delete(url)).status_code == 404

    made = await put(client, url, value)
    assert (made.status_code, made.json()) == (201, value)
    assert made.headers["location"] == f"{gateway.url}{url}"
    assert (await client.get(thing(house))).headers["entity-revision"] == "4"


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/definition", "things:definition.notfound"),
        ("/attributes", "things:attributes.notfound"),
        ("/attributes/x", "things:attribute.notfound"),
        ("/features", "things:features.notfound"),
        ("/features/f", "things:feature.notfound"),
        ("/features/f/definition", "things:feature.definition.notfound"),
        ("/features/f/properties", "things:feature.properties.notfound"),
        ("/features/f/properties/x", "things:feature.property.notfound"),
        ("/features/f/desiredProperties", "things:feature.desiredProperties.notfound"),
        ("/features/f/desiredProperties/x", "things:feature.desiredProperty.notfound"),
    ],
)
async def test_what_is_not_there_has_its_own_error(
    client: httpx.AsyncClient, path: str, code: str
) -> None:
    name = new_id()
    await client.put(thing(name), json={"features": {"f": {}}} if "/f/" in path else {})
    check_error(await client.get(thing(name, path)), 404, code)
    check_error(await client.delete(thing(name, path)), 404, code)
    missing = new_id()
    for answer in (
        await client.get(thing(missing, path)),
        await client.put(thing(missing, path), json=PUTTABLE.get(path, {})),
        await client.delete(thing(missing, path)),
    ):
        check_error(answer, 404, "things:thing.notfound")


PUTTABLE: dict[str, Any] = {
    "/definition": "a:b:1",
    "/features/f/definition": ["a:b:1"],
}


async def test_policy_id_is_read_and_changed_to_a_policy_one_may_write(
    client: httpx.AsyncClient, house: str
) -> None:
    other = new_id()
    await client.put(thing(other), json={})
    url = thing(house, "/policyId")
    assert (await client.get(url)).json() == house
    assert (await client.put(url, json=other)).status_code == 204
    assert (await client.get(url)).json() == other
    assert (await patch(client, url, house)).status_code == 204
    check_error(await client.put(url, json=new_id()), 400, "things:thing.notcreatable")
    check_error(await client.delete(url), 405, "gateway:method.notallowed")


# --- merge


async def test_merge_changes_what_the_patch_names(client: httpx.AsyncClient, house: str) -> None:
    change = {"attributes": {"a": None, "b": {"d": 1}}, "features": {"lamp": None}}
    answer = await patch(client, thing(house), change)
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["etag"] == '"rev:2"'
    found = (await client.get(thing(house))).json()
    assert found["attributes"] == {"b": {"c": [1, 2], "d": 1}}
    assert not found.get("features")
    below = await patch(client, thing(house, "/attributes/b"), {"c": None})
    assert below.status_code == 204
    assert (await client.get(thing(house, "/attributes"))).json() == {"b": {"d": 1}}


async def test_merge_of_a_missing_thing_creates_it_without_nulls(
    client: httpx.AsyncClient, gateway: Gateway
) -> None:
    name = new_id()
    answer = await patch(client, thing(name), {"attributes": {"a": 1, "gone": None}})
    assert answer.status_code == 201
    assert answer.json() == {"thingId": name, "policyId": name, "attributes": {"a": 1}}
    assert answer.headers["location"] == f"{gateway.url}/api/2/things/{name}"
    check_error(
        await patch(client, thing(new_id(), "/attributes"), {"a": 1}), 404, "things:thing.notfound"
    )


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"thingId": None}, 400, "things:id.notdeletable"),
        ({"policyId": None}, 400, "things:policyId.notdeletable"),
        (None, 400, "things:merge.invalid"),
        ({"thingId": "other:id"}, 400, "things:id.notsettable"),
        ({"attributes": 5}, 400, "json.format.invalid"),
        ([], 400, "things:merge.invalid"),
    ],
)
async def test_bad_patches_change_nothing(
    client: httpx.AsyncClient, house: str, change: Any, status: int, code: str
) -> None:
    check_error(await patch(client, thing(house), change), status, code)
    assert (await client.get(thing(house))).headers["etag"] == '"rev:1"'


async def test_merge_wants_its_media_type(client: httpx.AsyncClient, house: str) -> None:
    for headers in ({"content-type": "application/json"}, {"content-type": ""}):
        answer = await client.patch(thing(house), content=b"{}", headers=headers)
        check_error(answer, 415, "mediatype.unsupported")


async def test_a_merge_is_an_event_with_its_patch_and_can_be_acknowledged(
    client: httpx.AsyncClient, gateway: Gateway, house: str
) -> None:
    label = new_label()
    async with Subscriber.open(gateway, label, ack=ack_all) as subscriber:
        answer = await patch(
            client, thing(house, "/attributes"), {"a": None}, **{"requested-acks": label}
        )
        assert answer.status_code == 200
        event = await subscriber.event()
    assert event["topic"].endswith("/things/twin/events/merged")
    assert (event["path"], event["value"]) == ("/attributes", {"a": None})
    assert event["headers"]["content-type"] == "application/merge-patch+json"


# --- delete, and the revision that goes on


async def test_a_deleted_thing_is_gone_and_its_revisions_go_on(
    client: httpx.AsyncClient, gateway: Gateway, house: str
) -> None:
    label = new_label()
    async with Subscriber.open(gateway, label, ack=ack_all) as subscriber:
        answer = await client.delete(
            thing(house), params={"requested-acks": f"twin-persisted,{label}"}
        )
        assert answer.status_code == 200
        assert answer.json()["twin-persisted"]["status"] == 204
        event = await subscriber.event()
    assert event["topic"].endswith("/things/twin/events/deleted")
    assert (event["path"], event["revision"]) == ("/", 2)
    assert "value" not in event
    for url in (thing(house), thing(house, "/attributes")):
        check_error(await client.get(url), 404, "things:thing.notfound")
    check_error(await client.delete(thing(house)), 404, "things:thing.notfound")

    taken = await client.put(thing(house), json={})
    body = check_error(taken, 400, "things:thing.notcreatable")
    assert "policyId" in body["description"]
    made = await client.put(thing(house), json={"policyId": house})
    assert (made.status_code, made.headers["entity-revision"]) == (201, "3")


async def test_delete_needs_write(
    client: httpx.AsyncClient, user2: httpx.AsyncClient, house: str
) -> None:
    check_error(await user2.delete(thing(house)), 403, "things:thing.notdeletable")
    assert (await client.get(thing(house))).status_code == 200


# --- the collection


async def test_post_makes_a_thing_with_a_new_id(
    client: httpx.AsyncClient, gateway: Gateway
) -> None:
    answer = await client.post("/api/2/things", json={"attributes": {"a": 1}})
    assert answer.status_code == 201
    name = answer.json()["thingId"]
    assert answer.json() == {"thingId": name, "policyId": name, "attributes": {"a": 1}}
    assert answer.headers["location"] == f"{gateway.url}/api/2/things/{name}"
    assert (await client.get(answer.headers["location"])).json() == answer.json()
    placed = await client.post("/api/2/things", params={"namespace": "org.mine"}, json={})
    assert placed.json()["thingId"].startswith("org.mine:")
    refused = await client.post("/api/2/things", json={"thingId": new_id()})
    check_error(refused, 400, "things:id.notsettable")


async def test_post_with_acks_names_the_new_thing_in_its_location(
    client: httpx.AsyncClient, gateway: Gateway
) -> None:
    label = new_label()
    async with Subscriber.open(gateway, label, ack=ack_all):
        answer = await client.post(
            "/api/2/things", json={}, params={"requested-acks": f"twin-persisted,{label}"}
        )
    entry = answer.json()["twin-persisted"]
    name = entry["payload"]["thingId"]
    assert entry["status"] == 201
    assert entry["headers"]["location"] == f"{gateway.url}/api/2/things/{name}"


async def test_several_things_are_read_in_the_order_asked_for(
    client: httpx.AsyncClient, user2: httpx.AsyncClient
) -> None:
    names = [new_id() for _ in range(3)]
    for number, name in enumerate(names):
        await client.put(thing(name), json={"attributes": {"n": number}})
    asked = [names[2], new_id(), names[0]]
    answer = await client.get("/api/2/things", params={"ids": ",".join(asked)})
    assert [one["thingId"] for one in answer.json()] == [names[2], names[0]]
    some = await client.get(
        "/api/2/things", params={"ids": ",".join(asked), "fields": "attributes/n"}
    )
    assert some.json() == [{"attributes": {"n": 2}}, {"attributes": {"n": 0}}]
    assert (await user2.get("/api/2/things", params={"ids": names[0]})).json() == []
    for ids in ({"ids": ""}, {"ids": "no-id"}):
        check_error(await client.get("/api/2/things", params=ids), 400, "things:id.invalid")


async def test_a_policy_to_copy_is_not_silently_ignored(client: httpx.AsyncClient) -> None:
    value = {"_copyPolicyFrom": "org.example:other"}
    for answer in (
        await client.post("/api/2/things", json=value),
        await client.put(thing(new_id()), json=value),
    ):
        check_error(answer, 400, "json.format.invalid")


# --- fields


async def test_fields_select_and_bring_what_is_otherwise_hidden(
    client: httpx.AsyncClient, house: str
) -> None:
    plain = (await client.get(thing(house))).json()
    assert not any(name.startswith("_") for name in plain)
    fields = "thingId,_namespace,_revision,_created,_modified,_policy,features/*/properties/on"
    found = (await client.get(thing(house), params={"fields": fields})).json()
    assert found["thingId"] == house
    assert (found["_namespace"], found["_revision"]) == ("org.example", 1)
    assert found["_created"] == found["_modified"]
    assert "DEFAULT" in found["_policy"]["entries"]
    assert found["features"] == {"lamp": {"properties": {"on": True}}}
    part = await client.get(thing(house, "/attributes"), params={"fields": "b(c)"})
    assert part.json() == {"b": {"c": [1, 2]}}
    broken = await client.get(thing(house), params={"fields": "a(b"})
    check_error(broken, 400, "json.fieldselector.invalid")


# --- conditions


async def test_entity_tags_guard_changes_and_spare_reads(
    client: httpx.AsyncClient, house: str
) -> None:
    url = thing(house)
    tag = (await client.get(url)).headers["etag"]
    unchanged = await client.get(url, headers={"if-none-match": tag})
    assert (unchanged.status_code, unchanged.content) == (304, b"")
    assert unchanged.headers["etag"] == tag
    assert (await client.get(url, headers={"if-none-match": '"rev:9"'})).status_code == 200
    stale = await client.put(url, json={}, headers={"if-match": '"rev:9"'})
    check_error(stale, 412, "things:precondition.failed")
    assert stale.headers["etag"] == tag
    fresh = await client.put(thing(house, "/attributes"), json={}, headers={"if-match": "*"})
    assert fresh.status_code == 204
    only_new = await client.put(url, json={}, headers={"if-none-match": "*"})
    check_error(only_new, 412, "things:precondition.failed")
    made = await client.put(thing(new_id()), json={}, headers={"if-none-match": "*"})
    assert made.status_code == 201
    no_thing = await client.put(thing(new_id()), json={}, headers={"if-match": "*"})
    check_error(no_thing, 412, "things:precondition.failed")
    bad = await client.put(url, json={}, headers={"if-match": "w/nonsense"})
    check_error(bad, 400, "header.invalid")
    assert (await client.get(url)).headers["etag"] == '"rev:2"'


async def test_conditions_decide_on_the_stored_thing(client: httpx.AsyncClient, house: str) -> None:
    url = thing(house, "/attributes/a")
    no = await client.put(url, json=2, params={"condition": "eq(attributes/a,7)"})
    check_error(no, 412, "things:condition.failed")
    yes = await client.put(url, json=2, headers={"condition": "eq(attributes/a,1)"})
    assert yes.status_code == 204
    read = await client.get(thing(house), params={"condition": "gt(_revision,5)"})
    check_error(read, 412, "things:condition.failed")
    gone = await client.delete(url, params={"condition": 'eq(thingId,"x:y")'})
    check_error(gone, 412, "things:condition.failed")
    broken = await client.put(url, json=3, params={"condition": "eq(attributes/a, 1)"})
    check_error(broken, 400, "rql.expression.invalid")
    new = await client.put(thing(new_id()), json={}, params={"condition": "eq(attributes/a,1)"})
    assert new.status_code == 201


async def test_if_equal_skips_what_would_change_nothing(
    client: httpx.AsyncClient, house: str
) -> None:
    url = thing(house, "/attributes/a")
    same = await client.put(url, json=1, headers={"if-equal": "skip"})
    body = check_error(same, 412, "things:precondition.failed")
    assert "'if-equal' header was set to 'skip'" in body["message"]
    assert (await client.put(url, json=2, headers={"if-equal": "skip"})).status_code == 204
    same = await patch(client, url, 2, **{"if-equal": "skip-minimizing-merge"})
    check_error(same, 412, "things:precondition.failed")
    check_error(
        await client.put(url, json=1, headers={"if-equal": "perhaps"}), 400, "header.invalid"
    )
    assert (await client.get(thing(house))).headers["etag"] == '"rev:2"'


# --- partial permissions


def partly(*readable: str, write: tuple[str, ...] = ()) -> dict[str, Any]:
    resources = {f"thing:{path}": {"grant": ["READ"], "revoke": []} for path in readable}
    for path in write:
        resources[f"thing:{path}"] = {"grant": ["READ", "WRITE"], "revoke": []}
    everything = {f"{kind}:/": {"grant": ["READ", "WRITE"], "revoke": []} for kind in KINDS}
    return {
        "entries": {
            "owner": {"subjects": {"nginx:ditto": {"type": "u"}}, "resources": everything},
            "other": {"subjects": {"nginx:user2": {"type": "u"}}, "resources": resources},
        }
    }


KINDS = ("thing", "policy", "message")


async def test_a_partial_reader_sees_its_part_only(
    client: httpx.AsyncClient, user2: httpx.AsyncClient
) -> None:
    name = new_id()
    value = {"attributes": {"open": 1, "secret": 2}, "_policy": partly("/attributes/open")}
    assert (await client.put(thing(name), json=value)).status_code == 201
    found = await user2.get(thing(name))
    assert found.json() == {"thingId": name, "attributes": {"open": 1}}
    assert (await user2.get(thing(name, "/attributes"))).json() == {"open": 1}
    hidden = await user2.get(thing(name, "/attributes/secret"))
    check_error(hidden, 404, "things:attribute.notfound")
    fields = await user2.get(thing(name), params={"fields": "attributes/secret,_policy"})
    assert fields.json() == {}
    for condition, status in (("eq(attributes/open,1)", 200), ("eq(attributes/secret,2)", 412)):
        answer = await user2.get(thing(name), params={"condition": condition})
        assert answer.status_code == status
    listed = await user2.get("/api/2/things", params={"ids": name})
    assert listed.json() == [{"thingId": name, "attributes": {"open": 1}}]


async def test_preconditions_tell_nothing_of_what_is_hidden(
    client: httpx.AsyncClient, user2: httpx.AsyncClient
) -> None:
    """Neither that it is there, nor a hash of it, by which it could be guessed."""
    name = new_id()
    policy = partly("/attributes/pin/below", write=("/attributes/x",))
    attributes = {"pin": 4711, "x": 1}
    await client.put(thing(name), json={"attributes": attributes, "_policy": policy})
    for headers in ({"if-match": '"x"'}, {"if-none-match": "*"}, {}):
        for hidden in ("/attributes/pin", "/attributes/none"):
            answer = await user2.get(thing(name, hidden), headers=headers)
            check_error(answer, 404, "things:attribute.notfound")
            assert "etag" not in answer.headers
    seen = await user2.get(thing(name, "/attributes"))
    assert seen.json() == {"x": 1}
    await client.put(thing(name, "/attributes/pin"), json=4712)
    later = await user2.get(thing(name, "/attributes"))
    assert later.headers["etag"] == seen.headers["etag"]  # of what is seen
    merged = await patch(user2, thing(name, "/attributes"), {"x": 1})
    assert merged.headers["etag"] == seen.headers["etag"]
    fresh = await user2.get(
        thing(name, "/attributes"), headers={"if-none-match": seen.headers["etag"]}
    )
    assert fresh.status_code == 304


async def test_a_writer_who_may_not_read_learns_nothing(
    client: httpx.AsyncClient, user2: httpx.AsyncClient
) -> None:
    name = new_id()
    policy = partly()
    policy["entries"]["other"]["resources"] = {
        "thing:/attributes/pin": {"grant": ["WRITE"], "revoke": []}
    }
    for value in (4711, 4712):
        await client.put(thing(name), json={"attributes": {"pin": value}, "_policy": policy})
    refused = await user2.put(
        thing(name, "/attributes/pin"), json=1, headers={"if-match": '"hash:x"'}
    )
    check_error(refused, 412, "things:precondition.failed")
    written = await user2.put(thing(name, "/attributes/pin"), json=1)
    assert (refused.headers["etag"], written.headers["etag"]) == ('"rev:2"', '"rev:3"')


@pytest.mark.parametrize(
    "name", ["merge-thing-patch-conditions", "put-metadata", "delete-metadata", "dry-run"]
)
async def test_headers_whose_meaning_would_be_lost_are_refused(
    client: httpx.AsyncClient, house: str, name: str
) -> None:
    answer = await patch(client, thing(house, "/attributes"), {"a": 2}, **{name: "{}"})
    assert check_error(answer, 400, "header.invalid")["invalidHeaderKey"] == name
    assert (await client.get(thing(house))).headers["etag"] == '"rev:1"'


async def test_conditions_of_parts_of_missing_things_and_of_many(
    client: httpx.AsyncClient, house: str
) -> None:
    part = thing(new_id(), "/attributes/x")
    answer = await client.put(part, json=1, headers={"if-match": '"z"'})
    check_error(answer, 404, "things:thing.notfound")
    many = {"ids": house, "condition": "eq(attributes/a,7)"}
    check_error(await client.get("/api/2/things", params=many), 400, "header.invalid")


async def test_a_partial_writer_merges_what_it_may_write(
    client: httpx.AsyncClient, user2: httpx.AsyncClient
) -> None:
    name = new_id()
    policy = partly(write=("/attributes/mine",))
    await client.put(thing(name), json={"attributes": {"x": 1}, "_policy": policy})
    answer = await patch(user2, thing(name), {"attributes": {"mine": 1}})
    assert answer.status_code == 204
    refused = await patch(user2, thing(name), {"attributes": {"mine": 2, "x": 2}})
    check_error(refused, 403, "things:thing.notmodifiable")
    assert (await client.get(thing(name, "/attributes"))).json() == {"x": 1, "mine": 1}
