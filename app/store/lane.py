"""What a process remembers of one thing: its lane (see app/store/twins.py)."""

from __future__ import annotations

from collections.abc import Callable

from acks.document import Twin
from acks.errors import GatewayError
from acks.policy import Policy
from acks.signals import Command, Response
from app.store.policies import StoredPolicy
from app.store.redis_client import Reply

OnDone = Callable[[Response | GatewayError], None]


class Op:
    """One change on its way."""

    __slots__ = (
        "attempts", "command", "deadline", "deleted", "fresh", "on_done", "own_policy", "policy",
        "reply",
    )  # fmt: skip

    def __init__(self, command: Command, deadline: int, on_done: OnDone) -> None:
        self.command = command
        self.deadline = deadline
        self.on_done = on_done
        self.attempts = 0
        self.fresh = False  # the lane's state was read after this change had arrived
        self.policy: Policy | None = None  # of a policyId that the change sets
        self.own_policy: Policy | None = None  # the stored one with the thing's id, if it is set
        self.deleted: StoredPolicy | None = None  # what the policy that it makes replaces
        self.reply: Response | None = None


class Lane:
    """The state of one thing and the changes that wait for it or are on their way."""

    __slots__ = (
        "broken", "flying", "generation", "keys", "known", "loading", "policy", "refused", "size",
        "stored", "text", "twin", "waiting",
    )  # fmt: skip

    def __init__(self, keys: tuple[str, str, str]) -> None:
        self.keys = keys  # twin, journal, policy with the thing's id
        self.twin: Twin | None = None
        self.text = b""  # the document as JSON, where the twin lacks it
        self.policy: Policy | None = None
        self.generation = -1  # of the policies, when this one was known to be the stored one
        self.known = False
        self.loading = False
        self.broken = False
        self.stored: Reply = None  # the state that a refused change found
        self.flying: list[Op] = []
        self.refused: list[Op] = []  # come before the waiting ones
        self.waiting: list[Op] = []
        self.size = 0
