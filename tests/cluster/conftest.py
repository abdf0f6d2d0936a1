"""Two gateway processes over one store, for the tests that do not hurt them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gateways import Gateway, running
from tests.servers import RedisServer, redis_server


@pytest.fixture(scope="session")
def store() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture(scope="session")
def pair(
    store: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Gateway, Gateway]]:
    place = tmp_path_factory.mktemp("pair")
    one, two = (
        Gateway(place, redis_url=store.url, prefix="pair", search_index="sqlite") for _ in range(2)
    )
    with running(one, two):
        yield one, two


@pytest.fixture
def a(pair: tuple[Gateway, Gateway]) -> Gateway:
    return pair[0]


@pytest.fixture
def b(pair: tuple[Gateway, Gateway]) -> Gateway:
    return pair[1]
