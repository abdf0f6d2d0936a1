"""Kafka for tests: the simulated cluster of librdkafka in a process of its own (kafka_cluster.py).

It keeps messages, groups and committed offsets in memory. :meth:`KafkaServer.outage` closes its
port and all connections for a while, as a broker that restarts does.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from typing_extensions import override

from app.store.embedded import ends_with_parent
from connections.kafka import options as kafka_options
from connections.kafka.driver import KafkaDriver
from connections.kafka.reach import CONFIRM_S
from connections.model import Uri
from tests.brokers.authority import Authority
from tests.brokers.peers import DEADLINE, EVERYTHING, Peer, Received, Tls

USER, PASSWORD = "ackgate", "p+w%2F@ :x"
GROUP = "contract"  # the id of the connections that tests make
PRODUCE, OFFSET_COMMIT = 0, 8  # kinds of requests


class KafkaServer:
    """One broker. ``guard`` are fields of :class:`tests.brokers.kafka_front.Guard`."""

    def __init__(self, **guard: Any) -> None:
        command = [sys.executable, "-m", "tests.brokers.kafka_cluster", json.dumps(guard)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # librdkafka's logs of what tests do on purpose
            text=True,
            preexec_fn=ends_with_parent(),  # noqa: PLW1509 - two plain system calls
        )
        self.port: int = self._answer()["port"]

    def topic(self, name: str, partitions: int = 1) -> None:
        """Make a topic."""
        self.tell("topic", name, partitions)

    def tell(self, name: str, *arguments: Any) -> None:
        """Call a method of the cluster (tests/brokers/kafka_cluster.py)."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([name, *arguments]) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        assert "problem" not in answer, answer

    async def outage(self, seconds: float = CONFIRM_S + 1.5) -> None:
        """Be away for so long that a client takes it for lost, then be back."""
        self.tell("down")
        await asyncio.sleep(seconds)
        self.tell("up")

    def stop(self) -> None:
        """End the process; everything it kept is gone."""
        self._process.terminate()
        self._process.communicate(timeout=10)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the Kafka cluster for tests has ended"
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def kafka_server(**guard: Any) -> Iterator[KafkaServer]:
    """A running broker."""
    server = KafkaServer(**guard)
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def guarded_server(authority: Authority, **guard: Any) -> Iterator[KafkaServer]:
    """A running broker with TLS, whose certificate the authority has signed."""
    with tempfile.TemporaryDirectory(prefix="ackgate-test-") as place:
        files = authority.issue(Path(place))
        certificate = {"certificate": str(files.certificate), "key": str(files.key)}
        with kafka_server(**certificate, **guard) as server:
            yield server


class KafkaPeer(Peer):
    """A plain broker, one that asks for a user, and one with TLS; topics are made in all."""

    kind = "kafka"
    factory = KafkaDriver
    can = EVERYTHING - {"dead letters"}
    qos = 1
    invalid = "no topic!"

    def __init__(
        self, plain: KafkaServer, users: KafkaServer, secure: KafkaServer, authority: Authority
    ) -> None:
        self.server = plain
        self._all = (plain, users, secure)
        self.uri = Uri("tcp", "127.0.0.1", plain.port)
        self.refused = Uri("tcp", "127.0.0.1", users.port, user=USER, password="not the word")
        tls = Uri("ssl", "127.0.0.1", secure.port)
        self.tls = Tls(tls, authority.pem, Authority().pem)
        self._producer = Producer({"bootstrap.servers": f"127.0.0.1:{plain.port}"})
        self._readers: dict[str, Consumer] = {}

    @override
    def defaults(self, uri: Uri) -> Mapping[str, str]:
        # The simulated group waits that long for a member that has left.
        patience = {"sessionTimeout": "2s"}
        return patience if uri.user is None else {**patience, "saslMechanism": "plain"}

    @override
    async def address(self, name: str) -> str:
        return self.make(name)

    def make(self, name: str, partitions: int = 1) -> str:
        """A new topic with this many partitions."""
        topic = f"{name}-{uuid.uuid4().hex[:8]}"
        for server in self._all:
            server.topic(topic, partitions)
        return topic

    @override
    async def send(
        self,
        address: str,
        payload: bytes,
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
    ) -> None:
        pairs = dict(headers or {})
        if content_type is not None:
            pairs["content-type"] = content_type
        self.produce(address, payload, pairs)

    def produce(
        self, topic: str, payload: bytes, headers: Mapping[str, str | bytes], **more: Any
    ) -> None:
        """Publish, and return when the broker has it; ``more`` as of Producer.produce."""
        self._producer.produce(topic, payload, headers=list(headers.items()), **more)
        assert self._producer.flush(DEADLINE) == 0

    @override
    async def receive(self, address: str) -> Received:
        message = self.receive_message(address)
        headers = {
            name: value.decode() if isinstance(value, bytes) else str(value)
            for name, value in dict(message.headers() or []).items()
        }
        return Received(message.value() or b"", headers, headers.pop("content-type", None))

    def receive_message(self, topic: str) -> Message:
        """The next message of a topic, whatever its partition."""
        reader = self._readers.get(topic)
        if reader is None:
            reader = self._readers[topic] = self._consumer("a test")
            parts = reader.list_topics(topic, timeout=DEADLINE).topics[topic].partitions
            reader.assign([TopicPartition(topic, part, 0) for part in parts])
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            message = reader.poll(1)
            if message is not None and message.error() is None:
                return message
        raise AssertionError(f"nothing on {topic} within {DEADLINE} s")

    @override
    async def unsettled(self, address: str) -> int:
        return sum(high - done for high, done in self.offsets(address))

    def offsets(self, topic: str, group: str = GROUP) -> list[tuple[int, int]]:
        """By partition: where the log ends, and where the group would begin."""
        reader = self._consumer(group)
        try:
            parts = reader.list_topics(topic, timeout=DEADLINE).topics[topic].partitions
            places = [TopicPartition(topic, part) for part in sorted(parts)]
            committed = reader.committed(places, DEADLINE)
            return [
                (reader.get_watermark_offsets(at, DEADLINE)[1], max(done.offset, 0))
                for at, done in zip(places, committed, strict=True)
            ]
        finally:
            reader.close()

    @override
    async def restart(self) -> None:
        await self.server.outage()

    def close_readers(self) -> None:
        """Close what tests read with."""
        for reader in self._readers.values():
            reader.close()

    def _consumer(self, group: str) -> Consumer:
        servers = f"127.0.0.1:{self.server.port}"
        return Consumer({"bootstrap.servers": servers, "group.id": group, "log_level": 0})


def kafka_peer() -> Iterator[KafkaPeer]:
    """For a fixture: three brokers, and who talks to them."""
    authority = Authority()
    with (
        kafka_server() as plain,
        kafka_server(mechanisms=["PLAIN"], user=USER, password=PASSWORD) as users,
        guarded_server(authority) as secure,
    ):
        peer = KafkaPeer(plain, users, secure, authority)
        try:
            yield peer
        finally:
            peer.close_readers()


def told_otherwise(monkeypatch: pytest.MonkeyPatch, name: str, options: dict[str, Any]) -> None:
    """Have librdkafka told something else than in production; ``name`` of kafka_options."""
    made: Callable[..., dict[str, Any]] = getattr(kafka_options, name)
    monkeypatch.setattr(kafka_options, name, lambda *given: made(*given) | options)
