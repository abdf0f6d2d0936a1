"""Which journal entries become rows: events of some namespaces that fit a filter.

Decided before rows leave the reader. What is left out still counts for offsets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any

import orjson
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from acks.interest import fits, looks_at_things
from acks.journal import EVENT, EntryMeta, shard_of
from acks.resources import ABSENT
from acks.rql import EVENT_PREFIXES, Predicate, parse_checked
from connections.spark.options import ReadOptions


@dataclass(frozen=True)
class Wanted:
    """What a query asks for; ``None`` stands for "any".

    ``predicate`` is the option ``filter``. It is evaluated at the event's own time, so that a batch
    that runs again has the same rows. The fields after it are filters that Spark has pushed down;
    ``since`` and ``until`` bound the event's timestamp, both inclusive.
    """

    namespaces: frozenset[str] | None = None
    predicate: Predicate | None = None
    thing_ids: frozenset[str] | None = None
    since: datetime | None = None
    until: datetime | None = None

    @classmethod
    def of(cls, options: ReadOptions) -> Wanted:
        """What the options ask for; ``options`` have been checked."""
        text = options.filter
        return cls(
            options.namespaces or None, parse_checked(text, EVENT_PREFIXES) if text else None
        )

    def choose(
        self, metas: Sequence[EntryMeta], fields: Sequence[Mapping[bytes, bytes]]
    ) -> Sequence[int]:
        """Which of the entries are rows. Raises ValueError for a value that is no JSON."""
        if self == _EVERYTHING and not any(meta.kind for meta in metas):
            return range(len(metas))
        return [row for row, meta in enumerate(metas) if self.accepts(meta, fields[row].get(b"v"))]

    def accepts(self, meta: EntryMeta, value: bytes | None) -> bool:
        """Whether an entry is a row; ``value`` is its JSON text, None if it has none."""
        if meta.kind != EVENT or not self._covers(meta):
            return False
        if self.predicate is None:
            return True
        parsed: Any = ABSENT
        if value is not None and self._needs_value:
            parsed = orjson.loads(value)
        return fits(self.predicate, meta, parsed, None, datetime.fromisoformat(meta.timestamp))

    @cached_property
    def _needs_value(self) -> bool:
        return self.predicate is not None and looks_at_things(self.predicate)

    def _covers(self, meta: EntryMeta) -> bool:
        if self.namespaces is not None and meta.thing_id.partition(":")[0] not in self.namespaces:
            return False
        if self.thing_ids is not None and meta.thing_id not in self.thing_ids:
            return False
        if self.since is None and self.until is None:
            return True
        stamp = datetime.fromisoformat(meta.timestamp)
        early = self.since is not None and stamp < self.since
        return not early and (self.until is None or stamp <= self.until)

    # --- filters that Spark pushes down

    def narrowed(self, filters: Sequence[Filter], shards: int) -> tuple[Wanted, set[int]]:
        """What is left for rows that pass all ``filters``, and in which of the shards it may be."""
        wanted, left = self, set(range(shards))
        for each in filters:
            if isinstance(each, EqualTo | In):
                values = set(each.value) if isinstance(each, In) else {each.value}
                if each.attribute == ("shard",):
                    left &= values
                elif each.attribute == ("thing_id",):
                    wanted = replace(wanted, thing_ids=_both(wanted.thing_ids, values))
                elif each.attribute == ("namespace",):
                    wanted = replace(wanted, namespaces=_both(wanted.namespaces, values))
            elif isinstance(each, _BOUNDS) and each.attribute == ("timestamp",):
                wanted = wanted._bounded(each)
        if wanted.thing_ids is not None:
            left &= {shard_of(thing_id, shards) for thing_id in wanted.thing_ids}
        return wanted, left

    def _bounded(self, bound: _Bound) -> Wanted:
        moment = bound.value
        if not isinstance(moment, datetime) or moment.tzinfo is None:
            return self
        if isinstance(bound, GreaterThan | GreaterThanOrEqual):
            return replace(self, since=moment if self.since is None else max(self.since, moment))
        return replace(self, until=moment if self.until is None else min(self.until, moment))


_EVERYTHING = Wanted()
_Bound = GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
_BOUNDS = (GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


def _both(one: frozenset[str] | None, values: set[Any]) -> frozenset[str]:
    found = frozenset(value for value in values if isinstance(value, str))
    return found if one is None else one & found
