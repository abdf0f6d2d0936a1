"""One store and a few gateways for all service tests; tests use things and labels of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from tests.gateways import Gateway, http, running
from tests.servers import RedisServer, redis_server


@pytest.fixture(scope="session")
def store() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture(scope="session")
def gateway(store: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """The gateway of most tests, with its defaults."""
    place = tmp_path_factory.mktemp("gateway")
    one = Gateway(
        place,
        redis_url=store.url,
        prefix="service",
        access_log_sample="1.0",
        search_index="sqlite",
    )
    with running(one):
        yield one


@pytest.fixture(scope="session")
def sibling(
    gateway: Gateway, store: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """A second gateway over the same store, prefix and search index."""
    place = tmp_path_factory.mktemp("sibling")
    index = f"sqlite:{gateway.directory / 'data' / 'search.sqlite'}"
    other = Gateway(place, redis_url=store.url, prefix="service", search_index=index)
    with running(other):
        yield other


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with http(gateway) as client:
        yield client


@pytest.fixture
async def user2(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with http(gateway, "user2") as client:
        yield client


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder for a gateway that a test starts by itself."""
    return tmp_path
