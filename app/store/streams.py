"""Pages of a stream as the store returns them."""

from __future__ import annotations

from app.store.redis_client import Reply


def entries_of(page: Reply) -> list[tuple[bytes, list[Reply]]]:
    """The entries of a page of a stream: their ids and fields."""
    assert isinstance(page, list)
    found = []
    for entry in page:
        assert isinstance(entry, list)
        position, fields = entry
        assert isinstance(position, bytes)
        assert isinstance(fields, list)
        found.append((position, fields))
    return found
