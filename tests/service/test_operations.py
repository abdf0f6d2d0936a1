"""Health, metrics, drain, refused starts."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.store.embedded import LOCK_WAIT
from tests.gateways import (
    Gateway,
    RawHttp,
    Subscriber,
    ack_all,
    ack_envelope,
    alive,
    check_error,
    environment,
    http,
    new_id,
    new_label,
    put_request,
    running,
    thing,
)
from tests.servers import RedisServer, redis_server, wait_for


async def metrics(gateway: Gateway) -> dict[str, dict[str, float]]:
    """Values by sample name, then by worker (or worker and status)."""
    async with http(gateway, "devops") as operator:
        answer = await operator.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    values: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(answer.text):
        assert family.documentation
        for sample in family.samples:
            key = ",".join(value for _, value in sorted(sample.labels.items()))
            values.setdefault(sample.name, {})[key] = sample.value
    return values


async def test_metrics_can_be_parsed_and_counters_move(
    gateway: Gateway, client: httpx.AsyncClient
) -> None:
    before = await metrics(gateway)
    label = new_label()
    async with Subscriber.open(gateway, label, ack=ack_all):
        both = f"twin-persisted,{label}"
        assert (
            await client.put(thing(new_id()), json={}, params={"requested-acks": both})
        ).is_success
        during = await metrics(gateway)
    late = {"requested-acks": new_label(), "timeout": "10ms"}
    assert (await client.put(thing(new_id()), json={}, params=late)).status_code == 408
    after = await metrics(gateway)

    def moved(name: str) -> float:
        return after[name]["0"] - before[name]["0"]

    assert during["ackgate_sessions"]["0"] == before["ackgate_sessions"]["0"] + 1
    assert moved("ackgate_submitted_total") == 2
    assert moved("ackgate_acks_accepted_total") == 1
    assert moved("ackgate_events_delivered_total") == 1
    assert moved("ackgate_expired_total") == 1
    assert moved("ackgate_thing_request_seconds_count") == 2
    assert after["ackgate_open_requests"]["0"] == 0
    assert after["ackgate_ready"]["0"] == 1
    assert "408,0" in after["ackgate_http_requests_total"]
    buckets = [v for k, v in after["ackgate_thing_request_seconds_bucket"].items()]
    assert buckets == sorted(buckets)


async def test_ready_says_503_without_the_store(tmp_path: Path) -> None:
    with redis_server() as store:
        gateway = Gateway(tmp_path, redis_url=store.url)
        with running(gateway):
            store.kill9()
            await wait_for(lambda: gateway.health() == 503)
            assert gateway.health("/health/live") == 200
            async with http(gateway) as client:
                assert gateway.health("/health") == 503
                health = (await client.get("/health")).json()
                assert health["status"] == "DOWN"
                assert health["checks"]["store"]["status"] == "DOWN"
                assert health["checks"]["gateway"]["status"] == "UP"
                refused = await client.put(thing(new_id()), json={})
                check_error(refused, 503, "things:thing.unavailable")
                assert refused.headers["retry-after"]
                check_error(await client.get(thing(new_id())), 503, "things:thing.unavailable")
                async with Subscriber.open(gateway, new_label(), start=None) as subscriber:
                    assert (await subscriber.closed())[0] == 1013
                    assert subscriber.errors[0]["status"] == 503
                assert (await metrics(gateway))["ackgate_ready"]["0"] == 0
                store.start()
                await wait_for(lambda: gateway.health() == 200)
                assert (await client.put(thing(new_id()), json={})).status_code == 201


# --- drain


async def test_drain_finishes_what_is_open_and_refuses_what_is_new(
    store: RedisServer, tmp_path: Path
) -> None:
    gateway = Gateway(tmp_path, redis_url=store.url, prefix="drain1")
    other = Gateway(tmp_path, redis_url=store.url, prefix="drain1")
    label = new_label()
    with running(gateway, other):
        async with (
            http(gateway) as client,
            Subscriber.open(gateway, label) as subscriber,
            RawHttp.open(gateway) as raw,
        ):
            await raw.send(put_request(new_id(), b"{}"))
            assert (await raw.answer())[0] == 201
            request = asyncio.create_task(
                client.put(thing(new_id()), json={}, params={"requested-acks": label})
            )
            event = await subscriber.event(count=2)
            gateway.terminate()
            await wait_for(lambda: gateway.health() == 503, what="not ready while draining")
            await raw.send(put_request(new_id(), b"{}"))
            status, headers, body = await raw.answer()
            assert (status, json.loads(body)["error"]) == (503, "gateway:service.unavailable")
            assert headers["retry-after"]
            assert not request.done()
            await subscriber.send(ack_envelope(event, label, status=200, value="done"))
            assert (await request).json() == "done"
            code, _ = await subscriber.closed()
            assert code == 1012
        assert await gateway.ended() == 0
        async with Subscriber.open(other, label) as successor:
            assert successor.errors == [], "labels are free at once"


async def test_drain_ends_what_stays_open_with_503(store: RedisServer, tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, redis_url=store.url, prefix="drain2", drain_timeout="300ms")
    with running(gateway):
        async with http(gateway) as client, Subscriber.open(gateway) as subscriber:
            params = {"requested-acks": new_label(), "timeout": "60s"}
            requests = [
                asyncio.create_task(client.put(thing(new_id()), json={}, params=params))
                for _ in range(5)
            ]
            await subscriber.event(count=5)
            gateway.terminate()
            for answer in await asyncio.gather(*requests):
                check_error(answer, 503, "gateway:service.unavailable")
            assert (await subscriber.closed())[0] == 1012
        assert await gateway.ended() == 0
    assert len(gateway.events("gateway.stopped")) == 1


async def test_drain_stops_the_embedded_store_and_keeps_its_data(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path)
    name = new_id()
    with running(gateway):
        pid = gateway.store_pid()
        async with http(gateway) as client:
            assert (await client.put(thing(name), json={})).status_code == 201
        gateway.terminate()
        assert await gateway.ended() == 0
        assert not alive(pid)
        await gateway.start_async()
        async with http(gateway) as client:
            assert (await client.get(thing(name))).status_code == 200


# --- starts that are refused


def refused(*arguments: str, **settings: str) -> str:
    """Run ``serve``, expect that it ends with code 2, and return what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "app", "serve", "--port", "0", *arguments],
        env=environment(log_format="json", **settings),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("ackgate: error:"))
    return line


@pytest.mark.parametrize(
    ("arguments", "settings", "text"),
    [
        ((), {}, "no users"),
        ((), {"users": "ditto:ditto"}, "ditto: still the default password"),
        ((), {"users": "a:b", "operators": "devops:foobar"}, "devops: still the default password"),
        (("--dev", "--host", "0.0.0.0"), {}, "other machines reach 0.0.0.0"),
    ],
)
def test_unsafe_settings(arguments: tuple[str, ...], settings: dict[str, str], text: str) -> None:
    assert text in refused(*arguments, **settings)


def test_a_port_that_is_taken(gateway: Gateway, store: RedisServer) -> None:
    text = refused("--dev", "--redis-url", store.url, "--port", str(gateway.port))
    assert f"cannot listen on 127.0.0.1:{gateway.port}" in text


def test_no_store(tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/none"
    assert "no store at" in refused("--dev", "--redis-url", url, store_timeout="300ms")


def test_another_number_of_shards(gateway: Gateway, store: RedisServer) -> None:
    text = refused("--dev", "--redis-url", store.url, prefix="service", shards="4")
    assert "was made with shards=8, this gateway is set to shards=4" in text


@pytest.mark.parametrize(
    ("appendfsync", "options", "durability", "text"),
    [
        ("everysec", (), "fsync", "appendfsync everysec"),
        ("no", (), "everysec", "appendfsync no"),
        ("always", ("--appendonly", "no"), "fsync", "appendonly no"),
    ],
)
def test_a_store_that_is_not_durable_enough(
    appendfsync: str, options: tuple[str, ...], durability: str, text: str
) -> None:
    with redis_server(appendfsync=appendfsync, options=options) as weak:  # type: ignore[arg-type]
        said = refused("--dev", "--redis-url", weak.url, durability=durability)
    assert text in said
    assert f"durability={durability} needs a store with 'appendonly yes'" in said
    assert "ACKGATE_DURABILITY" in said


async def test_durability_none_takes_any_store(tmp_path: Path) -> None:
    with redis_server(appendfsync="no") as weak:
        gateway = Gateway(tmp_path, redis_url=weak.url, durability="none")
        with running(gateway):
            async with http(gateway) as client:
                assert (await client.put(thing(new_id()), json={})).status_code == 201


@pytest.mark.slow
def test_a_data_directory_in_use(tmp_path: Path) -> None:
    """The second gateway waits for the lock first: the store of a killed one takes a moment."""
    assert LOCK_WAIT < 60
    gateway = Gateway(tmp_path)
    with running(gateway):
        text = refused("--dev", "--data-dir", str(tmp_path / "data"))
        assert f"is in use by process {gateway.child.pid}" in text
        assert gateway.health() == 200
