"""Accepted requests in the store: one record each, in the shard of its thing (acks/accepted.lua).

Any node makes, completes and reads them. A read asks the store's clock first: what it finds after
the deadline can no longer change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import orjson
import structlog

from acks.accepted import (
    Accepted,
    Came,
    field_of,
    read_request,
    read_value,
    request_json,
    value_json,
)
from acks.errors import GatewayError, error
from acks.journal import request_key, shard_of
from acks.signals import Acknowledgement, Response
from app.store.redis_client import Redis, Reply, StoreError, StoreUnavailable

log = structlog.get_logger(__name__)

TAKE = files("acks").joinpath("accepted.lua").read_text(encoding="utf-8")
"""Defines ``take(key, field, value)`` for scripts that add to a record."""

OnCounted = Callable[[bool | None], None]
"""Gets whether it counted; None if the store could not be asked."""


class RequestStore:
    """The records of accepted requests, kept for ``keep_ms`` after their end."""

    def __init__(self, redis: Redis, *, prefix: str, shards: int, keep_ms: int) -> None:
        self.keep_ms = keep_ms
        self._redis = redis
        self._prefix = prefix
        self._shards = shards
        self._accept = redis.register(
            files("app.store").joinpath("accept.lua").read_text(encoding="utf-8")
        )
        self._take = redis.register(f"{TAKE}\nreturn take(KEYS[1], ARGV[1], ARGV[2])\n")

    def key(self, thing_id: str, correlation_id: str) -> str:
        """Key of a record."""
        return request_key(self._prefix, shard_of(thing_id, self._shards), correlation_id)

    async def create(self, request: Accepted) -> int:
        """Make the record of a request; returns its deadline (ms since the epoch).

        Raises ``acknowledgement:request.duplicate.correlation-id``, ``gateway:service.unavailable``
        """
        correlation_id = request.correlation_id
        key = self.key(request.thing_id, correlation_id)
        others = [other for other in self._keys(correlation_id) if other != key]
        arguments: tuple[str | bytes | int, ...] = (
            orjson.dumps(request_json(request)),
            request.timeout_ms,
            request.keep_ms,
            int(request.own),
            *request.others,
        )
        try:
            # Made before the other shards are asked: of two that come at once at most one stays.
            deadline, *found = await asyncio.gather(
                self._redis.call_script(self._accept, (key,), arguments),
                *(self._redis.call("EXISTS", other) for other in others),
            )
            if deadline and any(found):
                await self._redis.call("DEL", key)
        except (StoreUnavailable, StoreError) as problem:
            raise _unavailable(problem) from problem
        if not deadline or any(found):
            raise error(
                "acknowledgement:request.duplicate.correlation-id", correlation_id=correlation_id
            )
        assert isinstance(deadline, int)
        return deadline

    def record(
        self,
        thing_id: str,
        correlation_id: str,
        thing: Acknowledgement | Response | GatewayError,
        on_counted: OnCounted,
    ) -> None:
        """Add an ack, our own response or our own error to a record."""
        field = field_of(thing)
        try:
            value = orjson.dumps(value_json(thing))
        except orjson.JSONEncodeError as problem:
            # An ack may come from elsewhere with a payload that cannot be told to anybody.
            log.warning("ack.not_recorded", correlation_id=correlation_id, error=str(problem))
            on_counted(False)
            return

        def replied(reply: Reply | Exception) -> None:
            if isinstance(reply, Exception):
                log.warning("ack.not_recorded", correlation_id=correlation_id, error=str(reply))
            on_counted(None if isinstance(reply, Exception) else reply == 1)

        key = self.key(thing_id, correlation_id)
        self._redis.run(self._take, (key,), (field, value), replied)

    async def find(self, correlation_id: str) -> tuple[Accepted, int] | None:
        """The record with this id and the store's time (ms since the epoch), or None.

        The shard is not known from the id, so all are asked in one round trip. Raises
        ``gateway:service.unavailable``.
        """
        return await self._read(correlation_id, self._keys(correlation_id))

    async def again(self, request: Accepted) -> tuple[Accepted, int] | None:
        """As :meth:`find`, of a record that has been found before."""
        return await self._read(
            request.correlation_id, [self.key(request.thing_id, request.correlation_id)]
        )

    async def changes(self, request: Accepted) -> int:
        """How many things have been added to a record by now; 0 too if it is gone.

        Raises ``gateway:service.unavailable``.
        """
        key = self.key(request.thing_id, request.correlation_id)
        try:
            return _number(await self._redis.call("HGET", key, "changes") or 0)
        except (StoreUnavailable, StoreError) as problem:
            raise _unavailable(problem) from problem

    async def _read(self, correlation_id: str, keys: list[str]) -> tuple[Accepted, int] | None:
        try:
            clock, *records = await asyncio.gather(
                self._redis.call("TIME"), *(self._redis.call("HGETALL", key) for key in keys)
            )
            found = next((record for record in records if record), None)
            assert isinstance(clock, list)
            now_ms = _number(clock[0]) * 1000 + _number(clock[1]) // 1000
            return None if found is None else (_decode(correlation_id, found), now_ms)
        except (StoreUnavailable, StoreError) as problem:
            raise _unavailable(problem) from problem
        except (KeyError, TypeError, ValueError, IndexError) as problem:
            log.exception("store.record_unreadable", correlation_id=correlation_id)
            raise error(
                "gateway:service.unavailable", reason="The record of the request is broken."
            ) from problem

    def _keys(self, correlation_id: str) -> list[str]:
        return [request_key(self._prefix, shard, correlation_id) for shard in range(self._shards)]


def response_value(response: Response) -> bytes:
    """The value of a record's field ``response``."""
    return orjson.dumps(value_json(response))


def _decode(correlation_id: str, record: Reply) -> Accepted:
    assert isinstance(record, list)
    fields = dict(zip(map(_text, record[::2]), map(_bytes, record[1::2]), strict=True))
    request = read_request(correlation_id, orjson.loads(fields["request"]), _number(fields["keep"]))
    came = []
    for name, value in fields.items():
        if value and (name in ("response", "error") or name.startswith("ack:")):
            number, _, stored = value.partition(b" ")
            came.append(Came(int(number), read_value(request, name, orjson.loads(stored))))
    done, refused = fields.get("done"), fields.get("refused")
    return request._replace(
        accepted_ms=_number(fields["accepted"]),
        deadline_ms=_number(fields["deadline"]),
        done_ms=None if done is None else _number(done),
        came=tuple(sorted(came, key=lambda item: item.number)),
        refused=None if refused is None else orjson.loads(refused),
    )


def _number(reply: Any) -> int:
    return int(reply)


def _bytes(reply: Reply) -> bytes:
    assert isinstance(reply, bytes)
    return reply


def _text(reply: Reply) -> str:
    return _bytes(reply).decode()


def _unavailable(problem: Exception) -> GatewayError:
    if isinstance(problem, StoreError):
        log.error("store.command_failed", error=str(problem))
    return error("gateway:service.unavailable", reason="The store cannot be reached.")
