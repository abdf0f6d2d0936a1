import pytest
from aiormq.abc import DeliveredMessage
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from connections.amqp import identity as amqp_identity
from connections.amqp.identity import Identities


def message(
    body: bytes = b"x", *, again: bool = False, message_id: str | None = None
) -> DeliveredMessage:
    header = ContentHeader(properties=Basic.Properties(message_id=message_id))
    delivery = Basic.Deliver("tag", 1, again, "exchange", "key")
    return DeliveredMessage(delivery, header, body, None)  # type: ignore[arg-type]  # not looked at


def test_a_message_id_keeps_its_name_whenever_it_comes() -> None:
    first = Identities(1).of("queue", message(message_id="m"))
    for names in (Identities(1), Identities(2)):
        names.given_back("queue", "m", first)
        assert names.of("queue", message(again=True, message_id="m")) == first
        assert names.of("other", message(message_id="m")) != first


def test_messages_with_the_same_id_are_not_counted_together() -> None:
    names = Identities(1)
    assert names.of("queue", message(b"x", message_id="m")) != names.of(
        "queue", message(b"y", message_id="m")
    )


def test_messages_that_say_the_same_come_again_under_the_names_they_had() -> None:
    names = Identities(1)
    first = [names.of("a queue", message()) for _ in range(3)]
    assert len(set(first)) == 3
    for name in first:
        names.given_back("a queue", None, name)
    assert [names.of("a queue", message(again=True)) for _ in range(3)] == first


def test_what_another_client_had_gets_a_name_that_it_keeps() -> None:
    names = Identities(2)
    name = names.of("queue", message(again=True))
    assert name
    names.given_back("queue", None, name)
    assert names.of("queue", message(again=True)) == name
    assert names.of("queue", message(b"y", again=True)) != name


def test_two_generations_give_no_name_twice() -> None:
    assert Identities(1).of("queue", message()) != Identities(2).of("queue", message())


def test_what_is_expected_again_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amqp_identity, "MAX_GIVEN_BACK", 5)
    names = Identities(1)
    bodies = [str(number).encode() for number in range(7)]
    first = [names.of("queue", message(body)) for body in bodies]
    for name in first:
        names.given_back("queue", None, name)
    again = [names.of("queue", message(body, again=True)) for body in bodies]
    assert [one == other for one, other in zip(first, again, strict=True)] == [False] * 2 + [
        True
    ] * 5
