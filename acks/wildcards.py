"""Patterns with ``*`` (anything) and ``?`` (one character), matched in bounded time."""

from __future__ import annotations

from functools import lru_cache

_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}


def like(text: str, pattern: str, ignore_case: bool = False) -> bool:
    """Whether the whole of ``text`` fits ``pattern`` (spec websocket-... 6.3: like, ilike).

    Several ``*`` in a row mean one; there is no way to escape a wildcard. ``ignore_case`` makes
    the letters A to Z equal to a to z, no others. Nothing is tried twice: between two ``*`` the
    first place that fits is as good as any later one.
    """
    if ignore_case:
        text, pattern = text.translate(_LOWER), pattern.translate(_LOWER)
    head, *rest = pattern.split("*")
    if not rest:
        return len(text) == len(pattern) and _fits(text, 0, pattern)
    tail = rest.pop()
    at, end = len(head), len(text) - len(tail)
    if at > end or not _fits(text, 0, head) or not _fits(text, end, tail):
        return False
    for piece in rest:
        at = _find(text, piece, at, end)
        if at < 0:
            return False
    return True


def _fits(text: str, at: int, piece: str) -> bool:
    if "?" not in piece:
        return text.startswith(piece, at)
    here = text[at : at + len(piece)]
    return all(want in ("?", have) for want, have in zip(piece, here, strict=True))


def _find(text: str, piece: str, start: int, end: int) -> int:
    """Where the first ``piece`` within ``text[start:end]`` ends, -1 if there is none."""
    if "?" not in piece:
        found = text.find(piece, start, end)
        return found if found < 0 else found + len(piece)
    # Bit i of the state says that the last i + 1 characters fit the beginning of the piece: one
    # step per character, whatever the piece.
    masks, anything = _masks(piece)
    last = 1 << (len(piece) - 1)
    state = 0
    for at in range(start, end):
        state = (state << 1 | 1) & masks.get(text[at], anything)
        if state & last:
            return at + 1
    return -1


@lru_cache(maxsize=64)
def _masks(piece: str) -> tuple[dict[str, int], int]:
    """Per character the positions of ``piece`` it fits, and those that fit every character."""
    anything = 0
    places: dict[str, int] = {}
    for index, char in enumerate(piece):
        if char == "?":
            anything |= 1 << index
        else:
            places[char] = places.get(char, 0) | 1 << index
    return {char: bits | anything for char, bits in places.items()}, anything
