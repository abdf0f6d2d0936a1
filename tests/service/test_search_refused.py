"""Searches that cannot be answered: no index, an index that is away, too little time."""

from __future__ import annotations

from pathlib import Path

import httpx

from tests.gateways import Gateway, check_error, http, new_id, running, thing
from tests.searching import COUNT, SEARCH, new_namespace, put, streamed
from tests.servers import RedisServer, free_port


async def test_without_an_index_there_is_no_search(store: RedisServer, place: Path) -> None:
    gateway = Gateway(place, redis_url=store.url, prefix="unsearched", search_index="off")
    with running(gateway):
        async with http(gateway) as client:
            assert (await client.put(thing(new_id()), json={})).status_code == 201
            for path in (SEARCH, COUNT):
                body = check_error(await client.get(path), 503, "gateway:service.unavailable")
                assert "search_index" in body["description"]
            check_error(
                await client.get(SEARCH, params={"filter": "x"}), 400, "rql.expression.invalid"
            )
            told = await streamed(client)
            assert [(one, data["error"]) for one, data in told] == [
                ("", "gateway:service.unavailable")
            ]


async def test_a_gateway_works_while_its_index_is_away(store: RedisServer, place: Path) -> None:
    away = f"postgresql://nobody:hidden-word@127.0.0.1:{free_port()}/none"
    gateway = Gateway(place, redis_url=store.url, prefix="index-away", search_index=away)
    with running(gateway):
        async with http(gateway) as client:
            assert (await client.put(thing(new_id()), json={})).status_code == 201
            body = check_error(await client.get(SEARCH), 503, "gateway:service.unavailable")
            assert "hidden-word" not in str(body)
    assert "hidden-word" not in gateway.log


async def test_a_search_has_its_time(store: RedisServer, place: Path) -> None:
    gateway = Gateway(place, redis_url=store.url, prefix="no-time", search_index="sqlite")
    patterns = (f'like(attributes/text,"*a*b{number}*a*a*")' for number in range(90))
    slow = {"filter": f"or({','.join(patterns)})", "namespaces": new_namespace()}
    with running(gateway):
        async with http(gateway) as client:
            for number in range(20):
                long = {"attributes": {"text": "a" * 90_000}}
                await put(client, f"{slow['namespaces']}:t{number}", long)
            for path in (SEARCH, COUNT):
                answers: list[httpx.Response] = [
                    await client.get(path, params={**slow, "timeout": "1ms"}),
                    await client.post(path, data=slow, params={"timeout": "1ms"}),
                ]
                for answer in answers:
                    body = check_error(answer, 504, "gateway:query.time.exceeded")
                    assert body["message"] == "The search took longer than 1 ms."
            # What was stopped keeps nobody else waiting.
            answer = await client.get(SEARCH, params={"namespaces": slow["namespaces"]})
            assert len(answer.json()["items"]) == 20
