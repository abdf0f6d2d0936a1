"""A standalone cluster: the connector reaches its executors, and may lose one of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import wait_for_sync
from tests.spark.clusters import EXECUTOR, Cluster, Drivers, cluster, parent, program
from tests.spark.conftest import Acks, Store
from tests.spark.sink_job import LABEL

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def drivers(two_workers: Cluster, store: Store, tmp_path: Path) -> Iterator[Drivers]:
    running = Drivers(
        tmp_path,
        redisUrl=store.url,
        prefix=store.prefix,
        master=two_workers.master,
        wheel=two_workers.wheel,
        conf=dict(two_workers.conf),
        mark=str(tmp_path / "mark"),
        go=str(tmp_path / "go"),
        source={"readOn": "executors"},
    )
    yield running
    running.close()


@pytest.mark.parametrize("send_on", ["driver", "executors"])
def test_a_lost_executor_loses_no_event(
    store: Store,
    acks: Acks,
    tmp_path: Path,
    two_workers: Cluster,
    drivers: Drivers,
    send_on: str,
) -> None:
    """The executors have the connector from the wheel alone."""
    driver = drivers.start(hold="work", sink={"sendOn": send_on})
    wait_for_sync(lambda: two_workers.executors() == 2, 60, "two executors")
    expected = {*store.events(40, labels=(LABEL,))}
    mark, go = tmp_path / "mark", tmp_path / "go"
    driver.wait_for(lambda: mark.exists() and mark.read_text(), "a task that stands still")
    # The task's Python has been forked from a daemon, which the executor has started.
    executor = parent(parent(int(mark.read_text())))
    assert EXECUTOR in program(executor)
    os.kill(executor, signal.SIGKILL)
    go.touch()
    driver.wait_for(lambda: expected <= _ids(acks), "acks of all events")
    last = store.event("a:last", labels=(LABEL,))
    driver.wait_for(lambda: last in _ids(acks), "the ack of a later event")
    assert _ids(acks) == expected | {last}


def _ids(acks: Acks) -> set[str]:
    acks.receive()
    return {record[0] for record in acks.records}
