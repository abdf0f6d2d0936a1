"""An index on each of its databases, shared by the tests of a module."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres import postgres_here
from tests.search_lab import Lab


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    with asyncio.Runner() as runner, tempfile.TemporaryDirectory() as directory:
        if request.param == "sqlite":
            made = Lab(runner, "sqlite", Path(directory))
            yield made
            runner.run(made.database.close())
            return
        with postgres_here() as server:
            made = Lab(runner, server.database(), Path(directory))
            yield made
            runner.run(made.database.close())
