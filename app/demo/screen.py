"""What the demo prints: steps with their time, JSON of readable width, a small table.

Colours and the moving line are for a terminal alone, colours only without ``NO_COLOR``
(https://no-color.org).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import textwrap
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TextIO

from app.demo.meanwhile import meanwhile

NARROWEST, WIDEST = 60, 100  # columns
WHO = 12  # columns of the name in a step
TICK = 0.2  # seconds between two looks of the moving line
_MARGIN: Final = " " * (9 + WHO)
_SPINNER: Final = "|/-\\"
_STATUS: Final = re.compile(r'("status": |^)(\d{3})\b')
_KEY: Final = re.compile(r'("[^"\\]*")(?=:)')
_CODES: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "cyan": "36"}


class Screen:
    """Prints to ``out``; the elapsed time counts from construction."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._terminal = out.isatty() and os.environ.get("TERM") != "dumb"
        self._colours = self._terminal and not os.environ.get("NO_COLOR")
        columns = shutil.get_terminal_size().columns if self._terminal else WIDEST
        self._width = max(NARROWEST, min(WIDEST, columns))
        self._born = time.monotonic()
        self._moving = False

    def elapsed(self) -> float:
        """Seconds since construction."""
        return time.monotonic() - self._born

    def heading(self, text: str) -> None:
        """An empty line and a line that begins a part."""
        self._line("")
        self._line(self._paint("bold", text))

    def prose(self, text: str) -> None:
        """A paragraph for the reader, wrapped."""
        for line in textwrap.wrap(text, self._width, initial_indent="  ", subsequent_indent="  "):
            self._line(line)

    def step(self, who: str, text: str, *, colour: str = "") -> None:
        """One thing that happened: elapsed seconds, who did it, what it was."""
        lines = textwrap.wrap(
            text, self._width - len(_MARGIN), break_long_words=False, break_on_hyphens=False
        )
        for number, line in enumerate(lines):
            shown = self._paint(colour, line)
            self._line(shown if number == 0 else _MARGIN + shown, who if number == 0 else None)

    def more(self, text: str) -> None:
        """A line that belongs to the step before, as it is."""
        self._line(_MARGIN + text)

    def code(self, text: str) -> None:
        """A line that the reader may copy, never wrapped."""
        self._line("  " + self._paint("cyan", text))

    def json(self, value: object) -> None:
        """A JSON document, indented; what fits into a line stays on one."""
        for line in _fitted(value, self._width - 4).splitlines():
            self._line("    " + self._highlight(line))

    def table(self, names: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Rows under their column names; the last column is cut if it is too wide."""
        texts = [list(names), *([str(cell) for cell in row] for row in rows)]
        widths = [max(len(row[column]) for row in texts) for column in range(len(names))]
        for number, row in enumerate(texts):
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            line = "  ".join(cells).rstrip()
            room = self._width - 4
            line = line if len(line) <= room else line[: room - 3] + "..."
            self._line("    " + (self._paint("bold", line) if number == 0 else line))

    def error(self, text: str) -> None:
        """What went wrong; lines stay as they are."""
        first, *rest = text.splitlines()
        self._line("")
        self._line(self._paint("red", f"The demo stops: {first}"))
        for line in rest:
            self._line(line)

    @asynccontextmanager
    async def waiting(self, who: str, text: str) -> AsyncIterator[None]:
        """Say what is waited for; on a terminal the line counts the seconds until it is there."""
        if not self._terminal:
            self.step(who, f"{text} ...")
            yield
            return
        try:
            async with meanwhile(self._move(who, text), "demo-spinner"):
                yield
        finally:
            self._clear()

    async def _move(self, who: str, text: str) -> None:
        begun, number = time.monotonic(), 0
        while True:
            self._clear()
            waited = f"{text} {_SPINNER[number % len(_SPINNER)]} {time.monotonic() - begun:.0f} s"
            room = self._width - len(_MARGIN)
            self._out.write(self._prefix(who) + waited[:room])
            self._out.flush()
            self._moving, number = True, number + 1
            await asyncio.sleep(TICK)

    def _clear(self) -> None:
        if self._moving:
            self._out.write("\r\x1b[K")
            self._moving = False

    def _prefix(self, who: str) -> str:
        return f"{self._paint('dim', f'{self.elapsed():5.1f} s')}  {who:<{WHO}}"

    def _line(self, text: str, who: str | None = None) -> None:
        self._clear()
        self._out.write((text if who is None else self._prefix(who) + text) + "\n")
        self._out.flush()

    def _paint(self, colour: str, text: str) -> str:
        if not self._colours or colour not in _CODES:
            return text
        return f"\x1b[{_CODES[colour]}m{text}\x1b[0m"

    def _highlight(self, line: str) -> str:
        if not self._colours:
            return line
        line = _STATUS.sub(
            lambda found: found[1] + self._paint(status_colour(int(found[2])), found[2]), line
        )
        return _KEY.sub(lambda found: self._paint("cyan", found[1]), line)


def status_colour(status: int) -> str:
    """Green for a success, red for everything else."""
    return "green" if 200 <= status < 300 else "red"


def _fitted(value: Any, width: int, indent: str = "", before: int = 0) -> str:
    """``value`` as JSON within ``width`` columns where that is possible.

    Lines after the first begin with ``indent``; ``before`` columns of the first are in use.
    """
    flat = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or not value:
        return flat
    # The outermost object is a list of acks for the reader: one below the other, even if short.
    if indent and len(indent) + before + len(flat) < width:
        return flat
    inner = indent + "  "
    if isinstance(value, dict):
        names = [json.dumps(name, ensure_ascii=False) + ": " for name in value]
        opening, closing, items = "{", "}", list(value.values())
    else:
        names, opening, closing, items = [""] * len(value), "[", "]", value
    parts = [
        name + _fitted(item, width, inner, len(name))
        for name, item in zip(names, items, strict=True)
    ]
    lines = _packed(parts, width - len(inner)) if indent else parts
    return f"{opening}\n{inner}" + f",\n{inner}".join(lines) + f"\n{indent}{closing}"


def _packed(parts: list[str], room: int) -> list[str]:
    """Neighbours that fit into ``room`` columns together, on one line."""
    lines: list[str] = []
    for part in parts:
        last = lines[-1] if lines else "\n"
        if "\n" in last + part or len(last) + len(part) + 3 > room:
            lines.append(part)
        else:
            lines[-1] = f"{last}, {part}"
    return lines
