"""A search as it was asked for, and the cursor between its pages (spec websocket-... 6.4).

A cursor says which search it belongs to and behind which thing its page begins. It holds nothing
but what the client has sent itself or was shown: the filter, the namespaces, the sort and that
thing's values of it. So it needs no secret; a forged one is a search that could be asked for
anyway. What a cursor holds may be left out of the request, but not differ from it.
"""

from __future__ import annotations

import json
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from acks.document import is_namespace
from acks.errors import GatewayError, error
from acks.fields import Selector, parse_fields
from acks.rql import CONDITION_PREFIXES, Predicate, format_predicate, parse_checked
from acks.search_options import DEFAULT, Options, format_sort, invalid, parse_options, read_options

MAX_NAMESPACES = 100
"""Namespaces of one search."""
_MAX_CURSOR = 256 * 1024
"""Bytes of a cursor unpacked: a filter and a few texts of a thing."""
_FOREIGN = "The option 'cursor' belongs to another search: its {} must not change."

Key = Any
"""A value of the thing that a page ends with, as the index sorts by it: JSON."""


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """One page of a search, asked for by ``subjects``; it may take ``timeout_ms``.

    ``namespaces`` empty means all. ``after`` is where the page begins: behind the thing with these
    values of ``options.sort``, the last of them its id; None is the beginning. A ``condition`` has
    to be met by what a thing is now, not by what the index knows of it.
    """

    subjects: tuple[str, ...]
    timeout_ms: int
    predicate: Predicate | None = None
    options: Options = DEFAULT
    fields: Selector | None = None
    namespaces: frozenset[str] = frozenset()
    condition: Predicate | None = None
    after: tuple[Key, ...] | None = None
    correlation_id: str = ""

    def from_key(self, after: tuple[Key, ...]) -> SearchRequest:
        """The same search behind the thing with the key ``after``."""
        options = replace(self.options, offset=None, cursor=None)
        return replace(self, after=after, options=options)


def search_request(
    subjects: tuple[str, ...],
    timeout_ms: int,
    *,
    filters: Sequence[str] = (),
    options: str = "",
    fields: str | None = None,
    namespaces: Iterable[str] = (),
    condition: str | None = None,
    correlation_id: str = "",
) -> SearchRequest:
    """Read a search as a client wrote it; several ``filters`` must all fit.

    Raises ``rql.expression.invalid``, ``thing-search:search.option.invalid`` (also for a cursor
    of another search), ``thing-search:search.namespaces.invalid``, ``json.fieldselector.invalid``,
    ``json.pointer.invalid``.
    """
    request = SearchRequest(
        subjects,
        timeout_ms,
        read_filters(filters),
        read_options(parse_options(options)),
        None if fields is None else parse_fields(fields),
        check_namespaces(namespaces),
        None if condition is None else parse_checked(condition, CONDITION_PREFIXES),
        None,
        correlation_id,
    )
    return request if request.options.cursor is None else _resumed(request, request.options.cursor)


def read_filters(texts: Sequence[str]) -> Predicate | None:
    """The filters as one, None for none; raises ``rql.expression.invalid``.

    Together they are bounded like a single one.
    """
    filters = [parse_checked(text, frozenset()) for text in texts if text]
    if len(filters) < 2:
        return filters[0] if filters else None
    joined = ",".join(format_predicate(one) for one in filters)
    return parse_checked(f"and({joined})", frozenset())


def check_namespaces(names: Iterable[str]) -> frozenset[str]:
    """The namespaces, without blanks around them.

    Raises ``thing-search:search.namespaces.invalid``.
    """
    found = frozenset(name.strip() for name in names if name.strip())
    if len(found) > MAX_NAMESPACES:
        reason = f"The list has more than {MAX_NAMESPACES} of them."
        raise error("thing-search:search.namespaces.invalid", reason=reason)
    for name in sorted(found):
        if not is_namespace(name):
            reason = f"'{name[:64]}' is not a namespace."
            raise error("thing-search:search.namespaces.invalid", reason=reason)
    return found


def cursor_of(request: SearchRequest) -> str:
    """The text of the cursor to ``request``, which begins behind a thing."""
    assert request.after is not None
    held: dict[str, Any] = {"s": format_sort(request.options.sort), "k": list(request.after)}
    if request.predicate is not None:
        held["f"] = format_predicate(request.predicate)
    if request.namespaces:
        held["n"] = sorted(request.namespaces)
    text = json.dumps(held, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    packed = zlib.compress(text.encode("utf-8", "surrogatepass"), 9)
    return urlsafe_b64encode(packed).rstrip(b"=").decode()


def _resumed(request: SearchRequest, cursor: str) -> SearchRequest:
    """``request`` behind its cursor."""
    try:
        began = _unpacked(cursor, request)
    except (GatewayError, NotBase64, zlib.error, ValueError, RecursionError):
        raise invalid("The option 'cursor' is not valid.") from None
    options = request.options
    # As texts: to Python, 1 and true are the same.
    if request.predicate is not None and _text(request.predicate) != _text(began.predicate):
        raise invalid(_FOREIGN.format("filter"))
    if request.namespaces and request.namespaces != began.namespaces:
        raise invalid(_FOREIGN.format("namespaces"))
    if options.sorted_by is not None and options.sort != began.options.sort:
        raise invalid(_FOREIGN.format("sort"))
    return began


def _unpacked(cursor: str, request: SearchRequest) -> SearchRequest:
    """``request`` with what the cursor holds in the place of its own.

    Raises GatewayError or another error for what is no cursor of ours.
    """
    unpacking = zlib.decompressobj()
    packed = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
    text = unpacking.decompress(packed, _MAX_CURSOR)
    held = json.loads(text.decode("utf-8", "surrogatepass"), parse_constant=_no_number)
    if not unpacking.eof or not isinstance(held, dict):
        raise ValueError
    filter_text, names, key = held.get("f", ""), held.get("n", []), held.get("k")
    sort_text = held.get("s")
    if not (isinstance(filter_text, str) and isinstance(sort_text, str)):
        raise ValueError
    if not (isinstance(names, list) and isinstance(key, list)):
        raise ValueError
    if not all(isinstance(name, str) for name in names):
        raise ValueError
    sort = read_options(parse_options(sort_text)).sort
    if len(key) != len(sort):
        raise ValueError
    return replace(
        request,
        predicate=read_filters((filter_text,)),
        namespaces=check_namespaces(names),
        after=tuple(key),
        options=replace(request.options, sort=sort),
    )


def _text(predicate: Predicate | None) -> str:
    return "" if predicate is None else format_predicate(predicate)


def _no_number(_: str) -> NoReturn:
    raise ValueError
