"""MQTT's bookkeeping: acks in order, redelivery without duplicates, bounds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acks.settlement import Settlement
from connections.driver import Delivery, Limits
from connections.model import Source
from connections.mqtt.inbox import Inbox, Incoming, Routes

ACCEPT, REDELIVER, DISCARD = Settlement.ACCEPT, Settlement.REDELIVER, Settlement.DISCARD


class Given:
    """An inbox and what it has told."""

    def __init__(
        self, *addresses: str, in_flight: int = 100, redelivers: bool = True, at_once: bool = False
    ) -> None:
        self.acked: list[int] = []
        self.deliveries: list[Delivery] = []
        self._at_once = at_once
        sources = [
            Source(index, (address,), ("s",), qos=1)
            for index, address in enumerate(addresses or ("t",))
        ]
        self.inbox = Inbox(
            Routes(sources),
            Limits(in_flight=in_flight),
            1,
            redelivers=redelivers,
            ack=lambda mid, qos: self.acked.append(mid),
            on_delivery=self._take,
        )

    def _take(self, delivery: Delivery) -> None:
        self.deliveries.append(delivery)
        if self._at_once:
            self.inbox.settle(delivery, ACCEPT)

    def come(self, *mids: int, topic: str = "t", payload: bytes | None = None) -> None:
        for mid in mids:
            body = str(mid).encode() if payload is None else payload
            self.inbox.take(Incoming(mid, topic, body, 1, {}, None))

    def settle(self, at: int, settlement: Settlement = ACCEPT) -> None:
        self.inbox.settle(self.deliveries[at], settlement)

    @property
    def given(self) -> list[int]:
        return [int(delivery.payload) for delivery in self.deliveries]


def test_acks_keep_the_order_of_the_messages() -> None:
    one = Given()
    one.come(1, 2, 3)
    one.settle(2)
    one.settle(1, DISCARD)
    assert one.acked == []
    one.settle(0)
    assert one.acked == [1, 2, 3]


def test_what_is_to_come_again_holds_back_later_acks() -> None:
    one = Given()
    one.come(1, 2, 3)
    one.settle(0)
    one.settle(1, REDELIVER)
    one.settle(2)
    assert one.acked == [1]
    assert one.inbox.held
    one.inbox.begin_round()
    one.come(2, 3)
    assert one.given == [1, 2, 3, 2]
    assert not one.inbox.held
    one.settle(3)
    assert one.acked == [1, 2, 3]
    assert one.inbox.stale == 0


def test_without_redelivery_it_is_an_ack() -> None:
    one = Given(redelivers=False)
    one.come(1)
    one.settle(0, REDELIVER)
    assert one.acked == [1]
    assert not one.inbox.held


def test_what_is_under_way_is_not_given_out_twice() -> None:
    one = Given()
    one.come(1, 2)
    one.settle(1, REDELIVER)
    one.inbox.begin_round()
    one.come(1, 2)
    assert one.given == [1, 2, 2]
    one.settle(0)
    one.settle(2)
    assert one.acked == [1, 2]


def test_no_ack_before_the_broker_has_repeated_the_message() -> None:
    one = Given()
    one.come(1, 2)
    one.inbox.begin_round()
    one.settle(0)
    assert one.acked == []
    one.come(1)
    assert one.acked == [1]
    one.come(2)
    one.settle(1)
    assert one.acked == [1, 2]
    assert one.given == [1, 2]


def test_a_number_that_means_another_message_now_is_taken_anew() -> None:
    one = Given(in_flight=3)
    one.come(1, 2, 3, 4)
    one.settle(1)
    one.settle(2, REDELIVER)
    assert one.given == [1, 2, 3, 4]
    one.inbox.begin_round()
    for mid in (1, 2, 3, 4):
        one.come(mid, payload=b"%d0" % mid)
    assert one.given == [1, 2, 3, 4, 10, 20, 30]
    one.settle(0)
    one.settle(3)
    assert one.inbox.stale == 2
    for at in (6, 5, 4):
        one.settle(at)
    assert one.given == [1, 2, 3, 4, 10, 20, 30, 40]
    one.settle(7)
    assert one.acked == [1, 2, 3, 4]


def test_one_that_waits_is_given_up_when_its_number_means_another_message() -> None:
    one = Given(in_flight=1)
    one.come(1, 2)
    one.inbox.begin_round()
    one.come(2, payload=b"20")
    one.settle(0)
    assert one.given == [1, 20]


def test_no_more_is_given_out_than_may_be_in_flight() -> None:
    one = Given(in_flight=2)
    one.come(1, 2, 3, 4)
    assert one.given == [1, 2]
    one.settle(1)
    assert one.given == [1, 2, 3]
    one.settle(0)
    assert one.given == [1, 2, 3, 4]


def test_thousands_that_are_settled_at_once() -> None:
    one = Given(in_flight=1, at_once=True)
    one.come(*range(1, 5001))
    assert one.acked == list(range(1, 5001))


def test_thousands_that_wait_and_are_settled_at_once() -> None:
    one = Given(in_flight=1)
    one.come(*range(1, 5001))
    one._at_once = True
    one.settle(0)
    assert one.acked == list(range(1, 5001))


def test_a_message_of_two_sources_is_done_when_both_are() -> None:
    one = Given("t", "+")
    one.come(1)
    one.settle(1)
    assert one.acked == []
    one.settle(0)
    assert one.acked == [1]


def test_a_message_of_two_sources_comes_again_if_one_wants_it() -> None:
    one = Given("t", "+")
    one.come(1)
    one.settle(1, REDELIVER)
    assert not one.inbox.held
    one.settle(0)
    assert one.inbox.held
    one.inbox.begin_round()
    one.come(1)
    assert [delivery.source for delivery in one.deliveries] == [0, 1, 0, 1]


def test_strange_settlements_are_counted_and_ignored() -> None:
    one = Given()
    one.come(1)
    delivery = one.deliveries[0]
    for strange in (
        replace(delivery, generation=2),
        replace(delivery, token=None),
        replace(delivery, source=7),
    ):
        one.inbox.settle(strange, ACCEPT)
    assert (one.inbox.stale, one.acked) == (3, [])
    one.settle(0)
    one.settle(0)
    assert (one.inbox.stale, one.acked) == (4, [1])


@pytest.mark.parametrize(
    ("address", "topic", "matches"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a/b/", False),
        ("a/+", "a/b", True),
        ("a/+", "a", False),
        ("a/+", "a/", True),
        ("a/+/c", "a/b/c", True),
        ("a/+/c", "a/b/c/d", False),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("a/#", "ab", False),
        ("#", "a/b", True),
        ("#", "$SYS/x", False),
        ("+/x", "$SYS/x", False),
        ("$SYS/#", "$SYS/x", True),
        ("+", "/a", False),
        ("+/+", "/a", True),
        ("$share/g/a/#", "a/b", True),
        ("$share/g/a", "a", True),
    ],
)
def test_topics_and_filters(address: str, topic: str, matches: bool) -> None:
    routes = Routes([Source(3, (address,), ("s",))])
    assert routes.of(topic) == ([(3, address)] if matches else [])


def test_a_source_gets_a_message_once() -> None:
    routes = Routes([Source(0, ("a/#", "a/b", "+/b"), ("s",)), Source(1, ("#",), ("s",))])
    assert [index for index, _ in routes.of("a/b")] == [0, 1]


def test_an_address_of_two_sources_is_subscribed_with_the_higher_qos() -> None:
    routes = Routes([Source(0, ("a",), ("s",), qos=0), Source(1, ("a",), ("s",), qos=2)])
    assert routes.qos == {"a": 2}


@given(st.data())
def test_whatever_happens_every_message_is_acked_once_and_in_order(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    one = Given(in_flight=data.draw(st.integers(1, 5)))
    one.come(*range(1, count + 1))
    settled: set[int] = set()

    def settle(choices: list[Settlement]) -> None:
        waiting = sorted(set(range(len(one.deliveries))) - settled)
        if waiting:
            at = data.draw(st.sampled_from(waiting))
            settled.add(at)
            one.settle(at, data.draw(st.sampled_from(choices)))

    def connect_anew() -> None:  # the broker repeats what is not acked
        one.inbox.begin_round()
        one.come(*range(len(one.acked) + 1, count + 1))

    for _ in range(data.draw(st.integers(0, 40))):
        if data.draw(st.integers(0, 4)):
            settle([ACCEPT, DISCARD, REDELIVER])
        else:
            connect_anew()
    while len(one.acked) < count:
        if one.inbox.held or len(settled) == len(one.deliveries):
            connect_anew()
        settle([ACCEPT])
    assert one.acked == list(range(1, count + 1))
    assert one.inbox.stale == 0
    assert set(one.given) == set(range(1, count + 1))
