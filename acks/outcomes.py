"""What became of one request's acks, as a record that is gathered and reported on later.

A record is made when a request that named acks of others is finished (acks/journal.py says where
it lies). It is for service levels, so it holds no payloads and no headers. It is a flat JSON array:
``correlation-id, thing id, begun (ms since the epoch), took (µs), status``, then for each label
``label, status, how, µs after the beginning``; the last is null where no ack came.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from acks.aggregator import Outcome

ANSWERED, WEAK, TIMED_OUT = 0, 1, 2
"""How an ack came about: its owner gave it, we issued it (weak), or nobody gave it in time."""

_FACTS, _EACH = 5, 4  # elements of a request, and of each label


class AckResult(NamedTuple):
    """One label of a request: ``us`` µs after its beginning the ack came; None: it did not."""

    label: str
    status: int
    how: int
    us: int | None


class Finished(NamedTuple):
    """A finished request: when it began (ms since the epoch), what it took (µs), its status."""

    correlation_id: str
    thing_id: str
    begun_ms: int
    took_us: int
    status: int
    acks: tuple[AckResult, ...]


def record_of(
    outcome: Outcome, arrivals: Mapping[str, float], begun: float, ended: float, epoch: float
) -> list[Any]:
    """The record of an outcome that has acks.

    ``begun``, ``ended`` and ``arrivals`` (label -> when its ack came; ``ended`` if it is not there)
    are times in s of one clock; with ``epoch`` added they are s since the epoch.
    """
    # Plain lists and few calls: this is paid for by every request that names acks.
    late = outcome.late
    results: list[Any] = []
    for label, _, _, status, _, headers in outcome.acks:
        if label in late:
            results += label, status, TIMED_OUT, None
        else:
            how = WEAK if "ditto-weak-ack" in headers else ANSWERED
            results += label, status, how, int((arrivals.get(label, ended) - begun) * 1e6)
    first = outcome.acks[0]
    return [
        first.correlation_id,
        first.thing_id,
        int((epoch + begun) * 1000),
        int((ended - begun) * 1e6),
        outcome.status,
        *results,
    ]


def read_record(record: list[Any]) -> Finished:
    """Read a record back. Raises TypeError or ValueError if it is not one."""
    correlation_id, thing_id, begun_ms, took_us, status = record[:_FACTS]
    rest = record[_FACTS:]
    results = tuple(
        AckResult(*rest[at : at + _EACH])  # a piece too short is a TypeError
        for at in range(0, len(rest), _EACH)
    )
    return Finished(correlation_id, thing_id, begun_ms, took_us, status, results)
