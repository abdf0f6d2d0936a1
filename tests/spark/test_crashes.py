"""A driver with the ack sink that is killed at a chosen place, and its restart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.clusters import Drivers
from tests.spark.conftest import Acks, Store
from tests.spark.sink_job import LABEL

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
def drivers(store: Store, tmp_path: Path) -> Iterator[Drivers]:
    running = Drivers(
        tmp_path,
        redisUrl=store.url,
        prefix=store.prefix,
        mark=str(tmp_path / "mark"),
        go=str(tmp_path / "go"),
    )
    yield running
    running.close()


@pytest.mark.parametrize(("hold", "times"), [("before", 1), ("after", 2)])
def test_a_driver_killed_around_the_acks_loses_none(
    store: Store, acks: Acks, tmp_path: Path, drivers: Drivers, hold: str, times: int
) -> None:
    """Before: acknowledged once, after the restart. After, but not in the checkpoint: twice."""
    first = drivers.start(hold=hold)
    owner = store.owner(LABEL)
    held = store.event("a:held", labels=(LABEL,))
    first.wait_for((tmp_path / "mark").exists, "held commit")
    assert [record[0] for record in acks.wait(times - 1)] == [held] * (times - 1)
    first.kill9()
    meanwhile = store.event("a:meanwhile", labels=(LABEL,))

    drivers.start()
    assert (store.owner(LABEL) or "").split("/")[0] == (owner or "").split("/")[0] != ""
    later = store.event("a:later", labels=(LABEL,))
    acks.wait(times + 2)
    assert [record[0] for record in acks.records if record[0] == held] == [held] * times
    assert {record[0] for record in acks.records} == {held, meanwhile, later}
    assert acks.receive() == times + 2
