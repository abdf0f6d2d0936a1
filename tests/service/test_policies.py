"""The HTTP API of policies: statuses, headers, permissions, and that changes hold at once."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from tests.gateways import Gateway, check_error, new_id, thing

ALL = {"grant": ["READ", "WRITE"], "revoke": []}
EVERYTHING = {"policy:/": ALL, "thing:/": ALL, "message:/": ALL}


def url(policy_id: str, path: str = "") -> str:
    return f"/api/2/policies/{policy_id}{path}"


def entry(*subjects: str, **resources: Any) -> dict[str, Any]:
    return {
        "subjects": {name: {"type": "t"} for name in subjects},
        "resources": resources or EVERYTHING,
    }


def policy(**others: Any) -> dict[str, Any]:
    """A policy of ditto's, with further entries."""
    return {"entries": {"owner": entry("nginx:ditto"), **others}}


def some(**grants: list[str]) -> dict[str, Any]:
    """Resources, e.g. thing=["READ"] for all of a thing."""
    return {f"{kind}:/": {"grant": granted, "revoke": []} for kind, granted in grants.items()}


@pytest.fixture
async def made(client: httpx.AsyncClient) -> str:
    """The id of a policy in which user2 may read it and its things."""
    name = new_id()
    reader = entry("nginx:user2", **some(policy=["READ"], thing=["READ"]))
    answer = await client.put(url(name), json=policy(reader=reader))
    assert answer.status_code == 201
    return name


# --- whole policies


async def test_create_read_replace_delete(client: httpx.AsyncClient, gateway: Gateway) -> None:
    name = new_id()
    created = await client.put(url(name), json=policy())
    assert created.status_code == 201
    assert created.json() == {"policyId": name, **policy()}
    assert created.headers["etag"] == '"rev:1"'
    assert created.headers["location"] == f"{gateway.url}{url(name)}"
    read = await client.get(url(name))
    assert (read.status_code, read.json()) == (200, created.json())
    assert read.headers["etag"] == '"rev:1"'
    replaced = await client.put(url(name), json=policy(more=entry("nginx:user2")))
    assert (replaced.status_code, replaced.content) == (204, b"")
    assert replaced.headers["etag"] == '"rev:2"'
    deleted = await client.delete(url(name))
    assert (deleted.status_code, deleted.content) == (204, b"")
    check_error(await client.get(url(name)), 404, "policies:policy.notfound")
    check_error(await client.delete(url(name)), 404, "policies:policy.notfound")


async def test_post_generates_the_id(client: httpx.AsyncClient, gateway: Gateway) -> None:
    created = await client.post("/api/2/policies", json=policy())
    assert created.status_code == 201
    name = created.json()["policyId"]
    assert name.startswith("org.eclipse.ditto:")
    assert created.headers["location"] == f"{gateway.url}/api/2/policies/{name}"
    assert (await client.get(url(name))).json() == created.json()
    given = await client.post("/api/2/policies", json={"policyId": new_id(), **policy()})
    check_error(given, 400, "policies:id.notsettable")
    elsewhere = await client.post("/api/2/policies/?namespace=my.own", json=policy())
    assert elsewhere.json()["policyId"].startswith("my.own:")


async def test_the_policy_of_a_thing_is_a_policy_of_revision_1(client: httpx.AsyncClient) -> None:
    name = new_id()
    await client.put(thing(name), json={})
    read = await client.get(url(name))
    assert (read.status_code, read.headers["etag"]) == (200, '"rev:1"')
    assert list(read.json()["entries"]) == ["DEFAULT"]
    changed = await client.put(url(name, "/entries/more"), json=entry("nginx:user2"))
    assert changed.status_code == 201
    assert (await client.get(url(name))).headers["etag"] == '"rev:2"'


async def test_fields(client: httpx.AsyncClient, made: str) -> None:
    answer = await client.get(url(made), params={"fields": "policyId,_revision,_modified"})
    body = answer.json()
    assert {"policyId": made, "_revision": 1} == {k: v for k, v in body.items() if k != "_modified"}
    datetime.fromisoformat(body["_modified"])


async def test_a_thing_shows_its_policy_to_those_who_may_read_it(
    client: httpx.AsyncClient, user2: httpx.AsyncClient, made: str
) -> None:
    name = new_id()
    await client.put(thing(name), json={"policyId": made})
    shown = (await user2.get(thing(name), params={"fields": "thingId,_policy"})).json()
    assert shown == {"thingId": name, "_policy": (await client.get(url(made))).json()}


# --- parts


async def test_parts(client: httpx.AsyncClient, gateway: Gateway, made: str) -> None:
    subject = "/entries/owner/subjects/nginx:other"
    resource = "/entries/owner/resources/thing:/attributes/a"
    for path, value in (
        ("/entries/new", entry("nginx:user2")),
        (subject, {"type": "x"}),
        (resource, {"grant": ["READ"], "revoke": []}),
    ):
        created = await client.put(url(made, path), json=value)
        assert (created.status_code, created.json()) == (201, value)
        assert created.headers["location"] == f"{gateway.url}{url(made, path)}"
        again = await client.put(url(made, path), json=value)
        assert (again.status_code, again.headers["etag"]) == (204, created.headers["etag"])
        read = await client.get(url(made, path))
        assert (read.status_code, read.json()) == (200, value)
        assert read.headers["etag"] == created.headers["etag"]
    subjects = (await client.get(url(made, "/entries/owner/subjects"))).json()
    assert list(subjects) == ["nginx:ditto", "nginx:other"]
    resources = (await client.get(url(made, "/entries/owner/resources/"))).json()
    assert list(resources) == [*EVERYTHING, "thing:/attributes/a"]
    for path, code in (
        ("/entries/new", "policies:entry.notfound"),
        (subject, "policies:subject.notfound"),
        (resource, "policies:resource.notfound"),
    ):
        assert (await client.delete(url(made, path))).status_code == 204
        check_error(await client.delete(url(made, path)), 404, code)
        check_error(await client.get(url(made, path)), 404, code)
    for path, value in (
        ("/entries/owner/subjects", {"nginx:ditto": {"type": "y"}}),
        ("/entries/owner/resources", EVERYTHING),
        ("/entries", policy()["entries"]),
    ):
        assert (await client.put(url(made, path), json=value)).status_code == 204
        assert (await client.get(url(made, path))).json() == value
    assert (await client.get(url(made))).json()["entries"] == policy()["entries"]


async def test_missing_parts(client: httpx.AsyncClient, made: str) -> None:
    for path, code in (
        ("/entries/no", "policies:entry.notfound"),
        ("/entries/no/subjects", "policies:subjects.notfound"),
        ("/entries/owner/subjects/a:b", "policies:subject.notfound"),
        ("/entries/no/resources", "policies:resources.notfound"),
        ("/entries/owner/resources/thing:/no", "policies:resource.notfound"),
        ("/importable", "gateway:resource.notfound"),
    ):
        check_error(await client.get(url(made, path)), 404, code)
    answer = await client.put(url(made, "/entries/no/subjects/a:b"), json={"type": "t"})
    check_error(answer, 404, "policies:entry.notfound")
    answer = await client.put(url(new_id(), "/entries/no"), json=entry("a:b"))
    check_error(answer, 404, "policies:policy.notfound")


async def test_the_requester_by_its_placeholder(client: httpx.AsyncClient) -> None:
    name = new_id()
    await client.put(url(name), json={"entries": {"me": entry("{{ request:subjectId }}")}})
    assert (await client.get(url(name))).json()["entries"]["me"] == entry("nginx:ditto")
    path = "/entries/me/subjects/%7B%7Brequest:subjectId%7D%7D"
    assert (await client.get(url(name, path))).json() == {"type": "t"}


# --- bad requests


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("PUT", "", b"{", 400, "json.invalid"),
        ("PUT", "", b"[]", 400, "json.format.invalid"),
        ("PUT", "", b"{}", 400, "json.field.missing"),
        ("PUT", "/entries/a%2Fb", b"{}", 400, "policies:label.invalid"),
        ("PUT", "/entries/owner/subjects/me", b'{"type":"t"}', 400, "policies:subjectid.invalid"),
        ("PUT", "/entries/owner/subjects/a:b", b"{}", 400, "json.field.missing"),
        ("PUT", "/entries/owner/resources/car:/x", b"{}", 400, "policies:entry.invalid"),
        ("GET", "/entries/owner/resources/car:/x", b"", 400, "policies:entry.invalid"),
        ("POST", "", b"{}", 405, "gateway:method.notallowed"),
        ("PATCH", "", b"{}", 405, "gateway:method.notallowed"),
        ("DELETE", "/entries", b"", 405, "gateway:method.notallowed"),
        ("DELETE", "/entries/owner/subjects", b"", 405, "gateway:method.notallowed"),
    ],
)
async def test_bad_requests_change_nothing(
    client: httpx.AsyncClient,
    made: str,
    method: str,
    path: str,
    body: bytes,
    status: int,
    code: str,
) -> None:
    answer = await client.request(method, url(made, path), content=body)
    check_error(answer, status, code)
    assert (await client.get(url(made))).headers["etag"] == '"rev:1"'


async def test_bad_ids_types_headers_and_sizes(client: httpx.AsyncClient, made: str) -> None:
    check_error(await client.get(url("noNamespace")), 400, "policies:id.invalid")
    text = {"content-type": "text/plain"}
    answer = await client.put(url(made), content=b"{}", headers=text)
    check_error(answer, 415, "mediatype.unsupported")
    answer = await client.put(url(made), json=policy(), headers={"condition": "exists(policyId)"})
    check_error(answer, 400, "header.invalid")
    answer = await client.put(url(made), json=policy(), params={"allow-policy-lockout": "perhaps"})
    check_error(answer, 400, "header.invalid")
    big = entry(*(f"a:{'x' * 200}{number}" for number in range(500)))
    check_error(await client.put(url(made), json=policy(big=big)), 413, "policies:policy.toolarge")
    check_error(
        await client.put(url(made, "/entries/big"), json=big), 413, "policies:policy.toolarge"
    )
    assert (await client.get(url(made))).headers["etag"] == '"rev:1"'
    check_error(await client.get("/api/2/policies"), 405, "gateway:method.notallowed")


async def test_without_credentials(gateway: Gateway, made: str) -> None:
    async with httpx.AsyncClient(base_url=gateway.url, trust_env=False) as nobody:
        for path in (url(made), "/api/2/whoami"):
            check_error(await nobody.get(path), 401, "gateway:authentication.failed")


# --- headers


async def test_conditional_requests(client: httpx.AsyncClient, made: str) -> None:
    read = await client.get(url(made), headers={"if-none-match": '"rev:1"'})
    assert (read.status_code, read.content, read.headers["etag"]) == (304, b"", '"rev:1"')
    for method, header, tag in (
        ("PUT", "if-match", '"rev:7"'),
        ("PUT", "if-none-match", "*"),
        ("DELETE", "if-match", '"rev:7"'),
        ("GET", "if-match", '"rev:7"'),
    ):
        body = policy() if method == "PUT" else None
        answer = await client.request(method, url(made), json=body, headers={header: tag})
        check_error(answer, 412, "policies:precondition.failed")
        assert answer.headers["etag"] == '"rev:1"'
    answer = await client.put(url(new_id()), json=policy(), headers={"if-match": "*"})
    check_error(answer, 412, "policies:precondition.failed")
    tag = (await client.get(url(made, "/entries/owner"))).headers["etag"]
    path = url(made, "/entries/owner")
    matching = await client.put(path, json=entry("nginx:ditto", "a:b"), headers={"if-match": tag})
    assert matching.status_code == 204
    stale = await client.put(path, json=entry("nginx:ditto"), headers={"if-match": tag})
    check_error(stale, 412, "policies:precondition.failed")


async def test_if_equal(client: httpx.AsyncClient, made: str) -> None:
    path, skip = url(made, "/entries/owner"), {"if-equal": "skip"}
    answer = await client.put(path, json=entry("nginx:ditto"), headers=skip)
    check_error(answer, 412, "policies:precondition.failed")
    assert (await client.put(path, json=entry("nginx:ditto", "a:b"), headers=skip)).is_success
    assert (await client.get(url(made))).headers["etag"] == '"rev:2"'


async def test_without_a_response(client: httpx.AsyncClient) -> None:
    name, quiet = new_id(), {"response-required": "false"}
    answer = await client.put(url(name), json=policy(), params=quiet)
    assert (answer.status_code, answer.content) == (202, b"")
    assert {"correlation-id", "response-required"}.isdisjoint(answer.headers)
    assert (await client.get(url(name))).status_code == 200
    answer = await client.put(url(name), json=policy(), params={**quiet, "timeout": "0"})
    assert answer.status_code == 202
    check_error(await client.put(url(name), json={}, params=quiet), 400, "json.field.missing")
    check_error(await client.get(url(name), params=quiet), 400, "command.headers.invalid")


async def test_a_zero_timeout_is_refused(client: httpx.AsyncClient, made: str) -> None:
    zero = {"timeout": "0"}
    check_error(await client.get(url(made), params=zero), 400, "header.invalid")
    check_error(await client.put(url(made), json=policy(), params=zero), 400, "header.invalid")
    check_error(await client.delete(url(made), params=zero), 400, "header.invalid")
    assert (await client.get(url(made))).headers["etag"] == '"rev:1"'


async def test_ack_requests_mean_nothing_to_policies(client: httpx.AsyncClient, made: str) -> None:
    answer = await client.put(
        url(made), json=policy(), params={"requested-acks": "nobody-has-it", "timeout": "1"}
    )
    assert answer.status_code == 204


async def test_whoami(client: httpx.AsyncClient, user2: httpx.AsyncClient) -> None:
    answer = await client.get("/api/2/whoami")
    assert answer.status_code == 200
    assert answer.json() == {"defaultSubject": "nginx:ditto", "subjects": ["nginx:ditto"]}
    assert (await user2.get("/api/2/whoami/")).json()["defaultSubject"] == "nginx:user2"
    check_error(await client.put("/api/2/whoami", json={}), 405, "gateway:method.notallowed")
    check_error(await client.get("/api/2/whoami/x"), 404, "gateway:resource.notfound")


# --- permissions


async def test_those_who_may_read_but_not_write(user2: httpx.AsyncClient, made: str) -> None:
    assert (await user2.get(url(made))).status_code == 200
    for path, body, code in (
        ("", policy(), "policies:policy.notmodifiable"),
        ("/entries/owner", entry("nginx:user2"), "policies:entry.notmodifiable"),
        ("/entries/owner/subjects/nginx:user2", {"type": "t"}, "policies:subject.notmodifiable"),
        ("/entries/owner/resources", EVERYTHING, "policies:resources.notmodifiable"),
    ):
        check_error(await user2.put(url(made, path), json=body), 403, code)
    check_error(await user2.delete(url(made)), 403, "policies:policy.notmodifiable")
    assert (await user2.get(url(made))).headers["etag"] == '"rev:1"'


async def test_those_who_may_not_read(client: httpx.AsyncClient, user2: httpx.AsyncClient) -> None:
    name = new_id()
    await client.put(url(name), json=policy())
    check_error(await user2.get(url(name)), 404, "policies:policy.notfound")
    check_error(await user2.get(url(name, "/entries/owner")), 404, "policies:entry.notfound")


async def test_those_who_may_read_a_part(
    client: httpx.AsyncClient, user2: httpx.AsyncClient
) -> None:
    name = new_id()
    resources = {
        "policy:/entries/part": {"grant": ["READ"], "revoke": []},
        "policy:/entries/part/resources/thing:/secret": {"grant": [], "revoke": ["READ"]},
        "thing:/secret": ALL,
    }
    part = {"subjects": {"nginx:user2": {"type": "t"}}, "resources": resources}
    await client.put(url(name), json=policy(part=part))
    del resources["thing:/secret"]
    assert (await user2.get(url(name))).json() == {"policyId": name, "entries": {"part": part}}
    assert (await user2.get(url(name, "/entries/part"))).json() == part
    answer = await user2.get(url(name, "/entries/part/resources/thing:/secret"))
    check_error(answer, 404, "policies:resource.notfound")


async def test_those_who_may_write_a_part(
    client: httpx.AsyncClient, user2: httpx.AsyncClient
) -> None:
    """They have no WRITE on all of it that they could lose."""
    name = new_id()
    part = entry("nginx:user2", **{"policy:/entries/part": ALL})
    await client.put(url(name), json=policy(part=part))
    path = "/entries/part/subjects/a:b"
    assert (await user2.put(url(name, path), json={"type": "t"})).status_code == 201
    assert (await user2.delete(url(name, path))).status_code == 204
    assert (await user2.delete(url(name, "/entries/part"))).status_code == 204
    refused = await user2.put(url(name, path), json={"type": "t"})
    check_error(refused, 403, "policies:subject.notmodifiable")


async def test_nobody_is_locked_out_by_accident(client: httpx.AsyncClient, made: str) -> None:
    mine = policy()["entries"]["owner"]
    not_mine = {"entries": {"owner": entry("nginx:user2")}}
    check_error(
        await client.put(url(new_id()), json=not_mine), 403, "policies:policy.modificationinvalid"
    )
    check_error(
        await client.put(url(made), json=not_mine), 403, "policies:policy.modificationinvalid"
    )
    gone = url(made, "/entries/owner/subjects/nginx:ditto")
    check_error(await client.delete(gone), 403, "policies:entry.modificationinvalid")
    check_error(
        await client.delete(url(made, "/entries/owner")), 403, "policies:entry.modificationinvalid"
    )
    assert (await client.get(url(made))).json()["entries"]["owner"] == mine
    allowed = await client.delete(gone, params={"allow-policy-lockout": "true"})
    assert allowed.status_code == 204
    check_error(await client.get(url(made)), 404, "policies:policy.notfound")


# --- changes hold at once


async def test_a_grant_and_a_revoke_hold_at_once(
    client: httpx.AsyncClient, user2: httpx.AsyncClient, made: str
) -> None:
    name = new_id()
    await client.put(thing(name), json={"policyId": made, "attributes": {"a": 0}})
    path = url(made, "/entries/reader/resources/thing:/")
    for number in range(1, 6):
        check_error(
            await user2.put(thing(name, "/attributes/a"), json=-number),
            403,
            "things:attribute.notmodifiable",
        )
        await client.put(path, json=ALL)
        written = await user2.put(thing(name, "/attributes/a"), json=number)
        assert written.status_code == 204
        await client.put(path, json={"grant": ["READ"], "revoke": []})
    await client.delete(path)
    check_error(await user2.get(thing(name)), 404, "things:thing.notfound")
    assert (await client.get(thing(name, "/attributes/a"))).json() == 5


async def test_without_its_policy_a_thing_is_nobodys(client: httpx.AsyncClient, made: str) -> None:
    name = new_id()
    await client.put(thing(name), json={"policyId": made})
    assert (await client.delete(url(made))).status_code == 204
    check_error(await client.get(thing(name)), 404, "things:thing.notfound")
    check_error(await client.put(thing(name), json={}), 404, "things:thing.notfound")
    await client.put(url(made), json=policy())
    assert (await client.put(thing(name), json={})).status_code == 204


async def test_a_subject_that_expires_loses_its_rights(
    client: httpx.AsyncClient, user2: httpx.AsyncClient, made: str
) -> None:
    name = new_id()
    await client.put(thing(name), json={"policyId": made, "attributes": {"a": 0}})
    expiry = datetime.fromtimestamp(time.time() + 4, UTC).isoformat()
    guest = {"subjects": {"nginx:user2": {"type": "t", "expiry": expiry}}, "resources": EVERYTHING}
    await client.put(url(made, "/entries/guest"), json=guest)
    assert (await user2.put(thing(name, "/attributes/a"), json=1)).status_code == 204
    end, status = time.monotonic() + 30, 204
    while status == 204:
        assert time.monotonic() < end
        status = (await user2.put(thing(name, "/attributes/a"), json=2)).status_code
    assert status == 403
    assert (await user2.get(thing(name))).status_code == 200
    past = {"type": "t", "expiry": expiry}
    answer = await client.put(url(made, "/entries/guest/subjects/nginx:user2"), json=past)
    check_error(answer, 400, "policies:subjectexpiry.invalid")


async def test_concurrent_changes_are_all_kept(client: httpx.AsyncClient, made: str) -> None:
    paths = [url(made, f"/entries/owner/subjects/a:{number}") for number in range(20)]
    answers = await asyncio.gather(*(client.put(path, json={"type": "t"}) for path in paths))
    assert {answer.status_code for answer in answers} == {201}
    read = await client.get(url(made))
    assert len(read.json()["entries"]["owner"]["subjects"]) == 21
    assert read.headers["etag"] == '"rev:21"'


# --- deleted policies


async def test_the_revisions_of_a_deleted_policy_go_on(client: httpx.AsyncClient) -> None:
    name = new_id()
    await client.put(url(name), json=policy())
    assert (await client.delete(url(name))).status_code == 204
    for method, path in (
        ("DELETE", ""),
        ("GET", "/entries/owner"),
        ("DELETE", "/entries/owner"),
    ):
        answer = await client.request(method, url(name, path))
        check_error(answer, 404, "policies:policy.notfound")
    answer = await client.put(url(name, "/entries/owner"), json=entry("nginx:ditto"))
    check_error(answer, 404, "policies:policy.notfound")
    answer = await client.put(url(name), json=policy(), headers={"if-match": '"rev:1"'})
    check_error(answer, 412, "policies:precondition.failed")
    again = await client.put(url(name), json=policy(more=entry("a:b")))
    assert (again.status_code, again.headers["etag"]) == (201, '"rev:3"')
    read = await client.get(url(name), headers={"if-none-match": '"rev:1"'})
    assert (read.status_code, read.headers["etag"]) == (200, '"rev:3"')
    stale = await client.put(url(name), json=policy(), headers={"if-match": '"rev:1"'})
    check_error(stale, 412, "policies:precondition.failed")
    assert (await client.delete(url(name))).status_code == 204
    again = await client.put(url(name), json=policy())
    assert (again.status_code, again.headers["etag"]) == (201, '"rev:5"')


async def test_a_deleted_policy_is_made_again_by_those_who_could_write_it(
    client: httpx.AsyncClient, user2: httpx.AsyncClient, made: str
) -> None:
    name = new_id()
    await client.put(thing(name), json={"policyId": made})
    await client.delete(url(made))
    mine = {"entries": {"owner": entry("nginx:user2")}}
    for headers in ({}, {"if-match": "*"}, {"allow-policy-lockout": "true"}):
        answer = await user2.put(url(made), json=mine, headers=headers)
        check_error(answer, 403, "policies:policy.notmodifiable")
    check_error(await user2.get(url(made)), 404, "policies:policy.notfound")
    check_error(await user2.put(thing(made), json={}), 400, "things:thing.notcreatable")
    check_error(await user2.get(thing(name)), 404, "things:thing.notfound")
    named = await client.put(thing(new_id()), json={"policyId": made})
    check_error(named, 400, "things:thing.notcreatable")
    assert (await client.put(url(made), json=policy())).status_code == 201
    assert (await client.get(thing(name))).status_code == 200


@pytest.mark.parametrize("body", [{}, {"own": True}, {"_policy": policy()}])
async def test_a_thing_is_made_again_with_its_deleted_policy(
    client: httpx.AsyncClient, user2: httpx.AsyncClient, body: dict[str, Any]
) -> None:
    name = new_id()
    if body.pop("own", False):
        body = {"policyId": name}
    await client.put(thing(name), json={})
    assert (await client.delete(thing(name))).status_code == 204
    check_error(await client.put(thing(name), json={}), 400, "things:thing.notcreatable")
    assert (await client.delete(url(name))).status_code == 204
    theirs = {"entries": {"owner": entry("nginx:user2")}}
    for stranger in ({}, {"_policy": theirs}, {"policyId": name}):
        answer = await user2.put(thing(name), json=stranger)
        check_error(answer, 400, "things:thing.notcreatable")
    check_error(await client.get(url(name)), 404, "policies:policy.notfound")
    again = await client.put(thing(name), json=body)
    assert (again.status_code, again.headers["etag"]) == (201, '"rev:3"')
    read = await client.get(url(name))
    assert (read.status_code, read.headers["etag"]) == (200, '"rev:3"')
    assert (await client.put(thing(name, "/attributes/a"), json=1)).status_code == 201
    check_error(await user2.get(thing(name)), 404, "things:thing.notfound")


async def test_a_thing_without_its_policy_says_so(client: httpx.AsyncClient, made: str) -> None:
    name = new_id()
    await client.put(thing(name), json={"policyId": made, "attributes": {"a": 1}})
    await client.delete(url(made))
    for method, path in (("GET", ""), ("PUT", ""), ("DELETE", ""), ("PUT", "/attributes/a")):
        answer = await client.request(method, thing(name, path), json={})
        body = check_error(answer, 404, "things:thing.notfound")
        assert f"Policy with ID '{made}' does not exist" in body["description"]
    missing = check_error(await client.get(thing(new_id())), 404, "things:thing.notfound")
    assert "does not exist" not in missing["description"]
