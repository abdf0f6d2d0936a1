"""A backlog is read in bounded memory, whatever its size. A million entries: benchmarks."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Self

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.conftest import Query, Store

BACKLOG = int(os.environ.get("ACKGATE_TEST_BACKLOG", "60000"))
MEGABYTE = 1024
GROWTH = 48 * MEGABYTE
"""kB by which a process may grow: one batch as Python objects would be more than twice that."""


def descendants(pid: int) -> list[int]:
    """The children of a process, their children, and so on."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found.extend(int(child) for child in task.read_text().split())
            except OSError:
                continue
    return found[1:]


def resident(pid: int) -> int:
    """Memory of a Python process in kB, 0 for another or if it is gone."""
    try:
        if not Path(f"/proc/{pid}/comm").read_text().startswith("python"):
            return 0
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    sizes = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")]
    return int(sizes[0]) if sizes else 0


class Largest:
    """The most that any Python process of Spark had while the block ran, in kB."""

    def __init__(self) -> None:
        self.size = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            self.size = max([self.size, *map(resident, descendants(os.getpid()))])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def read_all(spark: SparkSession, store: Store, checkpoint: Path, read_on: str) -> int:
    """Catch up; how many rows there were."""
    counts: dict[int, int] = {}

    def function(df: DataFrame, batch_id: int) -> None:
        counts[batch_id] = df.count()

    options = {
        "startingOffsets": "earliest",
        "readOn": read_on,
        "maxOffsetsPerTrigger": "50000",
        "trigger": "availableNow",
    }
    with Query(spark, store, checkpoint, function, **options) as query:
        query.wait(lambda: not query.query.isActive)
    return sum(counts.values())


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("read_on", ["auto", "executors"])
def test_a_backlog_is_read_in_bounded_memory(
    spark: SparkSession, store: Store, tmp_path: Path, read_on: str
) -> None:
    store.at_once(3000)
    with Largest() as before:
        assert read_all(spark, store, tmp_path / "few", read_on) == 3000
    for start in range(3000, BACKLOG, 3000):
        store.at_once(min(3000, BACKLOG - start))
    with Largest() as after:
        assert read_all(spark, store, tmp_path / "many", read_on) == BACKLOG
    assert before.size > 10 * MEGABYTE
    assert after.size - before.size < GROWTH
    print(f"largest Python process of Spark: {before.size >> 10} MB, then {after.size >> 10} MB")
