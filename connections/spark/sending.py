"""Acks on their way: to the gateway processes that wait, and into records of accepted requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha1
from importlib.resources import files
from typing import Any, Final, NamedTuple, TypeAlias

import orjson

from acks.accepted import field_of, value_json
from acks.journal import ASYNC, ack_channel, request_key, shard_of
from acks.signals import Acknowledgement
from connections.spark.store import calls

Command: TypeAlias = tuple[str | bytes | int, ...]

_RECORDS: Final = 1000  # records of one message: bounds what a gateway must parse at once
_TAKE: Final = (
    files("acks").joinpath("accepted.lua").read_text(encoding="utf-8")
    + "\nreturn take(KEYS[1], ARGV[1], ARGV[2])\n"
)
_TAKE_SHA: Final = sha1(_TAKE.encode(), usedforsecurity=False).hexdigest()


class Ack(NamedTuple):
    """One ack for the node ``origin``. ``headers`` go with the correlation-id, before it."""

    correlation_id: str
    thing_id: str
    origin: str
    label: str
    status: int
    payload: object = None
    headers: dict[str, Any] | None = None

    def record(self) -> list[Any]:
        """What an ack channel carries (acks/journal.py)."""
        headers = {**(self.headers or {}), "correlation-id": self.correlation_id}
        record = [self.correlation_id, self.label, self.thing_id, self.status, headers]
        if self.payload is not None:
            record.append(self.payload)
            if self.headers is None:
                headers["content-type"] = "application/json"
        return record


def commands(
    acks: Iterable[Ack], prefix: str, shards: Callable[[], int]
) -> tuple[list[Command], list[Command]]:
    """What the store must be told, to be sent in this order.

    The first part adds acks to records of accepted requests, for which no process waits; ``shards``
    is asked if there are any. The second publishes the others: the answer to each is how many
    processes heard it. An ack without origin is for nobody.
    """
    by_origin: dict[str, list[Ack]] = {}
    for ack in acks:
        if ack.origin:
            by_origin.setdefault(ack.origin, []).append(ack)
    accepted = by_origin.pop(ASYNC, [])
    published: list[Command] = []
    for origin, told in by_origin.items():
        records = [ack.record() for ack in told]
        published += [
            ("PUBLISH", ack_channel(prefix, origin), orjson.dumps(records[at : at + _RECORDS]))
            for at in range(0, len(records), _RECORDS)
        ]
    return _accepted(accepted, prefix, shards), published


def _accepted(acks: Sequence[Ack], prefix: str, shards: Callable[[], int]) -> list[Command]:
    """The script is loaded in the same round trip, as the store may forget it."""
    if not acks:
        return []
    found: list[Command] = [("SCRIPT", "LOAD", _TAKE)]
    count = shards()
    for ack in acks:
        key = request_key(prefix, shard_of(ack.thing_id, count), ack.correlation_id)
        headers = ack.record()[4]
        told = Acknowledgement(
            ack.label, ack.thing_id, ack.correlation_id, ack.status, ack.payload, headers
        )
        found.append(("EVALSHA", _TAKE_SHA, 1, key, field_of(told), orjson.dumps(value_json(told))))
    return found


def send(url: str, prefix: str, acks: Iterable[Ack], shards: Callable[[], int]) -> int:
    """Send acks in one round trip; how many messages with acks no process has heard.

    Raises redis.RedisError; then any part of them may have been sent.
    """
    accepted, published = commands(acks, prefix, shards)
    answers = calls(url, [*accepted, *published])
    return answers[len(accepted) :].count(0) if published else 0
