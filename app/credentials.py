"""Users and operators as they are written in the settings: ``name:password,name2:$2b$...``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from pydantic import SecretStr

DEFAULT_USERS = "ditto:ditto,user2:user2"
DEFAULT_OPERATORS = "devops:foobar"
"""What Eclipse Ditto's default deployment has. Everybody knows them: development only."""

_DEFAULT_PASSWORDS = dict(
    entry.split(":") for entry in f"{DEFAULT_USERS},{DEFAULT_OPERATORS}".split(",")
)
_BCRYPT = re.compile(r"\$2[abxy]\$(\d\d)\$[./A-Za-z0-9]{53}")
_OTHER_HASHES = ("$1$", "$5$", "$6$", "$apr1$", "$argon2", "{SHA}", "{SSHA}", "$2")


class CredentialsError(ValueError):
    """A list of users cannot be read. The text names the entry, never its password."""


@dataclass(frozen=True, slots=True)
class Credential:
    """How one user proves who they are.

    ``secret`` is the password itself (``plain``) or its hash (``bcrypt``).
    """

    kind: Literal["plain", "bcrypt"]
    secret: SecretStr
    operator: bool


def parse_credentials(text: str, *, operator: bool = False) -> dict[str, Credential]:
    """Read ``name:secret`` entries separated by commas.

    A secret that starts as a hash does must be a bcrypt hash, as ``htpasswd -B`` makes it: a hash
    of another kind would silently be taken as a plain password. Raises CredentialsError.
    """
    credentials: dict[str, Credential] = {}
    for number, entry in _entries(text):
        name, colon, secret = entry.partition(":")
        name = name.strip()
        if not colon:
            # The whole entry may be a password with a comma in it: do not repeat it.
            raise CredentialsError(
                f"entry {number} is not name:password (a password with a comma must be hashed)"
            )
        if not name or not name.isprintable():
            raise CredentialsError(f"entry {number} has no usable name before the colon")
        if not secret:
            raise CredentialsError(f"entry {number} ({name}) has an empty password")
        if name in credentials:
            raise CredentialsError(f"entry {number}: the name {name} is there twice")
        credentials[name] = Credential(_kind(number, name, secret), SecretStr(secret), operator)
    return credentials


def merge(users: dict[str, Credential], operators: dict[str, Credential]) -> dict[str, Credential]:
    """Both lists as one; raises CredentialsError for a name in both."""
    for name in users.keys() & operators.keys():
        raise CredentialsError(f"the name {name} is both a user and an operator")
    return users | operators


def default_passwords(credentials: dict[str, Credential]) -> Iterator[str]:
    """Names that still have the password that everybody knows, plain or hashed."""
    for name, credential in credentials.items():
        password = _DEFAULT_PASSWORDS.get(name)
        if password is not None and _matches(credential, password):
            yield name


def hash_password(password: str) -> str:
    """The bcrypt form of ``password`` (72 bytes at most); raises CredentialsError."""
    import bcrypt  # a shared library: loaded when it is needed, not for every command

    encoded = password.encode()
    if not encoded:
        raise CredentialsError("the password is empty")
    if len(encoded) > 72:
        raise CredentialsError("the password is longer than 72 bytes, the most that bcrypt takes")
    if b"\0" in encoded:
        raise CredentialsError("the password holds a NUL byte")
    return bcrypt.hashpw(encoded, bcrypt.gensalt(12)).decode()


def _entries(text: str) -> Iterable[tuple[int, str]]:
    entries = (entry.strip() for entry in text.split(","))
    return ((number, entry) for number, entry in enumerate(entries, 1) if entry)


def _kind(number: int, name: str, secret: str) -> Literal["plain", "bcrypt"]:
    match = _BCRYPT.fullmatch(secret)
    if match:
        if not 4 <= int(match[1]) <= 16:
            raise CredentialsError(f"entry {number} ({name}): bcrypt cost {match[1]} is not 4..16")
        return "bcrypt"
    if secret.startswith(_OTHER_HASHES):
        raise CredentialsError(
            f"entry {number} ({name}) looks like a hash but is no complete bcrypt hash; "
            f"make one with `ackgate hash-password`"
        )
    return "plain"


def _matches(credential: Credential, password: str) -> bool:
    secret = credential.secret.get_secret_value()
    if credential.kind == "plain":
        return secret == password
    import bcrypt

    return bcrypt.checkpw(password.encode(), secret.encode())
