"""Errors of those who may not come in (spec websocket-... 5.1)."""

from __future__ import annotations

from acks.error_kind import ErrorKind

ACCESS_ERRORS = (
    ErrorKind(
        "gateway:authentication.failed",
        401,
        "The request could not be authenticated.",
        "Please provide valid credentials.",
    ),
    ErrorKind(
        "gateway:jwt.issuer.notsupported",
        401,
        "The JWT issuer '{issuer}' is not supported.",
        "Take a token of an issuer that this gateway knows.",
    ),
    ErrorKind(
        "gateway:jwt.condition.failed",
        401,
        "The JWT does not meet the conditions of its issuer.",
        "Check what the token says about you, and for whom it was made.",
    ),
    ErrorKind(
        "gateway:authorization.missing",
        403,
        "The credentials are valid, but do not allow this.",
        "Use the credentials of an operator.",
    ),
)
