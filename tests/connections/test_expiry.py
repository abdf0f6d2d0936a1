"""Messages whose time is over."""

from __future__ import annotations

import pytest

from connections.expiry import expired

NOW = 1_700_000_000.0
MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("created", "ttl", "over"),
    [
        (str(MS - 1_000), "1000", True),
        (str(MS - 1_000), "1001", False),
        ("0", "0", True),
        (None, "0", False),
        ("0", None, False),
        ("soon", "1", False),
        ("1", "-1", False),
        ("1", "1.5", False),
        ("1", "٣", False),
        ("1" * 19, "1", False),
    ],
)
def test_both_headers_say_when(created: str | None, ttl: str | None, over: bool) -> None:
    given = {"creation-time": created, "ttl": ttl}
    headers = {name: text for name, text in given.items() if text is not None}
    assert expired(headers, NOW) is over
