"""Drivers are found by the type of a connection."""

from __future__ import annotations

import sys
from typing import get_args

import pytest

from connections.driver import OpenError
from connections.drivers import _DRIVERS, factory
from connections.model import Kind, Uri
from tests.brokers.peers import connection_of, refusal


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


@pytest.mark.parametrize("kind", ["mqtt", "mqtt-5", "amqp-091", "amqp-10", "http-push"])
async def test_a_host_that_cannot_be_one_is_called_so(kind: Kind) -> None:
    host = f"{'x' * 64}.example"  # a label has 63 characters at most
    uri = Uri("http" if kind == "http-push" else "tcp", host, 1)
    try:
        problem = await refusal(factory(kind), connection_of(kind, uri, [], ["POST:/out"]))
    except OpenError as missing:
        pytest.skip(str(missing))
    assert (problem.cause, str(problem)) == ("misconfigured", f"<{host}> is no name of a host.")
