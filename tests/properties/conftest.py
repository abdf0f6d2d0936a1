"""An index on each of its databases, shared by the tests of a module."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres import postgres_binaries, postgres_server
from tests.search_lab import Lab


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    with asyncio.Runner() as runner, tempfile.TemporaryDirectory() as directory:
        if request.param == "sqlite":
            made = Lab(runner, "sqlite", Path(directory))
            yield made
            runner.run(made.database.close())
            return
        binaries = postgres_binaries()
        if binaries is None:
            pytest.skip("there is no PostgreSQL on this machine")
        with postgres_server(binaries) as server:
            made = Lab(runner, server.database(), Path(directory))
            yield made
            runner.run(made.database.close())
