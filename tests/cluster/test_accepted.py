"""Accepted requests do not depend on the process that accepted them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateways import (
    Gateway,
    Subscriber,
    ack_envelope,
    http,
    new_id,
    new_label,
    revision,
    running,
    thing,
)
from tests.servers import RedisServer
from tests.streams import put_async, reached, state, stream


@pytest.fixture
def two(store: RedisServer, tmp_path: Path) -> Iterator[tuple[Gateway, Gateway]]:
    """A pair of which the test may kill the first one."""
    one, other = (Gateway(tmp_path, redis_url=store.url, prefix="accepted") for _ in range(2))
    with running(one, other):
        yield one, other


async def test_another_node_finishes_what_a_killed_one_has_accepted(
    two: tuple[Gateway, Gateway],
) -> None:
    doomed, other = two
    name, one, late = new_id(), new_label(), new_label()
    async with Subscriber.open(other, one, late) as subscriber:
        async with http(doomed) as client:
            path = await put_async(client, name, requested_acks=f"twin-persisted,{one},{late}")
            event = await subscriber.event()
            await subscriber.send(ack_envelope(event, one, status=200, value=1))
            async with stream(client, path) as events:
                before = [await events.next(), await events.next()]
        doomed.kill9()
        async with http(other) as client:
            body = await state(client, path)
            assert (body["state"], body["owed"]) == ("pending", [late])
            assert before[-1] is not None
            async with stream(client, path, last=before[-1].id) as events:
                await subscriber.send(ack_envelope(event, late, status=201, value=2))
                rest = await events.rest()
            assert [(step.id, step.kind) for step in rest] == [(3, "outcome")]
            body = await reached(client, path, state="done")
            assert body["outcome"]["status"] == 200
            statuses = {label: entry["status"] for label, entry in body["outcome"]["body"].items()}
            assert statuses == {"twin-persisted": 201, one: 200, late: 201}
            location = body["outcome"]["body"]["twin-persisted"]["headers"]["location"]
            assert location == doomed.url + thing(name)
            assert rest[0].data == body
            assert await revision(client, name) == 1


async def test_another_node_expires_what_a_killed_one_has_accepted(
    two: tuple[Gateway, Gateway],
) -> None:
    doomed, other = two
    label = new_label()
    async with Subscriber.open(other, label) as subscriber:
        async with http(doomed) as client:
            path = await put_async(client, new_id(), requested_acks=label, timeout="3s")
            event = await subscriber.event()
        doomed.kill9()
        async with http(other) as client:
            body = await reached(client, path, state="done")
            assert body["outcome"]["status"] == 408
            assert body["outcome"]["body"]["error"] == "acknowledgement:request.timeout"
            await subscriber.send(ack_envelope(event, label, status=200))
            await subscriber.nothing_came()
            assert await state(client, path) == body, "a late ack changes nothing"


async def test_a_killed_node_leaves_nothing_half_done(two: tuple[Gateway, Gateway]) -> None:
    """Killed right after the 202s: what its record calls persisted is there, and nothing else is
    pending for ever."""
    doomed, other = two
    names = [new_id() for _ in range(20)]
    async with http(doomed) as client:
        paths = [await put_async(client, name, timeout="1s") for name in names]
        doomed.kill9()
    async with http(other) as client:
        for name, path in zip(names, paths, strict=True):
            body = await reached(client, path, state="done")
            written = await revision(client, name) == 1
            assert body["outcome"]["status"] == (201 if written else 408)
