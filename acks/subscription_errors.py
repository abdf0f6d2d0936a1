"""Catalogue rows of search subscriptions; :mod:`acks.errors` takes them in.

Codes, statuses and the texts about a wrong demand: Ditto's protocol examples (spec ws 6.4).
"""

from __future__ import annotations

from acks.error_kind import ErrorKind

SUBSCRIPTION_ERRORS: tuple[ErrorKind, ...] = (
    ErrorKind(
        "thing-search:subscription.protocol.error",
        400,
        "Rule 3.9: While the Subscription is not cancelled, Subscription.request(long n) MUST "
        "signal onError with a java.lang.IllegalArgumentException if the argument is <= 0. The "
        "cause message SHOULD explain that non-positive request signals are illegal.",
        "The intent of this rule is to prevent faulty implementations to proceed operation without "
        "any exceptions being raised. Requesting a negative or 0 number of elements, since "
        "requests are additive, most likely to be the result of an erroneous calculation on the "
        "behalf of the Subscriber.",
    ),
    ErrorKind(
        "thing-search:subscription.not.found",
        404,
        "There is no subscription with the ID '{subscription_id}'.",
        "Take the ID of a 'created' message of this session, or subscribe again.",
    ),
    ErrorKind(
        "thing-search:subscription.timeout",
        408,
        "The subscription '{subscription_id}' has ended: nothing was requested for too long.",
        "Subscribe again, and request the next pages in time.",
    ),
)
