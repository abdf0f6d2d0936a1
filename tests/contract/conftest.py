"""One gateway for the contract tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from tests.gateways import Gateway, http, running
from tests.servers import redis_server


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with redis_server() as store:
        one = Gateway(
            tmp_path_factory.mktemp("contract"), redis_url=store.url, search_index="sqlite"
        )
        with running(one):
            yield one


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with http(gateway) as client:
        yield client
