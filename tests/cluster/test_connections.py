"""Connections and several gateway processes: who runs them, and who goes on when one dies."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.brokers.scenes import has, new_thing, until
from tests.connected import (
    Broker,
    Connection,
    ack_of,
    connected,
    gateway_of,
    modify,
    mqtt_broker,
    peer_process,
    source,
    target,
)
from tests.gateways import Gateway, http, running, thing
from tests.servers import RedisServer, wait_for

LEASES = {"connection_lease": "1500ms", "label_lease": "1500ms"}


peer = pytest.fixture(scope="module")(peer_process)
broker = pytest.fixture(mqtt_broker)


@pytest.fixture
def two(store: RedisServer, tmp_path: Path) -> Iterator[tuple[Gateway, Gateway]]:
    """Two gateways of a test's own."""
    one, other = (gateway_of(tmp_path, store, tmp_path.name, **LEASES) for _ in range(2))
    with running(one, other):
        yield one, other


def runner_of(gateways: tuple[Gateway, Gateway], connection: Connection) -> Gateway:
    """The gateway that has claimed client 0 last."""
    found = [
        (entry["timestamp"], number)
        for number, gateway in enumerate(gateways)
        for entry in gateway.events("connection.claimed")
        if entry["connection"] == connection.id and entry["client"] == 0
    ]
    return gateways[max(found)[1]]


def other_of(gateways: tuple[Gateway, Gateway], one: Gateway) -> Gateway:
    return gateways[1] if one is gateways[0] else gateways[0]


async def is_spread(connection: Connection, clients: list[int]) -> None:
    """Wait until so many clients are open at each of as many processes."""

    async def look() -> bool:
        entries = (await connection.ask("status"))["clientStatus"]
        nodes = [entry["client"].rpartition("/")[0] for entry in entries]
        well = all(entry["status"] == "open" for entry in entries)
        return well and sorted(map(nodes.count, set(nodes))) == clients

    await until(look, f"{clients} clients at the processes")


async def test_another_gateway_goes_on_when_one_dies(
    two: tuple[Gateway, Gateway], broker: Broker
) -> None:
    take, give = [await broker.peer.address(name) for name in ("in", "out")]
    targets = [target(give, issuedAcknowledgementLabel="{{connection:id}}:out")]
    async with connected(two[0], broker, [source(take)], targets) as connection:
        dying = runner_of(two, connection)
        staying = other_of(two, dying)
        label = f"{connection.id}:out"
        async with http(staying) as client:
            name = await new_thing(client, n=0)
            await broker.send(take, modify(name, 1))
            await has(client, name, "n", 1)
            dying.kill9()
            await broker.send(take, modify(name, 2))
            await has(client, name, "n", 2)

            async def acknowledged() -> bool:
                answer = await client.put(
                    thing(name, "/attributes/n"),
                    json=3,
                    headers={"requested-acks": label, "timeout": "1s"},
                )
                return answer.status_code == 200

            await until(acknowledged, "the label of the target")
        assert runner_of(two, connection) is staying


async def test_another_gateway_goes_on_at_once_when_one_ends(
    two: tuple[Gateway, Gateway], broker: Broker
) -> None:
    take = await broker.peer.address("in")
    async with connected(two[0], broker, [source(take)]) as connection:
        ending = runner_of(two, connection)
        staying = other_of(two, ending)
        async with http(staying) as client:
            name = await new_thing(client, n=0)
            assert await asyncio.to_thread(ending.stop) == 0
            await broker.send(take, modify(name, 1))
            await has(client, name, "n", 1)
            assert staying.events("connection.claimed")


async def test_who_was_paused_too_long_does_not_go_on(
    two: tuple[Gateway, Gateway], broker: Broker
) -> None:
    take = await broker.peer.address("in")
    async with connected(two[0], broker, [source(take)]) as connection:
        paused = runner_of(two, connection)
        staying = other_of(two, paused)
        async with http(staying) as client:
            name = await new_thing(client, n=0)
            paused.pause()
            try:
                await wait_for(lambda: runner_of(two, connection) is staying, 15, "takeover")
            finally:
                paused.resume()
            await wait_for(lambda: paused.events("connection.lease_lost"), 10, "end of the lease")
            for number in range(1, 20):
                await broker.send(take, modify(name, number))
                await has(client, name, "n", number)
            revision = int((await client.get(thing(name))).headers["entity-revision"])
            assert revision == 20, "each message was carried out once"
        assert runner_of(two, connection) is staying


async def test_clients_of_a_connection_are_spread_and_acks_find_the_targets(
    two: tuple[Gateway, Gateway], broker: Broker
) -> None:
    take, give = [await broker.peer.address(name) for name in ("in", "out")]
    # Each message goes to one of the clients.
    sources = [source(f"$share/all/{take}", declaredAcks=["{{connection:id}}:in"])]
    async with connected(two[0], broker, sources, [target(give)], clientCount=2) as connection:
        await is_spread(connection, [1, 1])
        label = f"{connection.id}:in"
        async with http(two[0]) as client:
            name = await new_thing(client, n=0)
            for number in range(6):
                asked = asyncio.create_task(
                    client.put(
                        thing(name, "/attributes/n"),
                        json=number,
                        headers={"requested-acks": label, "timeout": "10s"},
                    )
                )
                event = await broker.receive(give)
                while "requested-acks" not in event["headers"]:
                    event = await broker.receive(give)
                await broker.send(take, ack_of(event, label, status=201))
                assert (await asked).status_code == 201

        async def counted() -> bool:
            inbound = (await connection.ask("metrics"))["connectionMetrics"]["inbound"]
            return bool(inbound["consumed"]["success"]["PT1H"] == 6)

        await until(counted, "six messages, of both clients together")


async def test_a_process_that_comes_back_gets_its_share(
    two: tuple[Gateway, Gateway], broker: Broker
) -> None:
    take = await broker.peer.address("in")
    sources = [source(f"$share/all/{take}")]
    staying, other = two
    await asyncio.to_thread(other.stop)
    async with connected(staying, broker, sources, clientCount=4) as connection:
        await is_spread(connection, [4])
        other.start()
        await is_spread(connection, [2, 2])
        async with http(staying) as client:
            name = await new_thing(client, n=0)
            await broker.send(take, modify(name, 1))
            await has(client, name, "n", 1)
