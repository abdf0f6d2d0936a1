"""Hosts that no connection may lead to."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from acks.errors import GatewayError
from connections.documents.hosts import check_host, destinations, literal_addresses
from connections.documents.uris import parse_uri
from connections.documents.validation import check_connection
from tests.connections.documents import document, target


@pytest.mark.parametrize(
    ("host", "addresses", "is_blocked"),
    [
        ("127.0.0.1", [], True),
        ("10.1.2.3", [], True),
        ("0.0.0.0", [], True),
        ("224.0.0.1", [], True),
        ("169.254.169.254", [], True),
        ("[::ffff:127.0.0.1]", [], True),
        ("[fe80::1]", [], True),
        ("100.100.100.200", [], True),
        ("[64:ff9b::7f00:1]", [], True),
        ("[2002:7f00:1::]", [], True),
        ("[2606:4700::1111]", [], False),
        ("bad.example", ["93.184.215.14"], True),
        ("BAD.example", ["93.184.215.14"], True),
        ("good.example", ["93.184.215.14"], False),
        ("good.example", ["93.184.215.14", "192.168.0.1"], True),
        ("8.8.8.8", [], False),
        ("9.9.9.9", ["203.0.113.77"], True),
        ("good.example", ["198.51.100.7"], True),
        ("good.example", ["198.51.101.8"], False),
    ],
)
def test_blocked_hosts(host: str, addresses: list[str], is_blocked: bool) -> None:
    uri = parse_uri(f"tcp://{host}:1883")
    found = [ip_address(one) for one in addresses] or literal_addresses(uri)
    blocked = frozenset({"bad.example", "203.0.113.0/24", "198.51.100.7"})
    check_host(uri, found, frozenset())
    if is_blocked:
        with pytest.raises(GatewayError, match="is blocked"):
            check_host(uri, found, blocked)
    else:
        check_host(uri, found, blocked)


def test_every_way_out_is_looked_at() -> None:
    given = document(
        connectionType="http-push",
        uri="https://one:443",
        sources=[],
        targets=[target(address="POST:/x")],
        specificConfig={"bootstrapServers": "two:9092, [::1]:9093,nothing"},
        credentials={"type": "oauth-client-credentials", "tokenEndpoint": "https://three/token"},
    )
    found = [(uri.host, uri.port) for uri in destinations(check_connection(given, "C")[1])]
    assert found == [("one", 443), ("two", 9092), ("::1", 9093), ("three", 443)]
    given["credentials"]["tokenEndpoint"] = "https://[three/token"
    with pytest.raises(GatewayError, match="no URL"):
        list(destinations(check_connection(given, "C")[1]))
