"""``python -m benchmarks [name ...] [--rounds N] [--seconds S] [--write]``: run and report."""

from __future__ import annotations

import argparse
import fcntl
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import IO

from benchmarks.connections import amqp, mqtt
from benchmarks.measure import Result, say
from benchmarks.pending import pending
from benchmarks.processes import REPOSITORY, Lab
from benchmarks.report import machine, markdown, write
from benchmarks.search import search, search_acks, search_index
from benchmarks.sessions import fanout, idle, labels
from benchmarks.spark import spark
from benchmarks.spark_acks import spark_acks
from benchmarks.spark_read import spark_read
from benchmarks.start import start
from benchmarks.throughput import ack1, ack64, ack256, attributes, get, merge, persisted

BENCHMARKS: dict[str, Callable[[Lab, int, float], Result]] = {
    "persisted": persisted,
    "merge": merge,
    "get": get,
    "ack64": ack64,
    "ack1": ack1,
    "ack256": ack256,
    "fanout": fanout,
    "idle": idle,
    "labels": labels,
    "spark": spark,
    "spark_acks": spark_acks,
    "spark_read": spark_read,
    "mqtt": mqtt,
    "amqp": amqp,
    "search": search,
    "search_index": search_index,
    "search_acks": search_acks,
    "pending": pending,
    "start": start,
    "attributes": attributes,
}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
DEFAULT = [name for name in BENCHMARKS if name != "attributes"]
ROUNDS = {
    "persisted": 5,
    "merge": 5,
    "get": 5,
    "ack64": 5,
    "ack1": 5,
    "ack256": 5,
    "fanout": 3,
    "idle": 3,
    "labels": 3,
    "spark": 3,
    "spark_acks": 3,
    "spark_read": 3,
    "mqtt": 3,
    "amqp": 3,
    "search": 3,
    "search_index": 3,
    "search_acks": 3,
    "pending": 3,
    "start": 7,
    "attributes": 3,
}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--rounds", type=int, help="rounds of each system (default: 3 to 7)")
    parser.add_argument("--seconds", type=float, default=2.5, help="measured time of one round")
    parser.add_argument("--write", action="store_true", help="write results.md and results.json")
    parser.add_argument("--redis", choices=["unix", "tcp"], default="unix", help="store access")
    parser.add_argument(
        "--waiting", type=int, default=100_000, help="requests that wait at once in pending"
    )
    parser.add_argument("--server-core", type=int, help="core of the server processes")
    parser.add_argument("--load-core", type=int, help="core of load, subscriber and store")
    parser.add_argument("--no-pin", action="store_true", help="pin nothing to a core")
    chosen = parser.parse_args()
    unknown = [name for name in chosen.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    if chosen.rounds is not None and chosen.rounds < 1:
        parser.error("--rounds must be at least 1")
    if not 0.1 <= chosen.seconds <= 60:
        parser.error("--seconds must be from 0.1 to 60")
    if not 1 <= chosen.waiting <= 1_000_000:
        parser.error("--waiting must be from 1 to 1,000,000")
    return chosen


def placement(chosen: argparse.Namespace, folder: Path) -> Lab:
    """Server on the first core we may use, all else on the second; one core: nothing is pinned."""
    cores = sorted(os.sched_getaffinity(0))
    if chosen.no_pin or len(cores) < 2:
        return Lab(folder, None, None, chosen.redis, chosen.waiting)
    server = chosen.server_core if chosen.server_core is not None else cores[0]
    load = chosen.load_core if chosen.load_core is not None else cores[1]
    return Lab(folder, server, load, chosen.redis, chosen.waiting)


def interrupt(_number: int, _frame: FrameType | None) -> None:
    """A signal to stop unwinds, so that everything started is stopped; the next is ignored."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def only_run(build: Path) -> IO[str] | None:
    """Hold the only right to run here, until the file is closed; None if somebody has it."""
    file = (build / "benchmarks.lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def main() -> int:
    """Run, print, write if asked; 1 if a goal was missed or could not be measured."""
    chosen = arguments()
    if sys.platform != "linux":
        say("The benchmarks need Linux: they read /proc and pin processes to cores.")
        return 2
    for number in SIGNALS:
        signal.signal(number, interrupt)
    build = REPOSITORY / "build"
    build.mkdir(exist_ok=True)
    results = []
    lock = only_run(build)
    if lock is None:
        say("Another run of the benchmarks is under way here; two would disturb each other.")
        return 2
    with lock, tempfile.TemporaryDirectory(prefix="bench-", dir=build) as folder:
        lab = placement(chosen, Path(folder))
        facts = machine(lab)
        for name in chosen.names or DEFAULT:
            result = BENCHMARKS[name](lab, chosen.rounds or ROUNDS[name], chosen.seconds)
            result.date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
            result.command = " ".join(["python -m benchmarks", *sys.argv[1:]])
            results.append(result)
    print(markdown(results, facts))
    if chosen.write:
        write(results, facts, list(BENCHMARKS))
    goals = [result.reached(goal) for result in results for goal in result.goals]
    return 0 if all(goals) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("stopped")
        sys.exit(130)
