"""The job ``archive`` beside a real gateway: what its ack means, and what crashes leave."""

from __future__ import annotations

import datetime
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import RedisServer, wait_for_sync
from tests.spark.jobs import Site, lake, site

LABEL = "spark:archived"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
def here(tmp_path: Path, server: RedisServer) -> Iterator[Site]:
    with site(tmp_path, server) as made:
        yield made


def test_events_are_in_the_lake_when_they_are_acknowledged(here: Site) -> None:
    """From the first event on; also those from before the job, and after its restart."""
    output = here.place / "lake"
    here.put("org.early:one", "", {"attributes": {"on": False}})
    job = here.job("archive", "--output", output, "--trigger", "0s").ready()
    assert here.owner(LABEL) is not None
    answer = here.ask(LABEL, "org.late:one", "", {"attributes": {"on": True}}).result()
    assert answer.status_code == 200, answer.text
    early, late = lake(output)
    assert (early["thing_id"], early["namespace"]) == ("org.early:one", "org.early")
    assert (late["thing_id"], late["revision"], late["action"]) == ("org.late:one", 1, "created")
    assert late["requested_acks"] == [LABEL]
    assert late["correlation_id"] == answer.headers["correlation-id"]
    assert late["date"] == str(late["timestamp"].astimezone(datetime.UTC).date())
    folders = {path.parent.relative_to(output).parts[:2] for path in output.rglob("*.parquet")}
    assert folders == {
        (f"date={late['date']}", f"namespace=org.{when}") for when in ("early", "late")
    }

    assert job.terminate() == 0
    assert here.owner(LABEL) is None
    assert "\nready\n" in job.log
    assert ": 1 event archived, " in job.log
    assert job.log.endswith("stopped\n")

    here.put("org.early:one", "/attributes/on", True)
    assert here.job("archive", "--output", output, "--once").ended() == 0
    assert [(row["thing_id"], row["revision"]) for row in lake(output)] == [
        ("org.early:one", 1),
        ("org.early:one", 2),
        ("org.late:one", 1),
    ]


def test_killed_between_work_and_ack_nothing_is_lost_or_there_twice(here: Site) -> None:
    output, hold = here.place / "lake", here.place / "held"
    options = ("--output", output, "--trigger", "0s")
    job = here.job("archive", *options, hold=hold).ready()
    waiting = here.ask(LABEL, "org.acme:one", "", {"attributes": {"n": 1}})
    job.wait_for(hold.exists, "work on a batch")
    assert [row["revision"] for row in lake(output)] == [1]
    assert not waiting.done()
    job.kill9()
    here.put("org.acme:one", "/attributes/n", 2)
    # The request still waits, and gets its answer from the second run.
    again = here.job("archive", *options).ready()
    assert waiting.result().status_code == 200
    again.wait_for(lambda: len(lake(output)) == 2, "the other event")
    assert [row["revision"] for row in lake(output)] == [1, 2]
    assert again.terminate() == 0


def test_what_cannot_be_written_is_refused_and_written_by_the_next_run(here: Site) -> None:
    output = here.place / "lake"
    job = here.job("archive", "--output", output, "--trigger", "0s").ready()
    output.mkdir(exist_ok=True)
    blocked = output / f"date={datetime.datetime.now(datetime.UTC).date()}"
    blocked.touch()  # where a folder must be
    answer = here.ask(LABEL, "org.acme:one", "", {}).result()
    assert answer.status_code == 500
    assert job.ended() == 1
    assert "ackgate: error: the query failed: " in job.log
    assert here.owner(LABEL) is None
    blocked.unlink()
    assert here.job("archive", "--output", output, "--once").ended() == 0
    assert [row["thing_id"] for row in lake(output)] == ["org.acme:one"]

    # Batches of another checkpoint have the same numbers, and must not replace these.
    anew = ("--checkpoint", here.place / "other", "--starting-offsets", "earliest")
    assert here.job("archive", "--output", output, "--once", *anew).ended() == 0
    assert [row["thing_id"] for row in lake(output)] == ["org.acme:one"] * 2


def test_a_label_has_one_job_and_the_other_says_so(here: Site) -> None:
    job = here.job("archive", "--output", here.place / "lake").ready()
    rival = here.job(
        "archive", "--output", here.place / "lake2", "--checkpoint", here.place / "other"
    )
    assert rival.ended() == 2
    assert f"ackgate: error: the label '{LABEL}' is taken by spark-" in rival.log
    assert "Traceback" not in rival.log
    job._child.send_signal(signal.SIGINT)
    assert job.ended() == 0
    wait_for_sync(lambda: here.owner(LABEL) is None)


def test_delta_without_its_package_is_refused_before_spark_starts(here: Site) -> None:
    job = here.job("archive", "--output", here.place / "lake", "--format", "delta")
    assert job.ended() == 2
    assert "--format delta needs the package delta-spark" in job.log


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--source-option", "startingOffset=latest"), "unknown option startingOffset;"),
        (("--starting-offsets", "soon"), "startingOffsets"),
        (("--redis-url", "redis://127.0.0.1:1"), "127.0.0.1:1"),
    ],
)
def test_what_cannot_work_is_said_in_one_line(
    here: Site, options: tuple[str, ...], text: str
) -> None:
    job = here.job("archive", "--output", here.place / "lake", *options)
    assert job.ended() == 2
    [line] = job.log.splitlines()
    assert line.startswith("ackgate: error: ")
    assert text in line
