"""Policies over HTTP (spec websocket-... 5.7), and who the requester is to them."""

from __future__ import annotations

import asyncio
from uuid import uuid4

from acks.aggregator import Answer
from acks.errors import error
from acks.fields import Selector, parse_fields
from acks.header_values import check_values
from acks.headers import AckOptions, Setter, allows_lockout, http_options, refuse_headers
from acks.policy_document import (
    Part,
    check_part,
    check_policy,
    check_policy_id,
    parse_part,
    resolve_part,
)
from acks.preconditions import Preconditions, parse_preconditions
from acks.resources import ABSENT
from acks.signals import Response
from app.api.auth import Principal
from app.api.http import (
    Receive,
    RequestHead,
    Rules,
    Scope,
    Send,
    base_url,
    parse_json,
    raw_path,
    send_answer,
    split_path,
)
from app.api.reception import Reception, allow, check_media_type, parameters
from app.api.things import DEFAULT_NAMESPACE
from app.gateway import ENFORCEMENT_MS
from app.policies import PolicyCommand, change_policy, read_policy
from app.store.instant import now_ms
from app.store.policies import PolicyStore

_COLLECTION = "/api/2/policies"
_TYPES = ("application/json", "application/octet-stream", "")
NOT_SERVED = ("condition", "dry-run", "at-historical-revision", "at-historical-timestamp")
"""Headers whose meaning would be lost on a policy: doing as if they were absent could do harm."""


class Policies:
    """``/api/2/policies``: POST; GET, PUT, DELETE of a policy and its parts."""

    def __init__(self, policies: PolicyStore, reception: Reception, rules: Rules) -> None:
        self._policies = policies
        self._reception = reception
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> int:
        """Serve one request, return its status; raises GatewayError, which the caller renders."""
        head, principal = await self._reception.open(scope)
        path = self._reception.path(scope)
        refuse_headers(head.known, NOT_SERVED, "Policies do not serve the header '{name}'.")
        segments = split_path(path)[3:]
        if segments in ([], [""]):
            answer = await self._post(scope, receive, head, principal)
        else:
            policy_id, part = check_policy_id(segments[0]), parse_part(path, segments[1:])
            if scope["method"] == "GET":
                answer = await self._get(scope, head, principal, policy_id, part)
            else:
                answer = await self._change(scope, receive, head, principal, policy_id, part)
        await send_answer(send, answer.status, answer.body, answer.headers)
        return answer.status

    async def _post(
        self, scope: Scope, receive: Receive, head: RequestHead, principal: Principal
    ) -> Answer:
        allow(scope["method"], scope["path"], "POST")
        options = self._options(head)
        value = await self._body(receive, head)
        if isinstance(value, dict) and "policyId" in value:
            raise error("policies:id.notsettable")
        policy_id = check_policy_id(f"{_namespace(scope)}:{uuid4()}")
        value = check_policy(policy_id, value, principal.subjects[0], now_ms())
        command = _command(head, principal, policy_id, (), value)
        location = f"{base_url(scope, head)}{_COLLECTION}/{policy_id}"
        return await self._answer(head, options, command, location)

    async def _change(
        self,
        scope: Scope,
        receive: Receive,
        head: RequestHead,
        principal: Principal,
        policy_id: str,
        part: Part,
    ) -> Answer:
        single = len(part) in (0, 2, 4)
        methods = ("GET", "PUT", "DELETE") if single else ("GET", "PUT")
        allow(scope["method"], scope["path"], *methods)
        options = self._options(head)
        requester = principal.subjects[0]
        part = resolve_part(part, requester)
        value: object = ABSENT
        if scope["method"] == "PUT":
            value = await self._body(receive, head)
            if part:
                value = check_part(part, value, requester, now_ms())
            else:
                value = check_policy(policy_id, value, requester, now_ms())
        command = _command(head, principal, policy_id, part, value)
        location = base_url(scope, head) + raw_path(scope)
        return await self._answer(head, options, command, location)

    def _options(self, head: RequestHead) -> AckOptions:
        """Read the three headers of a change; raises as :func:`http_options`.

        Ack requests mean nothing to policies, and their defaults do not apply (spec 2.4): they are
        only refused with a zero timeout (2.5).
        """
        known = head.known
        check_values(known)
        wanted = known.get("response-required", "true")
        acks, timeout = known.get("requested-acks"), known.get("timeout")
        return http_options(Setter.TWIN_MODIFY, acks, wanted, timeout, *self._rules)

    async def _answer(
        self, head: RequestHead, options: AckOptions, command: PolicyCommand, location: str
    ) -> Answer:
        """Carry a change out; what is not waited for is watched for an error (spec 2.6)."""
        headers = {"correlation-id": head.correlation_id, "response-required": "false"}
        wait_ms = options.timeout_ms if options.response_required else ENFORCEMENT_MS
        try:
            async with asyncio.timeout(wait_ms / 1000):
                response = await change_policy(self._policies, command)
        except TimeoutError:
            if options.response_required:
                raise error("command.timeout", timeout_ms=wait_ms) from None
            return Answer(202, None, {})
        if not options.response_required:
            return Answer(202, None, {})  # with none of Ditto's headers (spec 4.2)
        if response.status == 201:
            headers["location"] = location
        return _rendered(response, headers)

    async def _get(
        self, scope: Scope, head: RequestHead, principal: Principal, policy_id: str, part: Part
    ) -> Answer:
        known = head.known
        check_values(known)
        if known.get("response-required") == "false":
            raise error("command.headers.invalid")
        options = http_options(Setter.TWIN_MODIFY, None, "true", known.get("timeout"), *self._rules)
        headers = {"correlation-id": head.correlation_id, "response-required": "false"}
        part = resolve_part(part, principal.subjects[0])
        checks = parse_preconditions(known) or Preconditions()
        fields = _fields(scope)
        try:
            async with asyncio.timeout(options.timeout_ms / 1000):
                response = await read_policy(
                    self._policies, policy_id, part, principal.subjects, checks, fields
                )
        except TimeoutError:
            raise error("command.timeout", timeout_ms=options.timeout_ms) from None
        return _rendered(response, headers)

    async def _body(self, receive: Receive, head: RequestHead) -> object:
        check_media_type(head.known.get("content-type"), _TYPES)
        return parse_json(await self._reception.body(receive))


class WhoAmI:
    """``/api/2/whoami``: the subjects by which policies know the requester."""

    def __init__(self, reception: Reception) -> None:
        self._reception = reception

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> int:
        """Serve one request, return its status; raises GatewayError, which the caller renders."""
        head, principal = await self._reception.open(scope)
        subjects = principal.subjects
        path = raw_path(scope)
        if split_path(path)[3:] not in ([], [""]):
            raise error("gateway:resource.notfound", path=path)
        allow(scope["method"], scope["path"], "GET")
        body = {"defaultSubject": subjects[0], "subjects": list(subjects)}
        headers = {"correlation-id": head.correlation_id, "response-required": "false"}
        await send_answer(send, 200, body, headers)
        return 200


def _command(
    head: RequestHead, principal: Principal, policy_id: str, part: Part, value: object
) -> PolicyCommand:
    known = head.known
    checks = parse_preconditions(known) or Preconditions()
    return PolicyCommand(policy_id, part, value, principal.subjects, checks, allows_lockout(known))


def _rendered(response: Response, headers: dict[str, str]) -> Answer:
    return Answer(response.status, response.payload, {**headers, **response.headers})


def _namespace(scope: Scope) -> str:
    return next(iter(parameters(scope, "namespace")), DEFAULT_NAMESPACE)


def _fields(scope: Scope) -> Selector | None:
    given = parameters(scope, "fields")
    return parse_fields(",".join(given)) if given else None
