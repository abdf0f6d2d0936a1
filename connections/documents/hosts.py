"""Hosts that no connection may lead to (spec websocket-... 4.1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit

from connections.documents.reading import wrong
from connections.model import Connection, Uri


def check_host(
    uri: Uri, addresses: Sequence[IPv4Address | IPv6Address], blocked: frozenset[str]
) -> None:
    """Refuse a broker's host that is ``blocked``; ``addresses`` are those it has.

    ``blocked`` are names, addresses and networks. With anything blocked, addresses of this machine
    and of private networks are, too. Raises ``connectivity:connection.configuration.invalid``.
    """
    if not blocked:
        return
    inside = any(
        one.is_loopback or one.is_private or one.is_multicast or one.is_unspecified
        or one.is_link_local
        for one in addresses
    )  # fmt: skip
    named = any(uri.host.lower() == entry.lower() or _is_in(entry, addresses) for entry in blocked)
    if inside or named:
        raise wrong(f"The host '{uri.host}' is blocked: no connection may lead there.")


def destinations(connection: Connection) -> Iterator[Uri]:
    """Where a connection leads: its broker, others of ``specificConfig``, who gives tokens."""
    yield connection.uri
    for server in connection.specific.get("bootstrapServers", "").split(","):
        host, _, port = server.strip().rpartition(":")
        if host and port.isdecimal():
            yield Uri(connection.uri.scheme, host.strip("[]"), int(port))
    endpoint = connection.credentials.get("tokenEndpoint")
    if isinstance(endpoint, str):
        with suppress(ValueError):  # it is no URL, and so leads nowhere
            parts = urlsplit(endpoint)
            if parts.hostname:
                yield Uri(parts.scheme, parts.hostname, parts.port or 443)


def literal_addresses(uri: Uri) -> list[IPv4Address | IPv6Address]:
    """The address that a host is, if it is one."""
    try:
        found = ip_address(uri.host)
    except ValueError:
        return []
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return [mapped or found]


def _is_in(network: str, addresses: Sequence[IPv4Address | IPv6Address]) -> bool:
    try:
        found = ip_network(network, strict=False)
    except ValueError:
        return False  # it is a name
    return any(address in found for address in addresses)
