"""Policy commands of a session or a connection: the HTTP API of policies in Ditto Protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

from acks.envelopes import Envelope
from acks.errors import GatewayError, error
from acks.frame_head import check_array
from acks.header_values import check_values
from acks.headers import AckOptions, Setter, allows_lockout, http_options, refuse_headers
from acks.policy_document import check_part, check_policy, resolve_part
from acks.policy_protocol import (
    PolicyRequest,
    header_texts,
    policy_error,
    policy_response,
    read_policy_request,
)
from acks.preconditions import Preconditions, parse_preconditions
from acks.resources import ABSENT
from acks.signals import Response
from acks.topic import Topic
from app.api.http import Rules, new_correlation_id
from app.api.policies import NOT_SERVED
from app.gateway import ENFORCEMENT_MS
from app.policies import PolicyCommand, change_policy, read_policy
from app.store.instant import now_ms
from app.store.policies import PolicyStore


class PolicyAnswer(NamedTuple):
    """The answer to a frame, None if none is wanted; ``problem`` is what went wrong, if it did."""

    envelope: Envelope | None
    problem: GatewayError | None = None


class PolicyCommands:
    """Carries out frames of the group ``policies``.

    ``max_headers`` bounds the characters of a frame's headers, with those of its session.
    """

    def __init__(self, policies: PolicyStore, rules: Rules, max_headers: int) -> None:
        self._policies = policies
        self._rules = rules
        self._max_headers = max_headers

    async def answer(
        self,
        envelope: Envelope,
        topic: Topic,
        headers: Mapping[str, Any],
        subjects: tuple[str, ...],
    ) -> PolicyAnswer:
        """Carry out a frame.

        ``headers`` are the frame's with lower-case names, completed by those of the session;
        ``subjects`` are the sender's.
        """
        known = header_texts(headers)
        correlation_id = known.get("correlation-id") or new_correlation_id()
        wanted = known.get("response-required") != "false"
        try:
            if sum(len(name) + len(text) for name, text in known.items()) > self._max_headers:
                raise error("headers.too.large", limit=self._max_headers)
            request = read_policy_request(envelope, topic)
            response = await self._carry_out(request, known, subjects)
        except GatewayError as problem:
            found = policy_error(problem, correlation_id, topic.thing_id)
            return PolicyAnswer(found if wanted else None, problem)
        return PolicyAnswer(policy_response(request, response, correlation_id) if wanted else None)

    async def _carry_out(
        self, request: PolicyRequest, known: Mapping[str, str], subjects: tuple[str, ...]
    ) -> Response:
        check_array(known.get("requested-acks", "[]"))
        check_values(known)
        refuse_headers(known, NOT_SERVED, "Policies do not serve the header '{name}'.")
        options = self._options(known)
        if request.action == "retrieve" and not options.response_required:
            raise error("command.headers.invalid")
        wait_ms = options.timeout_ms if options.response_required else ENFORCEMENT_MS
        try:
            async with asyncio.timeout(wait_ms / 1000):
                return await self._do(request, known, subjects)
        except TimeoutError:
            raise error("command.timeout", timeout_ms=wait_ms) from None

    def _options(self, known: Mapping[str, str]) -> AckOptions:
        """Ack requests mean nothing to policies, and their defaults do not apply (spec 2.4).

        They are only refused with a zero timeout (2.5).
        """
        wanted = known.get("response-required", "true")
        acks, timeout = known.get("requested-acks"), known.get("timeout")
        return http_options(Setter.TWIN_MODIFY, acks, wanted, timeout, *self._rules)

    async def _do(
        self, request: PolicyRequest, known: Mapping[str, str], subjects: tuple[str, ...]
    ) -> Response:
        policy_id, requester = request.policy_id, subjects[0]
        part = resolve_part(request.part, requester)
        checks = parse_preconditions(known) or Preconditions()
        if request.action == "retrieve":
            return await read_policy(
                self._policies, policy_id, part, subjects, checks, request.fields
            )
        value = request.value
        if value is not ABSENT:
            if part:
                value = check_part(part, value, requester, now_ms())
            else:
                value = check_policy(policy_id, value, requester, now_ms())
        command = PolicyCommand(
            policy_id, part, value, subjects, checks, allows_lockout(known),
            only_create=request.action == "create",
        )  # fmt: skip
        return await change_policy(self._policies, command)
