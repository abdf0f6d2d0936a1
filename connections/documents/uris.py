"""The URI of a connection: where its broker is, and who we are to it (spec websocket-... 4.1)."""

from __future__ import annotations

import re
from urllib.parse import unquote

from acks.errors import GatewayError, error
from connections.documents.masking import without_password
from connections.model import Uri

MAX_LENGTH = 2_048
_SHOWN = 200
_URI = re.compile(
    r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]*)://"
    r"(?:(?P<user>[^:@/?#]*)(?::(?P<password>[^@/?#]*))?@)?"
    r"(?P<host>\[[0-9a-fA-F:.]+\]|[^\[\]:@/?#]*)"
    r"(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>/[^?#]*)?"
)


def parse_uri(text: str) -> Uri:
    """Read ``scheme://user:password@host:port/path``; user and password are percent-decoded.

    A plus in them stands for itself. Raises ``connectivity:connection.uri.invalid``, whose text
    has no password.
    """
    if len(text) > MAX_LENGTH:
        raise _invalid(text, f"it has more than {MAX_LENGTH:,} characters.")
    if any(char <= " " or char == "\x7f" for char in text):
        raise _invalid(text, "it has blanks or control characters.")
    if "?" in text or "#" in text:
        raise _invalid(text, "it has a query or a fragment.")
    found = _URI.fullmatch(text)
    if found is None:
        raise _invalid(text, "it is not of the form scheme://user:password@host:port/path.")
    host, port, password = found["host"], int(found["port"] or 0), found["password"]
    if not host:
        raise _invalid(text, "it has no host.")
    if not 0 < port < 65_536:
        raise _invalid(text, "it has no port from 1 to 65535.")
    return Uri(
        scheme=found["scheme"].lower(),
        host=host.strip("[]"),
        port=port,
        path=found["path"] or "",
        user=None if found["user"] is None else unquote(found["user"]),
        password=None if password is None else unquote(password),
    )


def _invalid(text: str, reason: str) -> GatewayError:
    shown = without_password(text)
    shown = shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "..."
    return error("connectivity:connection.uri.invalid", uri=shown, reason=reason)
