"""Consuming by AMQP 0.9.1: who consumes which queue, and what a delivery is settled by."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from aiormq.abc import AbstractChannel

from connections.amqp.wire import check_name
from connections.driver import OpenError
from connections.model import Connection


@dataclass(slots=True, eq=False)
class Consumer:
    """One of the consumers of a queue."""

    source: int
    address: str
    prefetch: int
    channel: AbstractChannel | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    why: str = ""
    told: str | None = None  # what is wrong, by the last status; "": nothing


@dataclass(slots=True, eq=False)
class Token:
    """What a delivery is settled by; once."""

    consumer: Consumer
    channel: AbstractChannel
    tag: int
    settled: bool = False


def consumers_of(connection: Connection, in_flight: int) -> list[Consumer]:
    """All consumers. Each has its share of ``in_flight`` messages, and one at least.

    Raises OpenError for what cannot be the name of a queue.
    """
    places = [
        (source.index, address)
        for source in connection.sources
        for address in source.addresses
        for _ in range(source.consumers)
    ]
    try:
        for _, address in places:
            check_name(address)
    except ValueError as problem:
        raise OpenError("misconfigured", str(problem)) from problem
    share, rest = divmod(in_flight, max(len(places), 1))
    return [
        Consumer(source, address, max(share + (number < rest), 1))
        for number, (source, address) in enumerate(places)
    ]
