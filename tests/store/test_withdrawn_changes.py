"""Changes of who may write no longer: what is not on its way, or meets another change, is none."""

from __future__ import annotations

import pytest

from app.crew import origin_of
from app.node import Node
from app.settings import Settings
from connections.ports import Answer
from tests.servers import RedisServer, wait_for
from tests.store.test_connection_gate import Desk, command


@pytest.mark.parametrize("known", [True, False], ids=["state known", "state to be read"])
async def test_what_is_withdrawn_does_not_undo_what_others_have_changed(
    shared: RedisServer, prefix: str, known: bool
) -> None:
    """A process that was paused may find in itself what others have long carried out."""
    settings = Settings(prefix=prefix, connections=False, search_index="off")
    nodes = [Node(settings, shared.url) for _ in range(2)]
    for node in nodes:
        await node.start()
    one, other = map(Desk, nodes)
    try:
        name = await (one if known else other).thing()
        _, answer = await other.ask(command(name, value="new"))
        assert answer.statuses == (204,)
        waits, answers = one.say(command(name, value="old"))
        assert waits
        nodes[0].gateway.twins.withdraw(origin_of("mine"))
        await wait_for(lambda: answers, what="answer")
        assert answers[0].statuses == (503,)
        assert await value_of(other, name) == "new"
        _, answer = await one.ask(command(name, value="newer"))
        assert answer.statuses == (204,), "what comes later is another matter"
        assert await value_of(other, name) == "newer"
    finally:
        for desk in (one, other):
            await desk.gate.close()
            await desk.node.stop()


async def value_of(desk: Desk, name: str) -> object:
    """The attribute that :func:`command` sets."""
    answer: Answer = (await desk.ask(command(name, "retrieve", None)))[1]
    assert answer.envelope is not None
    return answer.envelope["value"]
