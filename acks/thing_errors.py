"""Catalogue rows of things and their parts: code, status, message, description, link.

Plain data, which :mod:`acks.errors` takes into its catalogue (spec acks-and-http 9.1). The facts
are ``thing_id``, ``feature_id`` and ``path``, the JSON pointer below the attributes or properties.
"""

from __future__ import annotations

Row = tuple[str, int, str, str, str | None]

_ON_THING = "on the Thing with ID '{thing_id}'"
_OF_FEATURE = "of the Feature with ID '{feature_id}' " + _ON_THING
_UNSEEN = "or the requester had insufficient permissions to access it."
_NOT_FOUND = "could not be found " + _UNSEEN
_DENIED = "as the requester had insufficient permissions (WRITE is required)."
_DENIED_IT = "as the requester had insufficient permissions to modify it (WRITE is required)."

_CHECK_REQUESTED = (
    "Check if the ID of your requested Thing was correct and you have sufficient permissions."
)
_CHECK_THING = "Check if the ID of the Thing was correct and you have sufficient permissions."
_CHECK_KEY = (
    "Check if the ID of the thing and the key of your requested {what} was correct and you have "
    "sufficient permissions."
)
_CHECK_FEATURE = (
    "Check if the ID of the Thing and the ID of your requested Feature was correct and you have "
    "sufficient permissions."
)
_CHECK_PART = (
    "Check if the ID of the Thing and the Feature ID was correct and you have sufficient "
    "permissions."
)
_CHECK_PROPERTY = (
    "Check if the ID of the Thing, the Feature ID and the key of your requested {what} was "
    "correct and you have sufficient permissions."
)


def _not_found() -> list[Row]:
    rows = [
        ("policyId", f"The Policy ID of the Thing with ID '{{thing_id}}' {_NOT_FOUND}",
         _CHECK_REQUESTED),
        ("definition", f"The Definition of the Thing with ID '{{thing_id}}' {_NOT_FOUND}",
         _CHECK_KEY.format(what="definition")),
        ("attributes", f"The Attributes of the Thing with ID '{{thing_id}}' {_NOT_FOUND}",
         _CHECK_THING),
        ("attribute", "The attribute with key '{path}' on the thing with ID '{thing_id}' "
         + _NOT_FOUND, _CHECK_KEY.format(what="attribute")),
        ("features", f"The Features {_ON_THING} do not exist {_UNSEEN}", _CHECK_THING),
        ("feature", f"The Feature with ID '{{feature_id}}' {_ON_THING} {_NOT_FOUND}",
         _CHECK_FEATURE),
        ("feature.definition", f"The Definition {_OF_FEATURE} does not exist {_UNSEEN}",
         _CHECK_PART),
        ("feature.properties", f"The Properties {_OF_FEATURE} do not exist {_UNSEEN}",
         _CHECK_PART),
        ("feature.property", f"The Property with JSON Pointer '{{path}}' {_OF_FEATURE} does not "
         f"exist {_UNSEEN}", _CHECK_PROPERTY.format(what="property")),
        ("feature.desiredProperties", f"The desired properties {_OF_FEATURE} do not exist "
         + _UNSEEN, _CHECK_PART),
        ("feature.desiredProperty", f"The desired property with JSON Pointer '{{path}}' "
         f"{_OF_FEATURE} does not exist {_UNSEEN}",
         _CHECK_PROPERTY.format(what="desired property")),
    ]  # fmt: skip
    return [(f"things:{kind}.notfound", 404, text, check, None) for kind, text, check in rows]


def _not_modifiable() -> list[Row]:
    modified = f"could not be modified {_DENIED}"
    rows = [
        ("thing", f"The Thing with ID '{{thing_id}}' {modified}", _CHECK_REQUESTED),
        ("policyId", f"The Policy ID of the Thing with ID '{{thing_id}}' {modified}",
         _CHECK_REQUESTED),
        ("definition", f"The Definition {_ON_THING} {modified}", _CHECK_REQUESTED),
        ("attributes", f"The Attributes {_ON_THING} {modified}", _CHECK_REQUESTED),
        ("attribute", f"The Attribute with name '{{path}}' {_ON_THING} {modified}",
         _CHECK_REQUESTED),
        ("features", f"The Features {_ON_THING} cannot be modified as requester had insufficient "
         "permissions to modify it (WRITE is required).", _CHECK_THING),
        ("feature", f"The Feature with ID '{{feature_id}}' {_ON_THING} could not be modified "
         + _DENIED_IT, _CHECK_FEATURE),
        ("feature.definition", f"The Definition {_OF_FEATURE} cannot be modified {_DENIED_IT}",
         _CHECK_PART),
        ("feature.properties", f"The Properties {_OF_FEATURE} cannot be modified {_DENIED_IT}",
         _CHECK_PART),
        ("feature.property", f"The Property with JSON Pointer '{{path}}' {_OF_FEATURE} could not "
         f"be modified {_DENIED_IT}", _CHECK_PROPERTY.format(what="property")),
        ("feature.desiredProperties", f"The desired properties {_OF_FEATURE} cannot be modified "
         + _DENIED_IT, _CHECK_PART),
        ("feature.desiredProperty", f"The desired property with JSON Pointer '{{path}}' "
         f"{_OF_FEATURE} could not be modified {_DENIED_IT}",
         _CHECK_PROPERTY.format(what="desired property")),
    ]  # fmt: skip
    return [(f"things:{kind}.notmodifiable", 403, text, check, None) for kind, text, check in rows]


THING_ERRORS: tuple[Row, ...] = (
    *_not_found(),
    *_not_modifiable(),
    (
        "things:thing.notdeletable",
        403,
        "The Thing with ID '{thing_id}' could not be deleted as the requester had insufficient "
        "permissions ( WRITE on root resource is required).",
        _CHECK_REQUESTED,
        None,
    ),
    (
        "things:event.notallowed",
        403,
        "You are not allowed to send this event of the Thing with ID '{thing_id}'.",
        "It takes WRITE permission on the resource 'thing:{path}'.",
        None,
    ),
    (
        "things:thing.conflict",
        409,
        "The Thing with ID '{thing_id}' already exists",
        "Choose another Thing ID",
        None,
    ),
    (
        "things:id.notdeletable",
        400,
        "The Thing ID of a Thing cannot be deleted.",
        "Remove the Thing ID entry from the request body and retry the request.",
        None,
    ),
    (
        "things:policyId.notdeletable",
        400,
        "The Policy ID of a Thing cannot be deleted.",
        "Remove Policy ID entry from the request body and retry the request.",
        None,
    ),
    (
        "things:merge.invalid",
        400,
        "The JSON merge patch cannot be applied to the Thing.",
        "{reason}",
        "https://tools.ietf.org/html/rfc7396",
    ),
    (
        "things:feature.definition.empty",
        400,
        "Feature Definition must not be empty!",
        "A Feature Definition must contain at least one element. It can however also be set to "
        "null or deleted completely.",
        None,
    ),
    (
        "things:feature.definition.identifier.invalid",
        400,
        "Feature Definition Identifier <{identifier}> is invalid!",
        "An Identifier string is expected to have the structure 'namespace:name:version'. Each "
        "segment must contain at least one char of [_a-zA-Z0-9\\-.]",
        None,
    ),
)
