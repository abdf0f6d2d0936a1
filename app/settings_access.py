"""Where the gateway listens and whom it lets in: the first part of all settings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import IPv4Network
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode

from app.credentials import (
    DEFAULT_OPERATORS,
    DEFAULT_USERS,
    Credential,
    default_passwords,
    merge,
    parse_credentials,
)
from app.settings_values import Names, Network, Networks, is_loopback, table
from connections.placeholders.templates import PlaceholderError, parse_template

Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"
]  # fmt: skip
"""Signatures by a private key. With the others, whoever can check a token can also make one."""
ALGORITHMS: tuple[Algorithm, ...] = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512",
)  # fmt: skip
ANY_AUDIENCE = "*"
BASIC_ISSUER = "nginx"
"""First part of the subjects of users with a password, as Ditto's default deployment has it."""
_KEY = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_WIDE = {4: 8, 6: 16}
"""Prefix length below which a network holds about everybody, by the version of IP."""


class JwtIssuer(BaseModel):
    """Whose JSON Web Tokens are taken, and which subjects they stand for."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    issuer: str
    """Its URL, exactly as the claim ``iss`` has it."""
    jwks: str | None = None
    """URL or file of its keys; without it, OpenID Connect discovery finds them."""
    audiences: Names = ()
    """One of them must be in the claim ``aud``; ``*`` allows any."""
    subjects: Annotated[tuple[str, ...], Field(min_length=1)] = ("{{ jwt:sub }}",)
    """What becomes subjects, each with the issuer's name and a colon before it."""
    conditions: tuple[str, ...] = ()
    """Templates that must all stand for something."""
    algorithms: Annotated[tuple[Algorithm, ...], Field(min_length=1)] = ALGORITHMS

    @field_validator("issuer")
    @classmethod
    def _url(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("https", "http") or not parts.hostname:
            raise ValueError("not an https:// URL")
        if parts.query or parts.fragment or "@" in parts.netloc:
            raise ValueError("the URL of an issuer has no user, no ? and no #")
        return value

    @field_validator("jwks")
    @classmethod
    def _jwks(cls, value: str | None) -> str | None:
        if value is None or value.startswith(("http://", "https://")):
            return value
        path = Path(value).expanduser().absolute()
        if not path.is_file():
            raise ValueError(f"there is no file {path}, and it is no https:// URL")
        return str(path)

    @field_validator("subjects", "conditions")
    @classmethod
    def _templates(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            try:
                parse_template(text, frozenset({"jwt"}))
            except PlaceholderError as problem:
                raise ValueError(str(problem)) from None
        return value

    def checked_audiences(self) -> tuple[str, ...] | None:
        """The audiences that count, None for any."""
        return None if not self.audiences or ANY_AUDIENCE in self.audiences else self.audiences

    def urls(self) -> Iterator[str]:
        """The URLs that its keys come from, as far as the settings name them."""
        if self.jwks is None:
            yield self.issuer
        elif self.jwks.startswith(("http://", "https://")):
            yield self.jwks


class AccessSettings(BaseSettings):
    """Fields of :class:`app.settings.Settings` about listening and access."""

    host: str = Field("127.0.0.1", min_length=1, description="Address to listen on.")
    port: int = Field(8080, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    workers: int = Field(1, ge=1, le=256, description="Processes that serve the port.")
    dev: bool = Field(
        False,
        description="Development: users and operators that are not set get default passwords.",
    )
    dev_exposed: bool = Field(
        False, description="Allow default passwords on an address that other machines reach."
    )

    users: SecretStr | None = Field(
        None,
        description="Users as name:password,name2:password2; plain, or a bcrypt hash as "
        "`ackgate hash-password` or `htpasswd -B` makes it. A password has no comma.",
    )
    operators: SecretStr | None = Field(
        None,
        description="Operators, written as users; when unset, operator pages refuse everybody.",
    )
    operator_subjects: Names = Field(
        (),
        description="Subjects whose requesters are operators too, e.g. of a token: "
        "keycloak:ops,nginx:carol.",
    )
    pre_authentication: Literal["off", "header", "query"] = Field(
        "off",
        description="Let trusted proxies name the sender's subjects: by the header "
        "x-ditto-pre-authenticated, or (query) also by the query parameter of that name.",
    )
    trusted_proxies: Networks = Field(
        ("127.0.0.0/8", "::1/128"),
        validate_default=True,
        description="Networks of these proxies, separated by commas.",
    )
    jwt_issuers: Annotated[dict[str, JwtIssuer], NoDecode, BeforeValidator(table)] = Field(
        {},
        description="Issuers whose JSON Web Tokens are taken, by the first part of their "
        "subjects, see authentication.md.",
    )

    @field_validator("users")
    @classmethod
    def _users(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            parse_credentials(value.get_secret_value())
        return value

    @field_validator("operators")
    @classmethod
    def _operators(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            parse_credentials(value.get_secret_value(), operator=True)
        return value

    @field_validator("pre_authentication", mode="before")
    @classmethod
    def _lower_case(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @field_validator("jwt_issuers")
    @classmethod
    def _issuers(cls, value: dict[str, JwtIssuer]) -> dict[str, JwtIssuer]:
        for key in value:
            if not _KEY.fullmatch(key):
                raise ValueError(f"{key!r} cannot be the first part of a subject")
            if key == BASIC_ISSUER:
                raise ValueError(f"{key} is the first part of the subjects of users")
        urls = [issuer.issuer for issuer in value.values()]
        for url in urls:
            if urls.count(url) > 1:
                raise ValueError(f"the issuer {url} is there twice")
        return value

    def credentials(self) -> dict[str, Credential]:
        """Users and operators by name; with ``dev``, defaults for the list that is not set."""
        users = self.users.get_secret_value() if self.users else ""
        operators = self.operators.get_secret_value() if self.operators else ""
        if self.dev:
            users = users or DEFAULT_USERS
            operators = operators or DEFAULT_OPERATORS
        return merge(parse_credentials(users), parse_credentials(operators, operator=True))

    def unsafe_access(self) -> list[str]:
        """Why it would be careless to start, one sentence for each reason (rule 9).

        Operators may be missing: nobody is one then.
        """
        return [*self._unsafe_users(), *self._unsafe_proxies(), *self._unsafe_issuers()]

    def _unsafe_users(self) -> Iterator[str]:
        credentials = self.credentials()
        others = self.jwt_issuers or self.pre_authentication != "off"
        if not others and all(credential.operator for credential in credentials.values()):
            yield "no users: set ACKGATE_USERS, or use --dev for development"
        known = sorted(default_passwords(credentials))
        if known and not self.dev:
            yield (
                f"{', '.join(known)}: still the default password; set another one, or use --dev "
                f"for development"
            )
        if known and self.dev and not self.dev_exposed and not is_loopback(self.host):
            yield (
                f"{', '.join(known)}: default password, and other machines reach {self.host}; "
                f"listen on 127.0.0.1, set users and operators, or set ACKGATE_DEV_EXPOSED=true"
            )

    def _unsafe_proxies(self) -> Iterator[str]:
        if self.pre_authentication == "off":
            return
        allowed = self.dev and (self.dev_exposed or is_loopback(self.host))
        for network in self.trusted_proxies:
            if _is_wide(network) and not allowed:
                yield (
                    f"trusted_proxies: {network} is about everybody, and whoever is trusted can "
                    f"be anyone; name your proxies"
                )

    def _unsafe_issuers(self) -> Iterator[str]:
        if self.dev:
            return
        for key, issuer in self.jwt_issuers.items():
            for url in issuer.urls():
                if not url.startswith("https://"):
                    yield (
                        f"jwt_issuers: the keys of {key} come from {url}: whoever is on the way "
                        f"can exchange them; use https://"
                    )
            if not issuer.audiences and not issuer.conditions:
                yield (
                    f"jwt_issuers: {key} has no audiences, so a token that its bearer gave to "
                    f"another application works here; set audiences ('{ANY_AUDIENCE}' allows any)"
                )


def _is_wide(network: Network) -> bool:
    version = 4 if isinstance(network, IPv4Network) else 6
    return network.prefixlen < _WIDE[version]
