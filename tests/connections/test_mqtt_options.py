"""``specificConfig`` of an MQTT connection."""

from __future__ import annotations

import pytest

from connections.driver import OpenError
from connections.model import Uri
from connections.mqtt.options import Will, options
from tests.brokers.peers import connection_of


def will_of(**specific: str) -> Will | None:
    connection = connection_of("mqtt", Uri("tcp", "broker", 1883), ["in"], [], specific=specific)
    return options(connection, 0).will


def test_a_last_will() -> None:
    given = {"lastWillTopic": "gone", "lastWillMessage": "x", "lastWillQos": "1"}
    assert will_of(**given, lastWillRetain="True") == Will("gone", b"x", 1, retain=True)
    assert will_of(lastWillMessage="x") is None


@pytest.mark.parametrize("topic", ["gone/#", "+/gone"])
def test_a_last_will_has_no_wildcards(topic: str) -> None:
    with pytest.raises(OpenError, match="lastWillTopic") as refusal:
        will_of(lastWillTopic=topic)
    assert refusal.value.cause == "misconfigured"
