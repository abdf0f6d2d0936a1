"""What has happened on one client of a connection: counts, addresses, a bounded log (spec 4.6)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal

JsonObject = dict[str, Any]
Direction = Literal["inbound", "outbound"]
Category = Literal["source", "target", "response", "connection"]

INBOUND = ("consumed", "mapped", "dropped", "enforced", "acknowledged")
OUTBOUND = ("dispatched", "filtered", "mapped", "dropped", "published", "acknowledged")
WINDOWS = (("PT1M", 10, 7), ("PT1H", 300, 13), ("PT24H", 3_600, 25))
"""Name of a window, seconds between two looks at a count, looks that are kept.

The oldest of them is a whole window old.
"""
LOGGED_FOR = 24 * 3_600
"""Seconds for which successes are logged once that is asked for (spec 4.6)."""
MAX_ENTRIES = 100
"""Log entries of failures and of successes that are kept, each."""
MAX_TEXT = 500
NOT_PROVIDED = "<not-provided>"
"""The correlation id of an entry that has none (spec 4.6)."""
_NAME_LENGTH = 200
_ALARM_EVERY = 10.0


def plain(text: str) -> str:
    """A text from outside as JSON can hold it: halves of surrogate pairs become ``?``."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def iso(moment: float | None) -> str | None:
    """Seconds since the epoch as ISO 8601 in UTC."""
    if moment is None:
        return None
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


class Meter:
    """A count since the start, and how much of it fell into the last minute, hour and day.

    Counting is ``total += 1; last = now``; :meth:`look` is called now and then.
    """

    __slots__ = ("_begin", "_looks", "_since", "last", "total")

    def __init__(self) -> None:
        self.total = 0
        self.last: float | None = None
        self._begin = 0
        self._looks = tuple(deque[int](maxlen=kept) for _, _, kept in WINDOWS)
        self._since = [0] * len(WINDOWS)

    def look(self, now: float) -> None:
        """Note how far the count has come; ``now`` in seconds since the epoch."""
        for place, (_, step, kept) in enumerate(WINDOWS):
            slot = int(now // step)
            missed = min(slot - self._since[place], kept)
            if missed > 0:
                if self._since[place]:
                    self._looks[place].extend([self.total] * missed)
                self._since[place] = slot

    def reset(self) -> None:
        """Begin anew; :attr:`total` goes on."""
        self._begin = self.total
        self.last = None
        for looks in self._looks:
            looks.clear()

    def to_json(self) -> JsonObject:
        """Its windows and when it was counted last."""
        shown: JsonObject = {}
        for (name, _, kept), looks in zip(WINDOWS, self._looks, strict=True):
            shown[name] = self.total - (looks[0] if len(looks) == kept else self._begin)
        shown["lastMessageAt"] = iso(self.last)
        return shown


class Row:
    """The counts of one address by type, successes and failures apart."""

    __slots__ = ("bad", "good")

    def __init__(self, types: Iterable[str]) -> None:
        self.good = {name: Meter() for name in types}
        self.bad = {name: Meter() for name in types}

    def count(self, name: str, now: float, ok: bool = True) -> None:
        """One more; ``now`` in seconds since the epoch."""
        meter = (self.good if ok else self.bad)[name]
        meter.total += 1
        meter.last = now

    def meters(self) -> Iterable[Meter]:
        """All of them."""
        yield from self.good.values()
        yield from self.bad.values()

    def to_json(self) -> JsonObject:
        """Type -> success and failure, those that have happened."""
        return {
            name: {
                kind: meter.to_json()
                for kind, meter in (("success", self.good[name]), ("failure", self.bad[name]))
                if meter.last is not None or kind == "success"
            }
            for name in self.good
        }


class Ledger:
    """Counts per source and target address, and the log. ``now`` is seconds since the epoch."""

    def __init__(self) -> None:
        self._rows: dict[Direction, dict[str, Row]] = {"inbound": {}, "outbound": {}}
        self._failures: deque[JsonObject] = deque(maxlen=MAX_ENTRIES)
        self._successes: deque[JsonObject] = deque(maxlen=MAX_ENTRIES)
        self._enabled: tuple[float, float] | None = None
        self._alarmed = 0.0
        self.stale = 0  # settlements and answers that came for an older generation

    def row(self, direction: Direction, address: str) -> Row:
        """The counts of an address as configured, made when it is asked for first."""
        rows = self._rows[direction]
        found = rows.get(address)
        if found is None:
            found = rows[address] = Row(INBOUND if direction == "inbound" else OUTBOUND)
        return found

    # --- log

    def enable(self, now: float) -> None:
        """Log successes, too, for the next day."""
        self._enabled = (now, now + LOGGED_FOR)

    def verbose(self, now: float) -> bool:
        """Whether successes are logged."""
        return self._enabled is not None and now < self._enabled[1]

    def forget_log(self) -> None:
        """Empty the log."""
        self._failures.clear()
        self._successes.clear()

    def log(
        self,
        now: float,
        category: Category,
        kind: str,
        ok: bool,
        message: str,
        *,
        correlation_id: str = NOT_PROVIDED,
        address: str | None = None,
        entity: str | None = None,
    ) -> None:
        """Keep an entry, in bounds: failures always, successes while that is enabled.

        ``kind`` is one of the types that are counted, or ``other``; ``entity`` a thing's id.
        """
        if ok and not self.verbose(now):
            return
        entry: JsonObject = {
            "correlationId": plain(correlation_id[:_NAME_LENGTH]),
            "timestamp": iso(now),
            "category": category,
            "type": kind,
            "level": "success" if ok else "failure",
            "message": plain(message[:MAX_TEXT]),
        }
        if address is not None:
            entry["address"] = plain(address[:_NAME_LENGTH])
        if entity is not None:
            entry["entityType"] = "thing"
            entry["entityId"] = plain(entity[:_NAME_LENGTH])
        (self._successes if ok else self._failures).append(entry)

    def alarming(self, now: float) -> bool:
        """Whether what may happen with every message may go to the process's log now."""
        if now < self._alarmed + _ALARM_EVERY:
            return False
        self._alarmed = now
        return True

    # --- what it says

    def look(self, now: float) -> None:
        """Let time go by for the windows; to be called every few seconds."""
        for rows in self._rows.values():
            for row in rows.values():
                for meter in row.meters():
                    meter.look(now)

    def reset(self) -> None:
        """Begin all counts anew."""
        for rows in self._rows.values():
            for row in rows.values():
                for meter in row.meters():
                    meter.reset()

    def totals(self) -> Mapping[tuple[str, str, bool], int]:
        """Counts since the start by (direction, type, success); resets do not touch them."""
        sums: dict[tuple[str, str, bool], int] = {}
        for direction, rows in self._rows.items():
            for row in rows.values():
                for ok, meters in ((True, row.good), (False, row.bad)):
                    for name, meter in meters.items():
                        key = (direction, name, ok)
                        sums[key] = sums.get(key, 0) + meter.total
        return sums

    def metrics(self, now: float) -> JsonObject:
        """The metrics part of the report (spec 4.6)."""
        self.look(now)
        sources = {address: row.to_json() for address, row in self._rows["inbound"].items()}
        targets = {address: row.to_json() for address, row in self._rows["outbound"].items()}
        return {
            "containsFailures": any(
                meter.last is not None
                for rows in self._rows.values()
                for row in rows.values()
                for meter in row.bad.values()
            ),
            "connectionMetrics": {"inbound": _added(sources), "outbound": _added(targets)},
            "sourceMetrics": {"addressMetrics": sources},
            "targetMetrics": {"addressMetrics": targets},
        }

    def logs(self, now: float) -> JsonObject:
        """The log part of the report: logs (oldest first), enabledSince, enabledUntil."""
        since, until = self._enabled if self.verbose(now) and self._enabled else (None, None)
        entries = sorted([*self._failures, *self._successes], key=lambda one: one["timestamp"])
        return {"logs": entries, "enabledSince": iso(since), "enabledUntil": iso(until)}


def _added(addresses: Mapping[str, JsonObject]) -> JsonObject:
    """The sums over all addresses, in the same form."""
    added: JsonObject = {}
    for types in addresses.values():
        for name, results in types.items():
            sums = added.setdefault(name, {})
            for result, windows in results.items():
                known = sums.setdefault(result, dict.fromkeys(windows))
                for window, value in windows.items():
                    known[window] = _sum(known[window], value)
    return added


def _sum(known: Any, value: Any) -> Any:
    if known is None or value is None:
        return value if known is None else known
    return max(known, value) if isinstance(value, str) else known + value
