"""``ackgate spark <job>``: the ready-made Spark jobs, reading from this machine's gateway."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from typing import Final

import click
from typing_extensions import override

URL: Final = "ACKGATE_REDIS_URL"
JOBS: Final = ("ack-report", "archive", "validate")


class _Jobs(click.Group):
    """Loads a job when it is asked for, so that the other commands start as fast as before."""

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*JOBS]

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in JOBS:
            return None
        name = cmd_name.replace("-", "_")
        command: click.Command = getattr(import_module(f"connections.spark.jobs.{name}"), name)
        return command


@click.group(cls=_Jobs)
def spark() -> None:
    """Run a ready-made Spark job (docs/spark-jobs.md).

    Without --redis-url and ACKGATE_REDIS_URL a job reads from the store that a gateway with these
    settings uses: the one of ackgate.toml, or the embedded one in its data folder.
    """
    if find_spec("pyspark") is None:
        raise click.UsageError("the jobs need Spark: pip install 'ackgate[spark]'")
    if not os.environ.get(URL) and (url := _store_here()):
        os.environ[URL] = url


def _store_here() -> str | None:
    """The store of a gateway that was started here; None if there is none."""
    from app.settings import SettingsError, load
    from app.store.embedded import EmbeddedServer

    try:
        settings = load().settings
    except SettingsError as wrong:
        raise click.UsageError("; ".join(wrong.problems)) from wrong
    if settings.redis_url is not None:
        return settings.redis_url.get_secret_value()
    runs = (settings.data_dir / "redis.sock").exists()
    return EmbeddedServer(settings.data_dir).url if runs else None
