"""``ackgate spark``: help, options, and which store a job reads from. No Spark is started."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import free_port

ROOT = Path(__file__).parents[2]
JOBS = ("ack-report", "archive", "validate")


def spark(place: Path, *arguments: str, **settings: str) -> tuple[int, str]:
    """Run the command in a folder with no settings but these; exit code and all it says."""
    outer = {name: value for name, value in os.environ.items() if not name.startswith("ACKGATE_")}
    done = subprocess.run(
        [sys.executable, "-m", "app", "spark", *arguments],
        env=outer | {"PYTHONPATH": str(ROOT), "ACKGATE_DATA_DIR": str(place / "data")} | settings,
        cwd=place,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_help_names_the_jobs(tmp_path: Path) -> None:
    code, text = spark(tmp_path, "--help")
    assert code == 0
    assert all(f"\n  {job} " in text for job in JOBS)


@pytest.mark.parametrize("job", JOBS)
def test_each_job_has_its_help_and_the_shared_options(tmp_path: Path, job: str) -> None:
    code, text = spark(tmp_path, job, "--help")
    assert code == 0
    for option in ("--checkpoint", "--once", "--trigger", "--spark-master", "--conf"):
        assert option in text


def test_help_does_not_load_spark(tmp_path: Path) -> None:
    code, text = spark(tmp_path, "validate", "--help", PYTHONPROFILEIMPORTTIME="1")
    assert code == 0
    assert re.search(r"\| +connections\.spark\.jobs\.frame$", text, re.MULTILINE)
    assert not re.search(r"\| +(pyspark|pyarrow|redis)$", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--trigger", "soon"), "'soon' is not a time like"),
        (("--conf", "spark.x"), "'spark.x' is not NAME=VALUE"),
        (("--max-events", "0"), "0 is not in the range"),
    ],
)
def test_an_option_that_is_wrong_is_named(
    tmp_path: Path, arguments: tuple[str, ...], text: str
) -> None:
    code, said = spark(tmp_path, "archive", "--output", "o", "--checkpoint", "c", *arguments)
    assert code == 2
    assert text in said


def test_without_a_gateway_here_the_job_says_what_is_missing(tmp_path: Path) -> None:
    code, text = spark(tmp_path, "archive", "--output", "o", "--checkpoint", "c")
    assert code == 2
    assert text.startswith("ackgate: error: no Redis address: ")


def test_the_store_is_the_one_of_the_gateway_here(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "ackgate.toml").write_text(f'redis_url = "redis://me:secret@127.0.0.1:{port}"\n')
    code, text = spark(tmp_path, "archive", "--output", "o", "--checkpoint", "c")
    assert code == 2
    assert str(port) in text
    assert "secret" not in text


def test_the_embedded_store_is_found_by_its_socket(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    socket = tmp_path / "data" / "redis.sock"
    socket.touch()  # left behind by a gateway that was killed
    code, text = spark(tmp_path, "archive", "--output", "o", "--checkpoint", "c")
    assert code == 2
    assert text.startswith("ackgate: error: ")
    assert str(socket) in text


def test_windows_that_are_too_many_are_refused(tmp_path: Path) -> None:
    arguments = ("--checkpoint", "c", "--window", "1s", "--keep", "24h")
    code, text = spark(tmp_path, "ack-report", *arguments)
    assert code == 2
    assert "--keep has more than 10000 times --window" in text
