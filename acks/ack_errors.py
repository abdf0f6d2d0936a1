"""Errors of acknowledgements and of waiting for them (spec acks-and-http 1.7)."""

from __future__ import annotations

from acks.error_kind import ErrorKind

_LABEL_HREF = (
    "https://www.eclipse.dev/ditto/protocol-specification-topic.html"
    "#acknowledgement-criterion-actions"
)

ACK_ERRORS = (
    ErrorKind(
        "acknowledgement:label.invalid",
        400,
        "Acknowledgement label <{label}> is invalid.",
        "An acknowledgement label must conform to the regular expression of Ditto documentation.",
        _LABEL_HREF,
    ),
    ErrorKind(
        "acknowledgement:label.not.declared",
        400,
        "Cannot send acknowledgement with label <{label}>, which is not declared.",
        "Each connection may only send acknowledgements whose label matches one declared for the "
        "connection.",
    ),
    ErrorKind(
        "acknowledgement:label.not.unique",
        409,
        "One or more declared acknowledgement labels are taken by other subscribers.",
        "Please ensure all other subscribers with the declared acknowledgement labels are offline.",
    ),
    ErrorKind(
        "acknowledgement:ditto.acklabel.forbidden",
        400,
        "The Ditto internal Acknowledgement label <{label}> is not allowed to be issued "
        "externally!",
        "Make sure to not issue an Ditto internal Acknowledgement label.",
    ),
    ErrorKind(
        "acknowledgement:correlation-id.missing",
        400,
        "Correlation-id header for acknowledgement is missing.",
        "Please provide the mandatory header 'correlation-id' as part of your acknowledgement",
    ),
    ErrorKind(
        "acknowledgement:request.duplicate.correlation-id",
        409,
        "Correlation-id <{correlation_id}> for acknowledgement request was already used very "
        "recently.",
        "Please provide unique correlation-ids when requesting acknowledgements, at least unique "
        "within at least several minutes.",
    ),
    ErrorKind(
        "acknowledgement:request.notfound",
        404,
        "The acknowledgement request with the correlation-id <{correlation_id}> could not be found "
        "or is not yours.",
        "Only a request that was sent with 'Prefer: respond-async' has one, and it is kept for a "
        "limited time.",
    ),
    ErrorKind(
        "acknowledgement:request.timeout",
        408,
        "The acknowledgement request reached the specified timeout of {timeout_ms:,}ms.",
        "Try increasing the timeout and make sure that the requested acknowledgement is sent back "
        "in time.",
    ),
    ErrorKind(
        "acknowledgement:request.parsing.failed",
        422,
        "<{label}> cannot be parsed to an acknowledgement request! Cause: Acknowledgement label "
        "<{label}> is invalid.",
        "The string to be parsed must be a valid representation of an acknowledgement request.",
    ),
    ErrorKind(
        "command.timeout",
        408,
        "The Command reached the specified timeout of {timeout_ms:,}ms.",
        "Try increasing the command timeout.",
    ),
)
