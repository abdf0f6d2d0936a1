"""Catalogue rows of policies and their parts; :mod:`acks.errors` takes them in (spec ws 5.7)."""

from __future__ import annotations

from collections.abc import Iterator

from acks.error_kind import ErrorKind

_ONE_MUST_WRITE = (
    "There must always be at least one PolicyEntry with 'WRITE' permissions on resource 'policy:/'."
)


def _policy_parts() -> Iterator[ErrorKind]:
    """``notfound`` and ``notmodifiable`` of a policy and each of its parts, in Ditto's words."""
    on_policy = "on the Policy with ID '{policy_id}'"
    of_entry = f"of the PolicyEntry with Label '{{label}}' {on_policy}"
    of_both = "the ID of the Policy and the Label of"
    of_all = "the ID of the Policy, the Label of the PolicyEntry and"
    whole = "the ID of your requested Policy"
    for part, name, checked, checked_to_modify in (
        ("policy", "Policy with ID '{policy_id}'", whole, whole),
        (
            "entry",
            f"PolicyEntry with Label '{{label}}' {on_policy}",
            f"{of_both} your requested PolicyEntry",
            f"{of_both} your requested PolicyEntry",
        ),
        (
            "subjects",
            f"Subjects {of_entry}",
            f"{of_both} the PolicyEntry",
            "the ID of the Policy and the PolicyEntry's Label of your requested Subjects",
        ),
        (
            "subject",
            f"Subject with ID '{{name}}' {of_entry}",
            f"{of_all} ID of your requested Subject",
            f"{of_all} ID of your requested Subject",
        ),
        (
            "resources",
            f"Resources {of_entry}",
            f"{of_both} the PolicyEntry",
            "the ID of the Policy and the PolicyEntry's Label of your requested Resources",
        ),
        (
            "resource",
            f"Resource '{{name}}' {of_entry}",
            f"{of_all} the path of your requested Resource",
            f"{of_all} the path of your requested Resource",
        ),
    ):
        yield ErrorKind(
            f"policies:{part}.notfound",
            404,
            f"The {name} could not be found or requester had insufficient permissions to access "
            "it.",
            f"Check if {checked} was correct and you have sufficient permissions.",
        )
        yield ErrorKind(
            f"policies:{part}.notmodifiable",
            403,
            f"The {name} could not be modified as the requester had insufficient permissions.",
            f"Check if {checked_to_modify} was correct and you have sufficient permissions.",
        )


POLICY_ERRORS: tuple[ErrorKind, ...] = (
    ErrorKind(
        "policies:precondition.failed",
        412,
        "The comparison of precondition header '{header}' for the requested policy resource "
        "evaluated to false. Header value: '{given}', actual entity-tag: '{current}'.",
        "Read the policy again and take its present entity-tag.",
    ),
    ErrorKind(
        "policies:precondition.notmodified",
        304,
        "The policy is the one that you have: '{current}' is among '{given}'.",
        "It has not been modified.",
    ),
    ErrorKind(
        "policies:entry.invalid",
        400,
        "The Policy Entry is invalid.",
        "{reason}",
    ),
    ErrorKind(
        "policies:label.invalid",
        400,
        "The Policy Label '{label}' is invalid.",
        "It has at most 256 characters, no slash and no control character, and does not begin "
        "with 'imported' or 'nsimported-'.",
    ),
    ErrorKind(
        "policies:subjectid.invalid",
        400,
        "Subject ID '{subject}' is not valid!",
        "It must contain an issuer as prefix separated by a colon ':' from the actual subject",
    ),
    ErrorKind(
        "policies:subjectexpiry.invalid",
        400,
        "Subject expiry timestamp '{expiry}' is not valid.",
        "{reason}",
    ),
    ErrorKind(
        "policies:id.invalid",
        400,
        "Policy ID '{policy_id}' is not valid!",
        "It must conform to the namespaced entity ID notation (see Ditto documentation)",
        "https://www.eclipse.dev/ditto/basic-namespaces-and-names.html#namespaced-id",
    ),
    ErrorKind(
        "policies:id.notsettable",
        400,
        "The Policy ID in the request body cannot be set.",
        "The ID of a Policy made by POST is generated; leave 'policyId' out, or use PUT.",
    ),
    ErrorKind(
        "policies:policy.toolarge",
        413,
        "The size of '{size}' B exceeds the maximal allowed Policy size of '{limit}' B.",
        "Reduce the size of the Policy, or use several.",
    ),
    ErrorKind(
        "policies:policy.modificationinvalid",
        403,
        "The Policy with ID '{policy_id}' could not be modified as the resulting Policy would be "
        "invalid.",
        _ONE_MUST_WRITE,
    ),
    ErrorKind(
        "policies:entry.modificationinvalid",
        403,
        "The PolicyEntry with Label '{label}' on the Policy with ID '{policy_id}' could not be "
        "modified as the resulting Policy would be invalid.",
        _ONE_MUST_WRITE,
    ),
    ErrorKind(
        "policies:policy.conflict",
        409,
        "The Policy with ID '{policy_id}' already exists",
        "Choose another Policy ID",
    ),
    ErrorKind(
        "policies:policy.unavailable",
        503,
        "The Policy with ID '{policy_id}' is not available, please try again later.",
        "The requested Policy is temporarily not available.",
    ),
    *_policy_parts(),
)
