"""Payloads: text, JSON, or binary data, which envelopes carry in base64 (spec 7.3, 9.3)."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

from acks.errors import error

MAX_MESSAGE_BYTES = 256_000
"""Bytes of a message's payload (spec 9.4)."""

JSON_TYPE = "application/json"
BINARY_TYPE = "application/octet-stream"
_DITTO_TYPE = "application/vnd.eclipse.ditto+json"
_MEDIA_TYPE = re.compile(r"[\w!#$&^.+\-]+/[\w!#$&^.+\-]+", re.ASCII)
_CHARSET = re.compile(r"""charset\s*=\s*["']?([\w\-]+)""", re.ASCII | re.IGNORECASE)
_CHARSETS = {
    "utf-8": "utf-8", "utf8": "utf-8", "us-ascii": "ascii", "ascii": "ascii",
    "iso-8859-1": "latin-1", "latin1": "latin-1", "iso-8859-15": "iso-8859-15",
    "windows-1252": "cp1252", "utf-16": "utf-16",
}  # fmt: skip
_CONTENT_TYPE_LENGTH = 200


class Form(Enum):
    """How a payload stands in an envelope: a string, JSON, or base64."""

    TEXT = "text"
    JSON = "json"
    BINARY = "binary"


class ContentType(NamedTuple):
    """A content type as read: the payload's form, what an answer shows, the charset of text."""

    form: Form
    shown: str
    charset: str = "utf-8"


@lru_cache(maxsize=1024)
def read_content_type(text: str | None) -> ContentType:
    """Read a content type; none means JSON, one that is no media type means binary (spec 9.3)."""
    if text is None:
        return ContentType(Form.JSON, JSON_TYPE)
    media_type = text.partition(";")[0].strip().lower()
    printable = text.isascii() and text.isprintable() and len(text) <= _CONTENT_TYPE_LENGTH
    if not printable or _MEDIA_TYPE.fullmatch(media_type) is None:
        return ContentType(Form.BINARY, BINARY_TYPE)
    if media_type == _DITTO_TYPE:
        return ContentType(Form.JSON, JSON_TYPE)
    if media_type == JSON_TYPE:
        return ContentType(Form.JSON, text)
    if media_type.startswith("text/"):
        named = _CHARSET.search(text)
        charset = _CHARSETS.get(named[1].lower(), "utf-8") if named else "utf-8"
        return ContentType(Form.TEXT, text, charset)
    return ContentType(Form.BINARY, text)


def is_protocol_type(text: object) -> bool:
    """Whether a content type is that of Ditto Protocol itself, whatever its parameters."""
    return isinstance(text, str) and text.partition(";")[0].strip().lower() == _DITTO_TYPE


def body_of(payload: Any, content_type: ContentType) -> Any:
    """A payload of an envelope as the body of an answer: bytes, or a JSON value to be encoded.

    Text becomes its bytes, base64 the data it stands for. What does not have the form that its
    content type promises is passed on as it is: text as UTF-8, anything else as JSON.
    """
    if type(payload) is not str or content_type.form is Form.JSON:
        return payload
    if content_type.form is Form.TEXT:
        return payload.encode(content_type.charset, "replace")
    try:
        return b64decode(payload, validate=True)
    except ValueError:
        return payload.encode("utf-8", "replace")


def value_of(body: bytes, content_type: ContentType) -> str:
    """Text or binary data as it stands in an envelope.

    Raises ``header.invalid`` if the text is not in its charset.
    """
    if content_type.form is Form.BINARY:
        return b64encode(body).decode()
    try:
        return body.decode(content_type.charset)
    except UnicodeDecodeError:
        raise error(
            "header.invalid",
            value=content_type.shown,
            header="content-type",
            type="content type of this payload",
            description=f"The payload is not text in the charset '{content_type.charset}'.",
            extras={"invalidHeaderKey": "content-type"},
        ) from None


def check_size(size: int) -> None:
    """Raises ``messages:payload.toolarge`` for more than :data:`MAX_MESSAGE_BYTES` bytes."""
    if size > MAX_MESSAGE_BYTES:
        raise error("messages:payload.toolarge", size=size, limit=MAX_MESSAGE_BYTES)
