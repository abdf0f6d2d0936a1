"""``ackgate subscribe``: the subscriber for trying things out."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from click.testing import CliRunner
from websockets.asyncio.server import ServerConnection, serve

from app.cli import main
from app.subscribe import SubscriberFailed, Wanted, subscribe
from tests.gateways import Gateway, new_id, new_label, thing
from tests.servers import wait_for


@asynccontextmanager
async def listening(wanted: Wanted) -> AsyncIterator[list[str]]:
    """The lines of a running subscriber; the first of them is there."""
    lines: list[str] = []
    task = asyncio.create_task(subscribe(wanted, lines.append))
    try:
        await wait_for(lambda: bool(lines) or task.done(), what="the subscriber listens")
        yield lines
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_it_prints_and_acknowledges_what_comes(
    client: httpx.AsyncClient, gateway: Gateway
) -> None:
    label, name = new_label(), new_id()
    wanted = Wanted(gateway.url, "ditto", "ditto", (label,), 202, {"by": "hand"})
    async with listening(wanted) as lines:
        answer = await client.put(thing(name), json={}, params={"requested-acks": label})
    assert (answer.status_code, answer.json()) == (202, {"by": "hand"})
    assert label in lines[0]
    assert name in lines[1]
    assert "revision 1" in lines[1]
    assert lines[2].split() == ["ack", label, "202"]


async def test_members_of_a_group_take_turns_and_stand_in_for_each_other(
    client: httpx.AsyncClient, gateway: Gateway
) -> None:
    label, name = new_label(), new_id()
    wanted = Wanted(gateway.url, "ditto", "ditto", (label,), None, group="workers:cli")
    async with listening(wanted) as one:
        assert one[0].endswith(f"{label}, shared in the group workers:cli")
        request = asyncio.create_task(
            client.put(thing(name), json={}, params={"requested-acks": label})
        )
        await wait_for(lambda: len(one) == 2)
        assert "again" not in one[1]
    async with listening(dataclasses.replace(wanted, status=200)) as other:
        assert (await request).status_code == 200
        assert name in other[1]
        assert "again, revision 1" in other[1]


async def test_silent_it_acknowledges_nothing(client: httpx.AsyncClient, gateway: Gateway) -> None:
    label = new_label()
    async with listening(Wanted(gateway.url, "ditto", "ditto", (label,), None)):
        answer = await client.put(
            thing(new_id()), json={}, params={"requested-acks": label, "timeout": "200ms"}
        )
    assert answer.status_code == 408


async def test_it_says_why_it_cannot_listen(gateway: Gateway) -> None:
    label = new_label()
    async with listening(Wanted(gateway.url, "ditto", "ditto", (label,))):
        with pytest.raises(SubscriberFailed, match="taken by other subscribers"):
            await subscribe(Wanted(gateway.url, "ditto", "ditto", (label,)), print)
    for wrong, reason in (
        (
            Wanted(gateway.url, "ditto", "wrong", ()),
            "refuses: 401: The request could not be authenticated. The user name or the password",
        ),
        (Wanted(gateway.url, "ditto", "ditto", ("a b",)), "400: Acknowledgement label <a b> is in"),
        (Wanted("http://127.0.0.1:1", "ditto", "ditto", ()), "no connection"),
        (Wanted("localhost:8080", "ditto", "ditto", ()), "no http or https address"),
    ):
        with pytest.raises(SubscriberFailed, match=reason):
            await subscribe(wrong, print)


async def test_as_a_command_it_says_so_in_a_sentence_and_fails(gateway: Gateway) -> None:
    label = new_label()

    async def refused(*options: str) -> str:
        arguments = ["subscribe", *options, "--url", gateway.url]
        done = await asyncio.to_thread(CliRunner().invoke, main, arguments)
        assert (done.exit_code, done.stdout) == (2, "")
        return done.stderr

    beginning = f"ackgate: error: {gateway.url} refuses: "
    assert await refused("--user", "ditto:wrong") == (
        f"{beginning}401: The request could not be authenticated. "
        "The user name or the password is wrong.\n"
    )
    async with listening(Wanted(gateway.url, "ditto", "ditto", (label,))):
        assert await refused(label) == (
            f"{beginning}409: One or more declared acknowledgement labels are taken by other "
            "subscribers. Please ensure all other subscribers with the declared acknowledgement "
            "labels are offline.\n"
        )


async def test_an_event_between_two_confirmations_is_one_like_others() -> None:
    """Events may come as soon as they are asked for: while messages are being asked for, too."""
    event = {
        "topic": "org.example/lamp-1/things/twin/events/modified",
        "headers": {"correlation-id": "c", "requested-acks": ["my:ack"]},
        "path": "/attributes/n",
        "value": 1,
        "revision": 2,
    }
    taken: list[str] = []

    async def answer(peer: ServerConnection) -> None:
        async for frame in peer:
            text = str(frame)
            taken.append(text)
            if text == "START-SEND-MESSAGES":
                await peer.send(json.dumps(event))
            if text.startswith("START-SEND-"):
                await peer.send(f"{text}:ACK")

    async with serve(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        wanted = Wanted(f"http://127.0.0.1:{port}", "ditto", "ditto", ("my:ack",), messages=True)
        async with listening(wanted) as lines:
            await wait_for(lambda: len(lines) == 3)
    assert "org.example:lamp-1 modified /attributes/n revision 2, 1" in lines[0]
    assert lines[1].split() == ["ack", "my:ack", "200"]
    assert lines[2].startswith("listening at")
    assert taken[:2] == ["START-SEND-EVENTS", "START-SEND-MESSAGES"]
    assert json.loads(taken[2])["topic"].endswith("/acks/my:ack")
