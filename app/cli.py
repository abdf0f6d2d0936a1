"""The command line. Modules that cost time are imported by the command that needs them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import click

from app.cli_connections import connections
from app.cli_operator import USAGE_ERROR, fail
from app.cli_search import search
from app.cli_spark import spark

if TYPE_CHECKING:
    from app.settings import Loaded

P = ParamSpec("P")


def _say(kind: str, text: str) -> None:
    click.echo(f"ackgate: {kind}: {text}", err=True)


def _load(options: dict[str, Any], config: Path | None) -> Loaded:
    """The settings; ends the process with all problems if they cannot be read."""
    from app.settings import SettingsError, load

    try:
        return load(options, config)
    except SettingsError as wrong:
        fail(USAGE_ERROR, *wrong.problems)


_CONFIG = click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    help="TOML file with settings; default ./ackgate.toml if it is there.",
)
_OPTIONS = (
    click.option("--host", help="Address to listen on (127.0.0.1)."),
    click.option("--port", type=int, help="Port to listen on (8080); 0 takes a free one."),
    click.option(
        "--data-dir",
        type=click.Path(file_okay=False, path_type=Path),
        help="Folder of the embedded store's data.",
    ),
    click.option("--workers", type=int, help="Processes that serve the port (1)."),
    click.option("--redis-url", help="Use this Redis or Valkey instead of the embedded one."),
    click.option(
        "--dev", is_flag=True, default=None, help="Development: allow the default passwords."
    ),
    _CONFIG,
)


def _settings_options(command: Callable[P, None]) -> Callable[P, None]:
    """Add the options of ``serve``; unset ones are None."""

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        command(*args, **kwargs)

    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Acknowledgement gateway: a request is answered when everybody it names has confirmed it."""


@main.command()
@_settings_options
def serve(config: Path | None, **options: Any) -> None:
    """Run the gateway until SIGTERM or Ctrl-C."""
    from app.settings import UnsafeSettings

    loaded = _load(options, config)
    try:
        loaded.settings.check_safe()
    except UnsafeSettings as unsafe:
        fail(USAGE_ERROR, *(f"refusing to start: {reason}" for reason in unsafe.problems))
    import structlog

    from app.main import StartupError, run
    from app.observe.log import configure

    configure(loaded.settings)
    log = structlog.get_logger(__name__)
    for warning in loaded.warnings:
        log.warning("settings.unknown", reason=warning)
    if loaded.settings.dev:
        log.warning("settings.development", reason="--dev: default passwords are allowed")
    try:
        run(loaded.settings)
    except StartupError as problem:
        fail(USAGE_ERROR, str(problem))


@main.group("config")
def config_group() -> None:
    """Look at the settings."""


@config_group.command("show")
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")
@_settings_options
def config_show(as_json: bool, config: Path | None, **options: Any) -> None:
    """Print the effective settings with their origin; secrets are masked."""
    from app.settings import env_name

    loaded = _load(options, config)
    values = {name: _shown(name, loaded) for name in type(loaded.settings).model_fields}
    if as_json:
        settings = {
            name: {"value": value, "origin": loaded.origins[name], "environment": env_name(name)}
            for name, value in values.items()
        }
        file = str(loaded.file) if loaded.file else None
        body = {"file": file, "settings": settings, "warnings": list(loaded.warnings)}
        click.echo(json.dumps(body, indent=2))
        return
    if loaded.file:
        click.echo(f"# file: {loaded.file}")
    name_width = max(map(len, values))
    for name, value in values.items():
        click.echo(f"{name:<{name_width}}  {loaded.origins[name]:<7}  {_plain(value)}")
    for warning in loaded.warnings:
        _say("warning", warning)


@config_group.command("check")
@_settings_options
def config_check(config: Path | None, **options: Any) -> None:
    """Report every problem and warning; exit with 1 if `serve` would refuse to start."""
    from app.settings import SettingsError, load

    try:
        loaded = load(options, config)
        for warning in loaded.warnings:
            _say("warning", warning)
        loaded.settings.check_safe()
    except SettingsError as wrong:
        for problem in wrong.problems:
            _say("error", problem)
        sys.exit(1)
    click.echo("The settings are fine.")


@config_group.command("page", hidden=True)
@click.option("--write/--check", "write", default=False)
def config_page(write: bool) -> None:
    """Write docs/configuration.md, or exit with 1 if it is not up to date."""
    from app import settings_page

    if write:
        settings_page.write()
    elif not settings_page.is_current():
        _say("error", f"{settings_page.PAGE} is old: run `ackgate config page --write`")
        sys.exit(1)


@main.command("hash-password")
def hash_password() -> None:
    """Print the bcrypt form of a password for ACKGATE_USERS.

    Asks on a terminal; otherwise reads the first line of standard input.
    """
    from app.credentials import CredentialsError
    from app.credentials import hash_password as bcrypt_form

    if sys.stdin.isatty():
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    try:
        click.echo(bcrypt_form(password))
    except CredentialsError as wrong:
        fail(USAGE_ERROR, str(wrong))


@main.command()
def demo() -> None:
    """Show the product at work: two gateways, a WebSocket subscriber and a Spark job."""
    try:
        from app.demo.run import main as run_demo
    except ModuleNotFoundError as missing:
        if (missing.name or "").split(".")[0] in ("app", "acks", "connections"):
            raise
        fail(USAGE_ERROR, f"the demo needs {missing.name}: pip install 'ackgate[demo]'")
    sys.exit(run_demo())


@main.command()
@click.argument("labels", nargs=-1, metavar="[LABEL]...")
@click.option("--url", default="http://127.0.0.1:8080", show_default=True, help="The gateway.")
@click.option("--user", default="ditto:ditto", show_default=True, help="name:password")
@click.option(
    "--status", type=click.IntRange(100, 599), default=200, show_default=True, help="Of every ack."
)
@click.option("--payload", help="JSON that every ack carries.")
@click.option("--silent", is_flag=True, help="Acknowledge nothing: requests run into 408.")
@click.option("--messages", is_flag=True, help="Get messages, too, and answer them.")
@click.option("--group", default="", help="Share the labels with the members of this group.")
def subscribe(
    labels: tuple[str, ...],
    url: str,
    user: str,
    status: int,
    payload: str | None,
    silent: bool,
    messages: bool,
    group: str,
) -> None:
    """Subscribe at a gateway: declare LABELs, print what comes, acknowledge it.

    To try out requests that wait for an ack: `ackgate subscribe my:ack`.
    """
    import asyncio

    from app.subscribe import SubscriberFailed, Wanted
    from app.subscribe import subscribe as listen

    try:
        value = None if payload is None else json.loads(payload)
    except ValueError as problem:
        fail(USAGE_ERROR, f"--payload is not JSON: {problem}")
    name, _, password = user.partition(":")
    answer = None if silent else status
    wanted = Wanted(url, name, password, labels, answer, value, messages, group)
    try:
        asyncio.run(listen(wanted, click.echo))
    except SubscriberFailed as problem:
        fail(USAGE_ERROR, str(problem))
    except KeyboardInterrupt:
        sys.exit(0)


@main.command()
@click.option("--write/--check", "write", default=False, help="Check is the default.")
def openapi(write: bool) -> None:
    """Write the generated files in openapi/, or exit with 1 if it is not up to date."""
    from app.api import openapi_file

    if write:
        for path in openapi_file.write():
            click.echo(path)
    elif old := openapi_file.check():
        for path in old:
            _say("error", f"{path} is old: run `ackgate openapi --write`")
        sys.exit(1)


@main.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed

    click.echo(f"ackgate {installed('ackgate')}")


main.add_command(connections)
main.add_command(search)
main.add_command(spark)


def _shown(name: str, loaded: Loaded) -> object:
    """A value as it may be seen: names of users without passwords, the store without its own."""
    value = getattr(loaded.settings, name)
    if name in ("users", "operators") and value is not None:
        from app.credentials import parse_credentials

        entries = parse_credentials(value.get_secret_value())
        return ",".join(f"{user}:***" for user in entries)
    if name == "search_index":
        from app.observe.log import mask_text

        return mask_text(value.get_secret_value())
    if name == "redis_url" and value is not None:
        from app.store.redis_address import RedisAddress

        return str(RedisAddress.parse(value.get_secret_value()))
    if isinstance(value, tuple):
        return [str(item) for item in value]
    if isinstance(value, dict):
        return {key: item.model_dump(mode="json") for key, item in value.items()}
    return str(value) if isinstance(value, Path) else value


def _plain(value: object) -> str:
    if value is None or value in ([], {}):
        return "-"
    if isinstance(value, list):
        return ",".join(value)
    if isinstance(value, dict):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
