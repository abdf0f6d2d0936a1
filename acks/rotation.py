"""Rotation: whose turn it is among the members of a label group."""

from __future__ import annotations

from collections.abc import Collection, Iterable


class Rotation:
    """Members of a group; first who has the fewest signals, then who was chosen longest ago."""

    __slots__ = ("_by_load", "_load")

    def __init__(self) -> None:
        self._load: dict[str, int] = {}
        self._by_load: dict[int, dict[str, None]] = {}

    def __len__(self) -> int:
        return len(self._load)

    def __contains__(self, member: str) -> bool:
        return member in self._load

    def replace(self, members: Iterable[str]) -> list[str]:
        """Have exactly these members; returns those that are gone."""
        wanted = dict.fromkeys(members)
        gone = [member for member in self._load if member not in wanted]
        for member in gone:
            self._drop(member, self._load.pop(member))
        for member in wanted:
            if member not in self._load:
                self._put(member, 0)
        return gone

    def choose(self, tried: Collection[str] = ()) -> str | None:
        """Who is next, not counting those ``tried``; it has one signal more from now on."""
        for load in sorted(self._by_load):
            for member in self._by_load[load]:
                if member not in tried:
                    self.add(member, 1)
                    return member
        return None

    def add(self, member: str, signals: int) -> None:
        """Count signals of a member, 1 more or -1; unknown members are ignored."""
        load = self._load.get(member)
        if load is not None:
            self._drop(member, load)
            self._put(member, max(0, load + signals))

    def _put(self, member: str, load: int) -> None:
        self._load[member] = load
        self._by_load.setdefault(load, {})[member] = None

    def _drop(self, member: str, load: int) -> None:
        bucket = self._by_load[load]
        del bucket[member]
        if not bucket:
            del self._by_load[load]
