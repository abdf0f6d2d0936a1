"""One error tree and its catalogue: code, status, message, description, retryable.

Every error a caller can see is an entry of :data:`CATALOGUE` (spec acks-and-http 1.7, 9.1). A wire
renders :meth:`GatewayError.to_json`; it never invents an error of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from acks.access_errors import ACCESS_ERRORS
from acks.ack_errors import ACK_ERRORS
from acks.connection_errors import CONNECTION_ERRORS
from acks.error_kind import ErrorKind
from acks.policy_errors import POLICY_ERRORS
from acks.search_errors import SEARCH_ERRORS
from acks.subscription_errors import SUBSCRIPTION_ERRORS
from acks.thing_errors import THING_ERRORS


class GatewayError(Exception):
    """An error of the catalogue, with its facts filled in.

    ``extras`` are further fields of the error JSON, e.g. ``invalidHeaderKey``; ``headers`` belong
    to its answer, e.g. ``etag``.
    """

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        description: str | None,
        extras: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.description = description
        self.extras = dict(extras) if extras else {}
        self.headers: dict[str, str] = {}

    @property
    def status(self) -> int:
        """HTTP status of this error."""
        return self.kind.status

    @property
    def code(self) -> str:
        """Catalogue code, e.g. ``things:thing.notfound``."""
        return self.kind.code

    def to_json(self) -> dict[str, Any]:
        """Error JSON: status, error, message, description, href, extras, in this order."""
        body: dict[str, Any] = {
            "status": self.kind.status,
            "error": self.kind.code,
            "message": self.message,
        }
        if self.description is not None:
            body["description"] = self.description
        if self.kind.href is not None:
            body["href"] = self.kind.href
        body.update(self.extras)
        return body


def error(
    code: str,
    *,
    message: str | None = None,
    description: str | None = None,
    extras: Mapping[str, Any] | None = None,
    status: int | None = None,
    **facts: object,
) -> GatewayError:
    """Build the error ``code`` of the catalogue; ``facts`` fill its templates.

    ``message``, ``description`` and ``status`` replace what the catalogue has where a code has
    several texts or statuses.
    Raises KeyError for a code that the catalogue lacks: that is a defect of ours.
    """
    kind = CATALOGUE[code]
    if status is not None:
        kind = replace(kind, status=status)
    text = kind.message.format(**facts) if message is None else message
    detail = kind.description
    if description is not None:
        detail = description
    elif detail is not None:
        detail = detail.format(**facts)
    problem = GatewayError(kind, text, detail, extras)
    if kind.status == 405 and "allowed" in facts:
        problem.headers["allow"] = str(facts["allowed"])  # RFC 9110, 15.5.6
    return problem


def _kinds(*kinds: ErrorKind) -> dict[str, ErrorKind]:
    return {kind.code: kind for kind in kinds}


_PERMISSIONS = (
    "Check if the ID of your requested {entity} was correct and you have sufficient permissions."
)


CATALOGUE: dict[str, ErrorKind] = _kinds(
    *ACK_ERRORS,
    # --- headers, bodies, addresses
    ErrorKind(
        "header.invalid",
        400,
        "The value '{value}' of the header '{header}' is not a valid {type}.",
        "Verify that the value of the header '{header}' is a valid '{type}' and try again.",
    ),
    ErrorKind(
        "command.headers.invalid",
        400,
        "Query commands must not have the header 'response-required' set to 'false'",
        "Set the header 'response-required' to 'true' instead in order to receive a response to "
        "your query command.",
    ),
    ErrorKind("timeout.invalid", 400, "{reason}", "Please choose a valid timeout."),
    ErrorKind(
        "gateway:timeout.invalid",
        400,
        "The timeout <{timeout_ms:,}ms> is not inside its allowed bounds <0ms - {max_ms:,}ms>",
        "Choose a timeout inside the bounds.",
    ),
    ErrorKind(
        "gateway:duplicate.header.field",
        400,
        "<{header}> was provided more than once in the request!",
        "A request must not contain multiple header fields with the same field name. For more "
        "information see RFC 7230 section 3.2.2.",
    ),
    ErrorKind(
        "headers.too.large",
        431,
        "The headers are too large.",
        "Send fewer or shorter header fields: at most {limit} characters in all.",
    ),
    ErrorKind("json.invalid", 400, "Failed to parse JSON string '{text}'!", "{reason}"),
    ErrorKind(
        "json.format.invalid",
        400,
        "The JSON format is not the expected one.",
        "{reason}",
    ),
    ErrorKind("json.field.missing", 400, "JSON did not include required <{field}> field!", None),
    ErrorKind(
        "json.pointer.invalid",
        400,
        "The JSON pointer '{pointer}' is invalid!",
        "Consecutive slashes in JSON pointers are not supported.",
    ),
    ErrorKind(
        "mediatype.unsupported",
        415,
        "The Media-Type <{given}> is not supported for this resource.",
        "Allowed Media-Type is: <{allowed}>.",
    ),
    ErrorKind(
        "gateway:websocket.command.invalid",
        400,
        "The parameters of the command '{command}' are not valid.",
        "{reason}",
    ),
    ErrorKind(
        "gateway:bad.request",
        400,
        "The request is not valid HTTP/1.1.",
        "Check the client, or what stands between it and the gateway.",
    ),
    ErrorKind(
        "request.toolarge",
        413,
        "The request body is larger than {limit:,} bytes.",
        "Send a smaller body.",
    ),
    ErrorKind(
        "rql.expression.invalid",
        400,
        "{reason}",
        "Ensure that all opening parentheses have also closing ones and that the RQL expression "
        "is valid.",
    ),
    ErrorKind(
        "json.fieldselector.invalid",
        400,
        "The field selector '{text}' is invalid.",
        "{reason}",
    ),
    ErrorKind(
        "things:field.selection.invalid",
        400,
        "Thing field selection <{text}> was not valid.",
        "{reason}",
    ),
    # --- resources
    *(ErrorKind(*row) for row in THING_ERRORS),
    *POLICY_ERRORS,
    ErrorKind(
        "gateway:resource.notfound",
        404,
        "The resource '{path}' was not found.",
        "Check the path and the method of your request.",
    ),
    ErrorKind(
        "gateway:method.notallowed",
        405,
        "The method '{method}' is not allowed for the resource '{path}'.",
        "Allowed methods: {allowed}.",
    ),
    ErrorKind(
        "api.version.notsupported",
        404,
        "The requested API version <{version}> is not supported.",
        "Supported version: 2.",
    ),
    ErrorKind(
        "things:id.invalid",
        400,
        "Thing ID '{thing_id}' is not valid!",
        "It must conform to the namespaced entity ID notation (see Ditto documentation)",
    ),
    ErrorKind(
        "things:id.notsettable",
        400,
        "The Thing ID in the request body is not equal to the Thing ID in the URL.",
        "Either delete the Thing ID from the request body or use the same Thing ID as in the "
        "request URL.",
    ),
    ErrorKind(
        "things:thing.notfound",
        404,
        "The Thing with ID '{thing_id}' could not be found or requester had insufficient "
        "permissions to access it.",
        _PERMISSIONS.format(entity="Thing"),
    ),
    ErrorKind(
        "things:thing.notcreatable",
        400,
        "The Thing with ID '{thing_id}' could not be created as the Policy with ID '{policy_id}' "
        "is not existing.",
        "Check if the ID of the Policy you created the Thing with is correct and that the Policy "
        "is existing.",
    ),
    ErrorKind(
        "things:thing.toolarge",
        413,
        "The size of '{size}' B exceeds the maximal allowed Thing size of '{limit}' B.",
        "Reduce the size of the Thing.",
    ),
    ErrorKind(
        "things:precondition.failed",
        412,
        "The comparison of precondition header '{header}' for the requested thing resource "
        "evaluated to false. Header value: '{given}', actual entity-tag: '{current}'.",
        "Read the thing again and take its present entity-tag.",
    ),
    ErrorKind(
        "things:precondition.notmodified",
        304,
        "The thing is the one that you have: '{current}' is among '{given}'.",
        "It has not been modified.",
    ),
    ErrorKind(
        "things:condition.failed",
        412,
        "The specified condition does not match the state of the requested Thing.",
        "Read the Thing, and check whether the condition says what you mean.",
    ),
    # --- the live channel
    ErrorKind(
        "messages:send.notallowed",
        403,
        "You are not allowed to send this message to the Thing with ID '{thing_id}'.",
        "It takes WRITE permission on the message resource '{path}'.",
    ),
    ErrorKind(
        "messages:subject.invalid",
        400,
        "The message subject '{subject}' is not valid.",
        "{reason}",
    ),
    ErrorKind(
        "messages:payload.toolarge",
        413,
        "The size of '{size}' B exceeds the maximal allowed message payload size of '{limit}' B.",
        "Send a smaller payload.",
    ),
    ErrorKind(
        "things:live.channelcondition.notallowed",
        405,
        "The header 'live-channel-condition' is not allowed for commands that modify a Thing.",
        "Send it with queries only.",
    ),
    # --- the gateway itself
    *ACCESS_ERRORS,
    ErrorKind(
        "too.many.requests",
        429,
        "You made too many requests.",
        "Try again soon.",
    ),
    ErrorKind(
        "things:thing.unavailable",
        503,
        "The Thing with the ID '{thing_id}' is not available, please try again later.",
        "The requested Thing is temporarily not available.",
    ),
    ErrorKind(
        "gateway:service.unavailable",
        503,
        "The service is temporarily unavailable.",
        "{reason}",
    ),
    ErrorKind(
        "gateway:internalerror",
        500,
        "There was an error while processing the request.",
        "Please contact the operator and name the correlation-id of this answer.",
    ),
    # --- connections to brokers
    *CONNECTION_ERRORS,
    # --- search
    *SEARCH_ERRORS,
    *SUBSCRIPTION_ERRORS,
    # --- Ditto Protocol
    ErrorKind(
        "signal.enrichment.failed",
        500,
        "A signal of the Thing with ID '{thing_id}' could not be enriched with extra fields.",
        "{reason} The signal itself was not lost: what it changed can be read from the Thing.",
    ),
    ErrorKind(
        "protocoladapter:unknown.topicpath",
        400,
        "The topic path '{topic}' is not supported.",
        "{reason}",
    ),
)
