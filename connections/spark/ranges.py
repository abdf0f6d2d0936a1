"""What one task reads: ranges of shards. Several small ones are put together, large ones split."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql.datasource import InputPartition

from connections.spark.pages import START, position

#: Entries that are worth a task: starting one costs as much as reading some thousand of them.
WORTH: Final = 10_000


@dataclass(frozen=True)
class ShardRange:
    """The entries of ``shard`` after ``start``, up to and including ``end``."""

    shard: str
    start: str
    end: str


@dataclass
class Task(InputPartition):
    """What one task reads, one range after the other."""

    ranges: tuple[ShardRange, ...]


def ranges(start: Mapping[str, str], end: Mapping[str, str]) -> list[ShardRange]:
    """One range for each shard that has moved on from ``start`` to ``end``."""
    return [
        ShardRange(shard, start[shard], end[shard])
        for shard in start
        if position(start[shard]) < position(end[shard])
    ]


def grouped(whole: Sequence[ShardRange], counts: Mapping[str, int]) -> list[Task]:
    """Tasks that are worth it, at most one for each range.

    ``counts`` are the entries of each shard; one that is not known counts as worth a task.
    """
    sizes = {part: counts.get(part.shard, WORTH) for part in whole}
    number = min(len(whole), max(1, -(-sum(sizes.values()) // WORTH)))
    tasks: list[list[ShardRange]] = [[] for _ in range(number)]
    loads = [0] * number
    for part in sorted(whole, key=lambda part: -sizes[part]):
        lightest = loads.index(min(loads))
        tasks[lightest].append(part)
        loads[lightest] += sizes[part]
    return [Task(tuple(parts)) for parts in tasks if parts]


def split(whole: Sequence[ShardRange], firsts: Mapping[str, str], minimum: int) -> list[Task]:
    """At least ``minimum`` tasks, unless the ranges are too short for that.

    A range is cut into equal times, as no stream can say what its thousandth entry is. ``firsts``
    are the ids of the oldest entries of the shards whose range begins at :data:`START`.
    """
    pieces = -(-minimum // len(whole)) if whole else 0
    return [Task((piece,)) for each in whole for piece in _cut(each, firsts, pieces)]


def _cut(whole: ShardRange, firsts: Mapping[str, str], pieces: int) -> Iterator[ShardRange]:
    first = firsts.get(whole.shard, whole.start) if whole.start == START else whole.start
    begin, end = position(first)[0], position(whole.end)[0]
    previous = whole.start
    for number in range(1, pieces):
        moment = begin + (end - begin) * number // pieces
        # After the first entry: whoever begins here finds one before it, unless it was trimmed.
        if position(previous)[0] < moment > begin:
            yield ShardRange(whole.shard, previous, f"{moment}-0")
            previous = f"{moment}-0"
    yield ShardRange(whole.shard, previous, whole.end)
