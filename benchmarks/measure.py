"""Samples, medians and goals: from interleaved rounds to one verdict."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.meter import machine_busy_seconds

QUIET = 0.2


class RunError(Exception):
    """A process of the run did not start, did not answer, or ended with an error."""


@dataclass(frozen=True)
class Sample:
    """What one system did in one round."""

    figures: dict[str, float]
    errors: dict[str, float] = field(default_factory=dict)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Sample:
        """Read what a load process printed. Raises KeyError."""
        return cls(dict(data["figures"]), dict(data["errors"]))


@dataclass(frozen=True)
class Goal:
    """``figure`` of ``system`` against ``baseline``'s (None: against 1), with a bound.

    ``at_least``: the ratio must be >= ``bound``, otherwise <= ``bound``.
    """

    figure: str
    system: str
    baseline: str | None
    at_least: bool
    bound: float

    def text(self) -> str:
        """The goal in words, as in ``>= 4x the straightforward app``."""
        sign = "≥" if self.at_least else "≤"
        if self.baseline is None:
            return f"{sign} {self.bound:g}"
        return f"{sign} {self.bound:g} × {self.baseline}"


@dataclass
class Result:
    """All rounds of one benchmark."""

    name: str
    title: str
    goals: list[Goal]
    main: list[str]
    """Figures that are shown, in their order."""
    rounds: dict[str, list[Sample]] = field(default_factory=dict)
    failures: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    command: str = ""
    date: str = ""

    def values(self, system: str, figure: str) -> list[float]:
        """The figure in every round that has it."""
        samples = self.rounds.get(system, [])
        return [sample.figures[figure] for sample in samples if figure in sample.figures]

    def median(self, system: str, figure: str) -> float | None:
        """Median over the rounds; None if no round has it."""
        values = self.values(system, figure)
        return statistics.median(values) if values else None

    def errors(self, system: str) -> dict[str, float]:
        """Errors of all rounds, by status or reason."""
        total: dict[str, float] = {}
        for sample in self.rounds.get(system, []):
            for reason, count in sample.errors.items():
                total[reason] = total.get(reason, 0) + count
        return total

    def ratio(self, goal: Goal) -> float | None:
        """What the goal's bound is compared with; None if a figure is missing."""
        own = self.median(goal.system, goal.figure)
        if own is None or goal.baseline is None:
            return own
        other = self.median(goal.baseline, goal.figure)
        return own / other if other else None

    def reached(self, goal: Goal) -> bool | None:
        """The verdict; None if it cannot be given. A system with errors never passes."""
        ratio = self.ratio(goal)
        if ratio is None:
            return None
        if self.errors(goal.system) or self.failures.get(goal.system):
            return False
        return ratio >= goal.bound if goal.at_least else ratio <= goal.bound


def interleave(result: Result, systems: Mapping[str, Callable[[], Sample]], rounds: int) -> Result:
    """Run every system once per round, in an order that rotates, and collect the samples.

    A system that fails is noted in ``failures``, and the run goes on.
    """
    names = list(systems)
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            settle()
            begin = time.monotonic()
            try:
                sample = systems[name]()
            except (RunError, OSError, ValueError, KeyError) as error:
                reason = str(error).replace(str(Path(__file__).parent.parent), ".")
                result.failures.setdefault(name, []).append(reason)
                say(f"{result.name} {number + 1}/{rounds} {name}: FAILED: {error}")
                continue
            result.rounds.setdefault(name, []).append(sample)
            shown = "  ".join(f"{k} {sample.figures.get(k, 0):,.2f}" for k in result.main)
            errors = f"  ERRORS {sample.errors}" if sample.errors else ""
            say(
                f"{result.name} {number + 1}/{rounds} {name:16} {shown}{errors}"
                f"  ({time.monotonic() - begin:.1f} s)"
            )
    return result


def settle(within: float = 3.0) -> None:
    """Wait up to ``within`` s until the machine is quiet (less than ``QUIET`` cores busy)."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        before = machine_busy_seconds()
        time.sleep(0.25)
        if (machine_busy_seconds() - before) / 0.25 < QUIET:
            return


def say(line: str) -> None:
    """A line of progress on standard error."""
    print(line, file=sys.stderr, flush=True)
