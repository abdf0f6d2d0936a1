"""What of a connection's document nobody gets to see: passwords, keys, tokens.

They are shown as :data:`MASK`. Who sends a document back as it was shown means the secrets that
are stored: they are taken over, but never to another place than the one they were given for.
"""

from __future__ import annotations

import re
from typing import Any

from acks.errors import GatewayError, error
from acks.signals import JsonObject

MASK = "*****"

_PUBLIC = frozenset(
    {
        "type", "cert", "algorithm", "tokenEndpoint", "clientId", "requestedScopes", "audience",
        "username", "publicKey",
    }
)  # fmt: skip
"""What credentials have beside secrets; whatever else there is, is one."""
_SECRET = re.compile(
    r"password|passwd|secret|token|cookie|(?:api|private|access|shared)[-_]?key"
    r"|^(?:proxy-)?authorization$",
    re.IGNORECASE,
)
"""Names of headers and options with secret values."""
_USERINFO = re.compile(r"(://[^/?#@:\s]*):[^/?#\s]*@")
_PLACEHOLDERS = re.compile(r"(?:basic|bearer|token)?\s*(?:\{\{[^}]*\}\}\s*)+", re.IGNORECASE)


def masked(document: JsonObject) -> JsonObject:
    """The document as it may be shown; ``document`` itself stays as it is."""
    shown: JsonObject = _masked(document, "", False)
    return shown


def without_password(text: str) -> str:
    """A text, such as a URI, as it may be shown."""
    if "@" in text and "://" not in text:
        return f"{MASK}@{text.rpartition('@')[2]}"
    return _USERINFO.sub(rf"\1:{MASK}@", text)


def restored(document: JsonObject, stored: JsonObject | None) -> JsonObject:
    """The document with the secrets of the ``stored`` one where it has masks.

    Raises ``connectivity:connection.configuration.invalid`` for a mask that stands for nothing:
    at another place, or after the broker's address or the credentials' endpoint has changed.
    """
    same = stored is not None and _destination(document) == _destination(stored)
    whole: JsonObject = _restored(document, stored if same else None, "", False, ())
    return whole


def _destination(document: JsonObject) -> tuple[object, ...]:
    """Whom the secrets are shown to."""
    uri, credentials = document.get("uri"), document.get("credentials")
    endpoint = credentials.get("tokenEndpoint") if isinstance(credentials, dict) else None
    return (without_password(uri) if isinstance(uri, str) else uri, endpoint)


def _masked(value: Any, name: str, secret: bool) -> Any:
    if isinstance(value, dict):
        return {
            key: _masked(one, key, secret or key == "credentials") for key, one in value.items()
        }
    if isinstance(value, list):
        return [_masked(one, name, secret) for one in value]
    if not isinstance(value, str):
        return value
    return (
        MASK if value and _is_secret(value, name, secret) else _USERINFO.sub(rf"\1:{MASK}@", value)
    )


def _is_secret(value: str, name: str, secret: bool) -> bool:
    if "PRIVATE KEY" in value:
        return True
    if name in _PUBLIC:
        return False
    if secret:
        return True
    return _SECRET.search(name) is not None and _PLACEHOLDERS.fullmatch(value) is None


def _restored(value: Any, stored: Any, name: str, secret: bool, path: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        known = stored if isinstance(stored, dict) else {}
        return {
            key: _restored(one, known.get(key), key, secret or key == "credentials", (*path, key))
            for key, one in value.items()
        }
    if isinstance(value, list):
        known_items = stored if isinstance(stored, list) else []
        padded = [*known_items, *[None] * len(value)]
        return [
            _restored(one, old, name, secret, (*path, str(place)))
            for place, (one, old) in enumerate(zip(value, padded, strict=False))
        ]
    if not isinstance(value, str) or MASK not in value or _masked(value, name, secret) != value:
        return value
    if isinstance(stored, str) and _masked(stored, name, secret) == value:
        return stored
    if not (value == MASK and _is_secret(value, name, secret)) and f":{MASK}@" not in value:
        return value
    raise _unknown(path)


def _unknown(path: tuple[str, ...]) -> GatewayError:
    return error(
        "connectivity:connection.configuration.invalid",
        reason=f"The secret at '/{'/'.join(path)}' is masked, and there is no stored one for it.",
        description="A masked secret stands for the stored one while the document names the same "
        "broker and endpoint. Send the secret itself.",
    )
