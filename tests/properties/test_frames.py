"""Whatever a frame says, it is read, or refused by an error of the catalogue."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from acks.aggregator import Outcome
from acks.control import read_control, read_wish
from acks.errors import GatewayError, error
from acks.frame_head import frame_options, read_head
from acks.protocol import is_response, read_ack, read_response, read_topic
from acks.requests import (
    Asker,
    is_for_many,
    read_command,
    read_live_event,
    read_message,
    read_queries,
    read_query,
)
from acks.responses import answer_envelope, asked_by
from acks.topic import Topic

ASKER = Asker(("nginx:ditto",), "session", 0)

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=8,
)
KEYS = st.sampled_from(
    [
        "attributes", "features", "definition", "policyId", "thingId", "properties", "f", "a",
        "desiredProperties", "_policy", "entries", "thingIds", "subjects", "resources",
    ]
)  # fmt: skip
THINGS = st.recursive(JSON, lambda inner: st.dictionaries(KEYS, inner, max_size=4), max_leaves=8)
ENDS = [
    "commands/create", "commands/modify", "commands/merge", "commands/delete", "commands/retrieve",
    "commands/migrate", "messages/ask", "messages/a/b", "events/created", "events/modified",
    "events/merged", "events/deleted", "acks/my:ack", "acks", "errors", "search/next",
]  # fmt: skip
TOPICS = st.builds(
    lambda id_, channel, end: f"{id_}/things/{channel}/{end}",
    st.sampled_from(["ns/n", "_/_", "1/x", "ns/_", "/n"]),
    st.sampled_from(["twin", "live"]),
    st.sampled_from(ENDS),
) | st.text(max_size=20)
PATHS = st.sampled_from(
    [
        "/", "", "/attributes/a", "attributes", "/features/f/properties/x", "/inbox/messages/ask",
        "/features/f/outbox/messages/a/b", "/policyId", "/nothing", "/attributes//a", "/_policy",
    ]
) | st.text(max_size=12)  # fmt: skip
NAMES = st.sampled_from(
    [
        "correlation-id", "requested-acks", "response-required", "timeout", "channel", "condition",
        "if-match", "If-None-Match", "if-equal", "content-type", "live-channel-condition", "x-a",
        "live-channel-timeout-strategy", "dry-run", "allow-policy-lockout", "ditto-originator",
    ]
) | st.text(max_size=8)  # fmt: skip
VALUES = JSON | st.sampled_from(["true", "false", "1s", "0", '["my:ack"]', "live", "twin", '"a"'])
FRAMES = st.fixed_dictionaries(
    {"topic": TOPICS | JSON},
    optional={
        "path": PATHS | JSON,
        "headers": st.dictionaries(NAMES, VALUES, max_size=5) | JSON,
        "value": THINGS,
        "fields": JSON | st.sampled_from(["attributes", "thingId,attributes(a)", "a("]),
        "status": JSON | st.integers(100, 600),
        "revision": JSON,
        "timestamp": JSON,
    },
)


def read(frame: Any) -> None:
    """As a session reads it; what comes out can be answered."""
    topic = read_topic(frame)
    if topic.criterion == "acks":
        read_ack(frame, topic, frozenset({"my:ack"}))
        return
    if is_response(frame, topic):
        read_response(frame, topic)
        return
    head = read_head(frame, {}, 5_120, "fresh")
    live = topic.channel == "live"
    known = head.known
    options = frame_options(
        live, known.get("requested-acks"), known.get("response-required"), known.get("timeout"),
        "documented", 60_000, 60_000,
    )  # fmt: skip
    ask(frame, topic, head, options)
    asked = asked_by(frame, topic, head, options, live=live)
    problem = error("things:thing.notfound", thing_id="x")
    json.dumps(answer_envelope(asked, Outcome(404, error=problem)))


def ask(frame: Any, topic: Topic, head: Any, options: Any) -> None:
    if topic.criterion == "messages":
        read_message(frame, topic, head, options, ASKER, "now")
    elif topic.criterion == "events":
        read_live_event(frame, topic, head, ASKER, 1000)
    elif topic.criterion != "commands":
        raise error("gateway:bad.request")
    elif is_for_many(frame, topic):
        read_queries(frame, head, 1000, ASKER)
    elif topic.action == "retrieve":
        read_query(frame, topic, head, 1000, ASKER)
    else:
        read_command(frame, topic, head, options, ASKER)


@given(FRAMES | JSON)
def test_frames(frame: Any) -> None:
    with suppress(GatewayError):
        read(frame)


@given(
    st.sampled_from(["START-SEND-", "STOP-SEND-", "JWT-TOKEN", ""]),
    st.sampled_from(["EVENTS", "MESSAGES", "LIVE-EVENTS", "POLICY-ANNOUNCEMENTS", ""]),
    st.lists(
        st.tuples(
            st.sampled_from(["filter", "namespaces", "extraFields", "x", "%", "correlation-id"]),
            st.text(max_size=20)
            | st.sampled_from(["eq(attributes/a,1)", "attributes,features", "a.b,c", "%20%ff%"]),
        ),
        max_size=4,
    ),
)
def test_text_commands(beginning: str, kind: str, parameters: list[tuple[str, str]]) -> None:
    text = f"{beginning}{kind}?" + "&".join(f"{name}={value}" for name, value in parameters)
    with suppress(GatewayError):
        control = read_control(text)
        if control is not None:
            read_wish(control)
