"""Reads a text from left to right; what the parsers of RQL and of search options share."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NoReturn

from acks.errors import GatewayError


class Scanner:
    """``at`` is the next character of ``text``; ``refusal`` makes an error of what is wrong."""

    def __init__(self, text: str, refusal: Callable[[str], GatewayError]) -> None:
        self.text = text
        self.at = 0
        self._refusal = refusal

    def fail(self, expected: str) -> NoReturn:
        """Say what was expected here, and what is here. Raises what ``refusal`` makes."""
        found = self.text[self.at : self.at + 20]
        where = f"at character {self.at + 1}, but found '{found}'" if found else "at the end"
        raise self._refusal(f"expected {expected} {where}.")

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Go behind what ``pattern`` matches here, if it does."""
        found = pattern.match(self.text, self.at)
        if found is not None:
            self.at = found.end()
        return found

    def skip(self, char: str) -> bool:
        """Go behind ``char``, if it is the next."""
        if not self.text.startswith(char, self.at):
            return False
        self.at += 1
        return True

    def need(self, char: str) -> None:
        """Go behind ``char``; raises as :meth:`fail` if it is not the next."""
        if not self.skip(char):
            self.fail(f"'{char}'")
