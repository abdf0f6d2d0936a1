"""``ackgate subscribe``: the subscriber for trying things out."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from app.subscribe import SubscriberFailed, Wanted, subscribe
from tests.gateways import Gateway, new_id, new_label, thing
from tests.servers import wait_for


@asynccontextmanager
async def listening(wanted: Wanted) -> AsyncIterator[list[str]]:
    """The lines of a running subscriber; the first of them is there."""
    lines: list[str] = []
    task = asyncio.create_task(subscribe(wanted, lines.append))
    try:
        await wait_for(lambda: bool(lines) or task.done(), what="the subscriber listens")
        yield lines
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_it_prints_and_acknowledges_what_comes(
    client: httpx.AsyncClient, gateway: Gateway
) -> None:
    label, name = new_label(), new_id()
    wanted = Wanted(gateway.url, "ditto", "ditto", (label,), 202, {"by": "hand"})
    async with listening(wanted) as lines:
        answer = await client.put(thing(name), json={}, params={"requested-acks": label})
    assert (answer.status_code, answer.json()) == (202, {"by": "hand"})
    assert label in lines[0]
    assert name in lines[1]
    assert "revision 1" in lines[1]
    assert lines[2].split() == ["ack", label, "202"]


async def test_members_of_a_group_take_turns_and_stand_in_for_each_other(
    client: httpx.AsyncClient, gateway: Gateway
) -> None:
    label, name = new_label(), new_id()
    wanted = Wanted(gateway.url, "ditto", "ditto", (label,), None, group="workers:cli")
    async with listening(wanted) as one:
        assert one[0].endswith(f"{label}, shared in the group workers:cli")
        request = asyncio.create_task(
            client.put(thing(name), json={}, params={"requested-acks": label})
        )
        await wait_for(lambda: len(one) == 2)
        assert "again" not in one[1]
    async with listening(dataclasses.replace(wanted, status=200)) as other:
        assert (await request).status_code == 200
        assert name in other[1]
        assert "again, revision 1" in other[1]


async def test_silent_it_acknowledges_nothing(client: httpx.AsyncClient, gateway: Gateway) -> None:
    label = new_label()
    async with listening(Wanted(gateway.url, "ditto", "ditto", (label,), None)):
        answer = await client.put(
            thing(new_id()), json={}, params={"requested-acks": label, "timeout": "200ms"}
        )
    assert answer.status_code == 408


async def test_it_says_why_it_cannot_listen(gateway: Gateway) -> None:
    label = new_label()
    async with listening(Wanted(gateway.url, "ditto", "ditto", (label,))):
        with pytest.raises(SubscriberFailed, match="taken by other subscribers"):
            await subscribe(Wanted(gateway.url, "ditto", "ditto", (label,)), print)
    for wrong, reason in (
        (Wanted(gateway.url, "ditto", "wrong", ()), "could not be authenticated"),
        (Wanted("http://127.0.0.1:1", "ditto", "ditto", ()), "no connection"),
        (Wanted("localhost:8080", "ditto", "ditto", ()), "no http or https address"),
    ):
        with pytest.raises(SubscriberFailed, match=reason):
            await subscribe(wrong, print)
