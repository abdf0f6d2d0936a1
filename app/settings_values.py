"""Kinds of values that settings have: how they are written, and what is not one."""

from __future__ import annotations

import json
import re
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_settings import NoDecode

_DURATION = re.compile(r"([0-9]*\.?[0-9]+) *(ms|s|m|h)?")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}
_SIZE = re.compile(r"([0-9]+) *([kKMG]i?)?B?")
_BYTES = {
    None: 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9,
    "ki": 2**10, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30,
}  # fmt: skip

Network = IPv4Network | IPv6Network


def _seconds(value: object) -> object:
    if not isinstance(value, str):
        return value
    match = _DURATION.fullmatch(value.strip())
    if match is None:
        raise ValueError("a duration is a number of seconds or like 500ms, 5s, 1m, 1h")
    return float(match[1]) * _SECONDS[match[2]]


def _bytes(value: object) -> object:
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise ValueError("a size is a number of bytes or like 64KiB, 16MiB, 1GiB, 10MB")
    return int(match[1]) * _BYTES[match[2]]


def _listed(value: object) -> object:
    if not isinstance(value, str):
        return value
    return [piece for piece in map(str.strip, value.split(",")) if piece]


def _networks(value: object) -> object:
    listed = _listed(value)
    if not isinstance(listed, list | tuple):
        return listed
    return tuple(_network(item) for item in listed)


def _network(value: object) -> Network:
    try:
        network = ip_network(str(value))
    except ValueError:
        raise ValueError(f"{value} is no network such as 10.1.0.0/16 or 10.1.2.3") from None
    if isinstance(network, IPv6Network) and network.network_address.ipv4_mapped is not None:
        raise ValueError(f"{value} is a network of IPv4 addresses: write it as one")
    return network


def table(value: object) -> object:
    """A text is read as JSON, anything else is left as it is; raises ValueError."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as problem:
        raise ValueError(f"not a JSON object: {problem}") from None


Duration = Annotated[float, BeforeValidator(_seconds), Field(gt=0, le=86_400, allow_inf_nan=False)]
Size = Annotated[int, BeforeValidator(_bytes)]
Count = Annotated[int, Field(gt=0)]
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_listed)]
"""A list; as one text its items are separated by commas."""
Networks = Annotated[tuple[Any, ...], NoDecode, BeforeValidator(_networks)]
"""Networks of addresses, written as :data:`Names`."""


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches ``host``; a name other than localhost counts as no."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
