"""HTTP push through a real gateway process: many requests at once, and a store that is killed."""

from __future__ import annotations

import asyncio
import json
import random
from collections import defaultdict

import pytest

from tests.brokers.http_server import Answer, Asked
from tests.brokers.push_scene import Scene, push_scene
from tests.brokers.scenes import new_thing, until
from tests.gateways import Json, thing
from tests.servers import RedisServer

DEADLINE = 30.0


scene = pytest.fixture(push_scene)


@pytest.mark.parametrize("parallelism", [1, 4])
async def test_requests_at_once_and_in_order(scene: Scene, parallelism: int) -> None:
    under_way: list[str] = []
    overtaken: set[str] = set()
    most = 0
    seen: dict[str, list[int]] = defaultdict(list)
    together = asyncio.Event()

    async def answer(asked: Asked) -> Answer:
        nonlocal most
        event = json.loads(asked.body)
        name = event["topic"].split("/")[1]
        overtaken.update({name} & set(under_way))
        under_way.append(name)
        most = max(most, len(under_way))
        if most > 1 or parallelism == 1:
            together.set()
        await together.wait()  # with several lanes one request waits for another
        seen[name].append(event["value"])
        under_way.remove(name)
        return Answer()

    scene.server.answers = answer
    things = [await new_thing(scene.client) for _ in range(12)]
    async with scene.pushing(specificConfig={"parallelism": str(parallelism)}) as connection:
        acks = {"requested-acks": f"{connection}:pushed"}
        for thing_id in things:
            path = thing(thing_id, "/attributes/n")
            for number in range(9):
                only_stored = {"requested-acks": "twin-persisted"}
                answered = await scene.client.put(path, json=number, headers=only_stored)
                assert answered.status_code < 300
        last = await asyncio.gather(
            *(scene.client.put(thing(one, "/attributes/n"), json=9, headers=acks) for one in things)
        )
    assert {one.status_code for one in last} <= {200, 201, 204}
    assert overtaken == set()
    assert most == 1 if parallelism == 1 else 1 < most <= 4
    assert scene.server.connections <= parallelism + 1  # one of them was to see who is there
    assert all(values == list(range(10)) for values in seen.values())
    assert len(seen) == len(things)


async def test_each_sender_is_told_of_its_own_request(scene: Scene) -> None:
    chance = random.Random(6)
    told = {"fine": 200, "made": 201, "busy": 503, "wrong": 400, "cut": 500, "gone": 500}

    async def answer(asked: Asked) -> Answer | None:
        text = str(json.loads(asked.body)["value"])
        kind = text.partition(" ")[0]
        if kind == "gone":
            return None
        return Answer(
            told[kind] if kind != "cut" else 200, text.encode(), "text/plain", cut=kind == "cut"
        )

    scene.server.answers = answer
    things = [await new_thing(scene.client) for _ in range(20)]
    values = [f"{chance.choice(list(told))} {number}" for number in range(200)]
    async with scene.pushing(specificConfig={"parallelism": "8"}) as connection:

        async def one_after_the_other(thing_id: str, mine: list[str]) -> list[Json]:
            return [(await scene.change(connection, one, thing_id=thing_id))[1] for one in mine]

        shares = [values[at :: len(things)] for at in range(len(things))]
        answered = await asyncio.gather(*map(one_after_the_other, things, shares))
    for acks, mine in zip(answered, shares, strict=True):
        assert [ack["status"] for ack in acks] == [told[one.partition(" ")[0]] for one in mine]
        for ack, one in zip(acks, mine, strict=True):
            assert ack["payload"] == one or ack["status"] == 500
    assert sorted(json.loads(asked.body)["value"] for asked in scene.server.asked) == sorted(values)


async def test_a_store_that_is_killed(scene: Scene, store: RedisServer) -> None:
    async with scene.pushing() as connection:
        assert (await scene.change(connection, "before"))[0] == 200
        store.kill9()
        store.start()
        path = thing(scene.thing_id, "/attributes/n")

        async def pushed() -> bool:
            acks = {"requested-acks": f"twin-persisted,{connection}:pushed", "timeout": "2s"}
            answer = await scene.client.put(path, json="after", headers=acks)
            return answer.status_code == 200

        await until(pushed, "an event is pushed again", DEADLINE)
    assert json.loads(scene.server.asked[-1].body)["value"] == "after"
