"""Trusted proxies: they have checked the sender, and say which subjects it has (spec ws 5.1)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv6Address, ip_address

from acks.errors import error
from app.api.presented import PRE_AUTHENTICATED, Presented
from app.settings_values import Network

MAX_SUBJECTS = 100
"""Most subjects that a requester may have (spec websocket-... 1.1)."""
REMEMBERED = 4096


class Proxies:
    """Peers in ``networks`` may name subjects, in the header or, with ``query``, as a parameter."""

    def __init__(self, networks: Iterable[Network], *, query: bool) -> None:
        self._networks = tuple(networks)
        self._query = query
        self._trusts = lru_cache(REMEMBERED)(self._is_trusted)
        self._read = lru_cache(REMEMBERED)(_subjects)

    def subjects(self, shown: Presented) -> tuple[str, ...] | None:
        """The subjects that a request's proxy names, None if none are named.

        Raises ``gateway:authentication.failed`` if the peer is no trusted proxy or names nothing,
        ``gateway:duplicate.header.field`` if header and parameter differ, ``headers.too.large``.
        """
        text = shown.subjects
        if self._query and shown.query_subjects is not None:
            if text is not None and text != shown.query_subjects:
                raise error(
                    "gateway:duplicate.header.field",
                    message=f"<{PRE_AUTHENTICATED}> was provided as header as well as query "
                    f"parameter with divergent values!",
                )
            text = shown.query_subjects
        if text is None:
            return None
        if shown.peer is None or not self._trusts(shown.peer):
            raise error(
                "gateway:authentication.failed",
                description=f"'{PRE_AUTHENTICATED}' is taken of trusted proxies only, and this "
                f"request does not come from one.",
            )
        return self._read(text)

    def _is_trusted(self, peer: str) -> bool:
        try:
            address = ip_address(peer)
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._networks)


def _subjects(text: str) -> tuple[str, ...]:
    pieces = (piece.strip() for piece in text.split(","))
    subjects = tuple(dict.fromkeys(piece for piece in pieces if piece))
    # "nginx:" is what a proxy sends that has let somebody through without a check.
    if not subjects or not text.isprintable() or any(one.endswith(":") for one in subjects):
        raise error(
            "gateway:authentication.failed",
            description=f"'{PRE_AUTHENTICATED}' names no subject that could be used.",
        )
    if len(subjects) > MAX_SUBJECTS:
        raise error("headers.too.large", description=f"At most {MAX_SUBJECTS} subjects.")
    return subjects
