"""Searches of a session: what is sent when, by an index that takes the time a test gives it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from acks.errors import error
from acks.frame_head import FrameHead
from acks.search_protocol import Cancel, Request, Subscribe
from app.search.service import Page, SearchRequest
from app.search.subscriptions import AT_ONCE, MOST, Subscriptions
from app.session import Session
from tests.servers import wait_for

Json = dict[str, Any]
THINGS = [f"org.example:t{number}" for number in range(7)]


class Index:
    """Finds ``THINGS``; ``gate`` holds every search back, ``problem`` is what comes of it."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.problem: Exception | None = None
        self.gone: set[str] = set()
        self.asked: list[SearchRequest] = []
        self.running = self.most_running = 0

    async def page(self, request: SearchRequest) -> Page:
        self.asked.append(request)
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        try:
            await self.gate.wait()
        finally:
            self.running -= 1
        if self.problem is not None:
            raise self.problem
        start = 0 if request.after is None else THINGS.index(request.after[-1]) + 1
        ids = THINGS[start : start + request.options.size]
        more = start + request.options.size < len(THINGS)
        following = request.from_key((ids[-1],)) if more else None
        left = tuple(one for one in ids if one not in self.gone)
        return Page(tuple({"thingId": one} for one in left), left, following)


class Client:
    """One session with its searches; ``reads`` says whether the client takes what is sent."""

    def __init__(self, index: Index | None, *, idle: float = 30.0, outbox: int = 1_000_000):
        self.session = Session(("nginx:ditto",), (), outbox_bytes=outbox)
        self.reads = asyncio.Event()
        self.reads.set()
        self.searches = Subscriptions(index, self.session, self.reads.wait, idle=idle)
        self.frames: list[Json] = []
        self.session.send_soon = self._sent

    def _sent(self, frame: bytes) -> bool:
        self.frames.append(json.loads(frame))
        return True

    def tell(self, command: Subscribe | Request | Cancel, name: str = "c") -> None:
        head = FrameHead({"correlation-id": name}, {}, name)
        self.searches.take(command, head, 10_000)

    def subscribe(self, **fields: Any) -> str:
        """Subscribe; the id."""
        self.tell(Subscribe(**fields))
        created = next(f for f in reversed(self.frames) if f["topic"].endswith("/created"))
        return str(created["value"]["subscriptionId"])

    def actions(self, subscription_id: str | None = None) -> list[str]:
        """What was sent, of all subscriptions or of one."""
        return [
            frame["topic"].rpartition("/")[2]
            for frame in self.frames
            if subscription_id in (None, frame["value"]["subscriptionId"])
        ]

    async def until(self, *actions: str, of: str | None = None) -> None:
        """Wait until these have been sent, and nothing else."""
        await wait_for(lambda: len(self.actions(of)) >= len(actions), what=repr(actions))
        assert self.actions(of) == list(actions)

    def problem(self) -> Json:
        """The error of the last frame."""
        assert self.frames[-1]["topic"] == "_/_/things/twin/search/failed"
        found: Json = self.frames[-1]["value"]["error"]
        return found

    def items(self) -> list[list[str]]:
        """The ids of the pages."""
        pages = [f["value"]["items"] for f in self.frames if f["topic"].endswith("/next")]
        return [[thing["thingId"] for thing in page] for page in pages]


@pytest.fixture
def index() -> Index:
    return Index()


@pytest.fixture
async def client(index: Index) -> AsyncIterator[Client]:
    client = Client(index)
    yield client
    await client.searches.close()


async def test_pages_come_as_they_are_requested(client: Client, index: Index) -> None:
    one = client.subscribe(filter="exists(attributes/a)", options="size(2)", namespaces=("a",))
    assert index.asked == []
    client.tell(Request(one, 2), "r1")
    await client.until("created", "next", "next")
    client.tell(Request(one, 1), "r2")
    await client.until("created", "next", "next", "next")
    client.tell(Request(one, 1), "r3")
    await client.until("created", "next", "next", "next", "next", "complete")
    assert client.items() == [THINGS[0:2], THINGS[2:4], THINGS[4:6], THINGS[6:]]
    ids = [frame["headers"]["correlation-id"] for frame in client.frames]
    assert ids == ["c", "r1", "r1", "r2", "r3", "r3"]
    assert {request.subjects for request in index.asked} == {("nginx:ditto",)}
    assert {request.timeout_ms for request in index.asked} == {10_000}
    assert {request.namespaces for request in index.asked} == {frozenset({"a"})}


async def test_everything_at_once(client: Client) -> None:
    one = client.subscribe(options="size(3)")
    client.tell(Request(one, 2**63 - 1))
    await client.until("created", "next", "next", "next", "complete")
    assert client.items() == [THINGS[:3], THINGS[3:6], THINGS[6:]]


async def test_what_has_gone_takes_no_page(client: Client, index: Index) -> None:
    index.gone = set(THINGS[2:4])
    one = client.subscribe(options="size(2)")
    client.tell(Request(one, 2))
    await client.until("created", "next", "next")
    assert client.items() == [THINGS[:2], THINGS[4:6]]


async def test_nothing_found_is_complete_without_a_page(client: Client, index: Index) -> None:
    index.gone = set(THINGS)
    one = client.subscribe()
    client.tell(Request(one, 1))
    await client.until("created", "complete")


async def test_searches_have_ids_and_positions_of_their_own(client: Client) -> None:
    one, other = client.subscribe(options="size(3)"), client.subscribe(options="size(4)")
    assert one != other
    client.tell(Request(one, 1))
    await client.until("created", "next", of=one)
    client.tell(Request(other, 2))
    await client.until("created", "next", "next", "complete", of=other)
    client.tell(Request(one, 1))
    await client.until("created", "next", "next", of=one)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"filter": "eq(attributes/a)"}, "rql.expression.invalid"),
        ({"options": "sort(thingId)"}, "thing-search:search.option.invalid"),
        ({"options": "size(201)"}, "thing-search:search.option.invalid"),
        ({"options": "limit(0,5)"}, "thing-search:search.option.invalid"),
        ({"options": "cursor(abc)"}, "thing-search:search.option.invalid"),
        ({"namespaces": ("-",)}, "thing-search:search.namespaces.invalid"),
        ({"fields": "a,"}, "json.fieldselector.invalid"),
    ],
)
async def test_a_wrong_search_fails_at_once(client: Client, fields: Json, code: str) -> None:
    one = client.subscribe(**fields)
    assert client.actions() == ["created", "failed"]
    assert (client.problem()["error"], client.problem()["status"]) == (code, 400)
    # The client may have sent this when it had seen no more than "created".
    client.tell(Request(one, 1))
    assert client.actions() == ["created", "failed"]


async def test_without_an_index_every_search_fails() -> None:
    client = Client(None)
    client.tell(Request(client.subscribe(), 1))
    assert client.actions() == ["created", "failed"]
    assert client.problem()["error"] == "gateway:service.unavailable"
    await client.searches.close()


@pytest.mark.parametrize("pages", [0, -3])
async def test_less_than_a_page_ends_the_search(client: Client, pages: int) -> None:
    one = client.subscribe(options="size(2)")
    client.tell(Request(one, 1))
    await client.until("created", "next")
    client.tell(Request(one, pages), "wrong")
    assert client.problem()["error"] == "thing-search:subscription.protocol.error"
    assert client.frames[-1]["headers"]["correlation-id"] == "wrong"
    client.tell(Request(one, 1))
    assert "over" in client.problem()["message"]
    assert client.actions() == ["created", "next", "failed", "failed"]


async def test_a_wrong_request_stops_a_running_search(client: Client, index: Index) -> None:
    index.gate.clear()
    one = client.subscribe()
    client.tell(Request(one, 5))
    await wait_for(lambda: index.running == 1)
    client.tell(Request(one, 0))
    await wait_for(lambda: index.running == 0)
    assert client.actions() == ["created", "failed"]


async def test_a_cancelled_search_is_silent(client: Client, index: Index) -> None:
    index.gate.clear()
    one = client.subscribe(options="size(2)")
    client.tell(Request(one, 3))
    await wait_for(lambda: index.running == 1)
    client.tell(Cancel(one))
    await wait_for(lambda: index.running == 0)
    client.tell(Cancel(one))
    assert client.actions() == ["created"]
    client.tell(Request(one, 1))
    assert client.problem()["error"] == "thing-search:subscription.protocol.error"


async def test_ids_that_were_never_given(client: Client) -> None:
    for command in (Request("24601", 1), Cancel("24601")):
        client.tell(command, "x")
        assert client.problem()["error"] == "thing-search:subscription.not.found"
        assert client.frames[-1]["value"]["subscriptionId"] == "24601"
        assert client.frames[-1]["headers"]["correlation-id"] == "x"


async def test_what_the_index_says_is_told(client: Client, index: Index) -> None:
    problems: list[tuple[Exception, str]] = [
        (error("gateway:query.time.exceeded", timeout_ms=1), "gateway:query.time.exceeded"),
        (RuntimeError("boom"), "gateway:internalerror"),
    ]
    for problem, code in problems:
        index.problem = problem
        one = client.subscribe()
        client.tell(Request(one, 1))
        await client.until("created", "failed", of=one)
        assert client.problem()["error"] == code
        assert "boom" not in json.dumps(client.frames)


async def test_a_search_that_nobody_goes_on_with_ends(index: Index) -> None:
    client = Client(index, idle=0.05)
    one = client.subscribe(options="size(2)")
    other = client.subscribe(options="size(2)")
    client.tell(Request(other, 1))
    await client.until("created", "failed", of=one)
    await client.until("created", "next", "failed", of=other)
    codes = {frame["value"]["error"]["error"] for frame in client.frames if "error" in
             frame["value"]}  # fmt: skip
    assert codes == {"thing-search:subscription.timeout"}
    await client.searches.close()


async def test_a_search_under_way_is_not_idle(index: Index) -> None:
    client = Client(index, idle=0.05)
    index.gate.clear()
    slow = client.subscribe()
    client.tell(Request(slow, 1))
    await wait_for(lambda: index.running == 1)
    idle = client.subscribe()
    await client.until("created", "failed", of=idle)
    assert client.actions(slow) == ["created"]
    index.gate.set()
    await client.until("created", "next", "complete", of=slow)
    await client.searches.close()


async def test_a_client_that_does_not_read_gets_no_pages(client: Client, index: Index) -> None:
    client.reads.clear()
    ids = [client.subscribe(options="size(1)") for _ in range(3)]
    for one in ids:
        client.tell(Request(one, 100))
    probe = Client(index)
    client_of_its_own = probe.subscribe()
    probe.tell(Request(client_of_its_own, 1))
    await probe.until("created", "next", "complete")
    assert len(index.asked) == 1  # the other client's
    client.reads.set()
    for one in ids:
        await client.until("created", *["next"] * len(THINGS), "complete", of=one)
    await probe.searches.close()


async def test_a_client_that_never_reads_again_is_given_up(index: Index) -> None:
    client = Client(index, idle=0.05)
    client.reads.clear()
    client.tell(Request(client.subscribe(), 1))
    await client.until("created", "failed")
    assert client.problem()["error"] == "thing-search:subscription.timeout"
    assert index.asked == []
    await client.searches.close()


async def test_a_session_has_so_many_searches_and_runs_a_few(client: Client, index: Index) -> None:
    index.gate.clear()
    ids = [client.subscribe() for _ in range(MOST)]
    for one in ids:
        client.tell(Request(one, 1))
    await wait_for(lambda: index.running == AT_ONCE)
    client.subscribe()
    assert client.problem()["error"] == "too.many.requests"
    assert client.actions() == ["created"] * (MOST + 1) + ["failed"]
    client.tell(Cancel(ids[0]))
    another = client.subscribe()
    client.tell(Request(another, 1))
    index.gate.set()
    for one in [*ids[1:], another]:
        await client.until("created", "next", "complete", of=one)
    assert index.most_running == AT_ONCE


async def test_old_searches_are_forgotten(client: Client) -> None:
    first = client.subscribe()
    client.tell(Cancel(first))
    live = client.subscribe(options="size(1)")
    for _ in range(100):
        client.tell(Cancel(client.subscribe()))
    client.tell(Request(first, 1))
    assert client.problem()["error"] == "thing-search:subscription.not.found"
    client.tell(Request(live, 1))
    await client.until("created", "next", of=live)


async def test_a_page_that_is_too_large_is_not_sent(index: Index) -> None:
    client = Client(index, outbox=300)
    one = client.subscribe(options="size(7)")
    client.tell(Request(one, 1))
    await wait_for(lambda: client.session.closing is not None or len(client.frames) > 1)
    assert client.actions() == ["created", "failed"]
    assert client.problem()["error"] == "request.toolarge"
    await client.searches.close()


async def test_nothing_runs_after_the_end_of_the_session(client: Client, index: Index) -> None:
    index.gate.clear()
    client.subscribe()
    client.tell(Request(client.subscribe(), 1))
    await wait_for(lambda: index.running == 1)
    sent = len(client.frames)
    await client.searches.close()
    assert index.running == 0
    assert len(client.frames) == sent
