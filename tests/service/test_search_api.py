"""The search over HTTP: pages, counts, forms, cursors, errors (spec websocket-... 6.4)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from tests.gateways import Gateway, Json, check_error, http, thing
from tests.searching import COUNT, SEARCH, delete, ids, new_namespace, put, put_all, search
from tests.servers import RedisServer
from tests.service.searched import INDEXES, searched


@pytest.fixture(scope="module", params=INDEXES)
def gateway(
    request: pytest.FixtureRequest, store: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    with searched(request.param, tmp_path_factory.mktemp("searched"), store) as one:
        yield one


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with http(gateway) as client:
        yield client


ROOMS: dict[str, Json] = {
    "a": {"attributes": {"room": "kitchen", "size": 3}},
    "b": {"attributes": {"room": "hall", "size": 1}},
    "c": {"attributes": {"room": "kitchen", "size": 2}},
    "d": {"attributes": {"room": "cellar"}},
}


async def test_what_is_stored_is_found(client: httpx.AsyncClient) -> None:
    space = new_namespace()
    await put_all(client, space, ROOMS)
    page = await search(client, namespaces=space)
    assert list(page) == ["items"]
    assert page["items"] == [
        {"thingId": f"{space}:{name}", "policyId": f"{space}:{name}", **body}
        for name, body in ROOMS.items()
    ]
    in_kitchen = 'eq(attributes/room,"kitchen")'
    assert await ids(client, filter=in_kitchen, namespaces=space) == ["a", "c"]
    big = "gt(attributes/size,2)"
    assert await ids(client, filter=[in_kitchen, big], namespaces=space) == ["a"]
    assert await ids(client, filter=f"and({in_kitchen}, {big})", namespaces=space) == ["a"]
    assert await ids(client, filter='eq(attributes/room,"x")', namespaces=space) == []


async def test_the_answer_is_the_thing_as_it_is_now(client: httpx.AsyncClient) -> None:
    space = new_namespace()
    (name,) = await put_all(client, space, {"a": {"attributes": {"n": 1}}})
    await put(client, name, {"attributes": {"n": 2}})
    assert await ids(client, namespaces=space, filter="eq(attributes/n,1)") == []
    found = await search(client, namespaces=space, filter="eq(attributes/n,2)")
    assert found["items"] == [(await client.get(thing(name))).json()]
    await delete(client, name)
    assert await search(client, namespaces=space) == {"items": []}


async def test_fields_are_selected_as_of_one_thing(client: httpx.AsyncClient) -> None:
    space = new_namespace()
    (name,) = await put_all(client, space, {"a": {"attributes": {"n": 1, "m": 2}}})
    for fields in ("thingId,_revision", "attributes(n)", "_policy,_modified", "features"):
        found = await search(client, namespaces=space, fields=fields)
        assert found["items"] == [(await client.get(thing(name), params={"fields": fields})).json()]


async def test_things_without_ids_are_all_that_may_be_read(
    gateway: Gateway, client: httpx.AsyncClient
) -> None:
    space = new_namespace()
    names = await put_all(client, space, {f"t{n:03}": {} for n in range(201)})
    first = await client.get("/api/2/things", params={"fields": "thingId"})
    assert first.status_code == 200, first.text
    seen = [one["thingId"] for one in first.json()]
    assert len(seen) == 200
    assert seen == sorted(seen)
    link = first.links["next"]["url"]
    while link:
        page = (await client.get(link)).json()
        assert all(list(one) == ["thingId"] for one in page["items"])
        seen += [one["thingId"] for one in page["items"]]
        cursor = page.get("cursor")
        params = {"option": f"size(200),cursor({cursor})", "fields": "thingId"}
        link = f"{SEARCH}?{urlencode(params)}" if cursor else ""
    assert [name for name in seen if name.startswith(space)] == names
    async with http(gateway, "user2") as other:
        theirs = await put(other, f"{new_namespace()}:a")
        found = (await other.get("/api/2/things")).json()
        assert theirs in [one["thingId"] for one in found]
        assert not [one for one in found if one["thingId"] in names]
        assert "link" not in (await other.get("/api/2/things")).headers


async def test_several_namespaces(client: httpx.AsyncClient) -> None:
    one, other, third = new_namespace(), new_namespace(), new_namespace()
    for space in (one, other, third):
        await put(client, f"{space}:a")
    found = await search(client, namespaces=f"{one}, {other}")
    assert {item["thingId"] for item in found["items"]} == {f"{one}:a", f"{other}:a"}


# --- order and pages


async def test_sorting(client: httpx.AsyncClient) -> None:
    space = new_namespace()
    await put_all(client, space, ROOMS)

    async def sorted_by(option: str) -> list[str]:
        return await ids(client, namespaces=space, option=option)

    assert await sorted_by("sort(+attributes/size)") == ["d", "b", "c", "a"]
    assert await sorted_by("sort(-attributes/size)") == ["a", "c", "b", "d"]
    assert await sorted_by("sort(-attributes/room,+attributes/size)") == ["c", "a", "b", "d"]
    assert await sorted_by("sort(-thingId)") == ["d", "c", "b", "a"]
    # A plus as it is, which a query decodes to a blank.
    answer = await client.get(f"{SEARCH}?namespaces={space}&option=sort(+attributes/size),size(2)")
    assert [item["thingId"][-1] for item in answer.json()["items"]] == ["d", "b"]


@pytest.mark.parametrize("sort", ["", "sort(-attributes/size)", "sort(+attributes/room,-_created)"])
async def test_all_pages_together_are_everything_once(client: httpx.AsyncClient, sort: str) -> None:
    space = new_namespace()
    things: dict[str, Json] = {
        f"t{number}": {"attributes": {"size": number % 3, "room": f"r{number % 4}"}}
        for number in range(11)
    }
    await put_all(client, space, things)
    everything = await ids(client, namespaces=space, option=sort)
    assert sorted(everything) == sorted(things)
    option = ",".join(filter(None, (sort, "size(3)")))
    page = await search(client, namespaces=space, option=option)
    found = [page]
    while "cursor" in page:
        # The cursor alone knows the rest; that may be said again, too.
        again = {"namespaces": space, "option": f"{option},cursor({page['cursor']})"}
        alone = {"option": f"size(3),cursor({page['cursor']})"}
        page = await search(client, **alone)
        assert await search(client, **again) == page
        found.append(page)
    assert [len(page["items"]) for page in found] == [3, 3, 3, 2]
    names = [item["thingId"].partition(":")[2] for page in found for item in page["items"]]
    assert names == everything


async def test_a_page_goes_on_where_its_last_thing_stood(client: httpx.AsyncClient) -> None:
    space = new_namespace()
    await put_all(client, space, {name: {} for name in "abcd"})
    page = await search(client, namespaces=space, option="size(2)")
    await delete(client, f"{space}:b")
    await put(client, f"{space}:aa")
    assert await ids(client, option=f"cursor({page['cursor']})") == ["c", "d"]


async def test_pages_by_number(client: httpx.AsyncClient) -> None:
    space = new_namespace()
    await put_all(client, space, {name: {} for name in "abcde"})
    page = await search(client, namespaces=space, option="limit(1,2)")
    assert [item["thingId"][-1] for item in page["items"]] == ["b", "c"]
    assert (page["nextPageOffset"], "cursor" in page) == (3, False)
    page = await search(client, namespaces=space, option="limit(3,2)")
    assert [item["thingId"][-1] for item in page["items"]] == ["d", "e"]
    assert list(page) == ["items"]
    assert await search(client, namespaces=space, option="limit(5,2)") == {"items": []}


async def test_a_page_has_25_things_and_200_at_most(client: httpx.AsyncClient) -> None:
    space = new_namespace()
    await put_all(client, space, {f"t{number}": {} for number in range(27)})
    assert len(await ids(client, namespaces=space)) == 25
    assert len(await ids(client, namespaces=space, option="size(200)")) == 27
    answer = await client.get(SEARCH, params={"option": "size(201)"})
    body = check_error(answer, 400, "thing-search:search.option.invalid")
    assert body["message"] == (
        "Parameter <size> must be less than or equal to <200> but it was <201>!"
    )


# --- counts and forms


async def test_counting(client: httpx.AsyncClient) -> None:
    space = new_namespace()
    await put_all(client, space, ROOMS)
    in_kitchen = 'eq(attributes/room,"kitchen")'
    for given, expected in (({}, 4), ({"filter": in_kitchen}, 2), ({"filter": "exists(x)"}, None)):
        params = {"namespaces": space, **given}
        got, posted = await client.get(COUNT, params=params), await client.post(COUNT, data=params)
        for answer in (got, posted):
            if expected is None:
                check_error(answer, 400, "rql.expression.invalid")
            else:
                assert (answer.status_code, answer.json()) == (200, expected)
                assert answer.headers["content-type"] == "application/json"
    answer = await client.get(COUNT, params={"namespaces": new_namespace()})
    assert answer.text == "0"


async def test_a_form_says_the_same_as_a_query(client: httpx.AsyncClient) -> None:
    space = new_namespace()
    await put_all(client, space, ROOMS)
    form: dict[str, Any] = {
        "filter": ['eq(attributes/room,"kitchen")', "exists(attributes/size)"],
        "namespaces": space,
        "option": "sort(-attributes/size),size(1)",
        "fields": "thingId",
    }
    posted = await client.post(SEARCH, data=form)
    assert posted.status_code == 200
    assert posted.json()["items"] == [{"thingId": f"{space}:a"}]
    got = await client.get(SEARCH, params=form)
    assert got.json() == posted.json()
    option = f"cursor({posted.json()['cursor']})"
    posted = await client.post(SEARCH, data={"option": option, "fields": "thingId"})
    assert posted.json() == {"items": [{"thingId": f"{space}:c"}]}
    everything = await client.post(SEARCH, content=b"", headers={"content-type": FORM})
    assert everything.status_code == 200


FORM = "application/x-www-form-urlencoded"


async def test_a_filter_that_is_too_long_for_headers_elsewhere(client: httpx.AsyncClient) -> None:
    space = new_namespace()
    await put_all(client, space, {"a": {"attributes": {"n": 700}}})
    values = ",".join(str(number) for number in range(1_000))
    given = {"filter": f"in(attributes/n,{values},7)"[: -len(",7)")] + ")", "namespaces": space}
    for answer in (await client.get(SEARCH, params=given), await client.post(SEARCH, data=given)):
        assert [item["thingId"] for item in answer.json()["items"]] == [f"{space}:a"], answer.text


async def test_a_condition_is_about_the_thing_as_it_is(client: httpx.AsyncClient) -> None:
    space = new_namespace()
    await put_all(client, space, ROOMS)
    condition = "gt(attributes/size,1)"
    assert await ids(client, namespaces=space, condition=condition) == ["a", "c"]
    posted = await client.post(SEARCH, data={"namespaces": space, "condition": condition})
    assert len(posted.json()["items"]) == 2
    header = await client.get(
        SEARCH, params={"namespaces": space}, headers={"condition": condition}
    )
    assert header.json() == posted.json()
    answer = await client.get(SEARCH, params={"condition": "gt("})
    check_error(answer, 400, "rql.expression.invalid")


# --- refusals


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"filter": "eq(attributes/a, 1)"}, "rql.expression.invalid"),
        ({"filter": "eq(attributes/a,1"}, "rql.expression.invalid"),
        ({"filter": "eq(colour,1)"}, "rql.expression.invalid"),
        ({"filter": 'eq(topic:action,"modified")'}, "rql.expression.invalid"),
        ({"option": "sort(thingId)"}, "thing-search:search.option.invalid"),
        ({"option": "size(0)"}, "thing-search:search.option.invalid"),
        ({"option": "size(1),size(1)"}, "thing-search:search.option.invalid"),
        ({"option": "page(1)"}, "thing-search:search.option.invalid"),
        ({"option": "cursor(abc)"}, "thing-search:search.option.invalid"),
        ({"option": "cursor(abc),limit(0,1)"}, "thing-search:search.option.invalid"),
        ({"option": "limit(0,201)"}, "thing-search:search.option.invalid"),
        ({"namespaces": "a'b"}, "thing-search:search.namespaces.invalid"),
        ({"fields": "a("}, "json.fieldselector.invalid"),
        ({"timeout": "61s"}, "gateway:timeout.invalid"),
        ({"response-required": "false"}, "command.headers.invalid"),
    ],
)
async def test_what_is_wrong_is_said(
    client: httpx.AsyncClient, params: dict[str, str], code: str
) -> None:
    check_error(await client.get(SEARCH, params=params), 400, code)
    if not params.keys() & {"timeout", "response-required"}:
        check_error(await client.post(SEARCH, data=params), 400, code)


async def test_options_of_several_parameters_belong_together(client: httpx.AsyncClient) -> None:
    answer = await client.get(SEARCH, params={"option": ["size(1)", "size(2)"]})
    body = check_error(answer, 400, "thing-search:search.option.invalid")
    assert body["message"] == "There may not be more than 1 'size' option."
    assert body["description"] == "At least one provided option is invalid."


async def test_a_cursor_of_another_search(client: httpx.AsyncClient) -> None:
    space = new_namespace()
    await put_all(client, space, {"a": {}, "b": {}})
    page = await search(client, namespaces=space, option="size(1)")
    for other in ({"namespaces": new_namespace()}, {"filter": "exists(attributes/a)"}):
        params = {**other, "option": f"cursor({page['cursor']})"}
        answer = await client.get(SEARCH, params=params)
        body = check_error(answer, 400, "thing-search:search.option.invalid")
        assert "belongs to another search" in body["message"]


async def test_resources_methods_and_media_types(
    client: httpx.AsyncClient, gateway: Gateway
) -> None:
    check_error(await client.get("/api/2/search/none"), 404, "gateway:resource.notfound")
    check_error(await client.get(f"{COUNT}/more"), 404, "gateway:resource.notfound")
    assert (await client.get(f"{SEARCH}/")).status_code == 200
    for method in ("PUT", "DELETE", "PATCH"):
        answer = await client.request(method, SEARCH)
        check_error(answer, 405, "gateway:method.notallowed")
        assert answer.headers["allow"] == "GET, POST"
    answer = await client.post(SEARCH, json={"filter": "x"})
    check_error(answer, 415, "mediatype.unsupported")
    form = {"content-type": FORM}
    answer = await client.post(SEARCH, content=b"filter=\xff", headers=form)
    check_error(answer, 400, "json.format.invalid")
    answer = await client.post(SEARCH, content=b"filter=%ff", headers=form)
    check_error(answer, 400, "json.format.invalid")
    answer = await client.post(SEARCH, content=b"&a=1" * 2_000, headers=form)
    check_error(answer, 400, "json.format.invalid")
    long = {"x-long": "a" * 10_000}
    answer = await client.get(SEARCH, params={"filter": "a" * 60_000}, headers=long)
    check_error(answer, 431, "headers.too.large")
    async with http(gateway, None) as nobody:
        for path in (SEARCH, COUNT):
            check_error(await nobody.get(path), 401, "gateway:authentication.failed")


async def test_correlation_ids(client: httpx.AsyncClient) -> None:
    answer = await client.get(SEARCH, headers={"correlation-id": "search-1"})
    assert answer.headers["correlation-id"] == "search-1"
    answer = await client.get(SEARCH, params={"option": "x"}, headers={"correlation-id": "s-2"})
    assert answer.headers["correlation-id"] == "s-2"
