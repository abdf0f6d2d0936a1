"""The source beside a real gateway: what it writes is read, and requests get their acks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from pyspark.sql import SparkSession

from acks.envelopes import WEAK_FILTERED
from tests.gateways import Gateway, basic, new_id, running
from tests.servers import RedisServer
from tests.spark.conftest import Query, Seen, Store

LABEL = "spark:seen"


@pytest.fixture(scope="module")
def gateway(server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    place = tmp_path_factory.mktemp("gateway")
    one = Gateway(place, redis_url=server.url, prefix="spark-source", durability="none")
    with running(one):
        yield one


@pytest.fixture
def real(server: RedisServer, gateway: Gateway) -> Iterator[Store]:
    """The gateway's data; nothing is written to it here."""
    store = Store(server.url, "spark-source", create=False)
    yield store
    store.redis.close()


def put(gateway: Gateway, path: str, body: object, **query: str) -> httpx.Response:
    url = f"{gateway.url}/api/2/things/{path}"
    with httpx.Client(headers={"authorization": basic("ditto")}, trust_env=False) as client:
        return client.put(url, params=query, json=body, timeout=60)


@pytest.mark.parametrize("read_on", ["auto", "executors"])
def test_a_request_is_answered_when_its_batch_is_in_the_checkpoint(
    spark: SparkSession, gateway: Gateway, real: Store, tmp_path: Path, read_on: str
) -> None:
    seen, thing_id = Seen(), new_id()
    options = {"ackLabels": LABEL, "filter": "gt(attributes/level,5)", "readOn": read_on}
    with Query(spark, real, tmp_path / "c", seen, **options) as query:
        query.wait_started(seen)
        asked = {"requested-acks": f"twin-persisted,{LABEL}", "timeout": "30s"}
        created = put(gateway, thing_id, {"attributes": {"level": 9, "ü": "é"}}, **asked)
        ignored = put(gateway, f"{thing_id}/attributes/level", 3, **asked)
    assert (created.status_code, ignored.status_code) == (200, 200)
    assert created.json()[LABEL]["status"] == 200
    assert "payload" not in created.json()[LABEL]
    assert ignored.json()[LABEL]["headers"]["ditto-weak-ack"] is True
    assert ignored.json()[LABEL]["payload"] == WEAK_FILTERED
    [row] = seen.rows
    assert (row.thing_id, row.action, row.path, row.revision) == (thing_id, "created", "/", 1)
    assert '"ü":"é"' in row.value.replace(" ", "")
    assert row.requested_acks == [LABEL]
    assert row.headers["ditto-originator"] == "nginx:ditto"


def test_a_batch_reads_what_the_gateway_has_written(
    spark: SparkSession, gateway: Gateway, real: Store
) -> None:
    thing_id = new_id("my.space")
    assert put(gateway, thing_id, {"attributes": {"a": 1}}).status_code == 201
    assert put(gateway, f"{thing_id}/attributes/a", 2).status_code == 204
    reader = spark.read.format("ackgate").option("redisUrl", real.url)
    table = reader.options(prefix=real.prefix, namespaces="my.space", variant="true").load()
    rows = table.orderBy("revision").collect()
    assert [(row.action, row.path, row.value_variant.toPython()) for row in rows[1:]] == [
        ("modified", "/attributes/a", 2)
    ]
    assert rows[0].value_variant.toPython()["attributes"] == {"a": 1}
    assert rows[0].topic == f"{thing_id.replace(':', '/')}/things/twin/events/created"
