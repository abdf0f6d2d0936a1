"""Benchmark ``start``: from exec to ready, and the memory of one idle process."""

from __future__ import annotations

import re
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from benchmarks.measure import Goal, Result, RunError, Sample, interleave
from benchmarks.processes import (
    START_S,
    Lab,
    family,
    free_port,
    http_status,
    running,
    wait_until,
)
from benchmarks.systems import ACKGATE, gateway

IDLE_S = 1.0


def memory_mb(pid: int) -> dict[str, float]:
    """``Rss`` and ``Pss`` of a process in MB (10^6 bytes): proc(5), smaps_rollup."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = re.findall(r"^(Rss|Pss): +(\d+) kB$", text, re.MULTILINE)
    return {name: int(kib) * 1024 / 1e6 for name, kib in found}


def listener(port: int, pids: list[int]) -> int:
    """The process that listens on the port. Raises RunError if none of ``pids`` does."""
    listening = {
        fields[9]
        for fields in map(str.split, Path("/proc/net/tcp").read_text().splitlines()[1:])
        if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port
    }
    for pid in reversed(pids):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if link.readlink().name.removeprefix("socket:[").rstrip("]") in listening:
                    return pid
    raise RunError(f"nobody listens on port {port}")


def started(lab: Lab) -> Sample:
    """One start of ``ackgate serve --dev`` with its embedded store on a fresh directory."""
    with tempfile.TemporaryDirectory(prefix="data-", dir=lab.folder) as data:
        port = free_port()
        serve = ["serve", "--dev", "--host", "127.0.0.1", "--port", str(port), "--data-dir", data]
        begin = time.perf_counter()
        with running([gateway(), *serve], core=None, log=lab.folder / "start.log") as process:
            wait_until(
                "readiness", lambda: http_status(port, "/health/ready") == 200, process, START_S
            )
            ready_s = time.perf_counter() - begin
            time.sleep(IDLE_S)
            memory = memory_mb(listener(port, family(process.pid)))
    return Sample({"ready_s": ready_s, "rss_mb": memory["Rss"], "pss_mb": memory["Pss"]})


def start(lab: Lab, rounds: int, _seconds: float) -> Result:
    """At least seven starts; time until ``/health/ready`` answers 200, memory when idle."""
    result = Result(
        "start",
        "ackgate serve --dev on a fresh data directory: exec → ready; one process idle",
        [
            Goal("ready_s", ACKGATE, None, False, 1.5),
            Goal("rss_mb", ACKGATE, None, False, 120.0),
        ],
        ["ready_s", "rss_mb", "pss_mb"],
    )
    return interleave(result, {ACKGATE: partial(started, lab)}, max(7, rounds))
