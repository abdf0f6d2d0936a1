"""Hearing of changed policies: see app/store/policies.py, which forgets them then."""

from __future__ import annotations

from acks.journal import policy_channel
from app.store.policies import PolicyStore
from app.store.redis_client import RedisAddress, Subscriber


class PolicyChanges:
    """Hears of policies that are changed, wherever that is, and tells the store of this process.

    While it is not connected nothing is kept, for changes may be missed; what is in use meanwhile
    is looked at again when it is back.
    """

    def __init__(
        self, address: RedisAddress, policies: PolicyStore, *, prefix: str, node: str
    ) -> None:
        self._policies = policies
        self._subscriber = Subscriber(
            address, [policy_channel(prefix)], self._received, name=f"ackgate-policies-{node}"
        )
        self._subscriber.on_connected = lambda: self._listen(True)
        self._subscriber.on_lost = lambda: self._listen(False)

    @property
    def connected(self) -> bool:
        """Whether changes can be heard of."""
        return self._subscriber.connected

    async def start(self, deadline: float) -> None:
        """Listen; raises StoreUnavailable after ``deadline`` seconds."""
        await self._subscriber.start(deadline)

    async def close(self) -> None:
        """Stop listening."""
        await self._subscriber.close()

    def _listen(self, connected: bool) -> None:
        self._policies.listening = connected
        self._policies.all_changed()

    def _received(self, _channel: bytes, policy_id: bytes) -> None:
        self._policies.changed(policy_id.decode("utf-8", "replace"))
