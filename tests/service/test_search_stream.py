"""The search as a stream of server-sent events (spec websocket-... 3)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from tests.gateways import Gateway, Json, RawHttp, basic, check_error, http, running, thing
from tests.searching import (
    COUNT,
    SEARCH,
    STREAM,
    delete,
    ids,
    new_namespace,
    put,
    put_all,
    streamed,
)
from tests.servers import RedisServer
from tests.service.policies import policy_of
from tests.streams import until


@pytest.fixture(scope="module")
def gateway(store: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    place = tmp_path_factory.mktemp("search-streams")
    one = Gateway(place, redis_url=store.url, prefix="search-streams", search_index="sqlite")
    with running(one):
        yield one


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with http(gateway) as client:
        yield client


SIZES: dict[str, Json] = {
    f"t{number:02}": {"attributes": {"size": number % 4}} for number in range(12)
}


async def test_a_stream_tells_all_that_is_found(client: httpx.AsyncClient) -> None:
    space = new_namespace()
    names = await put_all(client, space, SIZES)
    told = await streamed(client, namespaces=space, option="size(5)")
    assert [one for one, _ in told] == names
    assert told[3][1] == (await client.get(thing(names[3]))).json()
    big = await streamed(
        client, namespaces=space, filter="ge(attributes/size,3)", fields="policyId"
    )
    assert big == [(name, {"policyId": name}) for name in names[3::4]]
    assert await streamed(client, namespaces=new_namespace()) == []


@pytest.mark.parametrize("sort", ["", "sort(-thingId)", "sort(-attributes/size)"])
async def test_a_stream_goes_on_after_the_last_thing(client: httpx.AsyncClient, sort: str) -> None:
    space = new_namespace()
    await put_all(client, space, SIZES)
    wanted = {"namespaces": space, "option": sort}
    everything = [one for one, _ in await streamed(client, **wanted)]
    for position in (0, 4, 10, 11):
        rest = await streamed(client, everything[position], **wanted)
        assert [one for one, _ in rest] == everything[position + 1 :]
    again = await client.get(
        SEARCH, params={**wanted, "last-event-id": everything[-1]}, headers=STREAM
    )
    assert "data" not in again.text


async def test_the_last_thing_may_have_gone(client: httpx.AsyncClient) -> None:
    space = new_namespace()
    names = await put_all(client, space, SIZES)
    await delete(client, names[5])
    rest = await streamed(client, names[5], namespaces=space)
    assert [one for one, _ in rest] == names[6:]
    # In another order nobody knows any more where it stood.
    told = await streamed(client, names[5], namespaces=space, option="sort(+attributes/size)")
    assert [(one, data["error"]) for one, data in told] == [("", "things:thing.notfound")]


async def test_an_id_with_other_characters(client: httpx.AsyncClient) -> None:
    space = new_namespace()
    names = await put_all(client, space, {"\u4e00": {}, "\u4e01 b": {}})
    headers = {**STREAM, "last-event-id": names[0]}
    encoded = [(key.encode(), value.encode()) for key, value in headers.items()]
    answer = await client.get(SEARCH, params={"namespaces": space}, headers=encoded)
    assert f"id: {names[1]}\n" in answer.content.decode()
    assert f"id: {names[0]}\n" not in answer.content.decode()


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"filter": "eq(attributes/a, 1)"}, "rql.expression.invalid"),
        ({"option": "size(0)"}, "thing-search:search.option.invalid"),
        ({"option": "limit(0,1)"}, "thing-search:search.option.invalid"),
        ({"namespaces": "a'b"}, "thing-search:search.namespaces.invalid"),
        ({"fields": "("}, "json.fieldselector.invalid"),
    ],
)
async def test_errors_are_events(
    client: httpx.AsyncClient, params: dict[str, str], code: str
) -> None:
    told = await streamed(client, **params)
    assert [(one, data["error"], data["status"]) for one, data in told] == [("", code, 400)]


async def test_who_may_not_come_in_gets_no_stream(gateway: Gateway) -> None:
    async with http(gateway, None) as nobody:
        answer = await nobody.get(SEARCH, headers=STREAM)
        check_error(answer, 401, "gateway:authentication.failed")
    async with http(gateway) as client:
        answer = await client.get(SEARCH, headers=STREAM, params={"timeout": "61s"})
        check_error(answer, 400, "gateway:timeout.invalid")


async def test_a_count_and_a_form_are_no_streams(client: httpx.AsyncClient) -> None:
    for answer in (
        await client.get(COUNT, headers=STREAM),
        await client.post(SEARCH, data={"option": "size(1)"}, headers=STREAM),
    ):
        assert answer.headers["content-type"] == "application/json"


async def test_a_stream_tells_what_its_client_may_read(
    client: httpx.AsyncClient, gateway: Gateway
) -> None:
    space = new_namespace()
    value = {"attributes": {"open": 1, "secret": 1}}
    part = {**value, "_policy": policy_of(user2={"thing:/attributes/open": "+"})}
    await put_all(client, space, {"part": part, "none": {**value, "_policy": policy_of()}})
    assert await ids(client, namespaces=space) == ["none", "part"]
    async with http(gateway, "user2") as other:
        told = await streamed(other, namespaces=space)
    assert told == [(f"{space}:part", {"thingId": f"{space}:part", "attributes": {"open": 1}})]


async def test_a_client_that_leaves_or_does_not_read_is_let_go(
    client: httpx.AsyncClient, gateway: Gateway
) -> None:
    space = new_namespace()
    large = {"attributes": {"text": "x" * 90_000}}
    for number in range(60):
        await put(client, f"{space}:t{number}", large)

    async def streams() -> int:
        async with http(gateway, "devops") as operator:
            text = (await operator.get("/metrics")).text
        lines = [line for line in text.splitlines() if line.startswith("ackgate_search_streams{")]
        return int(float(lines[0].rpartition(" ")[2]))

    async with RawHttp.open(gateway) as raw:
        lines = [
            f"GET {SEARCH}?namespaces={space} HTTP/1.1", "Host: gateway.test",
            f"Authorization: {basic('ditto')}", "Accept: text/event-stream",
        ]  # fmt: skip
        await raw.send("\r\n".join(lines).encode() + b"\r\n\r\n")
        assert b"text/event-stream" in await raw.reader.readuntil(b"\r\n\r\n")
        assert await streams() == 1
    async with http(gateway) as other:
        assert await ids(other, namespaces=space, option="size(1)") == ["t0"]

    async def gone() -> bool:
        return await streams() == 0

    await until(gone)
