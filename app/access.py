"""Whom the gateway lets in, put together as the settings say."""

from __future__ import annotations

from app.api.auth import Authenticator
from app.api.proxies import Proxies
from app.settings import Settings


def authenticator_of(settings: Settings) -> Authenticator:
    """The authenticator of one gateway process."""
    tokens = None
    if settings.jwt_issuers:
        # It brings cryptography and an HTTP client, which nobody else needs.
        from app.jwt_tokens import Tokens

        tokens = Tokens(settings.jwt_issuers, insecure=settings.dev)
    proxies = None
    if settings.pre_authentication != "off":
        query = settings.pre_authentication == "query"
        proxies = Proxies(settings.trusted_proxies, query=query)
    return Authenticator(
        settings.credentials(),
        tokens=tokens,
        proxies=proxies,
        operators=settings.operator_subjects,
    )
