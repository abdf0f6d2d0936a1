"""An entry of the journal on its way to sessions, and the parts of it that they may read."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import orjson

from acks.audience import may_know, readable, rights
from acks.document import parse_pointer
from acks.journal import EntryMeta
from acks.resources import ABSENT


@lru_cache(maxsize=4096)
def headers_of(text: bytes) -> dict[str, Any]:
    """An entry's headers; most entries of a requester have the same ones. Not to be changed."""
    headers: dict[str, Any] = orjson.loads(text)
    return headers


class Part:
    """A value as far as somebody may read it, as JSON and parsed; either is made on demand."""

    __slots__ = ("_parsed", "_raw")

    def __init__(self, raw: bytes | None, parsed: Any = ABSENT) -> None:
        self._raw = raw
        self._parsed = parsed

    @property
    def raw(self) -> bytes | None:
        """The JSON text, None for no value."""
        if self._raw is None and self._parsed is not ABSENT:
            self._raw = orjson.dumps(self._parsed)
        return self._raw

    def parsed(self) -> Any:
        """The JSON value, not to be changed; ABSENT for none."""
        if self._parsed is ABSENT and self._raw is not None:
            self._parsed = orjson.loads(self._raw)
        return self._parsed


class Entry:
    """An entry of the journal on its way to sessions; what is worked out once serves them all."""

    __slots__ = ("_parts", "_rights", "frames", "headers", "id", "meta", "shard", "size", "whole")

    def __init__(
        self,
        shard: int,
        entry_id: bytes,
        meta: EntryMeta,
        headers: Mapping[str, Any],
        raw: bytes | None,
    ) -> None:
        self.shard = shard
        self.id = entry_id
        self.meta = meta
        self.headers = headers
        self.whole = Part(raw or None)
        self.size = len(raw or b"")
        self.frames: dict[Any, bytes] = {}
        self._rights = rights(meta.rules) if meta.rules else None
        self._parts: dict[tuple[str, ...], Part | None] = {}

    def part(self, subjects: tuple[str, ...]) -> Part | None:
        """What a session with these subjects may read of the value, None for nothing."""
        if self._rights is None:
            return self.whole
        if subjects not in self._parts:
            self._parts[subjects] = self._cut(subjects)
        return self._parts[subjects]

    def _cut(self, subjects: tuple[str, ...]) -> Part | None:
        assert self._rights is not None
        path = parse_pointer(self.meta.path)
        if not self.size:
            return self.whole if may_know(self._rights, subjects, path) else None
        value = self.whole.parsed()
        seen = readable(self._rights, subjects, path, value)
        if seen is value:
            return self.whole
        return None if seen is ABSENT else Part(None, seen)
