"""What happens inside one measuring window: latencies, outcomes, and CPU time by process.

Used by every load process, so that all systems are measured by the same code.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pids: list[int]) -> float:
    """CPU time (user and system, all threads, s) the processes have used; the ended count as 0.

    Field numbers: proc(5), /proc/pid/stat, fields 14 and 15.
    """
    ticks = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS_PER_S


def machine_busy_seconds() -> float:
    """CPU time (s) all cores together were busy since boot: proc(5), /proc/stat, first line."""
    user, nice, system, _idle, _iowait, irq, softirq, *_ = (
        int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + irq + softirq) / TICKS_PER_S


def percentile(ordered: list[int], share: float) -> int:
    """The value below which ``share`` (0 .. 1) of the sorted values lie; 0 if there are none."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0


class Meter:
    """Collects one window. ``latencies`` are in ns; ``good`` statuses are no errors."""

    def __init__(self, watch: dict[str, list[int]], good: list[str]) -> None:
        """``watch``: role ("server", "store", ..) -> process ids whose CPU time is of interest."""
        self.open = False
        self.latencies: list[int] = []
        self.statuses: Counter[str] = Counter()
        self._watch = watch
        self._good = frozenset(good)
        self._before: dict[str, float] = {}

    def _clocks(self) -> dict[str, float]:
        clocks = {role: cpu_seconds(pids) for role, pids in self._watch.items()}
        clocks["load"] = time.process_time()
        clocks["busy"] = machine_busy_seconds()
        clocks["wall"] = time.perf_counter()
        return clocks

    def start(self) -> None:
        """Open the window: from now on results count."""
        self._before = self._clocks()
        self.open = True

    def stop(self) -> None:
        """Close the window."""
        after = self._clocks()
        self.open = False
        self._spent = {name: after[name] - before for name, before in self._before.items()}

    def result(self, unanswered: int = 0) -> dict[str, dict[str, float]]:
        """Figures and errors of the window.

        ``figures``: requests, requests_per_s, p50_ms, p99_ms, max_ms, ``<role>_cpu_us`` (CPU time
        per request) and ``foreign_cpu`` (cores kept busy by processes that are no part of the run).
        ``errors``: status or reason -> count. ``unanswered``: requests without any answer.
        """
        spent, ordered = dict(self._spent), sorted(self.latencies)
        count, wall, busy = len(ordered), spent.pop("wall"), spent.pop("busy")
        figures = {
            "requests": float(count),
            "requests_per_s": count / wall,
            "p50_ms": percentile(ordered, 0.5) / 1e6,
            "p99_ms": percentile(ordered, 0.99) / 1e6,
            "max_ms": (ordered[-1] if ordered else 0) / 1e6,
            "foreign_cpu": max(0.0, busy - sum(spent.values())) / wall,
        }
        figures |= {f"{role}_cpu_us": used * 1e6 / max(1, count) for role, used in spent.items()}
        errors = {s: float(n) for s, n in self.statuses.items() if s not in self._good}
        if unanswered:
            errors["unanswered"] = float(unanswered)
        return {"figures": figures, "errors": errors}
