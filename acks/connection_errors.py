"""Errors of connections to brokers (spec websocket-... 4)."""

from __future__ import annotations

from acks.error_kind import ErrorKind

_TRY_AGAIN = "Please try again later."

CONNECTION_ERRORS = (
    # --- documents (4.1, 4.6)
    ErrorKind(
        "connectivity:connection.configuration.invalid",
        400,
        "{reason}",
        "Check the document of the connection.",
    ),
    ErrorKind(
        "connectivity:connection.uri.invalid",
        400,
        "The connection URI '{uri}' is not valid: {reason}",
        "It needs a scheme, a host and a port, and may have no query.",
    ),
    ErrorKind(
        "connectivity:topic.invalid",
        400,
        "The topic '{topic}' of a target is not valid.",
        "{reason}",
    ),
    ErrorKind(
        "placeholder:unresolved",
        400,
        "The placeholder '{placeholder}' cannot be resolved.",
        "{reason}",
    ),
    ErrorKind(
        "connectivity:id.invalid",
        400,
        "The connection ID '{connection_id}' is not valid.",
        "It has 1 to 100 letters A to Z and a to z, digits, '-', '_' and ':'.",
    ),
    ErrorKind(
        "connectivity:id.notsettable",
        400,
        "It is not allowed to provide an explicit ID for a connection.",
        "Leave the 'id' out: a new connection gets one. Where the URL has one, they must be equal.",
    ),
    # --- management (4.6)
    ErrorKind(
        "connectivity:connection.notfound",
        404,
        "The connection with ID '{connection_id}' could not be found.",
        "Check the ID of the connection.",
    ),
    ErrorKind(
        "connectivity:connection.conflict",
        409,
        "The connection with ID '{connection_id}' exists already.",
        "Choose another ID, or change the connection that exists.",
    ),
    ErrorKind(
        "connectivity:command.invalid",
        400,
        "The command '{command}' is not one for connections.",
        "There is: {allowed}.",
    ),
    ErrorKind(
        "connectivity:signal.illegal",
        409,
        "The command '{command}' is not possible while the connection with ID '{connection_id}' "
        "is {state}.",
        "Read its status, and send the command once it fits.",
    ),
    ErrorKind(
        "connectivity:connection.failed",
        504,
        "The connection with ID '{connection_id}' failed to connect.",
        "{reason}",
    ),
    ErrorKind(
        "connectivity:connection.unavailable",
        503,
        "The connection with ID '{connection_id}' is not available.",
        _TRY_AGAIN,
    ),
    ErrorKind(
        "connectivity:connection.timeout",
        503,
        "The connection with ID '{connection_id}' did not answer in time.",
        _TRY_AGAIN,
    ),
    ErrorKind(
        "connectivity:precondition.failed",
        412,
        "The comparison of precondition header '{header}' for the requested connection "
        "evaluated to false. Header value: '{given}', actual entity-tag: '{current}'.",
        "Read the connection again and take its present entity-tag.",
    ),
    # --- messages (4.2 to 4.5)
    ErrorKind(
        "connectivity:connection.id.enforcement.failed",
        400,
        "The ID '{entity_id}' is not one that a message from here may be about.",
        "The enforcement of the source allows: {allowed}.",
    ),
    ErrorKind(
        "connectivity:message.mapping.failed",
        400,
        "The message could not be mapped by '{mapper}'.",
        "{reason}",
    ),
    ErrorKind(
        "connectivity:message.sending.failed",
        503,
        "Failed to send message: {reason}",
        "Sending the message to an external system failed, please check if your connection is "
        "configured properly and the target system is available and consuming messages.",
    ),
    ErrorKind(
        "connectivity:kafka.message.rejected",
        408,
        "The Kafka message was not acknowledged in time, or not successfully.",
        "It is consumed again.",
    ),
)
