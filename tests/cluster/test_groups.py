"""Label groups on several processes: one member gets a signal, another one if it is gone."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateways import (
    Gateway,
    Json,
    Subscriber,
    ack_all,
    ack_envelope,
    check_error,
    http,
    new_id,
    new_label,
    running,
    thing,
    ws_connect,
)
from tests.servers import RedisServer, wait_for
from tests.streams import put_async, reached

REDELIVERED = "ackgate-redelivered"
LEASE = "1s"


@asynccontextmanager
async def members(
    label: str, group: str, *gateways: Gateway, **how: Any
) -> AsyncIterator[list[Subscriber]]:
    """A member of ``group`` at each of the gateways."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(Subscriber.open(one, label, group=group, **how))
            for one in gateways
        ]


@pytest.fixture
def group() -> str:
    return new_label()


@pytest.fixture
def label() -> str:
    return new_label()


def asks_for(subscriber: Subscriber, label: str) -> list[Json]:
    """The signals of a subscriber that ask for the label."""
    return [one for one in subscriber.events if label in one["headers"].get("requested-acks", ())]


async def put(client: httpx.AsyncClient, label: str, **params: str) -> httpx.Response:
    """A change that waits for the label."""
    return await client.put(thing(new_id()), json={}, params={"requested-acks": label, **params})


async def holding(*subscribers: Subscriber, count: int = 1) -> Subscriber:
    """The one that has got ``count`` signals, once there is one."""
    await wait_for(lambda: any(len(one.events) >= count for one in subscribers))
    return next(one for one in subscribers if len(one.events) >= count)


async def test_one_member_gets_what_asks_for_its_label(
    a: Gateway, b: Gateway, label: str, group: str
) -> None:
    async with (
        members(label, group, a, a, b, b, ack=ack_all) as four,
        Subscriber.open(b) as other,
        http(a) as on_a,
        http(b) as on_b,
    ):
        answers = await asyncio.gather(*(put((on_a, on_b)[n % 2], label) for n in range(80)))
        assert {answer.status_code for answer in answers} == {200}
        await on_a.put(thing(new_id()), json={})
        for one in (*four, other):
            while not any("requested-acks" not in event["headers"] for event in one.events):
                await one.event(count=len(one.events) + 1)
        seen = Counter(
            event["headers"]["correlation-id"] for one in four for event in asks_for(one, label)
        )
        assert len(seen) == 80
        assert set(seen.values()) == {1}
        assert len(other.events) == 81
        for one in four:
            assert len(one.events) == len(asks_for(one, label)) + 1
            assert len(asks_for(one, label)) > 5, "all of them have something to do"
            assert not any(REDELIVERED in event["headers"] for event in one.events)


async def test_without_a_group_labels_stay_exclusive(
    a: Gateway, b: Gateway, label: str, group: str
) -> None:
    alone = new_label()
    async with members(label, group, a), Subscriber.open(a, alone):
        outside, other = "has an owner outside the group", f"The group '{group}' has no label"
        for labels, name, reason in (
            ([label], None, "Please ensure all other subscribers"),
            ([label], new_label(), f"'{label}' {outside}"),
            ([label, new_label()], group, other),
            ([new_label()], group, other),
            ([alone], new_label(), f"'{alone}' {outside}"),
            ([label, alone], group, f"{other} '{alone}'"),
        ):
            for gateway in (a, b):
                async with Subscriber.open(gateway, *labels, group=name, start=None) as refused:
                    problem = await refused.error()
                    assert problem["value"]["error"] == "acknowledgement:label.not.unique"
                    assert reason in problem["value"]["description"]
                    assert (await refused.closed())[0] == 1000
        async with Subscriber.open(b, label, group=group):
            pass


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        ("?ack-group=workers", {}),
        ("?declared-acks=&ack-group=workers", {}),
        ("?declared-acks=my:ack&ack-group=w", {}),
        ("?declared-acks=my:ack&ack-group=", {}),
        ("?declared-acks=my:ack", {"ack-group": "no name"}),
        ("", {"ack-group": "workers"}),
    ],
)
async def test_bad_groups_are_refused(a: Gateway, query: str, headers: dict[str, str]) -> None:
    from websockets.exceptions import InvalidStatus

    with pytest.raises(InvalidStatus) as refused:
        async with ws_connect(a, f"/ws/2{query}", headers=headers):
            pass
    answer = refused.value.response
    found = httpx.Response(
        answer.status_code,
        headers=list(answer.headers.raw_items()),
        content=bytes(answer.body or b""),
    )
    assert check_error(found, 400, "header.invalid")["invalidHeaderKey"] == "ack-group"


async def test_a_group_may_be_named_in_a_header(a: Gateway, label: str, group: str) -> None:
    headers = {"ack-group": group, "declared-acks": label}
    async with members(label, group, a), ws_connect(a, headers=headers) as connection:
        await connection.send("START-SEND-EVENTS")
        assert await connection.recv() == "START-SEND-EVENTS:ACK"


@pytest.mark.parametrize("where", ["same", "other"])
async def test_another_member_gets_what_one_has_not_acknowledged(
    a: Gateway, b: Gateway, label: str, group: str, where: str
) -> None:
    async with members(label, group, a, b if where == "other" else a) as two, http(b) as client:
        request = asyncio.create_task(put(client, label))
        first = await holding(*two)
        second = next(one for one in two if one is not first)
        assert second.events == []
        await first.connection.close()
        event = await second.event()
        assert event["headers"][REDELIVERED] is True
        assert event["headers"]["requested-acks"] == [label]
        assert {**event["headers"], REDELIVERED: 0} == {
            **first.events[0]["headers"],
            REDELIVERED: 0,
        }
        assert {**event, "headers": 0} == {**first.events[0], "headers": 0}
        await second.send(ack_envelope(event, label, status=202, value="second"))
        answer = await request
        assert (answer.status_code, answer.json()) == (202, "second")


async def test_without_another_member_the_request_waits_for_one(
    a: Gateway, b: Gateway, label: str, group: str
) -> None:
    async with http(a) as client:
        async with members(label, group, b) as [only]:
            request = asyncio.create_task(put(client, label))
            await only.event()
        async with Subscriber.open(a, label, group=group, start=None, ack=ack_all) as late:
            await late.command("STOP-SEND-EVENTS")  # it takes its time to subscribe
            assert not request.done()
            await late.command("START-SEND-EVENTS")
            assert (await request).status_code == 200
            assert late.events[0]["headers"][REDELIVERED] is True


async def test_without_any_member_the_time_runs_out(
    a: Gateway, b: Gateway, label: str, group: str
) -> None:
    async with http(a) as client:
        async with members(label, group, b) as [only]:
            request = asyncio.create_task(put(client, label, timeout="2s"))
            await only.event()
        check_error(await request, 408, "acknowledgement:request.timeout")
        async with members(label, group, b, ack=ack_all) as [later]:
            assert (await put(client, label)).status_code == 200
            assert len(later.events) == 1, "what is over is not delivered"


@pytest.mark.parametrize(
    ("method", "path", "query", "kind"),
    [
        ("POST", "/inbox/messages/ask", {}, "MESSAGES"),
        ("PUT", "/attributes/x", {"channel": "live"}, "LIVE-COMMANDS"),
    ],
)
async def test_messages_and_live_commands_too(
    a: Gateway, b: Gateway, label: str, group: str, method: str, path: str, query: Json, kind: str
) -> None:
    name, start = new_id(), f"START-SEND-{kind}"
    async with (
        members(label, group, a, b, start=start) as two,
        Subscriber.open(b, start=start, respond=lambda _: {"status": 200}) as other,
        http(a) as client,
    ):
        await client.put(thing(name), json={})
        query = {"requested-acks": label, **query}
        request = asyncio.create_task(
            client.request(method, thing(name, path), json=1, params=query)
        )
        first = await holding(*two)
        second = next(one for one in two if one is not first)
        await other.event()
        assert second.events == []
        await first.connection.close()
        event = await second.event()
        assert event["headers"][REDELIVERED] is True
        await second.send(ack_envelope(event, label, status=200))
        answer = await request
        assert (answer.status_code, sorted(answer.json())) == (
            200,
            sorted([label, "live-response"]),
        )
        assert len(other.events) == 1
        assert REDELIVERED not in other.events[0]["headers"]


async def test_who_does_not_want_a_signal_passes_it_on(
    a: Gateway, b: Gateway, label: str, group: str
) -> None:
    async with (
        Subscriber.open(a, label, group=group, start="START-SEND-MESSAGES"),
        Subscriber.open(a, label, group=group, user="user2") as unauthorised,
        Subscriber.open(
            b, label, group=group, start="START-SEND-EVENTS?filter=eq(attributes/x,1)"
        ) as filtered,
        http(a) as client,
    ):
        answer = await put(client, label)
        assert answer.status_code == 200
        assert "ditto-weak-ack" in answer.headers
        async with members(label, group, b, ack=ack_all) as [wants]:
            for _ in range(8):
                answer = await put(client, label)
                assert "ditto-weak-ack" not in answer.headers
                assert answer.json() == {"label": label}
            assert len(wants.events) == 8
            assert not any(REDELIVERED in event["headers"] for event in wants.events)
        assert unauthorised.events == filtered.events == []


async def test_a_member_does_not_get_its_own_signal(
    a: Gateway, b: Gateway, label: str, group: str
) -> None:
    name = new_id()
    namespace, _, rest = name.partition(":")
    modify: Json = {
        "topic": f"{namespace}/{rest}/things/twin/commands/modify",
        "headers": {"requested-acks": [label], "timeout": "10s"},
        "path": "/attributes/x",
        "value": 1,
    }
    async with members(label, group, a, b) as [sender, other], http(a) as client:
        await client.put(thing(name), json={})
        await sender.event()
        for count in range(1, 5):
            await sender.send(
                modify | {"headers": modify["headers"] | {"correlation-id": f"{name}-{count}"}}
            )
            event = await other.event(count=1 + count)
            await other.send(ack_envelope(event, label, status=200, value=count))
            answer = await sender.event(count=1 + count)
            assert (answer["status"], answer["value"][label]["payload"]) == (200, count)
        assert asks_for(sender, label) == []


async def test_late_acks_are_ignored(a: Gateway, b: Gateway, label: str, group: str) -> None:
    async with members(label, group, a, b) as two, http(a) as client:
        request = asyncio.create_task(put(client, label, timeout="300ms"))
        first = await holding(*two)
        assert (await request).status_code == 408
        await first.send(ack_envelope(first.events[0], label, status=200))
        await first.nothing_came()


async def test_an_accepted_request_is_given_to_another_member_too(
    a: Gateway, b: Gateway, label: str, group: str
) -> None:
    done = new_label()
    async with (
        members(label, group, b, b) as two,
        Subscriber.open(b, done, ack=ack_all),
        http(a) as client,
    ):
        path = await put_async(client, new_id(), requested_acks=f"{label},{done}")
        first = await holding(*two)
        second = next(one for one in two if one is not first)
        assert second.events == []
        await first.connection.close()
        event = await second.event()
        assert event["headers"][REDELIVERED] is True
        await second.send(ack_envelope(event, label, status=200, value=2))
        body = await reached(client, path, state="done")
        assert body["outcome"]["status"] == 200


@pytest.fixture
def three(store: RedisServer, tmp_path: Path) -> Iterator[tuple[Gateway, Gateway, Gateway]]:
    """Processes of which the test may kill the first one; leases are short."""
    made = [
        Gateway(tmp_path, redis_url=store.url, prefix="groups", label_lease=LEASE) for _ in range(3)
    ]
    with running(*made):
        yield made[0], made[1], made[2]


async def test_a_killed_process_takes_no_signals_with_it(
    three: tuple[Gateway, Gateway, Gateway], label: str, group: str
) -> None:
    doomed, b, c = three
    async with (
        http(b) as client,
        members(label, group, doomed, doomed) as dying,
        members(label, group, c, ack=ack_all) as [alive],
    ):
        requests = [asyncio.create_task(put(client, label, timeout="20s")) for _ in range(30)]
        await wait_for(lambda: sum(len(one.events) for one in (*dying, alive)) == 30)
        given = {one["headers"]["correlation-id"] for dead in dying for one in dead.events}
        assert given
        doomed.kill9()
        answers = await asyncio.gather(*requests)
        assert {answer.status_code for answer in answers} == {200}
        again = [one for one in alive.events if one["headers"].get(REDELIVERED)]
        assert {one["headers"]["correlation-id"] for one in again} == given
        assert len(alive.events) == 30, "and nothing twice"


async def test_after_a_kill_nothing_hangs(
    three: tuple[Gateway, Gateway, Gateway], label: str, group: str
) -> None:
    doomed, b, _ = three
    async with http(b) as client, members(label, group, doomed, doomed) as dying:
        requests = [
            asyncio.create_task(put(client, label, timeout=timeout))
            for timeout in ("4s", "30s") * 5
        ]
        await wait_for(lambda: sum(len(one.events) for one in dying) == 10)
        doomed.kill9()
        short = await asyncio.gather(*requests[::2])
        assert {answer.status_code for answer in short} == {408}
        assert not any(request.done() for request in requests[1::2])
        async with members(label, group, b, ack=ack_all) as [heir]:
            long = await asyncio.gather(*requests[1::2])
            assert {answer.status_code for answer in long} == {200}
            assert len(heir.events) == 5


async def test_a_stalled_process_loses_its_signals_to_another(
    three: tuple[Gateway, Gateway, Gateway], label: str, group: str
) -> None:
    stalled, b, c = three
    async with (
        members(label, group, stalled) as [slow],
        http(b) as client,
    ):
        request = asyncio.create_task(put(client, label))
        event = await slow.event()
        async with members(label, group, c, ack=ack_all):
            stalled.pause()
            try:
                assert (await request).status_code == 200
            finally:
                stalled.resume()
        await slow.send(ack_envelope(event, label, status=500))
        await slow.nothing_came()
