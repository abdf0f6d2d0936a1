"""Ditto Protocol messages of one sender: what they ask for, carried out in their order.

A WebSocket session (``ws_commands.py``) and a connection's source (app/connection_gate.py) say the
same things; what differs is how a message comes and how its answer goes.
Sources: spec websocket-... 1.3 and 1.4; acks-and-http 2.6, 3, 5.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from acks.aggregator import Outcome
from acks.document import check_json
from acks.envelopes import Envelope, error_envelope
from acks.errors import GatewayError, error
from acks.frame_head import FrameHead, read_head
from acks.headers import AckOptions
from acks.live import LiveResponse, parse_channel
from acks.policy_protocol import policy_error
from acks.protocol import (
    is_response,
    is_weak_built_in,
    read_ack,
    read_headers,
    read_response,
)
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
from acks.responses import Asked, asked_by, refusal
from acks.search_protocol import SearchCommand, read_search
from acks.signals import Acknowledgement, Command, Live, Query, Response
from acks.topic import Topic
from app.api.http import Rules, new_correlation_id
from app.api.live import NULL, Choice, live_command, live_query, readable, smart_query
from app.api.queries import things_of
from app.api.ws_policies import PolicyCommands
from app.api.ws_turns import Kind, Turns
from app.gateway import ENFORCEMENT_MS, Gateway
from app.search.service import Search
from app.store.instant import instant, now_ms

log = structlog.get_logger(__name__)

Then = Callable[[Response], Awaitable[None]]
"""Answers a query with what the twin has answered to it."""


@dataclass(frozen=True, slots=True)
class Desk:
    """What all senders share. ``max_headers`` bounds the characters of a message's headers.

    ``search`` is None where things cannot be searched.
    """

    gateway: Gateway
    policies: PolicyCommands
    rules: Rules
    max_headers: int
    search: Search | None = None


class ProtocolCommands(ABC):
    """Carries out messages. Subclasses say who the sender is, and take the answers.

    ``defaults`` are headers that hold for every message that has not its own.
    """

    __slots__ = ("_declared", "_defaults", "_desk", "_gateway", "_origin", "_subjects", "_turns")

    def __init__(
        self,
        desk: Desk,
        turns: Turns,
        *,
        subjects: tuple[str, ...],
        declared: frozenset[str],
        origin: str,
        defaults: Mapping[str, str],
    ) -> None:
        self._desk = desk
        self._gateway = desk.gateway
        self._turns = turns
        self._subjects = subjects
        self._declared = declared  # the labels that the sender may acknowledge
        self._origin = origin  # what does not get its own signals back
        self._defaults = defaults

    # --- what differs

    @abstractmethod
    def _acknowledge(self, ack: Acknowledgement) -> None:
        """Take an ack of the sender, already checked."""

    @abstractmethod
    def _respond(self, response: LiveResponse) -> None:
        """Take a response of the sender to a live signal."""

    @abstractmethod
    def _complete(
        self, live: bool, requested: str | None, wanted: str | None, timeout: str | None
    ) -> AckOptions:
        """The three headers of a command, completed. Raises GatewayError."""

    @abstractmethod
    def _answer(self, asked: Asked, outcome: Outcome) -> None:
        """Take the outcome of what was asked for; whether an answer is wanted, is in ``asked``."""

    @abstractmethod
    def _answer_policy(
        self, asked: Asked, answer: Envelope | None, problem: GatewayError | None
    ) -> None:
        """Take the answer to a policy command, None if none is wanted."""

    @abstractmethod
    def _sent(self) -> None:
        """Nothing more will be heard of a message: a live event on its way, an ignored ack."""

    def _take_search(
        self, topic: str, command: SearchCommand, head: FrameHead, timeout_ms: int
    ) -> None:
        """Take a command of a search; ``timeout_ms`` is what a page of it may take."""
        raise not_supported(topic, "A search needs a session: it is not for connections.")

    # --- in

    def handle(self, envelope: Envelope, topic: Topic, text: str | bytes) -> None:
        """Carry out a message; ``text`` is JSON that has at least its value.

        What is wrong with a message itself is raised, as GatewayError; everything else becomes its
        answer.
        """
        if topic.criterion == "acks" and topic.group != "connections":
            if is_weak_built_in(envelope, topic):
                self._sent()
            else:
                self._acknowledge(read_ack(envelope, topic, self._declared))
        elif is_response(envelope, topic):
            self._respond(read_response(envelope, topic))
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
        sent = sent._replace(origin=self._origin)
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

    def _search(self, envelope: Envelope, topic: Topic, head: FrameHead) -> None:
        command = read_search(envelope, topic)
        options = self._options(head, live=False, query=True)
        self._take_search(envelope["topic"], command, head, options.timeout_ms)

    def _policy(self, envelope: Envelope, topic: Topic) -> None:
        headers = {**self._defaults, **read_headers(envelope)}
        asked = Asked(envelope["topic"], "/", None, "twin", str(headers.get("correlation-id")), {})

        async def answer() -> None:
            found = await self._desk.policies.answer(envelope, topic, headers, self._subjects)
            self._answer_policy(asked, found.envelope, found.problem)

        self._in_turn(asked, None, "", partial(self._start, asked, answer, alone=True))

    def _options(self, head: FrameHead, live: bool, *, query: bool = False) -> AckOptions:
        known = head.known
        # A query always wants an answer, whatever follows for others from an empty requested-acks.
        wanted = "true" if query else known.get("response-required")
        requested = known.get("requested-acks") if live or not query else None
        return self._complete(live, requested, wanted, known.get("timeout"))

    def _asker(self) -> Asker:
        return Asker(self._subjects, self._origin, now_ms())

    # --- carrying it out

    def _in_turn(
        self, asked: Asked, kind: Kind | None, thing_id: str, run: Callable[[], None]
    ) -> None:
        def guarded() -> None:
            try:
                run()
            except Exception:
                log.exception("command.failed", origin=self._origin)
                self._broken(asked)

        self._turns.in_turn(kind, thing_id, guarded)

    def _broken(self, asked: Asked) -> None:
        """Answer for a fault of ours."""
        problem = error("gateway:internalerror")
        self._answer(asked, Outcome(problem.status, error=problem))

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
                self._sent()
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
            if isinstance(result, GatewayError):
                self._finished(token, asked, Outcome(result.status, error=result))
            elif then is not None:
                self._start(asked, partial(then, result), token)
            else:
                self._finished(token, asked, Outcome(result.status, response=result))

        try:
            self._gateway.submit_query(query, responded)
        except BaseException:
            self._turns.end(token)
            raise

    async def _with_policy(self, asked: Asked, query: Query, then: Then | None) -> None:
        response = await self._gateway.query(query)
        if then is not None:
            await then(response)
        else:
            self._answer(asked, Outcome(response.status, response=response))

    async def _cut(self, asked: Asked, live: Live, outcome: Outcome) -> None:
        self._answer(asked, await readable(self._gateway, live, outcome))

    async def _smart(self, asked: Asked, live: Live, choice: Choice, twin: Response) -> None:
        chosen = await smart_query(self._gateway, live, twin, choice)
        asked = asked.on(chosen.channel)._replace(headers={**asked.headers, **chosen.headers})
        self._answer(asked, chosen.outcome)

    async def _many(self, asked: Asked, queries: list[Query]) -> None:
        things = await things_of(self._gateway, queries)
        self._answer(asked, Outcome(200, response=Response(200, things, {})))

    # --- answers

    def _finished(self, token: object, asked: Asked, outcome: Outcome) -> None:
        self._turns.end(token)
        self._answer(asked, outcome)

    def _start(
        self,
        asked: Asked,
        work: Callable[[], Awaitable[None]],
        token: object | None = None,
        *,
        alone: bool = False,
    ) -> None:
        """Do in a task what ends with an answer; ``alone``: nothing else is taken meanwhile."""

        async def answer() -> None:
            try:
                await work()
            except GatewayError as problem:
                self._answer(asked, Outcome(problem.status, error=problem))
            except Exception:
                log.exception("command.failed", origin=self._origin)
                self._broken(asked)

        self._turns.start(answer(), token, alone=alone)

    def _refusal(self, envelope: Any, topic: Topic | None, problem: GatewayError) -> Envelope:
        """The answer to a message that cannot be taken, about its entity where that is known."""
        try:
            headers = read_headers(envelope)
        except (GatewayError, AttributeError):
            headers = {}
        given = headers.get("correlation-id") or self._defaults.get("correlation-id")
        correlation_id = given if isinstance(given, str) else new_correlation_id()
        if topic is not None and topic.group == "policies":
            return policy_error(problem, correlation_id, topic.thing_id)
        if topic is None or topic.criterion not in _ABOUT_THINGS or topic.namespace == "_":
            return error_envelope(problem, correlation_id)
        return refusal(Asked("", "/", topic.thing_id, topic.channel, correlation_id, {}), problem)


_ABOUT_THINGS = frozenset({"commands", "messages", "events"})
_Serve = Callable[[ProtocolCommands, Envelope, Topic, FrameHead], None]
_SERVED: dict[tuple[str, str, str], _Serve] = {
    ("things", "twin", "commands"): ProtocolCommands._command,
    ("things", "live", "commands"): ProtocolCommands._command,
    ("things", "twin", "search"): ProtocolCommands._search,
    ("things", "live", "messages"): ProtocolCommands._message,
    ("things", "live", "events"): ProtocolCommands._event,
}
"""What is taken, by group, channel and criterion of the topic."""
_OTHERS = "Send commands, messages, live events, responses and acknowledgements."
_NOT_SERVED = {
    "search": "The search belongs to the twin channel.",
    "streaming": "This gateway does not serve past events by their revision.",
    "events": "Events of twins are made by the gateway when a twin changes.",
}


def _check_value(envelope: Envelope, text: str | bytes) -> None:
    """Raises ``json.invalid``, ``json.pointer.invalid`` for a value that twins cannot hold."""
    value = envelope.get("value")
    if value is not None:
        check_json(value, text if isinstance(text, bytes) else text.encode())
