"""Drivers are found by the type of a connection."""

from __future__ import annotations

import sys
from typing import get_args

import pytest

from connections.driver import OpenError
from connections.drivers import _DRIVERS, factory
from connections.model import Kind


def test_every_type_has_a_driver() -> None:
    assert set(_DRIVERS) == set(get_args(Kind))


def test_a_type_that_there_is_not() -> None:
    with pytest.raises(OpenError, match="'hono'") as caught:
        factory("hono")
    assert caught.value.cause == "misconfigured"


def test_a_library_that_is_missing_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "connections.kafka.driver", None)
    with pytest.raises(OpenError, match=r"install ackgate\[connections\]") as caught:
        factory("kafka")
    assert caught.value.cause == "misconfigured"
