"""All settings in one typed class: options, then environment, then TOML file, then defaults.

:class:`Settings` says what there is; :func:`load` reads it from everywhere and says where each
value came from. ``docs/configuration.md`` is generated from the class (app/settings_page.py).
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic import model_validator as validator
from pydantic_settings import SettingsConfigDict

from acks.journal import DEFAULT_PREFIX, DEFAULT_SHARDS
from app.credentials import Credential
from app.settings_access import AccessSettings
from app.settings_values import Count, Duration, Names, Size

__all__ = ["Credential", "Loaded", "Settings", "SettingsError", "UnsafeSettings", "load"]

ENV_PREFIX = "ACKGATE_"
CONFIG_ENV = "ACKGATE_CONFIG"
CONFIG_FILE = Path("ackgate.toml")

Origin = Literal["default", "file", "env", "option"]


class SettingsError(Exception):
    """The settings cannot be used; ``problems`` holds one sentence each, never a secret."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class UnsafeSettings(SettingsError):
    """The settings can be read, but starting with them would be careless."""


def default_data_dir() -> Path:
    """``$XDG_DATA_HOME/ackgate`` or ``~/.local/share/ackgate``.

    Not the working directory: whoever starts the gateway from another folder must find every
    acknowledged write again.
    """
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "ackgate"


class Settings(AccessSettings):
    """Everything that can be set. The order is the order of ``docs/configuration.md``."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        validate_default=False,
    )

    redis_url: SecretStr | None = Field(
        None,
        description="Store: redis://[user:password@]host:port[/db], rediss:// or unix:///path; "
        "when unset, the gateway runs an embedded server.",
    )
    redis_server: Path | None = Field(
        None, description="Binary of the embedded server; when unset, a bundled or installed one."
    )
    data_dir: Path = Field(
        default_factory=default_data_dir,
        description="Folder of the embedded server's data; kept between runs.",
    )
    durability: Literal["fsync", "everysec", "none"] = Field(
        "fsync",
        description="What a write must have survived before it is acknowledged: fsync "
        "(power loss), everysec (process crash; power loss takes a second), none (nothing).",
    )
    prefix: str = Field(
        DEFAULT_PREFIX,
        pattern=r"^[A-Za-z0-9_.-]{1,64}$",
        description="First part of every store key.",
    )
    shards: int = Field(
        DEFAULT_SHARDS,
        ge=1,
        le=999,
        description="Parts of twins and journal; fixed when the data is created.",
    )
    journal_max_entries: Count = Field(
        100_000, description="Journal entries kept per shard; older ones are trimmed."
    )
    twin_cache_bytes: Size = Field(
        64 * 2**20,
        ge=0,
        description="Memory per process for a cache of twins; 0 turns it off.",
    )
    store_timeout: Duration = Field(
        5.0, description="Longest wait for the store; then the request gets 503."
    )
    outcomes: bool = Field(
        True,
        description="Keep what became of requested acknowledgements, for the ack report "
        "(docs/spark-jobs.md).",
    )
    outcomes_max_entries: Count = Field(
        2_000,
        description="Entries of outcomes kept, of up to 500 requests each; older ones are trimmed.",
    )
    link: str = Field(
        "auto",
        description="Direct way of acks between gateway processes: auto (on one machine), off "
        "(only through the store), or an own host:port for other machines, which must be in a "
        "trusted network: it is not encrypted. Port 0 takes a free one.",
    )
    label_lease: Duration = Field(
        6.0, description="Time after which a dead gateway's declared labels are free again."
    )

    search_index: SecretStr = Field(
        SecretStr("sqlite"),
        description="Index of the search: sqlite (the file search.sqlite in data_dir), "
        "sqlite:/path of another file, postgresql://user:password@host:port/database (for gateways "
        "on several machines; needs the extra postgres), or off.",
    )
    search_interval: Duration = Field(
        0.5,
        description="How long changes of twins are gathered before they are indexed, unless one "
        "asks for search-persisted: that is indexed at once.",
    )
    search_timeout: Duration = Field(
        10.0, description="Longest time that the index may take for one query or one batch."
    )

    header_defaults: Literal["documented", "ditto"] = Field(
        "documented",
        description="Defaults of absent headers: as Ditto's documentation says, or as its code "
        "does where the two differ.",
    )
    default_timeout: Duration = Field(
        60.0, description="Wait for acknowledgements when a request names no timeout."
    )
    max_timeout: Duration = Field(60.0, description="Longest timeout that a request may name.")
    async_keep: Duration = Field(
        300.0,
        description="How long the outcome of a request with `Prefer: respond-async` can be read.",
    )
    drain_timeout: Duration = Field(
        10.0, description="Time that open requests get to finish after SIGTERM."
    )

    connections: bool = Field(
        True, description="Whether this gateway runs connections (docs/connections.md)."
    )
    connection_lease: Duration = Field(
        6.0,
        description="Time after which another gateway runs the connections of a dead one. Below 4 "
        "seconds two may run one for a moment.",
    )
    connection_open_timeout: Duration = Field(
        50.0, description="Longest time that it may take to connect with a broker."
    )
    connection_retry: Duration = Field(
        5.0, description="Wait before a lost connection is opened again; doubles every time."
    )
    connection_retry_max: Duration = Field(
        3_600.0, description="Longest wait before a lost connection is opened again."
    )
    connection_in_flight: Count = Field(
        100, description="Messages that one client of a connection handles at a time."
    )
    connection_blocked_hosts: Names = Field(
        (),
        description="Hosts that no connection may lead to: names, addresses, networks. With any "
        "of them, this machine and private networks are blocked, too.",
    )

    max_pending: Count = Field(
        100_000, description="Open requests per process; more are refused with 503."
    )
    max_sessions: Count = Field(
        10_000, description="Sessions per process; more are refused with 503."
    )
    max_ack_streams: Count = Field(
        256,
        description="Open event streams of accepted requests per process; more are refused "
        "with 503.",
    )
    session_outbox: Size = Field(
        16 * 2**20, gt=0, description="Bytes that may wait for one slow session."
    )
    max_body_bytes: Size = Field(
        2**20, gt=0, description="Largest request body or WebSocket frame."
    )
    max_thing_bytes: Size = Field(102_400, gt=0, description="Largest twin.")
    max_headers_chars: Count = Field(
        5_120, description="Most characters of all signal headers together."
    )

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severe log level that is written."
    )
    log_format: Literal["auto", "json", "console"] = Field(
        "auto", description="Log lines: console on a terminal and JSON elsewhere, or always one."
    )
    access_log_sample: float = Field(
        0.0, ge=0.0, le=1.0, description="Share of the requests that are logged one by one."
    )

    @field_validator(
        "log_level", "log_format", "durability", "header_defaults", "link", mode="before"
    )
    @classmethod
    def _lower(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @field_validator("data_dir", "redis_server")
    @classmethod
    def _absolute(cls, value: Path | None) -> Path | None:
        return None if value is None else value.expanduser().absolute()

    @field_validator("redis_url")
    @classmethod
    def _store_url(cls, value: SecretStr | None) -> SecretStr | None:
        # The parser's own errors may quote the URL and so the password; this one does not.
        if value is not None:
            from app.store.redis_address import RedisAddress

            try:
                RedisAddress.parse(value.get_secret_value())
            except ValueError:
                raise ValueError(
                    "not a store URL: redis://[user:password@]host:port[/db], rediss://... "
                    "or unix:///path"
                ) from None
        return value

    @field_validator("search_index")
    @classmethod
    def _index(cls, value: SecretStr) -> SecretStr:
        from app.store.sql.database import check_index

        check_index(value.get_secret_value())
        return value

    @field_validator("link")
    @classmethod
    def _link(cls, value: str) -> str:
        from app.link_wire import parse_listen

        parse_listen(value)
        return value

    @validator(mode="after")
    def _together(self) -> Self:
        self.credentials()
        if self.default_timeout > self.max_timeout:
            raise ValueError("default_timeout is longer than max_timeout")
        return self

    def check_safe(self) -> None:
        """Refuse what is unsafe outside development (rule 9).

        Raises UnsafeSettings with all reasons.
        """
        reasons = self.unsafe_access()
        if reasons:
            raise UnsafeSettings(reasons)


def env_name(field: str) -> str:
    """The environment variable of a field."""
    return ENV_PREFIX + field.upper()


@dataclass(frozen=True)
class Loaded:
    """Settings with where each value came from (by field name), and warnings as sentences."""

    settings: Settings
    origins: Mapping[str, Origin]
    warnings: tuple[str, ...]
    file: Path | None


def load(options: Mapping[str, Any] | None = None, config: Path | None = None) -> Loaded:
    """Read the settings: ``options`` win over the environment, that over the TOML file.

    ``config`` is the file; without it ``ACKGATE_CONFIG``, then ``./ackgate.toml`` if it is there.
    Raises SettingsError with all problems at once.
    """
    given = {name: value for name, value in (options or {}).items() if value is not None}
    file = config_file(config)
    values, warnings = _read(file) if file else ({}, [])
    environment = {
        name for name in Settings.model_fields if os.environ.get(env_name(name), "") != ""
    }
    origins: dict[str, Origin] = dict.fromkeys(Settings.model_fields, "default")
    origins |= dict.fromkeys(values, "file")
    origins |= dict.fromkeys(environment, "env")
    origins |= dict.fromkeys(given, "option")
    initial = {name: value for name, value in values.items() if name not in environment} | given
    try:
        settings = Settings(**initial)
    except ValidationError as invalid:
        # Not chained: the original holds the input, passwords included.
        raise SettingsError(_problems(invalid, origins, file)) from None
    warnings += _unknown_environment()
    return Loaded(settings, origins, tuple(warnings), file)


def config_file(config: Path | None = None) -> Path | None:
    """The TOML file that counts; raises SettingsError if one is named but not there."""
    named = config or (Path(os.environ[CONFIG_ENV]) if os.environ.get(CONFIG_ENV) else None)
    if named is None:
        return CONFIG_FILE if CONFIG_FILE.is_file() else None
    if not named.is_file():
        by = "--config" if config else CONFIG_ENV
        raise SettingsError([f"{by}: there is no file {named}"])
    return named


def _read(file: Path) -> tuple[dict[str, Any], list[str]]:
    try:
        with file.open("rb") as stream:
            table = tomllib.load(stream)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise SettingsError([f"{file}: cannot be read: {problem}"]) from None
    known = {name: value for name, value in table.items() if name in Settings.model_fields}
    unknown = [name for name in table if name not in known]
    return known, [
        f"{file}: unknown key {name}{_nearest(name, list(Settings.model_fields))}"
        for name in unknown
    ]


def _unknown_environment() -> list[str]:
    names = [*map(env_name, Settings.model_fields), CONFIG_ENV]
    # Upper or lower case, as pydantic-settings reads them.
    return [
        f"unknown environment variable {name}{_nearest(name.upper(), names)}"
        for name in sorted(os.environ)
        if name.upper().startswith(ENV_PREFIX) and name.upper() not in names
    ]


def _nearest(name: str, names: list[str]) -> str:
    match = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {match[0]}?" if match else "; it is ignored"


def _problems(
    invalid: ValidationError, origins: Mapping[str, Origin], file: Path | None
) -> list[str]:
    problems = []
    for fault in invalid.errors(include_url=False, include_input=False, include_context=False):
        text = fault["msg"].removeprefix("Value error, ")
        where = str(fault["loc"][0]) if fault["loc"] else ""
        if where:
            inner = "".join(f"{step}: " for step in fault["loc"][1:])
            text = f"{_place(where, origins.get(where, 'option'), file)}: {inner}{text}"
        problems.append(text)
    return problems


def _place(field: str, origin: Origin, file: Path | None) -> str:
    match origin:
        case "env":
            return env_name(field)
        case "file":
            return f"{file}: {field}"
        case "option":
            return f"--{field.replace('_', '-')}"
        case "default":
            return field
