"""Messages of AMQP 1.0 and their headers: connections/amqp10/message.py."""

# ruff: noqa: E402 - the driver can only be imported where its library is installed

from __future__ import annotations

import uuid
from typing import Any

import pytest

proton = pytest.importorskip(
    "proton", reason="AMQP 1.0 needs the extra amqp10 (python-qpid-proton, built by a C compiler)"
)

from connections.amqp10.message import (
    decoded,
    encoded,
    headers_of,
    identity,
    payload_of,
    redeliveries,
)
from connections.driver import Publication


def through(**attributes: Any) -> Any:
    """A message of somebody else, as it arrives."""
    return decoded(proton.Message(**attributes).encode())


def sent(headers: dict[str, str], content_type: str | None = None, body: bytes = b"") -> Any:
    """A publication of ours, as it arrives."""
    return decoded(encoded(Publication("a", body, content_type, headers)))


def test_every_property_goes_there_and_back() -> None:
    headers = {
        "message-id": "m-1",
        "user-id": "me",
        "to": "somewhere",
        "subject": "s",
        "reply-to": "r",
        "correlation-id": "c",
        "absolute-expiry-time": "1767323045123",
        "creation-time": "1767323045001",
        "group-id": "g",
        "group-sequence": "7",
        "reply-to-group-id": "rg",
        "device-id": "a b ö",
        "amqp.application.property:to": "else",
        "amqp.message.annotation:x-own": "note",
    }
    message = sent(headers, "text/x-own", b"\x00body")
    assert headers_of(message) == {**headers, "content-type": "text/x-own"}
    assert message.properties == {"device-id": "a b ö", "to": "else"}
    assert message.annotations == {"x-own": "note"}
    assert message.durable
    assert payload_of(message) == b"\x00body"


def test_the_content_type_of_the_publication_counts() -> None:
    assert headers_of(sent({"content-type": "a/b"})) == {"content-type": "a/b"}
    assert headers_of(sent({"content-type": "a/b"}, "c/d")) == {"content-type": "c/d"}


def test_what_json_has_nothing_for_is_a_text_all_the_same() -> None:
    deep: list[Any] = []
    for _ in range(300):
        deep = [deep]
    for strange in ({proton.float32(1.5): 1}, deep):
        message = through(body=strange, properties={"strange": strange})
        assert payload_of(message) == str(message.body).encode()
        assert headers_of(message) == {"strange": str(message.body)}
        assert identity("a", message)


@pytest.mark.parametrize(
    "headers",
    [
        {"creation-time": "soon"},
        {"group-sequence": "-1"},
        {"group-sequence": "99999999999"},
        {"absolute-expiry-time": "9" * 30},
        {"content-type": "ö"},
        {"device": "\ud800"},
        {"subject": "\ud800"},
        {"user-id": "\ud800"},
    ],
)
def test_headers_that_no_message_can_have(headers: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"."):
        encoded(Publication("a", b"", None, headers))


@pytest.mark.parametrize(
    ("body", "payload"),
    [
        (b"\x00\xff", b"\x00\xff"),
        ("text ö", "text ö".encode()),
        (None, b""),
        ({"a": [1, True, None], "b": b"raw"}, b'{"a":[1,true,null],"b":"raw"}'),
        ([1, "x"], b'[1,"x"]'),
        (7, b"7"),
        (True, b"true"),
    ],
)
@pytest.mark.parametrize("inferred", [True, False])
def test_bodies_of_all_kinds(body: Any, payload: bytes, inferred: bool) -> None:
    assert payload_of(through(body=body, inferred=inferred)) == payload


def test_values_of_all_types_become_texts() -> None:
    one = uuid.UUID("12345678-1234-5678-1234-567812345678")
    message = through(
        id=one,
        correlation_id=proton.ulong(7),
        properties={"Yes": True, "n": -7, "f": 1.5, "raw": b"r", "nothing": None, "To": "x"},
        annotations={proton.symbol("x-opt-List"): [1, "a"]},
    )
    assert headers_of(message) == {
        "message-id": str(one),
        "correlation-id": "7",
        "yes": "true",
        "n": "-7",
        "f": "1.5",
        "raw": "r",
        "amqp.application.property:to": "x",
        "amqp.message.annotation:x-opt-list": '[1,"a"]',
    }


def test_identities() -> None:
    def name(**attributes: Any) -> str:
        return identity("a", through(**attributes))

    assert name(id="1", body=b"x") == name(id="1", body=b"x", delivery_count=3)
    assert name(body=b"x") == name(body=b"x", delivery_count=3)
    others = [
        name(body=b"x"),
        name(body=b"y"),
        name(id="1", body=b"x"),
        name(id="1", body=b"y"),
        name(id="2", body=b"x"),
        name(body=b"x", properties={"n": 1}),
        name(body=b"x", correlation_id="c"),
        identity("b", through(body=b"x")),
    ]
    assert len(set(others)) == len(others)


def test_redeliveries() -> None:
    assert redeliveries(through(delivery_count=2)) == 2
    assert redeliveries(through(first_acquirer=True)) == 0
    assert redeliveries(through()) is None


@pytest.mark.parametrize(
    "raw", [b"\x00\x53\x77\xa1\x01\xff", b"\x00\x53\x74\xc1\x06\x02\xa1\x01\xff\xa1\x01a"]
)
def test_bytes_that_are_no_message(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"no AMQP 1\.0 message"):
        decoded(raw)
