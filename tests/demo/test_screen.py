from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.demo.screen import WIDEST, Screen

DOCUMENT = {
    "twin-persisted": {"status": 201, "payload": {"thingId": "a:b", "attributes": {"x": [1, 2]}}},
    "nobody:there": {"status": 408, "payload": {"message": "m" * 60, "description": "d" * 60}},
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed(out: io.StringIO, document: object) -> str:
    Screen(out).json(document)
    return out.getvalue()


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(st.characters(categories=["L", "P"])),
        lambda inner: st.lists(inner) | st.dictionaries(st.text("abc:-"), inner),
    )
)
def test_printed_json_is_the_document(document: Any) -> None:
    assert json.loads(printed(io.StringIO(), document)) == document


def test_json_is_broken_into_lines_that_fit() -> None:
    lines = printed(io.StringIO(), DOCUMENT).splitlines()
    assert len(lines) > len(DOCUMENT)
    assert max(map(len, lines)) <= WIDEST


def test_colours_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in printed(Terminal(), DOCUMENT)
    assert "\x1b[" not in printed(io.StringIO(), DOCUMENT)


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in printed(Terminal(), DOCUMENT)


def test_a_status_is_coloured_by_its_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = printed(Terminal(), DOCUMENT)
    assert "\x1b[32m201\x1b[0m" in text
    assert "\x1b[31m408\x1b[0m" in text


def test_a_wide_table_is_cut() -> None:
    out = io.StringIO()
    Screen(out).table(["id", "value"], [["a", "v" * 200], ["b", "short"]])
    names, wide, short = out.getvalue().splitlines()
    assert names.split() == ["id", "value"]
    assert len(wide) <= WIDEST
    assert wide.endswith("...")
    assert short.split() == ["b", "short"]
