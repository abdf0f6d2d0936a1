"""Payloads between wires: text, JSON and binary data come out as they went in."""

from __future__ import annotations

import pytest

from acks.errors import GatewayError
from acks.payloads import (
    MAX_MESSAGE_BYTES,
    Form,
    body_of,
    check_size,
    read_content_type,
    value_of,
)

EVERY_BYTE = bytes(range(256))


@pytest.mark.parametrize(
    ("text", "form", "shown"),
    [
        (None, Form.JSON, "application/json"),
        ("application/json", Form.JSON, "application/json"),
        ("Application/JSON; charset=utf-8", Form.JSON, "Application/JSON; charset=utf-8"),
        ("application/vnd.eclipse.ditto+json", Form.JSON, "application/json"),
        ("text/plain", Form.TEXT, "text/plain"),
        ("TEXT/html;charset=x-unknown", Form.TEXT, "TEXT/html;charset=x-unknown"),
        ("image/png", Form.BINARY, "image/png"),
        ("application/problem+json", Form.BINARY, "application/problem+json"),
        ("null", Form.BINARY, "application/octet-stream"),
        ("", Form.BINARY, "application/octet-stream"),
        ("text/plain\r\nx-injected: 1", Form.BINARY, "application/octet-stream"),
        ("text/" + "x" * 500, Form.BINARY, "application/octet-stream"),
        ("text/plain; name=\u20ac", Form.BINARY, "application/octet-stream"),
    ],
)
def test_content_types(text: str | None, form: Form, shown: str) -> None:
    assert read_content_type(text)[:2] == (form, shown)


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("text/plain", "gr\u00fc\u00df dich \u20ac\n".encode()),
        ("text/plain; charset=iso-8859-1", "gr\u00fc\u00df".encode("latin-1")),
        ('text/csv; charset="UTF-8"; header=present', b"a,b\r\n1,2\r\n"),
        ("application/octet-stream", EVERY_BYTE),
        ("image/png", b"\x89PNG\r\n\x1a\n"),
        ("application/problem+json", b'{"a" : 1.50}'),
    ],
)
def test_what_goes_in_comes_out(content_type: str, body: bytes) -> None:
    read = read_content_type(content_type)
    assert body_of(value_of(body, read), read) == body


def test_text_that_is_not_in_its_charset_is_refused() -> None:
    with pytest.raises(GatewayError) as caught:
        value_of(EVERY_BYTE, read_content_type("text/plain"))
    assert (caught.value.status, caught.value.code) == (400, "header.invalid")
    assert caught.value.extras == {"invalidHeaderKey": "content-type"}


def test_payloads_that_are_not_what_their_content_type_says_are_passed_on() -> None:
    assert body_of({"a": 1}, read_content_type("text/plain")) == {"a": 1}
    assert body_of(5, read_content_type("image/png")) == 5
    assert body_of("not base64!", read_content_type("image/png")) == b"not base64!"
    assert body_of("text", read_content_type("application/json")) == "text"


def test_the_limit_of_a_message() -> None:
    check_size(MAX_MESSAGE_BYTES)
    with pytest.raises(GatewayError) as caught:
        check_size(MAX_MESSAGE_BYTES + 1)
    assert (caught.value.status, caught.value.code) == (413, "messages:payload.toolarge")
