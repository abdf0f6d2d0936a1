"""The ready-made jobs as processes under a test's control, beside a real gateway."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pyarrow.dataset as ds

from acks.journal import leases_key, owners_key
from connections.spark.store import calls
from tests.gateways import Gateway, basic, environment, running
from tests.servers import RedisServer, wait_for_sync

START = 120.0
HERE = Path(__file__).parent


class Job:
    """One run of a job, ``ackgate spark <name>``; its output is in a log file.

    ``hold`` is a file: if given, the job creates it and stands still when it has done the work of
    its first batch with events, before that is acknowledged (held_job.py).
    """

    def __init__(
        self,
        place: Path,
        url: str,
        prefix: str,
        name: str,
        *options: object,
        hold: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        number = len([*place.glob("job*.log")])
        self.log_file = place / f"job{number}.log"
        self.ready_file = place / f"job{number}.ready"
        command = [sys.executable, "-m", "app", "spark", name]
        if hold is not None:
            command = [sys.executable, str(HERE / "held_job.py"), str(hold), name]
        command += [*map(str, options), "--ready-file", str(self.ready_file)]
        with self.log_file.open("w") as log:
            self._child = subprocess.Popen(
                command,
                env=environment(redis_url=url, prefix=prefix)
                | {"SPARK_LOCAL_DIRS": str(place)}
                | dict(env or {}),
                cwd=place,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        """What it has said so far."""
        return self.log_file.read_text()

    def ready(self) -> Job:
        """Wait until it says that it runs."""
        self.wait_for(self.ready_file.exists, "ready job")
        return self

    def wait_for(self, condition: Any, what: str) -> None:
        """Wait for a condition; the end of the job ends the wait."""

        def look() -> bool:
            if condition():
                return True
            assert self._child.poll() is None, self.log[-3000:]
            return False

        wait_for_sync(look, START, what)

    def ended(self, deadline: float = START) -> int:
        """Wait until it has ended by itself; its exit code."""
        code = self._child.wait(deadline)
        self._clear()
        return code

    def terminate(self) -> int:
        """SIGTERM; its exit code."""
        self._child.send_signal(signal.SIGTERM)
        return self.ended(60)

    def kill9(self) -> None:
        """End it and its Java without warning."""
        self._clear()
        self._child.wait(20)

    def _clear(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)


class Site:
    """A store with a gateway, and the jobs beside it."""

    def __init__(self, place: Path, server: RedisServer, gateway: Gateway, prefix: str) -> None:
        self.place = place
        self.url = server.url
        self.prefix = prefix
        self._jobs: list[Job] = []
        self._threads = ThreadPoolExecutor(8)
        self._http = httpx.Client(
            base_url=gateway.url,
            headers={"authorization": basic("ditto")},
            timeout=320,
            trust_env=False,
        )

    def job(self, name: str, *options: object, **more: Any) -> Job:
        """Start a job with its checkpoint in the test's folder; ``more`` as for :class:`Job`."""
        checkpoint = ("--checkpoint", self.place / "checkpoint")
        started = Job(self.place, self.url, self.prefix, name, *checkpoint, *options, **more)
        self._jobs.append(started)
        return started

    def ask(
        self, label: str, thing_id: str, path: str, value: object, timeout: str = "300s"
    ) -> Future[httpx.Response]:
        """Send a change that waits for ``label``."""
        return self._threads.submit(self._put, thing_id, path, value, label, timeout)

    def put(self, thing_id: str, path: str, value: object) -> None:
        """Make a change that waits for nobody."""
        assert self._put(thing_id, path, value).status_code in (201, 204)

    def get(self, path: str, user: str) -> Any:
        """The JSON at a path."""
        answer = self._http.get(path, headers={"authorization": basic(user)})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def owner(self, label: str) -> str | None:
        """Who owns a label whose lease has not ended."""
        owner, now = calls(self.url, [("HGET", owners_key(self.prefix), label), ("TIME",)])
        if owner is None:
            return None
        [expiry] = calls(self.url, [("ZSCORE", leases_key(self.prefix), owner.split(b"/")[0])])
        alive = expiry is not None and float(expiry) > int(now[0]) * 1000
        return owner.decode() if alive else None

    def close(self) -> None:
        """End what still runs."""
        for job in self._jobs:
            job.kill9()
        self._threads.shutdown(cancel_futures=True)
        self._http.close()

    def _put(
        self, thing_id: str, path: str, value: object, label: str = "", timeout: str = ""
    ) -> httpx.Response:
        params = {"requested-acks": label, "timeout": timeout} if label else {}
        url = f"/api/2/things/{quote(thing_id, safe=':')}{path}"
        return self._http.put(url, json=value, params=params)


@contextmanager
def site(place: Path, server: RedisServer) -> Iterator[Site]:
    """A gateway over the store, for one test."""
    prefix = f"site{uuid.uuid4().hex[:8]}"
    gateway = Gateway(
        place, redis_url=server.url, durability="none", max_timeout="10m", prefix=prefix
    )
    with running(gateway):
        made = Site(place, server, gateway, prefix)
        try:
            yield made
        finally:
            made.close()


def lake(folder: Path) -> list[dict[str, Any]]:
    """The rows of a lake in the order of thing and revision; none if it is not there."""
    if not folder.exists():
        return []
    rows = ds.dataset(folder, format="parquet", partitioning="hive").to_table().to_pylist()
    return sorted(rows, key=lambda row: (row["thing_id"], row["revision"], row["batch"]))
