"""The MQTT driver against a real Mosquitto: the contract, and what is MQTT's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.brokers.contract import (
    ConsumingContract,
    OpeningContract,
    PublishingContract,
)
from tests.brokers.mosquitto import Mosquitto, MqttPeer, Version, mosquitto


@pytest.fixture(scope="module")
def broker() -> Iterator[Mosquitto]:
    with mosquitto() as running:
        yield running


async def _peer(broker: Mosquitto, version: Version, qos: int) -> AsyncIterator[MqttPeer]:
    peer = MqttPeer(broker, version, qos)
    await peer.start()
    try:
        yield peer
    finally:
        await peer.close()


class TestMqtt3(ConsumingContract, PublishingContract, OpeningContract):
    @pytest.fixture
    async def peer(self, broker: Mosquitto) -> AsyncIterator[MqttPeer]:
        async for peer in _peer(broker, "mqtt", 1):
            yield peer


class TestMqtt5(ConsumingContract, PublishingContract, OpeningContract):
    @pytest.fixture
    async def peer(self, broker: Mosquitto) -> AsyncIterator[MqttPeer]:
        async for peer in _peer(broker, "mqtt-5", 1):
            yield peer


class TestQos2(ConsumingContract):
    @pytest.fixture
    async def peer(self, broker: Mosquitto) -> AsyncIterator[MqttPeer]:
        async for peer in _peer(broker, "mqtt-5", 2):
            yield peer
