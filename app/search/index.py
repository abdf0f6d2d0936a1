"""The gateway's own connection with the index, and whether that is the index of its data."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from app.search.leases import check_store
from app.store.redis_client import StoreError, StoreUnavailable
from app.store.sql.database import Database, IndexOff, IndexUnavailable, open_index


class GatewayIndex:
    """Opened once, by whoever needs it first. ``store`` names the data it has to be made from.

    ``name`` is the index's own: "" if there is none, None until it is open.
    """

    def __init__(
        self,
        index: str,
        data_dir: Path,
        store: Callable[[], Awaitable[str]],
        *,
        timeout: float,
    ) -> None:
        self.name: str | None = "" if index == "off" else None
        self._index = index
        self._data_dir = data_dir
        self._store = store
        self._timeout = timeout
        self._database: Database | None = None
        self._checked = False
        self._opening = asyncio.Lock()

    async def opened(self) -> Database:
        """The index, which is of our data.

        Raises IndexOff, and IndexUnavailable if it cannot be opened or is of other data.
        """
        database = await self.unchecked()
        if not self._checked:
            self.name = await check_store(database, await self.store())
            self._checked = True
        return database

    async def check(self) -> None:
        """Look again whether the index is of our data, as it has another name.

        Raises IndexOff, and IndexUnavailable if it is not.
        """
        self._checked, self.name = False, None
        await self.opened()

    async def unchecked(self) -> Database:
        """The index, whatever data it was made from. Raises IndexOff, IndexUnavailable."""
        if self._index == "off":
            raise IndexOff("there is no search index: search_index is off")
        async with self._opening:
            if self._database is None:
                self._database = await open_index(
                    self._index, self._data_dir, timeout=self._timeout
                )
            return self._database

    async def store(self) -> str:
        """The name of our data. Raises IndexUnavailable."""
        try:
            return await self._store()
        except (StoreUnavailable, StoreError) as problem:
            raise IndexUnavailable(f"the store cannot be reached: {problem}") from problem

    async def close(self) -> None:
        """Close it. Idempotent."""
        async with self._opening:
            database, self._database = self._database, None
        if database is not None:
            await database.close()
