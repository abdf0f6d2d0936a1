"""One broker of each kind for all tests here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.brokers import rabbitmq


@pytest.fixture(scope="session")
def rabbit() -> Iterator[rabbitmq.RabbitServer]:
    reason = rabbitmq.missing()
    if reason is not None:
        pytest.skip(reason)
    with rabbitmq.rabbit_server() as server:
        yield server
