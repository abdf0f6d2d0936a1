"""The values of a broker's headers as texts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from connections.texts import text_of

NOON = datetime(2026, 1, 2, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("ö", "ö"),
        (True, "true"),
        (7, "7"),
        (1.5, "1.5"),
        (Decimal("2.50"), "2.50"),
        (b"\xc3\xb6\xff", "ö\ufffd"),
        (memoryview(b"x"), "x"),
        (NOON, "2026-01-02T12:00:00Z"),
        (NOON.replace(tzinfo=None), "2026-01-02T12:00:00Z"),
        (NOON.astimezone(timezone(timedelta(hours=2))), "2026-01-02T12:00:00Z"),
        ([1, "a", b"b", None], '[1,"a","b",null]'),
        ({"a": {1: False}, "at": NOON}, '{"a":{"1":false},"at":"2026-01-02T12:00:00Z"}'),
    ],
)
def test_a_value_is_a_text(value: Any, text: str) -> None:
    assert text_of(value) == text


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("value", [{b"key": 1}, [1 << 70], nested(300)])
def test_what_json_has_nothing_for_is_a_text_all_the_same(value: Any) -> None:
    assert text_of(value) == str(value)
