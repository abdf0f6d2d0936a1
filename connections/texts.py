"""What a broker's typed values are as texts: AMQP knows more than texts in its headers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson

_JSON = orjson.OPT_NON_STR_KEYS | orjson.OPT_UTC_Z


def text_of(value: Any) -> str:
    """A text as it is, bytes as UTF-8, times in UTC, lists and maps as JSON."""
    if isinstance(value, str):
        return str(value)  # a plain one: a library may have kinds of its own
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
        return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, list | dict):
        try:
            return orjson.dumps(value, default=text_of, option=_JSON).decode()
        except orjson.JSONEncodeError:
            return str(value)  # such as a map whose keys are bytes: JSON has nothing for it
    return str(value)
