"""The connection to the store: one Redis client per process and address, made when first used.

Spark forks and reuses its Python workers, so clients are keyed by process id and never pickled.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

import redis

from acks.journal import FORMAT, meta_key

ENVIRONMENT: Final = "ACKGATE_REDIS_URL"
_SCHEMES: Final = ("redis", "rediss", "unix")
_CONNECT_TIMEOUT: Final = 5.0  # s
_ANSWER_TIMEOUT: Final = 30.0  # s


#: What redis-py raises when the store cannot be reached, or is still loading its data.
AWAY: Final = (redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError)


class StoreError(RuntimeError):
    """The store cannot be used as it is; the text says what to change and holds no password."""


def resolve_url(url: str | None) -> str:
    """Return ``url``, or the environment's ``ACKGATE_REDIS_URL``.

    Raises :class:`StoreError` if neither is set or the scheme is none of redis, rediss, unix.
    """
    url = url or os.environ.get(ENVIRONMENT)
    if not url:
        raise StoreError(f"no Redis address: set the option redisUrl or {ENVIRONMENT}")
    if url.split("://", 1)[0] not in _SCHEMES:
        raise StoreError("a Redis address starts with redis://, rediss:// or unix://")
    return url


def spoken_url(url: str) -> str:
    """The address for people: without user, password and query.

    Odd addresses give only their scheme: a password that is not percent-encoded may hide anywhere.
    """
    parts = urlsplit(url)
    if parts.scheme == "unix" and "@" not in url:
        return f"unix://{parts.path}"
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        return f"{parts.scheme}://…"
    return f"{parts.scheme}://{host or ''}{f':{port}' if port else ''}"


def client(url: str) -> redis.Redis:
    """The Redis client of this process for ``url``; thread-safe, shared. Answers are bytes.

    Raises :class:`StoreError` if the address cannot be understood.
    """
    return _client(os.getpid(), url)


@lru_cache(maxsize=16)
def _client(_pid: int, url: str) -> redis.Redis:
    try:
        return redis.Redis.from_url(
            url,
            protocol=2,  # the same answers from Redis 6.2 and newer
            socket_connect_timeout=_CONNECT_TIMEOUT,
            socket_timeout=_ANSWER_TIMEOUT,
        )
    except ValueError:
        # The original text quotes the part it could not read, which may be a piece of a password.
        raise StoreError(
            "the Redis address cannot be read; percent-encode special characters in its password"
        ) from None


def call(url: str, *command: str | bytes | float) -> Any:
    """Run one command; the answer as redis-py parses it. Raises redis.RedisError."""
    return client(url).execute_command(*command)  # type: ignore[no-untyped-call]  # not annotated


def calls(url: str, commands: Iterable[Sequence[str | bytes | float]]) -> list[Any]:
    """Run commands in one round trip; no commands, no round trip. Raises redis.RedisError."""
    pipeline = client(url).pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command(*command)  # type: ignore[no-untyped-call]  # not annotated
    answers: list[Any] = pipeline.execute()
    return answers


def shard_count(url: str, prefix: str) -> int:
    """How many shards the data has, read from ``prefix:meta``.

    Raises :class:`StoreError` if no gateway has created data there or its format is not ours.
    """
    data_format, shards = call(url, "HMGET", meta_key(prefix), "format", "shards")
    where = f"under the prefix {prefix!r} at {spoken_url(url)}"
    if data_format is None or shards is None:
        raise StoreError(
            f"no ackgate data {where}: the first gateway that starts creates it. "
            "Start a gateway, or check redisUrl and prefix."
        )
    if data_format != str(FORMAT).encode():
        raise StoreError(
            f"the data {where} has format {data_format.decode(errors='replace')}, this connector "
            f"reads format {FORMAT}: install the connector of the gateway's version."
        )
    return int(shards)
