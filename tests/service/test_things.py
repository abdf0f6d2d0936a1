"""PUT and GET of things and attributes: status, body, headers, permissions."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.gateways import Gateway, check_error, new_id, revision, thing

NOT_MODIFIABLE = "things:thing.notmodifiable"


def shared_with_user2(*grants: str) -> dict[str, Any]:
    """A thing that ditto owns and on which user2 has ``grants``."""
    full = {"grant": ["READ", "WRITE"], "revoke": []}
    everything = {"thing:/": full, "policy:/": full}
    some = {"thing:/": {"grant": list(grants), "revoke": []}}
    return {
        "attributes": {"a": 1},
        "_policy": {
            "entries": {
                "owner": {"subjects": {"nginx:ditto": {"type": "u"}}, "resources": everything},
                "other": {"subjects": {"nginx:user2": {"type": "u"}}, "resources": some},
            }
        },
    }


async def test_create_answers_201_with_the_thing_etag_and_location(
    client: httpx.AsyncClient, gateway: Gateway
) -> None:
    name = new_id()
    answer = await client.put(thing(name), json={"attributes": {"color": "red"}})
    assert answer.status_code == 201
    assert answer.json() == {"thingId": name, "policyId": name, "attributes": {"color": "red"}}
    assert answer.headers["etag"] == '"rev:1"'
    assert answer.headers["location"] == f"{gateway.url}/api/2/things/{name}"
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["response-required"] == "false"
    assert answer.headers["ditto-originator"] == "nginx:ditto"


async def test_replace_answers_204_without_body_and_keeps_the_policy(
    client: httpx.AsyncClient,
) -> None:
    name = new_id()
    await client.put(thing(name), json={"attributes": {"a": 1}})
    answer = await client.put(thing(name), json={"features": {"lamp": {}}})
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["etag"] == '"rev:2"'
    assert "location" not in answer.headers
    assert "content-length" not in answer.headers
    found = await client.get(thing(name))
    assert found.json() == {"thingId": name, "policyId": name, "features": {"lamp": {}}}


async def test_attributes_and_paths_are_created_then_modified(
    client: httpx.AsyncClient, gateway: Gateway
) -> None:
    name = new_id()
    await client.put(thing(name), json={})
    for path, value in (
        ("/attributes", {"a": 1}),
        ("/attributes/color", "red"),
        ("/attributes/deep/er/est", [1, None, {"x": True}]),
    ):
        created = await client.put(thing(name, path), json=value)
        assert created.status_code == 201
        assert created.json() == value
        assert created.headers["location"] == f"{gateway.url}{thing(name, path)}"
        modified = await client.put(thing(name, path), json=value)
        assert (modified.status_code, modified.content) == (204, b"")
        assert modified.headers["etag"] == created.headers["etag"]
    found = await client.get(thing(name))
    assert found.json()["attributes"] == {
        "a": 1, "color": "red", "deep": {"er": {"est": [1, None, {"x": True}]}},
    }  # fmt: skip
    assert found.headers["etag"] == '"rev:7"'


@pytest.mark.parametrize(
    ("path", "attributes"),
    [
        ("/attributes/a~1b", {"a/b": 1}),
        ("/attributes/a%2Fb", {"a/b": 1}),
        ("/attributes/a~0b/c", {"a~b": {"c": 1}}),
        ("/attributes/a/", {"a": 1}),
        ("/attributes/%C3%A4%20b", {"ä b": 1}),
    ],
)
async def test_escapes_in_attribute_paths(
    client: httpx.AsyncClient, path: str, attributes: dict[str, Any]
) -> None:
    name = new_id()
    await client.put(thing(name), json={})
    assert (await client.put(thing(name, path), content="1", headers=JSON)).status_code == 201
    assert (await client.get(thing(name))).json()["attributes"] == attributes


JSON = {"content-type": "application/json"}


async def test_trailing_slashes_are_tolerated_and_double_ones_are_not(
    client: httpx.AsyncClient,
) -> None:
    name = new_id()
    assert (await client.put(thing(name, "/"), json={})).status_code == 201
    assert (await client.put(thing(name, "/attributes/"), json={})).status_code == 201
    for path in ("/attributes//a", "/attributes/a//b", "/attributes/a//"):
        answer = await client.put(thing(name, path), json=1)
        check_error(answer, 400, "json.pointer.invalid")
    assert await revision(client, name) == 2


async def test_get_knows_only_what_is_there_and_readable(
    client: httpx.AsyncClient, user2: httpx.AsyncClient
) -> None:
    name = new_id()
    check_error(await client.get(thing(name)), 404, "things:thing.notfound")
    await client.put(thing(name), json={"attributes": {"a": 1}})
    found = await client.get(thing(name))
    assert (found.status_code, found.headers["etag"]) == (200, '"rev:1"')
    hidden = check_error(await user2.get(thing(name)), 404, "things:thing.notfound")
    missing = check_error(await user2.get(thing(new_id())), 404, "things:thing.notfound")
    assert hidden["description"] == missing["description"]


async def test_a_policy_given_at_creation_decides(
    client: httpx.AsyncClient, user2: httpx.AsyncClient
) -> None:
    name = new_id()
    assert (await client.put(thing(name), json=shared_with_user2("READ"))).status_code == 201
    assert (await user2.get(thing(name))).json()["attributes"] == {"a": 1}
    for path, code in (
        ("", "things:thing.notmodifiable"),
        ("/attributes", "things:attributes.notmodifiable"),
        ("/attributes/a", "things:attribute.notmodifiable"),
    ):
        check_error(await user2.put(thing(name, path), json={}), 403, code)
    assert await revision(client, name) == 1

    writable = new_id()
    await client.put(thing(writable), json=shared_with_user2("READ", "WRITE"))
    assert (await user2.put(thing(writable, "/attributes/a"), json=2)).status_code == 204


async def test_policy_ids(client: httpx.AsyncClient, user2: httpx.AsyncClient) -> None:
    name, second = new_id(), new_id()
    answer = await client.put(thing(name), json={"policyId": new_id()})
    check_error(answer, 400, "things:thing.notcreatable")
    assert await revision(client, name) == 0
    await client.put(thing(name), json=shared_with_user2("READ"))
    assert (await client.put(thing(second), json={"policyId": name})).status_code == 201
    assert (await user2.get(thing(second))).status_code == 200


@pytest.mark.parametrize(
    ("policy", "code"),
    [
        (1, "json.format.invalid"),
        ({}, "json.field.missing"),
        ({"entries": {}}, "policies:entry.invalid"),
        ({"entries": {"a": {}}}, "json.field.missing"),
        (
            {"entries": {"a": {"subjects": {"s": {"type": "t"}}, "resources": {}}}},
            "policies:subjectid.invalid",
        ),
        (
            {"entries": {"a": {"subjects": {}, "resources": {"nothing:/": {"grant": []}}}}},
            "policies:entry.invalid",
        ),
        (
            {"entries": {"a": {"subjects": {}, "resources": {"thing:/": {"grant": ["ALL"]}}}}},
            "policies:entry.invalid",
        ),
        (
            {"policyId": "other:one", "entries": {"a": {"subjects": {}, "resources": {}}}},
            "policies:entry.invalid",
        ),
    ],
)
async def test_malformed_policies_are_refused(
    client: httpx.AsyncClient, policy: Any, code: str
) -> None:
    name = new_id()
    answer = await client.put(thing(name), json={"_policy": policy})
    check_error(answer, 400, code)
    assert await revision(client, name) == 0


async def test_a_policy_that_locks_the_creator_out_is_refused(client: httpx.AsyncClient) -> None:
    name = new_id()
    entry = {"subjects": {"nginx:user2": {"type": "u"}}, "resources": {"thing:/": {"grant": []}}}
    answer = await client.put(thing(name), json={"_policy": {"entries": {"a": entry}}})
    check_error(answer, 403, "things:thing.notmodifiable")
    assert await revision(client, name) == 0


@pytest.mark.parametrize(
    "owner",
    [
        {"resources": {"thing:/": {"grant": ["READ", "WRITE"]}}},
        {"subjects": {"nginx:ditto": {"type": "u", "expiry": "2100-01-01T00:00:00Z"}}},
    ],
)
async def test_a_policy_that_nobody_could_change_is_refused(
    client: httpx.AsyncClient, owner: dict[str, Any]
) -> None:
    """As if it were put by itself; but where the thing exists, its ``_policy`` is ignored."""
    name = new_id()
    resources = {f"{kind}:/": {"grant": ["READ", "WRITE"]} for kind in ("thing", "policy")}
    entry = {"subjects": {"nginx:ditto": {"type": "u"}}, "resources": resources, **owner}
    body = {"_policy": {"entries": {"owner": entry}}}
    alone = await client.put(f"/api/2/policies/{name}", json=body["_policy"])
    check_error(alone, 403, "policies:policy.modificationinvalid")
    refused = await client.put(thing(name), json=body)
    check_error(refused, 403, "policies:policy.modificationinvalid")
    posted = await client.post("/api/2/things", json=body)
    check_error(posted, 403, "policies:policy.modificationinvalid")
    assert await revision(client, name) == 0
    allow = {"allow-policy-lockout": "true"}
    assert (await client.put(thing(name), json=body, headers=allow)).status_code == 201
    assert (await client.put(thing(name), json=body)).status_code == 204


async def test_a_thing_moves_only_to_a_policy_that_is_there(
    client: httpx.AsyncClient, user2: httpx.AsyncClient
) -> None:
    """Also when that policy would have the thing's own id."""
    shared, name = new_id(), new_id()
    await client.put(thing(shared), json=shared_with_user2("READ"))
    assert (await client.put(thing(name), json={"policyId": shared})).status_code == 201
    lost = await client.put(thing(name), json={"policyId": name})
    check_error(lost, 400, "things:thing.notcreatable")
    assert (await client.get(thing(name))).json()["policyId"] == shared
    assert await revision(client, name) == 1


async def test_a_thing_that_moves_back_to_its_own_policy_is_judged_by_it(
    client: httpx.AsyncClient, user2: httpx.AsyncClient
) -> None:
    shared, name = new_id(), new_id()
    await client.put(thing(shared), json=shared_with_user2("READ", "WRITE"))
    assert (await client.put(thing(name), json={})).status_code == 201
    assert (await client.put(thing(name), json={"policyId": shared})).status_code == 204
    assert (await user2.put(thing(name, "/attributes/a"), json=1)).status_code == 201
    check_error(await user2.put(thing(name), json={"policyId": name}), 403, NOT_MODIFIABLE)
    assert (await client.put(thing(name), json={"policyId": name})).status_code == 204
    refused = await user2.put(thing(name, "/attributes/a"), json=2)
    check_error(refused, 403, "things:attribute.notmodifiable")
    check_error(await user2.get(thing(name)), 404, "things:thing.notfound")
