"""Something that goes on beside what the demo does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def meanwhile(work: Coroutine[Any, Any, None], name: str) -> AsyncIterator[None]:
    """Let ``work`` run until the end of the block; raises what has ended it before that."""
    task = asyncio.create_task(work, name=name)
    try:
        yield
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
