"""Benchmarks ``search``, ``search_index`` and ``search_acks``: finding things, and being found.

Each runs on SQLite and, where its server is installed, on PostgreSQL with fsync. The plain side is
the same database with a table made for these things (benchmarks/baselines/plain_sql.py).
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import orjson

from benchmarks.baselines.plain_sql import (
    PostgresTable,
    SqliteTable,
    Table,
    answer,
    fill,
    row_of,
)
from benchmarks.bodies import Server, thing_id
from benchmarks.connections import on_core
from benchmarks.load import response_end
from benchmarks.measure import Result, RunError, Sample, interleave
from benchmarks.meter import cpu_seconds, percentile
from benchmarks.processes import (
    START_S,
    Lab,
    Process,
    Store,
    family,
    free_port,
    http_status,
    redis_server,
    running,
    wait_until,
)
from benchmarks.search_bodies import THINGS, Question, device, questions
from benchmarks.systems import ACKGATE, PASSWORD, USER, Load, command, sample
from tests.postgres import postgres_binaries, postgres_server

OPERATOR = "operator"
PLAIN = "plain SQL"
CONNECTIONS = 64
QUERIES = 100
"""Of every kind and round."""
BACKLOG_THINGS = 10_000
ROUNDS_OF_CHANGES = 5
"""How often each of them changes."""
BATCH = 500
INDEXED_S = 600.0
Index = Callable[[], AbstractContextManager[str]]
"""Gives, for the length of a ``with`` block, the setting ``search_index`` of an empty index."""


@contextmanager
def sqlite(lab: Lab) -> Iterator[str]:
    """An empty SQLite file."""
    with tempfile.TemporaryDirectory(dir=lab.folder) as folder:
        yield f"sqlite:{folder}/search.sqlite"


@contextmanager
def postgres(lab: Lab, binaries: Path) -> Iterator[str]:
    """A PostgreSQL with fsync and the usual memory."""
    options = {"fsync": "on", "shared_buffers": "128MB"}
    with on_core(lab.load_core), postgres_server(binaries, **options) as server:
        yield server.database()


def indexes(lab: Lab, result: Result) -> dict[str, Index]:
    """The kinds of index that can be run here, by their names."""
    found: dict[str, Index] = {"SQLite": partial(sqlite, lab)}
    binaries = postgres_binaries()
    if binaries is None:
        result.notes.append("PostgreSQL is not installed: no figures of it.")
    else:
        found["PostgreSQL"] = partial(postgres, lab, binaries)
    return found


@contextmanager
def served(lab: Lab, store: Store, index: str) -> Iterator[tuple[Process, int]]:
    """A gateway with that index; the process and its port."""
    port = free_port()
    arguments, environment = command(ACKGATE, port, store)
    environment |= {
        "ACKGATE_SEARCH_INDEX": index,
        "ACKGATE_OPERATORS": f"{OPERATOR}:{PASSWORD}",
    }
    log = lab.folder / "search.log"
    with running(arguments, core=lab.server_core, log=log, env=environment) as process:
        wait_until(
            "the gateway", lambda: http_status(port, "/health/ready") == 200, process, START_S
        )
        yield process, port


def _get(connection: http.client.HTTPConnection, user: str, path: str) -> Any:
    credentials = base64.b64encode(f"{user}:{PASSWORD}".encode()).decode()
    connection.request("GET", path, headers={"Authorization": f"Basic {credentials}"})
    answered = connection.getresponse()
    text = answered.read()
    if answered.status != 200:
        raise RunError(f"GET {path}: {answered.status} {text.decode()}")
    return orjson.loads(text)


def wait_indexed(process: Process, port: int) -> None:
    """Wait until the index has everything that is in the store. Raises RunError."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def done() -> bool:
        status = _get(connection, OPERATOR, "/devops/search")
        time.sleep(0.02)
        return bool(status["state"] == "complete" and status["lagMs"] == 0)

    wait_until("the index", done, process, INDEXED_S)
    connection.close()


async def put_all(port: int, wanted: list[tuple[str, bytes]]) -> None:
    """PUT every (path, body), over many connections. Raises RunError if one is refused."""
    server = Server("127.0.0.1", port, USER, PASSWORD)
    headers = {"Content-Type": "application/json"}
    left = iter(wanted)

    async def connection() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        data = b""
        for path, body in left:
            writer.write(server.request("PUT", path, body, headers))
            while not (end := response_end(data)):
                more = await asyncio.wait_for(reader.read(65536), START_S)
                if not more:
                    raise RunError("the gateway has closed the connection")
                data += more
            if data[9:12] not in (b"201", b"204"):
                raise RunError(f"PUT {path}: {data[:500]!r}")
            data = data[end:]
        writer.close()

    await asyncio.gather(*(connection() for _ in range(CONNECTIONS)))


def _devices(count: int) -> list[tuple[str, bytes]]:
    return [
        (f"/api/2/things/{thing_id(number)}", json.dumps(device(number)).encode())
        for number in range(count)
    ]


def _changes(count: int) -> list[tuple[str, bytes]]:
    return [
        (f"/api/2/things/{thing_id(number)}/attributes/level", str(number + turn + 0.5).encode())
        for turn in range(ROUNDS_OF_CHANGES)
        for number in range(count)
    ]


# --- search -------------------------------------------------------------------------------------


class Clock:
    """Times of the pages of each kind of question, ns."""

    def __init__(self) -> None:
        self._times: dict[str, list[int]] = {}
        self._kind = ""
        self._begin = 0

    def start(self, kind: str) -> None:
        """A question of ``kind`` begins."""
        self._kind, self._begin = kind, time.perf_counter_ns()

    def page(self) -> None:
        """A page of it is there."""
        now = time.perf_counter_ns()
        self._times.setdefault(self._kind, []).append(now - self._begin)
        self._begin = now

    def sample(self) -> Sample:
        """p50 and p99 of each kind, ms."""
        figures = {}
        for kind, times in self._times.items():
            times.sort()
            figures[f"{kind}_p50_ms"] = percentile(times, 0.5) / 1e6
            figures[f"{kind}_p99_ms"] = percentile(times, 0.99) / 1e6
        return Sample(figures)


def _drawn(seed: int) -> Iterator[tuple[str, Question]]:
    chance = random.Random(seed)
    for _ in range(QUERIES):
        yield from questions(chance.randrange(THINGS)).items()


def _found(counts: dict[str, int], kind: str, number: int) -> None:
    counts[kind] = counts.get(kind, 0) + number


def ask_gateway(port: int, counts: dict[str, int]) -> Sample:
    """One round of queries over one connection, one at a time."""
    clock = Clock()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    for kind, question in _drawn(len(counts)):
        cursor = ""
        for _ in range(question.pages):
            option = ",".join(filter(None, (question.option, cursor and f"cursor({cursor})")))
            asked = {"filter": question.rql} | ({"option": option} if option else {})
            clock.start(kind)
            page = _get(connection, USER, f"/api/2/search/things?{urlencode(asked)}")
            clock.page()
            _found(counts, kind, len(page["items"]))
            cursor = page.get("cursor", "")
            if not cursor:
                break
    connection.close()
    return clock.sample()


def ask_table(table: Table, run: Callable[[Any], Any], counts: dict[str, int]) -> Sample:
    """The same questions to the table, which reads the documents as well."""
    clock = Clock()

    async def asked() -> None:
        for kind, question in _drawn(len(counts)):
            clock.start(kind)
            _found(counts, kind, await answer(table, question, clock.page))

    run(asked())
    return clock.sample()


async def _filled(index: str) -> Table:
    table: Table
    if index.startswith("sqlite:"):
        table = SqliteTable(Path(index.removeprefix("sqlite:")).with_name("plain.sqlite"))
    else:
        table = await PostgresTable.open(index)
    await fill(table, (row_of(thing_id(n), device(n)) for n in range(THINGS)), BATCH)
    await table.ask("ANALYZE", ())
    return table


def search(lab: Lab, rounds: int, _seconds: float) -> Result:
    """Latency of queries, one at a time, beside the plain table in the same database."""
    kinds = list(questions(0))
    result = Result(
        "search",
        f"Queries on {THINGS:,} things, one at a time, pages of 25 (ms, p50)",
        [],
        [f"{kind}_p50_ms" for kind in kinds],
        notes=[
            f"`{PLAIN}` is one table in the same database with a typed column and an index for "
            "each property that is asked for, read by this process; it returns its documents. The "
            "gateway answers over HTTP, from the current twins, within the requester's policies.",
            "`sort` is the time of one page out of four by cursor.",
        ],
    )
    counts: dict[str, dict[str, int]] = {}
    with ExitStack() as stack:
        store = stack.enter_context(redis_server(lab))
        loop = stack.enter_context(asyncio.Runner())
        systems: dict[str, Callable[[], Sample]] = {}
        filled = False
        for name, index in indexes(lab, result).items():
            setting = stack.enter_context(index())
            process, port = stack.enter_context(served(lab, store, setting))
            if not filled:
                loop.run(put_all(port, _devices(THINGS)))
                filled = True
            wait_indexed(process, port)
            table = loop.run(_filled(setting))
            for system, ask in (
                (f"{ACKGATE}, {name}", partial(ask_gateway, port)),
                (f"{PLAIN}, {name}", partial(ask_table, table, loop.run)),
            ):
                systems[system] = partial(ask, counts.setdefault(system, {}))
        interleave(result, systems, rounds)
    if len({json.dumps(found, sort_keys=True) for found in counts.values()}) > 1:
        raise RunError(f"the systems have found different things: {counts}")
    return result


# --- search_index -------------------------------------------------------------------------------


def index_backlog(lab: Lab, index: Index) -> Sample:
    """How fast the gateway's indexer catches up with a backlog of events."""
    events = BACKLOG_THINGS * ROUNDS_OF_CHANGES
    with redis_server(lab) as store, index() as setting:
        with served(lab, store, setting) as (process, port):
            asyncio.run(put_all(port, _devices(BACKLOG_THINGS)))
            wait_indexed(process, port)
        with served(lab, store, "off") as (_, port):
            asyncio.run(put_all(port, _changes(BACKLOG_THINGS)))
        begin = time.perf_counter()
        with served(lab, store, setting) as (process, port):
            wait_indexed(process, port)
            taken = time.perf_counter() - begin
            used = cpu_seconds([pid for pid in family(process.pid) if pid != process.pid])
    return Sample({"events_per_s": events / taken, "indexer_cpu_us": used / events * 1e6})


def upsert_backlog(lab: Lab, index: Index) -> Sample:
    """How fast the plain table takes the same changes, each as its whole document."""
    events = BACKLOG_THINGS * ROUNDS_OF_CHANGES

    async def changes(setting: str) -> float:
        table: Table
        if setting.startswith("sqlite:"):
            table = SqliteTable(Path(setting.removeprefix("sqlite:")))
        else:
            table = await PostgresTable.open(setting)
        await fill(table, (row_of(thing_id(n), device(n)) for n in range(BACKLOG_THINGS)), BATCH)
        begin = time.perf_counter()
        for turn in range(ROUNDS_OF_CHANGES):
            rows = []
            for number in range(BACKLOG_THINGS):
                document = device(number)
                document["attributes"]["level"] = number + turn + 0.5
                rows.append(row_of(thing_id(number), document))
            await fill(table, rows, BATCH)
        taken = time.perf_counter() - begin
        await table.close()
        return taken

    with index() as setting, on_core(lab.server_core):
        taken = asyncio.run(changes(setting))
    return Sample({"events_per_s": events / taken})


def search_index(lab: Lab, rounds: int, _seconds: float) -> Result:
    """Events a second that the indexer takes."""
    result = Result(
        "search_index",
        f"A backlog of {BACKLOG_THINGS * ROUNDS_OF_CHANGES:,} changes of {BACKLOG_THINGS:,} things "
        "taken into the search index",
        [],
        ["events_per_s", "indexer_cpu_us"],
        notes=[
            f"{ACKGATE}: from the start of the process to a complete index. `{PLAIN}`: the same "
            f"changes upserted as whole documents into the plain table, {BATCH} a transaction.",
        ],
    )
    systems: dict[str, Callable[[], Sample]] = {}
    for name, index in indexes(lab, result).items():
        systems[f"{ACKGATE}, {name}"] = partial(index_backlog, lab, index)
        systems[f"{PLAIN}, {name}"] = partial(upsert_backlog, lab, index)
    return interleave(result, systems, rounds)


# --- search_acks --------------------------------------------------------------------------------


def acked(lab: Lab, index: Index | None, seconds: float, connections: int) -> Sample:
    """PUTs that wait for ``search-persisted``; None: those that wait for ``twin-persisted``."""
    with nullcontext("off") if index is None else index() as setting:
        load = Load(
            connections,
            seconds,
            0.8,
            acks="twin-persisted" if index is None else "search-persisted",
            settings={"ACKGATE_SEARCH_INDEX": setting},
        )
        return sample(lab, ACKGATE, load)


def search_acks(lab: Lab, rounds: int, seconds: float) -> Result:
    """Time from a write to its ``search-persisted``."""
    result = Result(
        "search_acks",
        f"PUT of a thing answered with search-persisted, one at a time and {CONNECTIONS} at once",
        [],
        ["requests_per_s", "p50_ms", "p99_ms"],
        notes=["`twin-persisted`: the same requests, answered when the twin is stored."],
    )
    systems: dict[str, Callable[[], Sample]] = {}
    for connections in (1, CONNECTIONS):
        systems[f"twin-persisted, {connections}"] = partial(acked, lab, None, seconds, connections)
        for name, index in indexes(lab, Result("", "", [], [])).items():
            systems[f"{name}, {connections}"] = partial(acked, lab, index, seconds, connections)
    return interleave(result, systems, rounds)
