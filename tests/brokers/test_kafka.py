"""The Kafka driver does what every driver has to do (tests/brokers/contract.py)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.brokers.contract import (
    ConsumingContract,
    OpeningContract,
    PublishingContract,
)
from tests.brokers.kafka import (
    KafkaPeer,
    kafka_peer,
)

PRODUCE, OFFSET_COMMIT = 0, 8  # kinds of requests


@pytest.fixture(scope="module")
def peer() -> Iterator[KafkaPeer]:
    with kafka_peer() as one:
        yield one


class TestContract(ConsumingContract, PublishingContract, OpeningContract):
    """What every driver has to do."""
