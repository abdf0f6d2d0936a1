"""What librdkafka is told about a connection, and what addresses of Kafka look like.

``specificConfig``: ``bootstrapServers`` (further brokers, comma separated), ``saslMechanism``
(``plain``, ``scram-sha-256`` or ``scram-sha-512``; needed where the uri names a user), ``groupId``
(the connection's id), ``debugEnabled`` (issued acks say where a message went), ``sessionTimeout``
(after how long without a sign of life the group gives a client's partitions to others, ``10s``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from acks.errors import GatewayError
from acks.headers import parse_duration_ms
from connections.driver import Limits, OpenError
from connections.model import Connection, Source
from connections.tls import tls_context

MECHANISMS = {"plain": "PLAIN", "scram-sha-256": "SCRAM-SHA-256", "scram-sha-512": "SCRAM-SHA-512"}
_SESSION_MS = (1_000, 3_600_000)  # the least and the most of sessionTimeout
_HEAD_BYTES = 64 * 1024  # room for the key and the headers of a message
_QUEUE_KBYTES = 16 * 1024  # of messages fetched ahead
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_SERVER = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:,/\[\]]+):[0-9]{1,5}")

Options = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a message goes: ``topic``, ``topic/key`` or ``topic#partition``."""

    topic: str
    key: str | None = None
    partition: int | None = None


def place(address: str) -> Place:
    """Read the address of a target. Raises ValueError with a reason."""
    rest, hash_mark, number = address.partition("#")
    topic, slash, key = rest.partition("/")
    if slash:  # a key may hold a hash mark
        topic, _, key = address.partition("/")
        hash_mark = ""
    if not is_topic(topic):
        raise ValueError(f"'{topic}' is no name of a topic")
    if not hash_mark:
        return Place(topic, key or None)
    if not re.fullmatch(r"[0-9]{1,9}", number):
        raise ValueError(f"'{number}' is no number of a partition")
    return Place(topic, None, int(number))


def is_topic(name: str) -> bool:
    """Whether Kafka allows a topic to have this name."""
    return _TOPIC.fullmatch(name) is not None and name not in (".", "..")


def sources(connection: Connection) -> Mapping[str, Source]:
    """The sources by topic; the first one has a topic that several name. Raises OpenError."""
    found: dict[str, Source] = {}
    for source in connection.sources:
        for address in source.addresses:
            if not is_topic(address):
                raise OpenError("misconfigured", f"'{address}' is no name of a topic.")
            found.setdefault(address, source)
    return found


def common(connection: Connection, client: int) -> Options:
    """What consumers and producers are told alike. Raises OpenError (misconfigured)."""
    options: Options = {
        "bootstrap.servers": ",".join(_servers(connection)),
        "client.id": f"{connection.id}-{client}",
        "reconnect.backoff.ms": 100,
        "reconnect.backoff.max.ms": 2_000,
        "socket.keepalive.enable": True,
        "socket.nagle.disable": True,
        "log.connection.close": False,
    }
    secure = connection.uri.secure
    if secure:
        options |= _tls(connection)
    if connection.uri.user is not None:
        options |= _sasl(connection)
    options["security.protocol"] = ("SASL_" if connection.uri.user is not None else "") + (
        "SSL" if secure else "PLAINTEXT"
    )
    return options


def consuming(connection: Connection, limits: Limits) -> Options:
    """What a consumer is told beside :func:`common`.

    Nothing is committed by itself. A group that has committed nothing begins at the oldest message,
    so that none is missed between a connection's making and its first opening. Raises OpenError.
    """
    session_ms = _session_ms(connection)
    return {
        "group.id": connection.specific.get("groupId") or connection.id,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "earliest",
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": session_ms,
        "heartbeat.interval.ms": session_ms // 10,
        "topic.metadata.refresh.interval.ms": 30_000,  # new partitions, topics that were missing
        "fetch.wait.max.ms": 100,
        "fetch.error.backoff.ms": 100,
        "queued.min.messages": max(1_000, limits.in_flight),
        "queued.max.messages.kbytes": _QUEUE_KBYTES,
        "max.partition.fetch.bytes": min(limits.message_bytes + _HEAD_BYTES, 1_000_000_000),
    }


def publishing(limits: Limits, timeout_s: float) -> Options:
    """What a producer is told beside :func:`common`.

    Messages are stored once and in order, whatever has to be sent again meanwhile.
    """
    return {
        "enable.idempotence": True,
        "linger.ms": 0,
        "message.timeout.ms": int(timeout_s * 1000),
        "topic.metadata.propagation.max.ms": 5_000,
        "message.max.bytes": min(limits.message_bytes + _HEAD_BYTES, 1_000_000_000),
        "queue.buffering.max.messages": max(limits.publishing, 1),
        "partitioner": "murmur2_random",  # a key goes where other clients of Kafka send it
    }


def _session_ms(connection: Connection) -> int:
    least, most = _SESSION_MS
    try:
        duration = parse_duration_ms(connection.specific.get("sessionTimeout", "10s"))
    except GatewayError:
        duration = 0
    if not least <= duration <= most:
        text = "<sessionTimeout> has to be a duration such as 10s, from one second to one hour."
        raise OpenError("misconfigured", text)
    return duration


def _servers(connection: Connection) -> list[str]:
    named = connection.specific.get("bootstrapServers", "").split(",")
    found = [connection.uri.authority, *(each.strip() for each in named if each.strip())]
    for server in found:
        if _SERVER.fullmatch(server) is None:
            text = f"'{server}' in <bootstrapServers> is no host with a port."
            raise OpenError("misconfigured", text)
    return list(dict.fromkeys(found))


def _tls(connection: Connection) -> Options:
    tls_context(connection)  # says what is wrong with the texts before librdkafka sees them
    options: Options = {}
    if connection.ca is not None:
        options["ssl.ca.pem"] = connection.ca
    if not connection.validate_certificates:
        options["enable.ssl.certificate.verification"] = False
        options["ssl.endpoint.identification.algorithm"] = "none"
    credentials = connection.credentials
    if credentials.get("type") == "client-cert":
        options["ssl.certificate.pem"] = credentials["cert"]
        options["ssl.key.pem"] = credentials["key"]
    return options


def _sasl(connection: Connection) -> Options:
    named = connection.specific.get("saslMechanism", "").strip().lower()
    mechanism = MECHANISMS.get(named)
    if mechanism is None:
        known = ", ".join(MECHANISMS)
        text = (
            f"<saslMechanism> in <specificConfig> has to be one of {known}, as the uri has a user."
        )
        raise OpenError("misconfigured", text)
    return {
        "sasl.mechanism": mechanism,
        "sasl.username": connection.uri.user,
        "sasl.password": connection.uri.password or "",
    }
