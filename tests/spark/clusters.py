"""A standalone Spark cluster on this machine, and drivers as processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyspark

from connections.spark.java import find_java
from tests.gateways import ROOT
from tests.servers import free_port, wait_for_sync

START = 120.0
EXECUTOR = "CoarseGrainedExecutorBackend"
HERE = Path(__file__).parent
HOME = Path(pyspark.__file__).parent


class Process:
    """A process with its children and a log file; ``settings`` are added to its environment."""

    def __init__(self, place: Path, name: str, command: list[str], **settings: str) -> None:
        self.log_file = place / f"{name}-{len([*place.glob(f'{name}-*.log')])}.log"
        with self.log_file.open("w") as log:
            self._child = subprocess.Popen(
                command,
                env=os.environ | settings,
                cwd=place,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._child.pid

    @property
    def log(self) -> str:
        """What it has said so far."""
        return self.log_file.read_text(errors="replace")

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        """Wait for a condition; the end of the process ends the wait."""

        def look() -> object:
            if condition():
                return True
            assert self._child.poll() is None, self.log[-3000:]
            return False

        wait_for_sync(look, START, what)

    def kill9(self) -> None:
        """End it and its children without warning."""
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait(20)


class Drivers:
    """Runs of sink_job.py with the same ``settings``."""

    def __init__(self, place: Path, **settings: Any) -> None:
        self._place = place
        self._settings = settings
        self._running: list[Process] = []

    def start(self, **more: Any) -> Process:
        """Start one and wait until it runs."""
        ready = self._place / f"ready{len(self._running)}"
        settings = self._settings | more
        settings |= {"ready": str(ready), "checkpoint": str(self._place / "checkpoint")}
        settings |= {"local": str(self._place)}
        started = Process(
            self._place,
            "driver",
            [sys.executable, str(HERE / "sink_job.py"), json.dumps(settings)],
            PYTHONPATH=str(ROOT),
        )
        self._running.append(started)
        started.wait_for(ready.exists, "ready driver")
        return started

    def close(self) -> None:
        """End what still runs."""
        for each in self._running:
            each.kill9()


class Cluster:
    """Master and workers, and how executors get the connector."""

    def __init__(self, place: Path, master: str, workers: list[Process]) -> None:
        self.master = master
        self.workers = workers
        self.wheel = str(wheel(place))
        self.conf: Mapping[str, str] = {
            "spark.pyspark.python": str(bare_python(place)),
            "spark.executor.memory": "512m",
            "spark.cores.max": "2",
        }

    def executors(self) -> int:
        """How many executors run, by the workers' children, of which some have ended."""
        children = [child for worker in self.workers for child in _children(worker.pid)]
        return sum(EXECUTOR in program(child) for child in children)


@contextmanager
def cluster(place: Path, workers: int = 2) -> Iterator[Cluster]:
    """A master and its workers on the loopback interface, one core each, for one test."""
    java = find_java()
    port, ui = free_port(), free_port()
    env = {"JAVA_HOME": java, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
    url = f"spark://127.0.0.1:{port}"
    program, package = str(HOME / "bin" / "spark-class"), "org.apache.spark.deploy"
    address = ["--host", "127.0.0.1"]
    master = Process(
        place,
        "master",
        [
            program,
            f"{package}.master.Master",
            *address,
            "--port",
            str(port),
            "--webui-port",
            str(ui),
        ],
        **env,
    )
    running: list[Process] = []
    try:
        master.wait_for(lambda: "I have been elected leader" in master.log, "master")
        for _ in range(workers):
            size = ["--cores", "1", "--memory", "768m", "--webui-port", str(free_port())]
            worker = [program, f"{package}.worker.Worker", *address, *size, url]
            running.append(Process(place, "worker", worker, **env))
        for each in running:
            each.wait_for(partial(_has_registered, each), "worker")
        yield Cluster(place, url, running)
    finally:
        for each in (*running, master):
            for child in _children(each.pid):
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            each.kill9()


def _has_registered(worker: Process) -> bool:
    return "Successfully registered" in worker.log


def wheel(place: Path) -> Path:
    """The connector as a wheel, built from a copy of the sources."""
    copy = place / "source"
    for name in ("acks", "app", "connections"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "-w", str(place), str(copy)], check=True, timeout=120)
    [built] = place.glob("ackgate-*.whl")
    return built


def bare_python(place: Path) -> Path:
    """A Python with our dependencies but without ackgate, as a cluster's machines have it.

    Without the module site the editable installation of the sources is not seen.
    """
    program = place / "python3"
    packages = sysconfig.get_path("purelib")
    program.write_text(
        f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec {sys.executable} -S "$@"\n'
    )
    program.chmod(0o755)
    return program


def program(pid: int) -> str:
    """The command line of a process; empty once it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def parent(pid: int) -> int:
    """The process that started a process."""
    text = Path(f"/proc/{pid}/stat").read_text()
    return int(text.rpartition(")")[2].split()[1])


def _children(pid: int) -> list[int]:
    """The children of all its threads: Java starts processes from any of them."""
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += [int(child) for child in file.read_text().split()]
    return found
