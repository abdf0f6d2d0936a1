"""Who runs a connection, and who does not any more; what counts when it is changed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.store.connections import ConnectionStore
from app.store.redis_client import Redis, RedisAddress
from tests.brokers.mosquitto import MqttPeer, mosquitto
from tests.brokers.scenes import Operator, has, new_thing, until
from tests.connected import (
    Broker,
    connected,
    gateway_of,
    modify,
    mqtt_broker,
    peer_process,
    source,
    target,
)
from tests.gateways import Subscriber, http, new_label, running, thing
from tests.servers import RedisServer, wait_for

QUICK = {"connection_lease": "1s", "label_lease": "1s"}

peer = pytest.fixture(scope="module")(peer_process)
broker = pytest.fixture(mqtt_broker)


@asynccontextmanager
async def documents(store: RedisServer, prefix: str) -> AsyncIterator[ConnectionStore]:
    """The store's connections, for who is no gateway."""
    redis = Redis(RedisAddress.parse(store.url), name="test")
    await redis.start()
    try:
        yield ConnectionStore(redis, prefix)
    finally:
        await redis.close()


async def test_what_came_while_it_was_paused_is_not_settled_by_who_has_lost_the_lease(
    store: RedisServer, tmp_path: Path, broker: Broker
) -> None:
    """MQTT has no other way to say no than an ack, and nobody else is there to get it."""
    take = await broker.peer.address("in")
    gateway = gateway_of(tmp_path, store, tmp_path.name, **QUICK)
    with running(gateway):
        async with (
            documents(store, tmp_path.name) as known,
            connected(gateway, broker, [source(take)]) as connection,
            http(gateway) as client,
        ):
            names = [await new_thing(client, n=0) for _ in range(20)]
            gateway.pause()
            try:
                for number, name in enumerate(names, 1):
                    await broker.send(take, modify(name, number))

                async def over() -> bool:
                    return await known.owners(connection.id) == {}

                await until(over, "the end of the lease")
            finally:
                gateway.resume()
            for number, name in enumerate(names, 1):
                await has(client, name, "n", number)


async def test_what_a_paused_gateway_finds_in_itself_undoes_nothing(
    store: RedisServer, tmp_path: Path, broker: Broker
) -> None:
    take = await broker.peer.address("in")
    two = [gateway_of(tmp_path, store, tmp_path.name, **QUICK) for _ in range(2)]
    with running(*two):
        async with connected(two[0], broker, [source(take)]), http(two[0]) as client:
            paused, other = two if two[0].events("connection.claimed") else reversed(two)
            name = await new_thing(client, n=0)
            for number in range(1, 151):
                await broker.send(take, modify(name, number))
            paused.pause()  # in the midst of them
            try:
                await wait_for(lambda: other.events("connection.claimed"), 15, "takeover")
                for number in range(151, 301):
                    await broker.send(take, modify(name, number))
                async with http(other) as looking:
                    await has(looking, name, "n", 300)
            finally:
                paused.resume()

            def closed() -> bool:
                return any(e["state"] == "closed" for e in paused.events("connection.state"))

            await wait_for(closed, 15, "the end of the old client")
            async with http(other) as looking:
                assert (await looking.get(thing(name, "/attributes/n"))).json() == 300


async def test_who_cannot_run_it_leaves_it_to_others(
    store: RedisServer, tmp_path: Path, broker: Broker
) -> None:
    give = await broker.peer.address("out")
    full = gateway_of(tmp_path, store, tmp_path.name, max_sessions="1")
    other = gateway_of(tmp_path, store, tmp_path.name)
    with running(full):
        async with Subscriber.open(full, new_label()), Operator(full) as operator:
            document = {
                "connectionType": "mqtt-5",
                "connectionStatus": "open",
                "uri": broker.uri,
                "targets": [target(give)],
            }
            connection_id = await operator.create(document, wait=False)
            await wait_for(lambda: full.events("connection.not_run"), 10, "no room")
            with running(other):
                await operator.is_live(connection_id)
                assert (
                    await operator.client.delete(f"/api/2/connections/{connection_id}")
                ).is_success


async def test_a_document_in_the_place_of_a_deleted_one_counts(
    store: RedisServer, tmp_path: Path, broker: Broker
) -> None:
    """As after a store was set back: the same id and revision, but it says something else."""
    old, new = [await broker.peer.address(name) for name in ("old", "new")]
    gateway = gateway_of(tmp_path, store, tmp_path.name)
    with running(gateway):
        async with (
            documents(store, tmp_path.name) as known,
            connected(gateway, broker, [source(old)]) as connection,
            http(gateway) as client,
        ):
            name = await new_thing(client, n=0)
            gateway.pause()  # it sees both changes at once
            try:
                stored = await known.get(connection.id)
                assert stored is not None
                assert await known.delete(connection.id)
                [one] = stored.document["sources"]
                document = {**stored.document, "sources": [{**one, "addresses": [new]}]}
                assert await known.create(document) == stored.revision
            finally:
                gateway.resume()

            async def consumed() -> bool:
                await broker.send(new, modify(name, 1))
                answer = await client.get(thing(name, "/attributes/n"))
                return bool(answer.json() == 1)

            await until(consumed, "the new address")


async def test_a_label_that_is_half_a_character_does_not_silence_the_status(
    store: RedisServer, tmp_path: Path, broker: Broker
) -> None:
    take = await broker.peer.address("in")
    gateway = gateway_of(tmp_path, store, tmp_path.name)
    sources = [source(take, acknowledgementRequests={"includes": ["twin-persisted"]})]
    with running(gateway):
        async with connected(gateway, broker, sources) as connection, http(gateway) as client:
            name = await new_thing(client, n=0)
            await broker.send(take, modify(name, 1, requested_acks='["\\ud800"]'))
            await broker.send(take, modify(name, 2))
            await has(client, name, "n", 2)

            async def counted() -> bool:
                inbound = (await connection.ask("metrics"))["connectionMetrics"]["inbound"]
                return bool(inbound["consumed"]["success"]["PT1H"] == 2)

            await until(counted, "both messages in the metrics")
            assert await connection.clients() == {0: "open"}


async def test_more_clients_get_what_the_one_was_to_get(
    store: RedisServer, tmp_path: Path, broker: Broker
) -> None:
    """The broker keeps messages for a session, that is, for a client's id."""
    take = await broker.peer.address("in")
    gateway = gateway_of(tmp_path, store, tmp_path.name)
    with running(gateway):
        async with (
            connected(gateway, broker, [source(f"$share/all/{take}")]) as connection,
            http(gateway) as client,
        ):
            names = [await new_thing(client, n=0) for _ in range(8)]
            await connection.operator.close(connection.id)
            for number, name in enumerate(names, 1):
                await broker.send(take, modify(name, number))
            await connection.replace(clientCount=3)
            await connection.is_open(3)
            for number, name in enumerate(names, 1):
                await has(client, name, "n", number)


@pytest.mark.parametrize("failover", [True, False])
async def test_who_opens_what_is_lost_does_not_wait_for_the_next_try(
    store: RedisServer, tmp_path: Path, failover: bool
) -> None:
    patient = {"connection_retry": "10m", "connection_retry_max": "10m"}
    gateway = gateway_of(tmp_path, store, tmp_path.name, **patient)
    with mosquitto() as process, running(gateway):
        process.stop()
        async with Operator(gateway) as operator:
            document = {
                "connectionType": "mqtt-5",
                "connectionStatus": "open",
                "uri": Broker(MqttPeer(process, "mqtt-5")).uri,
                "failoverEnabled": failover,
                "targets": [target("out")],
            }
            connection_id = await operator.create(document, wait=False)
            await operator.is_live(connection_id, "failed")
            process.start()
            await operator.command(connection_id, "openConnection")
            await operator.is_live(connection_id)
