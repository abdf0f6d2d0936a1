"""A journal with very many entries, written as fast as the store takes them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from urllib.parse import urlsplit

import hiredis
import orjson
from redis import Redis

from acks.journal import (
    DEFAULT_PREFIX,
    DEFAULT_SHARDS,
    FORMAT,
    EntryMeta,
    journal_key,
    meta_key,
    shard_of,
)
from benchmarks.bodies import attribute, thing_id
from benchmarks.measure import RunError

NODE = "bench-node"
THINGS = 10_000
AT_ONCE = 5_000
"""Commands on their way at a time."""
_READ = 1 << 20


def fill(url: str, entries: int, label: str = "", every: int = 1) -> None:
    """Create the data and append ``entries`` events of an attribute, about 600 bytes each.

    Every ``every``-th asks for ``label``. Raises RunError if the store refuses one.
    """
    redis = Redis.from_url(url)
    redis.hset(meta_key(DEFAULT_PREFIX), mapping={"format": FORMAT, "shards": DEFAULT_SHARDS})
    redis.close()
    connection = _connected(url)
    answers = hiredis.Reader()
    for first in range(0, entries, AT_ONCE):
        numbers = range(first, min(first + AT_ONCE, entries))
        connection.sendall(b"".join(_appends(numbers, label, every)))
        left = len(numbers)
        while left:
            answers.feed(connection.recv(_READ))
            while (answer := answers.gets()) is not False:
                if isinstance(answer, Exception):
                    raise RunError(f"the store refuses an entry: {answer}")
                left -= 1
    connection.close()


def _connected(url: str) -> socket.socket:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(parts.path)
        return connection
    return socket.create_connection((parts.hostname, parts.port))


def _appends(numbers: range, label: str, every: int) -> Iterator[bytes]:
    stamp = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    for number in numbers:
        thing = thing_id(number % THINGS)
        correlation_id = f"bench-{number:09d}-4c1f-8a53-1f0b6c0e"
        meta = EntryMeta(
            thing_id=thing,
            action="modified",
            path="/attributes/state",
            revision=number // THINGS + 2,
            timestamp=stamp,
            correlation_id=correlation_id,
            requested_acks=(label,) if label and number % every == 0 else (),
            origin=NODE,
            deadline=0,
            readers=("nginx:bench",),
        )
        headers = {
            "correlation-id": correlation_id,
            "content-type": "application/json",
            "ditto-originator": "nginx:bench",
            "response-required": False,
        }
        yield _command(
            b"XADD",
            journal_key(DEFAULT_PREFIX, shard_of(thing, DEFAULT_SHARDS)).encode(),
            b"*",
            b"m",
            orjson.dumps(meta.to_json()),
            b"h",
            orjson.dumps(headers),
            b"v",
            attribute(number % THINGS),
        )


def _command(*parts: bytes) -> bytes:
    """A command as it travels (RESP): redis-py takes ten times as long for it."""
    texts = b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)
    return b"*%d\r\n%b" % (len(parts), texts)
