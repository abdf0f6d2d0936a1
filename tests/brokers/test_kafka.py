"""The Kafka driver does what every driver has to do (tests/brokers/contract.py)."""

from __future__ import annotations

import pytest

from tests.brokers.contract import ConsumingContract, OpeningContract, PublishingContract
from tests.brokers.kafka import kafka_peer

peer = pytest.fixture(scope="module")(kafka_peer)


class TestContract(ConsumingContract, PublishingContract, OpeningContract):
    """What every driver has to do."""
