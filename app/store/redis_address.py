"""Where a Redis is, and how to open a socket to it."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from typing_extensions import override

_SCHEMES = ("redis", "rediss", "unix")
_TLS_OPTIONS = {"ssl_ca_certs": "ca_file", "ssl_certfile": "cert_file", "ssl_keyfile": "key_file"}


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """The parts of a Redis URL. Printing one never shows the password."""

    host: str = "127.0.0.1"
    port: int = 6379
    path: str | None = None  # unix socket; host and port do not count then
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    ca_file: str | None = None  # extra trust anchor (PEM); else the system's
    cert_file: str | None = None  # client certificate (PEM), for mutual TLS
    key_file: str | None = None

    @classmethod
    def parse(cls, url: str) -> RedisAddress:
        """Read ``redis://[user:pass@]host[:port][/db]``, ``rediss://..`` or ``unix:///path[?db=n]``.

        ``rediss`` also takes ``ssl_ca_certs``, ``ssl_certfile`` and ``ssl_keyfile`` as query
        parameters (the names redis-py uses). Raises ValueError; its text holds no password.
        """
        parts = urlsplit(url)
        if parts.scheme not in _SCHEMES:
            raise ValueError("a Redis URL begins with redis://, rediss:// or unix://")
        facts: dict[str, Any] = {"db": 0}
        for key, value in parse_qsl(parts.query, keep_blank_values=True):
            if key == "db":
                facts["db"] = _database(value)
            elif key in _TLS_OPTIONS and parts.scheme == "rediss":
                facts[_TLS_OPTIONS[key]] = value
            else:
                raise ValueError(f"unknown parameter {key!r} in the Redis URL")
        if parts.scheme == "unix":
            if not parts.path.startswith("/") or parts.path == "/":
                raise ValueError("a unix:// URL names an absolute path: unix:///run/redis.sock")
            facts["path"] = unquote(parts.path)
        else:
            facts["host"], facts["port"] = _host_and_port(parts)
            if parts.path.strip("/"):
                facts["db"] = _database(parts.path.strip("/"))
        return cls(
            username=unquote(parts.username) if parts.username else None,
            password=unquote(parts.password) if parts.password else None,
            tls=parts.scheme == "rediss",
            **facts,
        )

    @override
    def __str__(self) -> str:
        login = ""
        if self.username or self.password:
            login = quote(self.username or "") + (":***" if self.password else "") + "@"
        if self.path is not None:
            return f"unix://{login}{quote(self.path)}" + (f"?db={self.db}" if self.db else "")
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'rediss' if self.tls else 'redis'}://{login}{host}:{self.port}/{self.db}"

    def ssl_context(self) -> ssl.SSLContext | None:
        """The TLS settings, or None for plain text. The peer's certificate is always checked."""
        if not self.tls:
            return None
        context = ssl.create_default_context(cafile=self.ca_file)
        if self.cert_file:
            context.load_cert_chain(self.cert_file, self.key_file)
        return context


def _database(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"the database in the Redis URL is not a number: {text!r}")
    return int(text)


def _host_and_port(parts: SplitResult) -> tuple[str, int]:
    try:
        port = parts.port
    except ValueError:
        # The original text may quote a piece of a password that was not percent-encoded.
        raise ValueError(
            "the port in the Redis URL is not a number from 0 to 65535 "
            "(special characters in a password must be percent-encoded)"
        ) from None
    if not parts.hostname:
        raise ValueError("the Redis URL names no host")
    return parts.hostname, 6379 if port is None else port


async def open_socket(address: RedisAddress, protocol: Callable[[], asyncio.Protocol]) -> None:
    """Connect ``protocol``. Raises OSError. The caller sets the time limit."""
    loop = asyncio.get_running_loop()
    if address.path is not None:
        await loop.create_unix_connection(protocol, address.path)
        return
    transport, _ = await loop.create_connection(
        protocol, address.host, address.port, ssl=address.ssl_context()
    )
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
