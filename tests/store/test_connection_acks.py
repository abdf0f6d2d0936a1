"""Acks that a connection's source gets while the store is away."""

from __future__ import annotations

from app.connection_gate import ConnectionGate
from app.node import Node
from app.settings import Settings
from connections.ports import Answer, Sender
from tests.servers import RedisServer, wait_for
from tests.store.test_connection_gate import ME, Desk, command


async def test_an_ack_that_comes_while_the_labels_are_not_surely_ours_comes_again(
    own: RedisServer, prefix: str
) -> None:
    """It would be settled otherwise, and the request would wait for it in vain."""
    node = Node(Settings(prefix=prefix, connections=False, search_index="off"), own.url)
    await node.start()
    desk = Desk(node)
    await node.gateway.entrance.open_crew(desk.crew)
    assert await node.gateway.entrance.claim_crew(desk.crew) is None
    other = ConnectionGate(node._desk, "other", None, elsewhere=lambda: None, runs=lambda: True)
    try:
        name = await desk.thing()
        answers: list[Answer] = []
        asked = command(name, correlation_id="c", requested_acks=["mine:all"])
        assert other.submit(asked, Sender("other", (ME,), frozenset()), answers.append)
        await desk.crew.sessions[0].frames()
        await desk.ask(command(name, "retrieve", None))  # behind the change, which is written then
        topic = f"{name.replace(':', '/')}/things/twin/acks/mine:all"
        headers = {"correlation-id": "c", "response-required": False}
        ack = {"topic": topic, "headers": headers, "path": "/", "status": 201}

        own.kill9()
        await wait_for(lambda: not node.gateway.owns_labels(), 15, "the loss of the store")
        waits, answer = await desk.ask(ack)
        assert (waits, answer.statuses) == (True, (503,))
        assert answers == []

        own.start()
        await wait_for(node.gateway.owns_labels, 15, "the labels")
        assert await desk.ask(ack) == (False, Answer(None, ()))
        await wait_for(lambda: answers, what="the answer to the request")
        assert answers[0].statuses == (201,)
    finally:
        await other.close()
        await desk.gate.close()
        await node.gateway.entrance.close_crew(desk.crew)
        await node.stop()
