"""What waits for its turn in a connection's client, once the client is not ours any more."""

from __future__ import annotations

import pytest

from app.api.ws_turns import Kind
from app.connection_gate import Queue


class Client:
    """A client's queue, with a message that waits until a change is done, and one behind it."""

    def __init__(self) -> None:
        self.ours = True
        self.done: list[str] = []
        self.queue = Queue(lambda: self.ours)
        self._token = self.queue.enter(Kind.CHANGE, "t")
        self.queue.in_turn(Kind.READ, "t", lambda: self.done.append("next"))
        self.queue.in_turn(Kind.READ, "t", lambda: self.done.append("after it"))

    def change_is_done(self) -> None:
        """Whatever waited may be carried out."""
        self.queue.leave(Kind.CHANGE, "t", self._token)
        self.queue._go_on()


async def test_what_has_waited_is_carried_out() -> None:
    it = Client()
    assert it.done == []
    it.change_is_done()
    assert it.done == ["next", "after it"]


@pytest.mark.parametrize("closed", [False, True])
async def test_it_is_left_to_whoever_runs_the_client_now(closed: bool) -> None:
    it = Client()
    if closed:
        await it.queue.close()
    else:
        it.ours = False
    it.change_is_done()
    assert it.done == []
