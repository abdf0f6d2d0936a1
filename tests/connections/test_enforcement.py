"""Enforcement: messages are about what their source allows."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from acks.errors import GatewayError
from connections.mapping.enforcement import enforce, parse_enforcement
from connections.model import Enforcement
from connections.placeholders.lookups import Scope
from connections.placeholders.templates import PlaceholderError

MODIFY = {"topic": "ns/lamp/things/twin/commands/modify", "path": "/"}
DEVICE = Enforcement("{{ header:device }}", ("{{ entity:id }}", "{{ entity:name }}-x"))


def check(enforcement: Enforcement | None, headers: dict[str, str], **more: Any) -> None:
    scope = Scope("C", datetime(2026, 1, 1, tzinfo=UTC), headers, **{"envelope": MODIFY, **more})
    enforce(parse_enforcement(enforcement), scope)


@pytest.mark.parametrize("device", ["ns:lamp", "lamp-x"])
def test_one_filter_has_to_fit(device: str) -> None:
    check(DEVICE, {"device": device})


@pytest.mark.parametrize("headers", [{"device": "ns:other"}, {"device": ""}, {}])
def test_another_thing_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(GatewayError) as caught:
        check(DEVICE, headers)
    assert caught.value.code == "connectivity:connection.id.enforcement.failed"
    assert caught.value.status == 400
    assert "'ns:lamp'" in caught.value.message


def test_a_message_without_an_id_is_refused() -> None:
    with pytest.raises(GatewayError, match="unknown"):
        check(DEVICE, {"device": "ns:lamp"}, envelope={"topic": "nonsense"})


def test_the_address_can_be_enforced() -> None:
    enforcement = Enforcement("{{ source:address }}", ("in/{{ thing:name }}",))
    check(enforcement, {}, address="in/lamp")
    with pytest.raises(GatewayError):
        check(enforcement, {}, address="in/other")


def test_no_enforcement_allows_everything() -> None:
    check(None, {}, envelope={})


def test_texts_that_cannot_be_read_are_refused() -> None:
    with pytest.raises(PlaceholderError):
        parse_enforcement(Enforcement("{{ header:device", ()))
