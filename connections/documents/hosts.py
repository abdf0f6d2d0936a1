"""Hosts that no connection may lead to (spec websocket-... 4.1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit

from connections.documents.reading import wrong
from connections.model import Connection, Uri

_TRANSLATED = tuple(map(ip_network, ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16")))
"""IPv6 with an IPv4 address in it, whatever that is: NAT64 (RFC 6052, 8215), 6to4 (RFC 3056)."""


def check_host(
    uri: Uri, addresses: Sequence[IPv4Address | IPv6Address], blocked: frozenset[str]
) -> None:
    """Refuse a broker's host that is ``blocked``; ``addresses`` are those it has.

    ``blocked`` are names, addresses and networks. With anything blocked, addresses of this machine
    and of private networks are, too. Raises ``connectivity:connection.configuration.invalid``.
    """
    if not blocked:
        return
    inside = any(_is_inside(one) for one in addresses)
    named = any(uri.host.lower() == entry.lower() or _is_in(entry, addresses) for entry in blocked)
    if inside or named:
        raise wrong(f"The host '{uri.host}' is blocked: no connection may lead there.")


def destinations(connection: Connection) -> Iterator[Uri]:
    """Where a connection leads: its broker, others of ``specificConfig``, who gives tokens.

    Raises ``connectivity:connection.configuration.invalid`` for what is no URL.
    """
    yield connection.uri
    for server in connection.specific.get("bootstrapServers", "").split(","):
        host, _, port = server.strip().rpartition(":")
        if host and port.isdecimal():
            yield Uri(connection.uri.scheme, host.strip("[]"), int(port))
    endpoint = connection.credentials.get("tokenEndpoint")
    if isinstance(endpoint, str):
        try:
            parts = urlsplit(endpoint)
            name, at = parts.hostname, parts.port or 443
        except ValueError:
            raise wrong("The 'tokenEndpoint' of the credentials is no URL.") from None
        if name:
            yield Uri(parts.scheme, name, at)


def literal_addresses(uri: Uri) -> list[IPv4Address | IPv6Address]:
    """The address that a host is, if it is one."""
    try:
        found = ip_address(uri.host)
    except ValueError:
        return []
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return [mapped or found]


def _is_inside(address: IPv4Address | IPv6Address) -> bool:
    """Whether it is no address of the public internet, or may stand for one that is not."""
    translated = any(address in network for network in _TRANSLATED)
    return not address.is_global or address.is_multicast or translated


def _is_in(network: str, addresses: Sequence[IPv4Address | IPv6Address]) -> bool:
    try:
        found = ip_network(network, strict=False)
    except ValueError:
        return False  # it is a name
    return any(address in found for address in addresses)
