"""The demo's Spark job, which judges events and writes the good ones, and what it has written."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from pyarrow import parquet

from app.demo.meanwhile import meanwhile
from app.demo.processes import LOOK_EVERY, Child, DemoFailed, child_environment
from app.demo.screen import Screen

READY_WITHIN: Final = 120.0  # seconds; Java starts slowly on a cold disk
_COLUMNS: Final = ("revision", "correlation_id", "timestamp", "path", "value")
_BATCH: Final = re.compile(rb"^batch \d+: .*$", re.MULTILINE)
_RULES: Final = Path(__file__).with_name("rules.json")


class SparkJob:
    """``ackgate spark validate`` as a child process; ``child`` once it is started.

    ``place`` is a folder for the job's log, Parquet files and checkpoint; ``label`` the one that
    it declares.
    """

    def __init__(self, place: Path, redis_url: str, label: str) -> None:
        self.child: Child | None = None
        self._place = place
        self._redis_url = redis_url
        self._label = label
        self._output = place / "parquet"
        self._ready = place / "spark.ready"
        self._told = 0

    async def start(self) -> None:
        """Start the job; a gateway must have laid out the store before."""
        command = [sys.executable, "-m", "app", "spark", "validate", "--label", self._label]
        command += [
            "--rules",
            str(_RULES),
            "--output",
            str(self._output),
            "--checkpoint",
            str(self._place / "checkpoint"),
        ]
        command += ["--ready-file", str(self._ready)]
        env = child_environment(redis_url=self._redis_url)
        scratch = self._place / "scratch"
        scratch.mkdir()
        # Spark, killed while its Java starts, leaves something behind: it goes with the demo.
        env["SPARK_LOCAL_DIRS"] = env["TMPDIR"] = str(scratch)
        self.child = await Child.start("Spark", command, self._place / "spark.log", env)

    async def ready(self) -> None:
        """Wait until the job has declared its label and reads events. Raises DemoFailed."""
        assert self.child is not None

        async def look() -> bool | None:
            return self._ready.exists() or None

        await self.child.until(look, "its job is ready", READY_WITHIN)

    def news(self) -> list[str]:
        """What the job has said about batches with events since the last call."""
        assert self.child is not None
        with self.child.log.open("rb") as log:
            log.seek(self._told)
            said = log.read()
        whole = said[: said.rfind(b"\n") + 1]
        self._told += len(whole)
        return [line.decode(errors="replace") for line in _BATCH.findall(whole)]

    @asynccontextmanager
    async def followed(self, tell: Callable[[], None]) -> AsyncIterator[None]:
        """Call ``tell`` again and again, which shows the news."""

        async def follow() -> None:
            while True:
                tell()
                await asyncio.sleep(LOOK_EVERY)

        async with meanwhile(follow(), "demo-spark-news"):
            yield

    def show_rows(self, screen: Screen, revisions: Sequence[int]) -> None:
        """Show the Parquet rows; raises DemoFailed if they are not those of ``revisions``."""
        rows = parquet.read_table(self._output, columns=list(_COLUMNS)).sort_by("revision")
        screen.table(
            _COLUMNS,
            [
                [
                    f"{cell:%H:%M:%S}" if name == "timestamp" else cell
                    for name, cell in zip(_COLUMNS, row.values(), strict=True)
                ]
                for row in rows.to_pylist()
            ],
        )
        found = rows.column("revision").to_pylist()
        if found != list(revisions):
            raise DemoFailed(f"Parquet has the revisions {found}, it must have {list(revisions)}")
