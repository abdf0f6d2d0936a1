"""What is recorded of a request's acks, and that a record is read back as what it was."""

from __future__ import annotations

import json

import pytest

from acks.aggregator import Aggregator, Outcome
from acks.outcomes import ANSWERED, TIMED_OUT, WEAK, AckResult, Finished, read_record, record_of
from acks.signals import Acknowledgement, Response

LABELS = ("twin-persisted", "my:ack", "my:weak", "my:late")


def ack(label: str, status: int = 200, **headers: object) -> Acknowledgement:
    return Acknowledgement(label, "a:b", "id-1", status, {"big": "payload"}, headers)


def outcome(*acks: Acknowledgement) -> Outcome:
    aggregator = Aggregator("a:b", "id-1", LABELS, 1000)
    assert aggregator.respond(Response(204, None, {})) is None
    for one in acks:
        assert aggregator.receive(one) is None
    final = aggregator.expire()
    assert final is not None
    return final


def test_a_record_says_how_each_ack_came_about() -> None:
    final = outcome(ack("my:ack", 503), ack("my:weak", **{"ditto-weak-ack": True}))
    arrivals = {"twin-persisted": 7.001, "my:ack": 7.25, "my:weak": 7.5}
    record = record_of(final, arrivals, begun=7.0, ended=8.0, epoch=1_000_000.0)
    assert read_record(json.loads(json.dumps(record))) == Finished(
        "id-1",
        "a:b",
        1_000_007_000,
        1_000_000,
        424,
        (
            AckResult("twin-persisted", 204, ANSWERED, 1_000),
            AckResult("my:ack", 503, ANSWERED, 250_000),
            AckResult("my:weak", 200, WEAK, 500_000),
            AckResult("my:late", 408, TIMED_OUT, None),
        ),
    )


def test_the_ack_that_finished_the_request_came_at_its_end() -> None:
    final = Outcome(200, (ack("my:ack"), ack("my:last")))
    finished = read_record(record_of(final, {"my:ack": 1.5}, 1.0, 3.0, 0.0))
    assert [result.us for result in finished.acks] == [500_000, 2_000_000]


def test_a_408_that_somebody_gave_is_no_timeout() -> None:
    final = Outcome(408, (ack("my:ack", 408),))
    [result] = read_record(record_of(final, {}, 1.0, 2.0, 0.0)).acks
    assert result == AckResult("my:ack", 408, ANSWERED, 1_000_000)


def test_a_record_holds_no_payload() -> None:
    final = Outcome(200, (ack("my:ack"),))
    assert "payload" not in json.dumps(record_of(final, {}, 1.0, 2.0, 0.0))


@pytest.mark.parametrize("record", [[], ["id", "a:b", 1, 2], ["id", "a:b", 1, 2, 200, "my:ack"]])
def test_what_is_no_record_is_refused(record: list[object]) -> None:
    with pytest.raises((TypeError, ValueError)):
        read_record(record)
