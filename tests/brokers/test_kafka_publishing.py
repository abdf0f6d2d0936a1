"""Publishing to Kafka, and opening a connection to it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError

from connections.driver import Limits, Publication
from connections.kafka.driver import KafkaDriver
from connections.model import Connection, Source, Uri
from tests.brokers.authority import Authority
from tests.brokers.kafka import (
    PASSWORD,
    PRODUCE,
    USER,
    KafkaPeer,
    guarded_server,
    kafka_peer,
    kafka_server,
    told_otherwise,
)
from tests.brokers.peers import DEADLINE, Client, client, connection_of, refusal
from tests.servers import free_port

peer = pytest.fixture(scope="module")(kafka_peer)


# --- publishing


async def _published(one: Client, address: str, payload: bytes = b"x", **more: Any) -> Any:
    return await one.driver.publish(Publication(address, payload, None, **more), DEADLINE)


async def test_a_message_that_is_stored_is_answered_with_204(peer: KafkaPeer) -> None:
    topic = peer.make("out")
    async with client(peer, peer.connection(targets=[topic])) as one:
        published = await _published(one, topic)
        assert (published.status, published.payload) == (204, None)


async def test_with_debug_the_answer_says_where_the_message_is(peer: KafkaPeer) -> None:
    topic = peer.make("out", partitions=3)
    async with client(peer, peer.connection(targets=[topic], debugEnabled="true")) as one:
        published = await _published(one, f"{topic}#2", b"four")
        assert published.status == 200
        assert isinstance(published.payload.pop("timestamp"), int)
        assert published.payload == {
            "serializedKeySize": -1,
            "serializedValueSize": 4,
            "topic": topic,
            "partition": 2,
            "offset": 0,
        }
        published = await _published(one, f"{topic}/ö")
        assert published.payload["serializedKeySize"] == 2


@pytest.mark.parametrize(
    ("suffix", "key", "partition"),
    [("", b"org.acme:thing", None), ("/a/b", b"a/b", None), ("#1", None, 1)],
)
async def test_where_a_message_goes(
    peer: KafkaPeer, suffix: str, key: bytes | None, partition: int | None
) -> None:
    topic = peer.make("out", partitions=2)
    async with client(peer, peer.connection(targets=[topic + suffix])) as one:
        published = await _published(one, topic + suffix, key="org.acme:thing")
        assert published.status == 204
        message = peer.receive_message(topic)
        assert message.key() == key
        assert partition is None or message.partition() == partition


@pytest.mark.parametrize(
    ("address", "payload", "text"),
    [
        ("{topic}#7", b"x", "partition"),
        ("{topic}#x", b"x", "'x' is no number of a partition"),
        ("{topic}", b"x" * 200_000, "large"),
    ],
)
async def test_what_will_never_be_stored_is_answered_with_400(
    peer: KafkaPeer, address: str, payload: bytes, text: str
) -> None:
    topic = peer.make("out")
    limits = Limits(message_bytes=100_000)
    async with client(peer, peer.connection(targets=[topic]), limits=limits) as one:
        published = await _published(one, address.format(topic=topic), payload)
        assert published.status == 400
        assert published.payload["error"] == "connectivity:message.sending.failed"
        assert "status" not in published.payload
        assert text in published.payload["message"]
        assert not published.lost
        assert (await _published(one, topic)).status == 204


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (KafkaError.INVALID_REQUIRED_ACKS, 400),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, 400),
        (KafkaError.NOT_ENOUGH_REPLICAS, 500),
    ],
)
async def test_an_error_of_the_broker(
    peer: KafkaPeer, monkeypatch: pytest.MonkeyPatch, code: int, status: int
) -> None:
    topic = peer.make("out")
    told_otherwise(monkeypatch, "publishing", {"message.timeout.ms": 1_500, "retry.backoff.ms": 50})
    async with client(peer, peer.connection(targets=[topic])) as one:
        peer.server.tell("errors", PRODUCE, [code] * 200)
        try:
            published = await _published(one, topic)
        finally:
            peer.server.tell("clear_errors", PRODUCE)
        assert published.status == status
        assert published.payload["error"] == "connectivity:message.sending.failed"


async def test_too_many_messages_and_a_deadline(peer: KafkaPeer) -> None:
    topic = peer.make("out")
    limits = Limits(publishing=2)
    async with client(peer, peer.connection(targets=[topic]), limits=limits) as one:
        assert (await _published(one, topic)).status == 204
        peer.server.tell("down")
        try:
            publication = Publication(topic, b"x", None)
            slow = [one.driver.publish(publication, 0.2) for _ in range(2)]
            waiting = [asyncio.create_task(each) for each in slow]
            await asyncio.sleep(0)
            published = await _published(one, topic)
            assert published.status == 503
            assert "Too many" in published.payload["message"]
            late = await asyncio.gather(*waiting)
            assert {each.status for each in late} == {500}
        finally:
            peer.server.tell("up")


# --- opening


def _connection(uri: Uri, **more: Any) -> Connection:
    specific = {"sessionTimeout": "2s", **more.pop("specific", {})}
    made = connection_of("kafka", uri, ["in"], ["out"], qos=1, specific=specific)
    return replace(made, **more)


async def _works(connection: Connection) -> None:
    """A message goes both ways."""
    one = Client(KafkaDriver(connection, 0, 1, Limits()))
    await one.open()
    try:
        assert (await _published(one, "in")).status == 204
        delivery = await one.next()
        assert delivery.payload == b"x"
        one.settle(delivery)
    finally:
        await one.driver.close(5)
    assert one.lost == []


@pytest.mark.parametrize("mechanism", ["plain", "SCRAM-SHA-256", "scram-sha-512"])
async def test_users_are_known_by_each_mechanism(mechanism: str) -> None:
    with kafka_server(mechanisms=[mechanism.upper()], user=USER, password=PASSWORD) as server:
        server.topic("in")
        uri = Uri("tcp", "127.0.0.1", server.port, user=USER, password=PASSWORD)
        specific = {"saslMechanism": mechanism}
        await _works(_connection(uri, specific=specific))
        wrong = replace(uri, password="not the word")
        error = await refusal(KafkaDriver, _connection(wrong, specific=specific))
        assert error.cause == "credentials"
        assert "not the word" not in str(error)


async def test_a_mechanism_that_the_broker_does_not_know() -> None:
    with kafka_server(mechanisms=["PLAIN"], user=USER, password=PASSWORD) as server:
        uri = Uri("tcp", "127.0.0.1", server.port, user=USER, password=PASSWORD)
        specific = {"saslMechanism": "scram-sha-256"}
        assert (
            await refusal(KafkaDriver, _connection(uri, specific=specific))
        ).cause == "misconfigured"


async def test_tls_with_a_certificate_of_the_client(tmp_path: Path) -> None:
    authority = Authority()
    trusted = tmp_path / "ca.pem"
    trusted.write_text(authority.pem)
    guard = {"client_ca": str(trusted), "mechanisms": ["SCRAM-SHA-512"]}
    with guarded_server(authority, user=USER, password=PASSWORD, **guard) as server:
        server.topic("in")
        uri = Uri("ssl", "127.0.0.1", server.port, user=USER, password=PASSWORD)
        certificate, key = authority.pair("client")
        credentials = {"type": "client-cert", "cert": certificate, "key": key}
        fields = {"ca": authority.pem, "specific": {"saslMechanism": "scram-sha-512"}}
        await _works(_connection(uri, credentials=credentials, **fields))
        assert (await refusal(KafkaDriver, _connection(uri, **fields))).cause == "temporary"
        # Nobody asks who the broker is.
        blind = {**fields, "ca": None, "validate_certificates": False}
        await _works(_connection(uri, credentials=credentials, **blind))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"uri": Uri("tcp", "127.0.0.1", 1, user="u", password="secret")}, "<saslMechanism>"),
        ({"specific": {"bootstrapServers": "one:9092,two"}}, "'two'"),
        ({"specific": {"sessionTimeout": "soon"}}, "<sessionTimeout>"),
        ({"specific": {"sessionTimeout": "0"}}, "<sessionTimeout>"),
        ({"sources": (Source(0, ("no topic",), ("s",)),)}, "'no topic'"),
        ({"sources": (Source(0, ("^in.*",), ("s",)),)}, "no name of a topic"),
        ({"uri": Uri("ssl", "127.0.0.1", 1), "ca": "no certificate"}, "<ca>"),
    ],
)
async def test_what_is_wrong_in_a_document_is_told(changes: dict[str, Any], text: str) -> None:
    connection = _connection(changes.pop("uri", Uri("tcp", "127.0.0.1", 1)), **changes)
    error = await refusal(KafkaDriver, connection)
    assert error.cause == "misconfigured"
    assert text in str(error)
    assert "secret" not in str(error)


async def test_any_of_the_bootstrap_servers_will_do(peer: KafkaPeer) -> None:
    topic = peer.make("out")
    nowhere = replace(peer.uri, port=free_port())
    servers = f"127.0.0.1:{free_port()}, 127.0.0.1:{peer.server.port}"
    connection = peer.connection(targets=[topic], uri=nowhere, bootstrapServers=servers)
    async with client(peer, connection) as one:
        assert (await _published(one, topic)).status == 204
