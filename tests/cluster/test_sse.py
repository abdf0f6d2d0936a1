"""Streams of server-sent events when a gateway or the store dies."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.events import STREAM, THINGS, events, mark_now, put
from tests.gateways import Gateway, check_error, http, new_id, running, thing
from tests.servers import RedisServer, redis_server, wait_for


@pytest.fixture
def own() -> Iterator[RedisServer]:
    """A store that the test may hurt."""
    with redis_server() as server:
        yield server


@pytest.fixture
def two(own: RedisServer, tmp_path: Path) -> Iterator[tuple[Gateway, Gateway]]:
    one, other = (Gateway(tmp_path, redis_url=own.url) for _ in range(2))
    with running(one, other):
        yield one, other


async def test_a_stream_goes_on_at_another_gateway_after_kill9(
    two: tuple[Gateway, Gateway],
) -> None:
    one, other = two
    names = [new_id() for _ in range(10)]
    ids, rounds = ",".join(names), 40

    async def write(client: httpx.AsyncClient, name: str) -> None:
        for number in range(rounds):
            await put(client, name, {"attributes": {"n": number}})

    async with http(other) as client:
        async with http(one) as dying, events(dying, ids=ids) as stream:
            writers = [asyncio.create_task(write(client, name)) for name in names]
            await stream.event(count=50)
            one.kill9()
            await stream.closed()
            assert not stream.ended
        left = rounds * len(names) - len(stream.told)
        async with events(client, last=stream.mark, ids=ids) as again:
            await asyncio.gather(*writers)
            await again.event(count=left)
        told = [(one["thingId"], one["attributes"]["n"]) for one in stream.things + again.things]
    for name in names:
        assert [number for of, number in told if of == name] == list(range(rounds))
    assert len(told) == rounds * len(names)


async def test_a_bookmark_of_a_process_that_is_ahead(two: tuple[Gateway, Gateway]) -> None:
    """What a slower process has yet to read has been told already, and is not told again."""
    slow, fast = two
    name, count = new_id(), 1500
    async with http(slow) as client, http(fast) as ahead, events(client, ids=new_id()):
        async with events(client, ids=name, last=await mark_now(client)):
            pass  # its connection for replays is there
        async with events(ahead, ids=name) as stream:
            slow.pause()
            try:
                for _ in range(count // 100):
                    await asyncio.gather(*(put(ahead, name, {}) for _ in range(100)))
                await stream.event(count=count)
                # It waits in the socket: the answer comes as soon as the process runs again.
                opening = asyncio.create_task(one_more(client, ahead, name, stream.mark))
                await wait_for(lambda: waits_for(slow), 10, "the request")
            finally:
                slow.resume()
            assert await opening == [count + 1]


def waits_for(gateway: Gateway) -> bool:
    """Whether something has been sent to the gateway that it has not read."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    fields = (line.split() for line in lines)
    return any(
        local.endswith(f":{gateway.port:04X}") and not queues.endswith(":00000000")
        for _, local, _, _, queues, *_ in fields
    )


async def one_more(
    client: httpx.AsyncClient, writer: httpx.AsyncClient, name: str, mark: str
) -> list[int]:
    """The revisions that a stream is told after ``mark`` when the thing is written once more."""
    async with events(client, ids=name, last=mark, fields="_revision") as stream:
        await put(writer, name, {})
        await stream.heartbeat()
        await stream.event()
        return [told["_revision"] for told in stream.things]


async def served_again(client: httpx.AsyncClient) -> None:
    """PUT until it succeeds."""
    async with asyncio.timeout(30):
        while not (await client.put(thing(new_id()), json={})).is_success:  # noqa: ASYNC110 - rare
            await asyncio.sleep(0.05)


async def test_streams_live_through_the_death_of_the_store(
    own: RedisServer, two: tuple[Gateway, Gateway]
) -> None:
    one, other = two
    name = new_id()
    async with http(one) as client, http(other) as elsewhere:
        async with events(client, ids=name) as stream:
            await put(client, name, {"attributes": {"n": 0}})
            await stream.event()
            own.kill9()
            await wait_for(lambda: other.health() == 503, 20, "the store missed")
            refused = await elsewhere.get(THINGS, headers={**STREAM, "last-event-id": stream.mark})
            check_error(refused, 503, "gateway:service.unavailable")
            before = len(stream.comments)
            await wait_for(lambda: len(stream.comments) > before + 1, 10, "signs of life")
            own.start()
            await served_again(client)
            await served_again(elsewhere)
            await put(elsewhere, name, {"attributes": {"n": 1}})
            await stream.event(count=2)
            assert [one["attributes"]["n"] for one in stream.things] == [0, 1]
        async with events(elsewhere, last=stream.told[0].mark, ids=name) as again:
            await again.event()
            assert [one["attributes"]["n"] for one in again.things] == [1]
