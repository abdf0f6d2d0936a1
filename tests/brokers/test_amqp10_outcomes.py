"""The driver of AMQP 1.0 with a broker that knows all outcomes."""

# ruff: noqa: E402 - the driver can only be imported where its library is installed

from __future__ import annotations

from collections.abc import Iterator

import pytest

proton = pytest.importorskip(
    "proton", reason="AMQP 1.0 needs the extra amqp10 (python-qpid-proton, built by a C compiler)"
)

from acks.settlement import Settlement
from connections.amqp10.driver import Amqp10Driver
from connections.driver import Limits, Publication
from connections.model import Connection, Uri
from tests.brokers.amqp10_broker import Broker, amqp10_broker
from tests.brokers.peers import ACCEPT, DEADLINE, DISCARD, REDELIVER, Client, connection_of
from tests.servers import wait_for


@pytest.fixture
def broker() -> Iterator[Broker]:
    with amqp10_broker() as one:
        yield one


def document(broker: Broker, source: str = "", target: str = "") -> Connection:
    uri = Uri("amqp", "127.0.0.1", broker.port)
    sources, targets = filter(None, [source]), filter(None, [target])
    return connection_of("amqp-10", uri, list(sources), list(targets))


async def opened(connection: Connection) -> Client:
    one = Client(Amqp10Driver(connection, 0, 1, Limits()))
    await one.open()
    return one


@pytest.mark.parametrize(
    ("settlement", "state", "failed"),
    [
        (ACCEPT, proton.Delivery.ACCEPTED, False),
        (DISCARD, proton.Delivery.REJECTED, False),
        (REDELIVER, proton.Delivery.MODIFIED, True),
    ],
)
async def test_dispositions(
    broker: Broker, settlement: Settlement, state: object, failed: bool
) -> None:
    one = await opened(document(broker, "plain"))
    one.settle(await one.next(), settlement)
    await wait_for(lambda: broker.told, DEADLINE, "the disposition")
    await one.driver.close(5)
    assert broker.told == [(state, failed)]


async def test_a_message_that_the_broker_has_settled(broker: Broker) -> None:
    one = await opened(document(broker, "settled"))
    delivery = await one.next()
    await one.driver.close(5)
    assert not delivery.settles


async def test_a_link_that_the_broker_ends_is_made_again(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connections.amqp10.driver.FIRST_RETRY_S", 0.01)
    one = await opened(document(broker, "plain"))
    gone = await one.next()
    broker.ending = True
    await wait_for(lambda: one.statuses, DEADLINE, "the end of the link")
    one.settle(gone)
    assert one.driver.stale == 1
    again = await one.next()
    one.settle(again)
    await wait_for(lambda: broker.told, DEADLINE, "the disposition")
    await one.driver.close(5)
    assert one.lost == []
    assert again.identity == gone.identity
    ended, back = one.statuses
    assert ended[:3] == ("source", "plain", False)
    assert "it was taken away" in ended[3]
    assert back == ("source", "plain", True, "")


@pytest.mark.parametrize(
    ("outcome", "status", "said"),
    [
        ("accepted", 200, ""),
        ("rejected", 503, "rejected"),
        ("released", 503, "released"),
        ("modified", 503, "could not deliver"),
    ],
)
async def test_outcomes_of_publications(
    broker: Broker, outcome: str, status: int, said: str
) -> None:
    one = await opened(document(broker, target=outcome))
    published = await one.driver.publish(Publication(outcome, b"x", None), DEADLINE)
    await one.driver.close(5)
    assert published.status == status
    assert said in str(published.payload)
