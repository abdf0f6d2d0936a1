"""Connections are tried out: what does not work is said, with its reason (spec 4.6, dry-run)."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from tests.brokers.mosquitto import PASSWORD, USER, Mosquitto
from tests.brokers.rabbitmq import RabbitServer
from tests.brokers.scenes import Operator
from tests.connected import source, target
from tests.gateways import Gateway, check_error
from tests.servers import free_port

KINDS = [
    "amqp-091",
    pytest.param(
        "amqp-10",
        marks=pytest.mark.skipif(
            importlib.util.find_spec("proton") is None, reason="AMQP 1.0 needs the extra amqp10"
        ),
    ),
]


async def reason(gateway: Gateway, **document: Any) -> str:
    """Why the connection cannot be opened; empty if it can."""
    async with Operator(gateway) as operator:
        answer = await operator.client.post(
            "/api/2/connections",
            json={"connectionStatus": "open", **document},
            params={"dry-run": "true"},
        )
        if answer.status_code == 200:
            assert answer.text == "The connection was opened and closed again."
            return ""
        return str(check_error(answer, 504, "connectivity:connection.failed")["description"])


@pytest.mark.parametrize("kind", KINDS)
async def test_a_queue_that_is_missing_is_named(
    gateway: Gateway, rabbit: RabbitServer, kind: str
) -> None:
    prefix = "/amq/queue/" if kind == "amqp-10" else ""
    lonely = {"connectionType": kind, "uri": rabbit.url(), "sources": [source(f"{prefix}nowhere")]}
    for document in (lonely, {**lonely, "targets": [target("/exchange/key")]}):
        said = await reason(gateway, **document)
        assert "no queue 'nowhere'" in said
        assert said.endswith("(misconfigured)")


@pytest.mark.parametrize("kind", KINDS)
async def test_wrong_passwords_are_called_so(
    gateway: Gateway, rabbit: RabbitServer, kind: str
) -> None:
    document = {"connectionType": kind, "targets": [target("/exchange/key")]}
    assert await reason(gateway, **document, uri=rabbit.url()) == ""
    said = await reason(gateway, **document, uri=rabbit.url(password="wrong"))
    assert said.endswith("(credentials)")


@pytest.mark.parametrize("kind", ["plain", "user-pass"])
async def test_user_and_password_of_mqtt_beside_the_uri(
    gateway: Gateway, mqtt: Mosquitto, kind: str
) -> None:
    document = {
        "connectionType": "mqtt-5",
        "uri": f"tcp://127.0.0.1:{mqtt.port}",
        "targets": [target("out")],
    }
    credentials = {"type": kind, "username": USER, "password": PASSWORD}
    assert await reason(gateway, **document, credentials=credentials) == ""
    said = await reason(gateway, **document, credentials={**credentials, "password": "wrong"})
    assert said.endswith("(credentials)")


async def test_a_broker_that_is_away(gateway: Gateway) -> None:
    uri = f"http://127.0.0.1:{free_port()}"
    said = await reason(gateway, connectionType="http-push", uri=uri, targets=[target("POST:/in")])
    assert said == "The broker cannot be reached: Connection refused. (temporary)"
