"""The MQTT driver against a real Mosquitto: the contract, and what is MQTT's own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.brokers.contract import ConsumingContract, OpeningContract, PublishingContract
from tests.brokers.mosquitto import Mosquitto, MqttPeer


class TestMqtt3(ConsumingContract, PublishingContract, OpeningContract):
    @pytest.fixture
    async def peer(self, mqtt: Mosquitto) -> AsyncIterator[MqttPeer]:
        async with MqttPeer(mqtt, "mqtt") as peer:
            yield peer


class TestMqtt5(ConsumingContract, PublishingContract, OpeningContract):
    @pytest.fixture
    async def peer(self, mqtt: Mosquitto) -> AsyncIterator[MqttPeer]:
        async with MqttPeer(mqtt, "mqtt-5") as peer:
            yield peer


class TestQos2(ConsumingContract):
    @pytest.fixture
    async def peer(self, mqtt: Mosquitto) -> AsyncIterator[MqttPeer]:
        async with MqttPeer(mqtt, "mqtt-5", qos=2) as peer:
            yield peer
