"""The demo as a person runs it: a process, its output, and what it leaves behind (nothing)."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from tests.servers import wait_for_sync

MARK = "DEMO_TEST_MARK"
ACKGATE = Path(sys.executable).with_name("ackgate")


def _interruptible() -> None:
    """What a shell starts in the background ignores Ctrl-C, and its children do: not the demo."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Run:
    """A running demo whose processes can be found by their environment, files in ``place``."""

    def __init__(self, place: Path, **environment: str) -> None:
        self.place = place
        self._mark = uuid4().hex
        self._output = place.with_name("output")
        env = os.environ | {MARK: self._mark, "TMPDIR": str(place)} | environment
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [ACKGATE, "demo"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=env,
                preexec_fn=_interruptible,  # noqa: PLW1509  # it takes no lock
            )

    @property
    def output(self) -> str:
        return self._output.read_text()

    def processes(self) -> list[str]:
        """Commands of all processes that belong to this demo."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if f"{MARK}={self._mark}".encode() in (process / "environ").read_bytes():
                    found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue  # it has ended, or is not ours
        return found

    def said(self, text: str, deadline: float = 60.0) -> None:
        wait_for_sync(
            lambda: text in self.output or self.process.poll() is not None, deadline, text
        )
        assert text in self.output

    def left_nothing(self) -> None:
        wait_for_sync(lambda: not self.processes(), 10.0, "the end of all processes")
        # Java keeps its own folder for the counters of its processes.
        assert [path.name for path in self.place.iterdir() if "hsperf" not in path.name] == []


@contextmanager
def demo(tmp_path: Path, **environment: str) -> Iterator[Run]:
    place = tmp_path / "t"
    place.mkdir()
    run = Run(place, **environment)
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.process.terminate()
            run.process.wait(60)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_the_whole_demo(tmp_path: Path) -> None:
    with demo(tmp_path, ACKGATE_USERS="strange:one", ACKGATE_PREFIX="other") as run:
        assert run.process.wait(240) == 0, run.output
    text = run.output
    statuses = [
        int(status) for status in re.findall(r"^ *[\d.]+ s  answer +(\d+) after", text, re.M)
    ]
    assert statuses == [200, 424, 424]
    _, first, second, third = re.split(r"^[123]\. .*$", text, flags=re.M)
    assert re.findall(r'^      "([a-z:-]+)": \{', first, re.M) == [
        "twin-persisted", "demo:websocket", "spark:ingested",
    ]  # fmt: skip
    assert re.search(r'"nobody:there": \{\s*"status": 408', second)
    assert "acknowledgement:request.timeout" in second
    assert re.search(r'"spark:ingested": \{\s*"status": 422', third)
    rows = third[third.index("Parquet") :]
    assert re.findall(r"^    (\d+)  +(demo-\d)", rows, re.M) == [("1", "demo-1"), ("2", "demo-2")]
    assert rows.count("exit code 0") == 3
    assert "\x1b" not in text
    run.left_nothing()


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_while_spark_starts(tmp_path: Path, number: signal.Signals) -> None:
    with demo(tmp_path) as run:
        run.said("waiting for its Java")
        wait_for_sync(lambda: any("java" in command for command in run.processes()), 60.0, "Java")
        run.process.send_signal(number)
        assert run.process.wait(60) == 130, run.output
    assert "interrupted" in run.output
    assert "Traceback" not in run.output
    run.left_nothing()


@pytest.mark.slow
@pytest.mark.spark
def test_a_spark_job_that_cannot_start_is_shown(tmp_path: Path) -> None:
    with demo(tmp_path, PYSPARK_SUBMIT_ARGS="--no-such-option pyspark-shell") as run:
        assert run.process.wait(100) == 1, run.output
    assert "Spark ended (exit code 1)" in run.output
    assert "the end of the log of Spark" in run.output
    assert "JAVA_GATEWAY_EXITED" in run.output
    run.left_nothing()
