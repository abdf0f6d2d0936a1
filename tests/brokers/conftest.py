"""Brokers, and a store and a gateway for the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.brokers import rabbitmq
from tests.brokers.authority import Authority
from tests.brokers.mosquitto import Mosquitto, mosquitto
from tests.connected import gateway_of
from tests.gateways import Gateway, running
from tests.servers import RedisServer, redis_server


@pytest.fixture(scope="session")
def rabbit() -> Iterator[rabbitmq.RabbitServer]:
    reason = rabbitmq.missing()
    if reason is not None:
        pytest.skip(reason)
    with rabbitmq.rabbit_server() as server:
        yield server


@pytest.fixture(scope="module")
def mqtt() -> Iterator[Mosquitto]:
    with mosquitto() as process:
        yield process


@pytest.fixture
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def store() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture(scope="module")
def gateway(store: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    one = gateway_of(tmp_path_factory.mktemp("gateway"), store, "brokers")
    with running(one):
        yield one
