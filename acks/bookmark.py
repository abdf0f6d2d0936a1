"""Bookmarks: places in the journal that a client keeps and hands back, as opaque text.

The journal has one stream per shard, so a bookmark holds one position for each of them. It means
"everything up to here is done", and is good on every gateway process over the same store.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator

from acks.errors import GatewayError
from acks.headers import invalid_header

Position = tuple[int, int]
"""An entry's id in its shard: ms since the epoch, and a number among those of that moment."""
Positions = tuple[Position, ...]
"""A position for each shard, by its number; :data:`START` where nothing is done yet."""

START: Position = (0, 0)
MAX_LENGTH = 8192
"""Characters of a bookmark."""
_VERSION = "1"
_BITS = 64


def read_position(entry_id: bytes) -> Position:
    """The position that an entry id such as ``b"1700000000000-0"`` is; raises ValueError."""
    ms, _, number = entry_id.partition(b"-")
    return int(ms), int(number or b"0")


def entry_id(position: Position) -> str:
    """The entry id at a position, as the store spells it."""
    return f"{position[0]}-{position[1]}"


def write_bookmark(positions: Positions) -> str:
    """A bookmark as text: URL-safe, without blanks; 2 to 10 characters a shard."""
    newest = max(ms for ms, _ in positions)
    numbers = [newest]
    for ms, number in positions:
        numbers += (0,) if (ms, number) == START else (newest - ms + 1, number)
    data = b"".join(map(_packed, numbers))
    return _VERSION + urlsafe_b64encode(data).rstrip(b"=").decode()


def read_bookmark(text: str, shards: int, header: str = "last-event-id") -> Positions:
    """The positions that :func:`write_bookmark` wrote for a journal with this many shards.

    Raises ``header.invalid``, naming ``header``, for any other text.
    """
    problem = _unreadable(header, text)
    if len(text) > MAX_LENGTH or not text.isascii() or text[:1] != _VERSION:
        raise problem
    try:
        data = urlsafe_b64decode(text[1:] + "=" * (-len(text[1:]) % 4))
        positions = tuple(_positions(_unpacked(data)))
    except ValueError:
        raise problem from None
    # There is one spelling of each: what is written in another way was not written by us.
    if len(positions) != shards or min(positions) < START or write_bookmark(positions) != text:
        raise problem
    return positions


def _unreadable(header: str, text: str) -> GatewayError:
    return invalid_header(header, text if len(text) <= 64 else text[:64] + "...", "bookmark")


def _positions(numbers: Iterator[int]) -> Iterator[Position]:
    """The positions that the numbers of a bookmark stand for.

    They are the newest ms; then, for each shard, one more than it is behind that, and its number;
    or 0 alone for a shard in which nothing is done.
    """
    newest = next(numbers, 0)
    for behind in numbers:
        yield (newest + 1 - behind, next(numbers, 0)) if behind else START


def _packed(number: int) -> bytes:
    """A number in as few bytes as it takes, seven bits in each, the lowest first."""
    packed = bytearray()
    while number > 0x7F:
        packed.append(number & 0x7F | 0x80)
        number >>= 7
    packed.append(number)
    return bytes(packed)


def _unpacked(data: bytes) -> Iterator[int]:
    """The numbers that were packed one after the other; raises ValueError."""
    number = shift = 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if shift > _BITS + 6:
            raise ValueError("a number is too large")
        if byte < 0x80:
            yield number
            number = shift = 0
    if shift:
        raise ValueError("it ends within a number")
