"""Consuming by AMQP 1.0: links, their credit, and dispositions (spec websocket-... 4.4)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import proton

from acks.settlement import Settlement
from connections.model import Connection

_MODIFIED = "amqp:modified:list"


@dataclass(slots=True, eq=False)
class Inlet:
    """A receiving link, in a session of its own; made again when the broker ends it."""

    name: str
    source: int
    address: str
    credit: int
    session: Any = None
    link: Any = None
    well: bool | None = None  # None: the broker has not said yet
    modifies: bool = True  # whether the broker knows the outcome modified
    tries: int = 0
    timer: asyncio.TimerHandle | None = None
    parts: bytearray | None = None  # of a message whose end has not come


def knows_modified(source: Any) -> bool:
    """Whether that outcome is among those of a source; also if the broker says nothing of them."""
    data = source.outcomes
    data.rewind()
    return not data.next() or _MODIFIED in str(data.get_object())


def dispose(transfer: Any, settlement: Settlement, *, modifies: bool = True) -> None:
    """Tell the broker (spec websocket-... 4.4); one that does not know modified: released.

    RabbitMQ before 4 ends the session when it is told of modified.
    """
    if settlement is Settlement.ACCEPT:
        transfer.update(proton.Delivery.ACCEPTED)
    elif settlement is Settlement.DISCARD:
        transfer.update(proton.Delivery.REJECTED)
    elif modifies:
        transfer.local.failed = True
        transfer.update(proton.Delivery.MODIFIED)
    else:
        transfer.update(proton.Delivery.RELEASED)
    transfer.settle()


def inlets_of(connection: Connection, in_flight: int) -> list[Inlet]:
    """The links of all sources; they share the bound, and each has a credit of one at least."""
    places = [
        (source, address, number)
        for source in connection.sources
        for address in source.addresses
        for number in range(source.consumers)
    ]
    credit = max(1, in_flight // max(1, len(places)))
    return [
        Inlet(f"source-{at}-{source.index}-{number}", source.index, address, credit)
        for at, (source, address, number) in enumerate(places)
    ]
