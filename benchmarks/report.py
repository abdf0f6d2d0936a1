"""From results to ``results.md`` and ``results.json``: figures, ratios, goals, the machine."""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import subprocess
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.measure import Goal, Result, Sample
from benchmarks.processes import REPOSITORY, Lab, nats_binary, redis_binary

FOLDER = REPOSITORY / "benchmarks"
PACKAGES = [
    *("ackgate", "uvicorn", "uvloop", "httptools", "fastapi", "pydantic", "orjson"),
    *("redis", "hiredis", "nats-py", "pyspark"),
]
LABELS = {
    "requests_per_s": "requests/s",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "server_cpu_us": "server CPU µs/request",
    "requests": "requests",
    "open_s": "until all are open s",
    "request_kb": "RSS kB/request",
    "expired_s": "deadline → last answer s",
    "deliveries_per_s": "deliveries/s",
    "delivery_cpu_us": "server CPU µs/delivery",
    "session_kb": "RSS kB/session",
    "opened_s": "until all are open s",
    "ready_s": "ready s",
    "rss_mb": "RSS MB",
    "pss_mb": "PSS MB",
    "rows_per_s": "rows/s",
    "events_per_s": "events/s",
    "java_cpu_us": "Java CPU µs/event",
    "python_cpu_us": "Python CPU µs/event",
    "events_per_cpu_s": "events per CPU second",
    "python_mb": "largest Python process, RSS MB",
    "indexer_cpu_us": "indexer CPU µs/event",
    **{f"{kind}_p50_ms": f"{kind} p50 ms" for kind in ("eq", "range", "like", "and_or", "sort")},
}
SYSTEMS = [
    "`straightforward`: what one writes first with FastAPI, pydantic and redis-py. A merge reads "
    "the document under WATCH, merges, and writes it and its event in a transaction.",
    "`bare`: the least code that makes the same store calls, without authentication, rules or "
    "checks. It does not even merge: it writes a document of the same size and the patch.",
    "`nats`: a durable publish to JetStream, then a request and its reply.",
    "`floor`: the least that brings an event to WebSockets: a PUT appends to one stream, whose "
    "reader writes to all of them; no authentication, rules or checks.",
    "`(in process)`: the same requests made inside the process, without HTTP.",
]
DISTURBED = 0.25
"""Cores kept busy by others, above which a round is called disturbed."""


def machine(lab: Lab) -> dict[str, str]:
    """What the figures depend on: processor, kernel, versions, placement."""
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    pinned = "not pinned"
    if lab.server_core is not None:
        pinned = (
            f"server processes on core {lab.server_core}; load, subscriber and store on core "
            f"{lab.load_core}"
        )
    return {
        "cores": str(os.cpu_count()),
        "cpu": found[1] if found else platform.processor(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "store": _first_line(redis_binary(), "--version"),
        "nats": _first_line(nats_binary(), "--version"),
        "store access": "unix socket" if lab.redis == "unix" else "TCP on the loopback",
        "placement": pinned,
        "load average at the start": f"{os.getloadavg()[0]:.2f}",
        "packages": ", ".join(f"{name} {_version(name)}" for name in PACKAGES),
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "-"


def _first_line(binary: str | None, argument: str) -> str:
    if binary is None:
        return "not installed"
    command = [binary, argument]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    return (done.stdout or done.stderr).partition("\n")[0]


def number(value: float) -> str:
    """A figure with about three significant digits."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def cell(result: Result, system: str, figure: str) -> str:
    """Median, and the spread in brackets."""
    values = result.values(system, figure)
    if not values:
        return "–"
    spread = f" ({number(min(values))}–{number(max(values))})" if len(values) > 1 else ""
    return number(statistics.median(values)) + spread


def verdict(result: Result, goal: Goal) -> str:
    """One row of the table of goals."""
    ratio, reached = result.ratio(goal), result.reached(goal)
    own = result.median(goal.system, goal.figure)
    other = result.median(goal.baseline, goal.figure) if goal.baseline else None
    words = {True: "yes", False: "**no**", None: "not measured"}[reached]
    cells = [
        result.title,
        LABELS.get(goal.figure, goal.figure),
        "–" if own is None else number(own),
        "–" if other is None else f"{number(other)} ({goal.baseline})",
        "–" if ratio is None or goal.baseline is None else f"{ratio:.2f}",
        goal.text(),
        words,
    ]
    return "| " + " | ".join(cells) + " |"


def section(result: Result) -> str:
    """One benchmark: its table, its errors, its notes."""
    systems = list(dict.fromkeys([*result.rounds, *result.failures]))
    head = ["system", *(LABELS.get(figure, figure) for figure in result.main), "rounds", "errors"]
    lines = [f"### {result.name}: {result.title}", "", "| " + " | ".join(head) + " |"]
    lines.append("|" + "---|" * len(head))
    for system in systems:
        errors = result.errors(system)
        shown = ", ".join(f"{count:g} × {reason}" for reason, count in errors.items()) or "none"
        rounds = str(len(result.rounds.get(system, [])))
        failed = len(result.failures.get(system, []))
        rounds += f", {failed} failed" if failed else ""
        figures = [cell(result, system, figure) for figure in result.main]
        lines.append("| " + " | ".join([system, *figures, rounds, shown]) + " |")
    lines.append("")
    if any(result.errors(system) for system in systems) or result.failures:
        lines.append("**This run had errors.** A system with errors reaches no goal.")
    lines += [f"* {note}" for note in [*result.notes, *failure_notes(result), *disturbed(result)]]
    return "\n".join([*lines, f"* {result.date}, `{result.command}`", ""])


def failure_notes(result: Result) -> list[str]:
    """The first failure of every system that had one, in one line."""
    return [
        f"{system} failed: {messages[0].splitlines()[0][:200]}"
        for system, messages in result.failures.items()
    ]


def disturbed(result: Result) -> list[str]:
    """A note if other processes used the machine during some rounds."""
    foreign = [
        sample.figures["foreign_cpu"]
        for samples in result.rounds.values()
        for sample in samples
        if "foreign_cpu" in sample.figures
    ]
    count = sum(1 for cores in foreign if cores > DISTURBED)
    if not count:
        return []
    return [
        f"Other processes kept up to {max(foreign):.2f} cores busy; {count} of {len(foreign)} "
        f"samples had more than {DISTURBED:g}."
    ]


def markdown(results: list[Result], facts: dict[str, str]) -> str:
    """The whole report."""
    head = "| what | figure | ackgate | baseline | ratio | goal | reached |"
    goals = [verdict(result, goal) for result in results for goal in result.goals]
    described = [f"* {name}: {value}" for name, value in facts.items()]
    return "\n".join(
        [
            "# Benchmarks",
            "",
            "Every figure stands beside a baseline of the same run: the systems take turns, round",
            "by round, each on a fresh store that fsyncs every write. Shown are medians over the",
            "rounds, with the lowest and the highest round in brackets. Absolute figures vary from",
            "machine to machine; the ratios are the point.",
            "",
            "Reproduce: `make bench`, or `python -m benchmarks --write` to write this file.",
            "",
            *(f"* {words}" for words in SYSTEMS),
            "",
            "## Goals",
            "",
            head,
            "|---|---|---|---|---|---|---|",
            *goals,
            "",
            "## All figures",
            "",
            *(section(result) for result in results),
            "## The machine of the last run",
            "",
            *described,
            "",
        ]
    )


def load_results(path: Path) -> dict[str, Result]:
    """Results of earlier runs by name; empty if there are none."""
    if not path.exists():
        return {}
    found: dict[str, Result] = {}
    for data in json.loads(path.read_text())["results"]:
        data["goals"] = [Goal(**goal) for goal in data["goals"]]
        data["rounds"] = {
            system: [Sample.from_json(sample) for sample in samples]
            for system, samples in data["rounds"].items()
        }
        found[data["name"]] = Result(**data)
    return found


def write(results: list[Result], facts: dict[str, str], order: list[str]) -> None:
    """Write both files; benchmarks that did not run this time keep their last results."""
    path = FOLDER / "results.json"
    merged = load_results(path) | {result.name: result for result in results}
    ordered = [merged[name] for name in order if name in merged]
    data: dict[str, Any] = {"machine": facts, "results": [asdict(result) for result in ordered]}
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    (FOLDER / "results.md").write_text(markdown(ordered, facts))
