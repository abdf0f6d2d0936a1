"""Servers shared by the tests of this folder, one of each kind found; every test has its prefix."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import uvloop

from app.store.redis_client import Redis, RedisAddress
from app.store.sql.database import Database, open_index
from tests.postgres import PostgresServer, postgres_binaries, postgres_here
from tests.servers import RedisServer, redis_binaries, redis_server

BINARIES = redis_binaries()
PAIRS = {("valkey", "sqlite"), ("redis", "postgresql")}
"""The stores and databases that are tested together: neither knows of the other."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out a store with a database that are no pair, unless something of the pairs is missing.

    A test of both has each store and each database once, not each store with each database.
    """
    if len(BINARIES) < 2 or postgres_binaries() is None:
        return
    left_out = [item for item in items if not is_paired(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if is_paired(item)]


def is_paired(item: pytest.Item) -> bool:
    """Whether this is no test of a store here with a database that is not its own."""
    if Path(__file__).parent not in item.path.parents:
        return True
    chosen = (
        item.callspec.params
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
        else {}
    )
    store, database = chosen.get("binary"), chosen.get("index")
    return store is None or database is None or (store, database) in PAIRS


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop of production: it runs timers before it reads sockets, unlike asyncio's own."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session", params=sorted(BINARIES))
def binary(request: pytest.FixtureRequest) -> Path:
    return BINARIES[request.param]


@pytest.fixture(scope="session")
def shared(binary: Path) -> Iterator[RedisServer]:
    with redis_server(binary) as server:
        yield server


@pytest.fixture
def own(binary: Path) -> Iterator[RedisServer]:
    """A server that the test may kill, pause and restart."""
    with redis_server(binary) as server:
        yield server


@pytest.fixture
def prefix() -> str:
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
async def redis(shared: RedisServer) -> AsyncIterator[Redis]:
    client = Redis(RedisAddress.parse(shared.url), name="test")
    await client.start()
    yield client
    await client.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_here() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def index(request: pytest.FixtureRequest) -> str:
    """What the setting search_index says: a new index on each database."""
    if request.param == "sqlite":
        return "sqlite"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.database()


@pytest.fixture
async def database(index: str, tmp_path: Path) -> AsyncIterator[Database]:
    opened = await open_index(index, tmp_path)
    yield opened
    await opened.close()
