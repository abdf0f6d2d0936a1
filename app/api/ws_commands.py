"""Ditto Protocol messages of one WebSocket session: commands in, answers out.

Sources: spec websocket-... 1.3 and 1.4; acks-and-http 2.6, 3, 5.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson
import structlog

from acks.aggregator import Outcome
from acks.document import check_depth, check_json, invalid_json
from acks.envelopes import Envelope, error_envelope
from acks.errors import GatewayError, error
from acks.frame_head import FrameHead, frame_options, read_head
from acks.headers import AckOptions
from acks.live import parse_channel
from acks.policy_protocol import policy_error
from acks.protocol import is_response, read_ack, read_headers, read_response, read_topic
from acks.requests import (
    Asker,
    fields_text,
    is_for_many,
    not_supported,
    read_command,
    read_live_event,
    read_message,
    read_queries,
    read_query,
)
from acks.responses import Asked, answer_envelope, asked_by, refusal, response_envelope
from acks.signals import Command, Live, Query, Response
from acks.topic import Topic
from app.api.auth import Principal
from app.api.http import Rules, new_correlation_id
from app.api.live import NULL, Choice, live_command, live_query, readable, smart_query
from app.api.queries import things_of
from app.api.ws_policies import PolicyCommands
from app.api.ws_turns import Kind, Turns, Wire
from app.gateway import ENFORCEMENT_MS, Gateway
from app.session import Session
from app.store.instant import instant, now_ms

log = structlog.get_logger(__name__)

Then = Callable[[Response], Awaitable[Envelope]]
"""Makes an answer of what the twin has answered."""


@dataclass(frozen=True, slots=True)
class Desk:
    """What all sessions share. ``max_headers`` bounds the characters of a frame's headers."""

    gateway: Gateway
    policies: PolicyCommands
    rules: Rules
    max_headers: int


class Commands:
    """Takes the frames of a session in their order, and answers them."""

    def __init__(
        self,
        desk: Desk,
        session: Session,
        principal: Principal,
        defaults: Mapping[str, str],
        wire: Wire,
    ) -> None:
        self._desk = desk
        self._gateway = desk.gateway
        self._session = session
        self._principal = principal
        self._defaults = defaults
        self._turns = Turns(wire)

    async def close(self) -> None:
        """The session has ended: nobody waits for its answers any more."""
        await self._turns.close()

    def take(self, text: str) -> None:
        """Handle a frame; what is wrong with it is answered."""
        if self._session.closing is not None:
            return
        envelope: Any = None
        topic: Topic | None = None
        try:
            envelope = _parse(text)
            topic = read_topic(envelope)
            self._handle(envelope, topic, text)
        except GatewayError as problem:
            self._refuse(envelope, topic, problem)
        except Exception:
            log.exception("ws.frame_failed", session=self._session.id)
            self._refuse(envelope, topic, error("gateway:internalerror"))

    def _handle(self, envelope: Envelope, topic: Topic, text: str) -> None:
        if topic.criterion == "acks" and topic.group != "connections":
            ack = read_ack(envelope, topic, self._session.declared)
            self._gateway.acknowledge(self._session, ack)
        elif is_response(envelope, topic):
            self._gateway.answer(self._session, read_response(envelope, topic))
        elif topic.group == "policies":
            _check_value(envelope, text)
            self._policy(envelope, topic)
        else:
            serve = _SERVED.get((topic.group, topic.channel, topic.criterion))
            if serve is None:
                raise not_supported(envelope["topic"], _NOT_SERVED.get(topic.criterion, _OTHERS))
            if topic.criterion != "messages":
                _check_value(envelope, text)
            head = read_head(envelope, self._defaults, self._desk.max_headers, new_correlation_id())
            serve(self, envelope, topic, head)

    # --- what is asked for

    def _command(self, envelope: Envelope, topic: Topic, head: FrameHead) -> None:
        if "status" in envelope:
            raise not_supported(envelope["topic"], "Responses belong to the live channel.")
        live = topic.channel == "live" or parse_channel(head.known.get("channel")) == "live"
        if topic.action == "retrieve":
            if is_for_many(envelope, topic) and not live:
                self._retrieve_many(envelope, topic, head)
            else:
                self._retrieve(envelope, topic, head, live)
            return
        options = self._options(head, live)
        command = read_command(envelope, topic, head, options, self._asker())
        asked = asked_by(envelope, topic, head, options, live=live)
        if live:
            live_signal = live_command(command)
            self._in_turn(
                asked, Kind.SEND, command.thing_id, partial(self._send, asked, live_signal)
            )
        else:
            work = partial(self._change, asked, command)
            self._in_turn(asked, Kind.CHANGE, command.thing_id, work)

    def _retrieve(self, envelope: Envelope, topic: Topic, head: FrameHead, live: bool) -> None:
        choice = Choice.read(head.known, "live" if live else "twin")
        to_live = live or choice.smart
        options = self._options(head, to_live, query=True)
        query = read_query(envelope, topic, head, options.timeout_ms, self._asker())
        asked = asked_by(envelope, topic, head, options, live=live)
        if not to_live:
            self._in_turn(asked, Kind.READ, query.thing_id, partial(self._ask, asked, query))
            return
        sent = live_query(query, options, head.carried, fields_text(envelope))
        sent = sent._replace(origin=self._session.id)
        if choice.smart:
            then = partial(self._smart, asked, sent, choice)
            self._in_turn(asked, Kind.READ, query.thing_id, partial(self._ask, asked, query, then))
        else:
            self._in_turn(asked, Kind.SEND, query.thing_id, partial(self._send, asked, sent))

    def _retrieve_many(self, envelope: Envelope, topic: Topic, head: FrameHead) -> None:
        options = self._options(head, live=False, query=True)
        queries = read_queries(envelope, head, options.timeout_ms, self._asker())
        asked = asked_by(envelope, topic, head, options, live=False)
        work = partial(self._many, asked, queries)
        self._in_turn(asked, None, "", partial(self._start, asked, work, alone=True))

    def _message(self, envelope: Envelope, topic: Topic, head: FrameHead) -> None:
        options = self._options(head, live=True)
        moment = instant(now_ms())
        live = read_message(envelope, topic, head, options, self._asker(), moment)
        if live.value is None and "value" in envelope:
            live = live._replace(value=NULL)
        asked = asked_by(envelope, topic, head, options, live=True)
        self._in_turn(asked, Kind.SEND, live.thing_id, partial(self._send, asked, live))

    def _event(self, envelope: Envelope, topic: Topic, head: FrameHead) -> None:
        live = read_live_event(envelope, topic, head, self._asker(), ENFORCEMENT_MS)
        if live.value is None and live.action != "deleted":
            live = live._replace(value=NULL)
        asked = asked_by(envelope, topic, head, live.options, live=True)
        asked = asked._replace(wanted=head.known.get("response-required") != "false")
        self._in_turn(asked, Kind.SEND, live.thing_id, partial(self._send, asked, live))

    def _policy(self, envelope: Envelope, topic: Topic) -> None:
        headers = {**self._defaults, **read_headers(envelope)}
        work = partial(self._desk.policies.answer, envelope, topic, headers, self._principal)
        asked = Asked(envelope["topic"], "/", None, "twin", str(headers.get("correlation-id")), {})
        self._in_turn(asked, None, "", partial(self._start, asked, work, alone=True))

    def _options(self, head: FrameHead, live: bool, *, query: bool = False) -> AckOptions:
        known = head.known
        # A query always wants an answer, whatever follows for others from an empty requested-acks.
        wanted = "true" if query else known.get("response-required")
        requested = known.get("requested-acks") if live or not query else None
        return frame_options(live, requested, wanted, known.get("timeout"), *self._desk.rules)

    def _asker(self) -> Asker:
        return Asker(self._session.subjects, self._session.id, now_ms())

    # --- carrying it out

    def _in_turn(
        self, asked: Asked, kind: Kind | None, thing_id: str, run: Callable[[], None]
    ) -> None:
        def guarded() -> None:
            try:
                run()
            except Exception:
                log.exception("ws.command_failed", session=self._session.id)
                self._put(asked, refusal(asked, error("gateway:internalerror")))

        self._turns.in_turn(kind, thing_id, guarded)

    def _change(self, asked: Asked, command: Command) -> None:
        thing_id = command.thing_id
        token = self._turns.enter(Kind.CHANGE, thing_id)
        left = partial(self._turns.leave, Kind.CHANGE, thing_id, token)
        with self._entered(asked, token, left):
            self._gateway.submit(command, partial(self._finished, token, asked), left)

    def _send(self, asked: Asked, live: Live) -> None:
        token = self._turns.enter(Kind.SEND, live.thing_id)
        left = partial(self._turns.leave, Kind.SEND, live.thing_id, token)

        def answered(outcome: Outcome) -> None:
            if live.criterion == "events" and outcome.error is None:
                self._turns.end(token)
            elif live.criterion == "commands" and live.action == "retrieve":
                self._start(asked, partial(self._cut, asked, live, outcome), token)
            else:
                self._finished(token, asked, outcome)

        with self._entered(asked, token, left):
            self._gateway.submit_live(live, answered, left)

    @contextmanager
    def _entered(self, asked: Asked, token: object, left: Callable[[], None]) -> Iterator[None]:
        """Whatever goes wrong at once is the answer, and nothing waits for it."""
        try:
            yield
        except GatewayError as problem:
            left()
            self._finished(token, asked, Outcome(problem.status, error=problem))
        except BaseException:
            left()
            self._turns.end(token)
            raise

    def _ask(self, asked: Asked, query: Query, then: Then | None = None) -> None:
        """Answer a query, or do ``then`` with its response."""
        if query.fields is not None and "_policy" in query.fields.tree:
            self._start(asked, partial(self._with_policy, asked, query, then))
            return
        token = self._turns.begin()

        def responded(result: Response | GatewayError) -> None:
            if isinstance(result, Response) and then is not None:
                self._start(asked, partial(then, result), token)
                return
            self._turns.end(token)
            if isinstance(result, Response):
                self._put(asked, response_envelope(asked, result))
            else:
                self._put(asked, refusal(asked, result))

        try:
            self._gateway.submit_query(query, responded)
        except BaseException:
            self._turns.end(token)
            raise

    async def _with_policy(self, asked: Asked, query: Query, then: Then | None) -> Envelope:
        response = await self._gateway.query(query)
        return response_envelope(asked, response) if then is None else await then(response)

    async def _cut(self, asked: Asked, live: Live, outcome: Outcome) -> Envelope:
        return answer_envelope(asked, await readable(self._gateway, live, outcome))

    async def _smart(self, asked: Asked, live: Live, choice: Choice, twin: Response) -> Envelope:
        chosen = await smart_query(self._gateway, live, twin, choice)
        asked = asked.on(chosen.channel)._replace(headers={**asked.headers, **chosen.headers})
        return answer_envelope(asked, chosen.outcome)

    async def _many(self, asked: Asked, queries: list[Query]) -> Envelope:
        things = await things_of(self._gateway, queries)
        return response_envelope(asked, Response(200, things, {}))

    # --- answers

    def _finished(self, token: object, asked: Asked, outcome: Outcome) -> None:
        self._turns.end(token)
        if asked.wanted:
            self._put(asked, answer_envelope(asked, outcome))

    def _start(
        self,
        asked: Asked,
        work: Callable[[], Awaitable[Envelope | None]],
        token: object | None = None,
        *,
        alone: bool = False,
    ) -> None:
        """Find an answer in a task; ``alone``: nothing else is taken meanwhile."""

        async def answer() -> None:
            try:
                envelope = await work()
            except GatewayError as problem:
                envelope = refusal(asked, problem)
            except Exception:
                log.exception("ws.command_failed", session=self._session.id)
                envelope = refusal(asked, error("gateway:internalerror"))
            if envelope is not None and asked.wanted:
                self._put(asked, envelope)

        self._turns.start(answer(), token, alone=alone)

    def _put(self, asked: Asked, envelope: Envelope) -> None:
        try:
            frame = orjson.dumps(envelope)
        except TypeError:
            # An ack may come from elsewhere (Spark) with a payload that cannot be rendered.
            log.exception("ws.answer_not_rendered", correlation_id=asked.correlation_id)
            frame = orjson.dumps(refusal(asked, error("gateway:internalerror")))
        if len(frame) > self._session.limit:
            limit = self._session.limit
            message = f"The answer has more than {limit:,} bytes."
            reason = "Ask for fewer Things, or for fewer of their fields."
            problem = error("request.toolarge", message=message, description=reason, limit=limit)
            frame = orjson.dumps(refusal(asked, problem))
        self._session.put(frame)

    def _refuse(self, envelope: Any, topic: Topic | None, problem: GatewayError) -> None:
        """Answer a frame that cannot be taken, on the topic of its entity where that is known."""
        try:
            headers = read_headers(envelope)
        except (GatewayError, AttributeError):
            headers = {}
        given = headers.get("correlation-id") or self._defaults.get("correlation-id")
        correlation_id = given if isinstance(given, str) else new_correlation_id()
        if topic is not None and topic.group == "policies":
            answer = policy_error(problem, correlation_id, topic.thing_id)
        elif topic is None or topic.criterion not in _ABOUT_THINGS or topic.namespace == "_":
            answer = error_envelope(problem, correlation_id)
        else:
            asked = Asked("", "/", topic.thing_id, topic.channel, correlation_id, {})
            answer = refusal(asked, problem)
        self._session.put(orjson.dumps(answer))


_ABOUT_THINGS = frozenset({"commands", "messages", "events"})
_Serve = Callable[[Commands, Envelope, Topic, FrameHead], None]
_SERVED: dict[tuple[str, str, str], _Serve] = {
    ("things", "twin", "commands"): Commands._command,
    ("things", "live", "commands"): Commands._command,
    ("things", "live", "messages"): Commands._message,
    ("things", "live", "events"): Commands._event,
}
"""What is taken, by group, channel and criterion of the topic."""
_OTHERS = "Send commands, messages, live events, responses and acknowledgements."
_NOT_SERVED = {
    "search": "This gateway does not serve the search yet.",
    "streaming": "This gateway does not serve past events by their revision.",
    "events": "Events of twins are made by the gateway when a twin changes.",
}


def _parse(text: str) -> Any:
    """A frame's JSON. Raises ``json.invalid``, ``json.format.invalid``."""
    if not text:
        raise error("json.format.invalid", reason="The message is empty.")
    try:
        envelope = orjson.loads(text)
    except orjson.JSONDecodeError as problem:
        raise invalid_json(text, f"Not valid JSON: {problem}.") from None
    check_depth(envelope, text.count("{") + text.count("["))
    return envelope


def _check_value(envelope: Envelope, text: str) -> None:
    """Raises ``json.invalid``, ``json.pointer.invalid`` for a value that twins cannot hold."""
    value = envelope.get("value")
    if value is not None:
        check_json(value, text.encode())
