"""``docs/configuration.md``: the settings as a page, generated from the class."""

from __future__ import annotations

from inspect import get_annotations
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from app.settings import Settings, env_name

PAGE = Path("docs/configuration.md")

_UNITS = {
    "Size": "size",
    "Duration": "duration",
    "Names": "list",
    "Networks": "networks",
}

_HEAD = """\
# Configuration

This page is generated from `app/settings.py` by `ackgate config page --write`.

A setting comes from, in this order: an option of the command line, the environment, a TOML file,
the default. The file is the one that `--config` or `ACKGATE_CONFIG` names, else `./ackgate.toml`
if it is there; its keys are the names below, at the top level. An empty environment variable
counts as not set. Unknown keys and unknown `ACKGATE_*` variables give a warning that names the
nearest valid one.

`ackgate config show` prints the effective values with their origin, secrets masked.
`ackgate config check` reports all problems at once and exits with 1 if there is one.

A duration is a number of seconds, or like `500ms`, `5s`, `1m`, `1h`. A size is a number of bytes,
or like `64KiB`, `16MiB`, `10MB`. A list is text with commas, or an array of the TOML file. A table
is JSON text, or a table of the TOML file. Relative paths start at the working directory.

"""

_TAIL = """
## Users and operators

`ACKGATE_USERS` holds `name:password` entries, separated by commas. A password is plain or a
bcrypt hash; `ackgate hash-password` makes one, and so does `htpasswd -B`. A plain password has no
comma. A name has neither a colon nor a comma, and is there once, also across both lists. The
subject of user `alice` in a policy is `nginx:alice`.

```toml
users = "alice:$2b$12$...,device-7:long-random-text"
operators = "ops:$2b$12$..."
```

In a shell, and in the `.env` file of Docker Compose, put a hash in single quotes: it holds `$`.

Proxies and issuers of tokens are in [authentication.md](authentication.md).

## What refuses to start

`ackgate serve` refuses, with all reasons at once and exit code 2:

| when | unless |
|---|---|
| no users are set, no issuers, and no proxy may name subjects | `--dev` |
| a user or operator still has a default password (`ditto:ditto`, `user2:user2`, `devops:foobar`), \
plain or hashed | `--dev` |
| a default password is in use and the gateway listens on more than the loopback interface | \
`ACKGATE_DEV_EXPOSED=true`, with `--dev` |
| a trusted proxy is about everybody: a network larger than `/8` (IPv4) or `/16` (IPv6) | \
`--dev` on the loopback interface, or with `ACKGATE_DEV_EXPOSED=true` |
| the keys of an issuer come by `http://` | `--dev` |
| an issuer has neither audiences nor conditions | `--dev` |

With `--dev`, a list that is not set gets the defaults: users `ditto:ditto` and `user2:user2`, the
operator `devops:foobar`. Without `--dev`, operators may stay unset: then nobody is an operator (but
whom `operator_subjects` names), and operator pages and `/metrics` refuse everybody.

## Where the data is

The embedded store keeps its data in `data_dir`. The default is a folder of the user, not the
working directory: a gateway that is started from another folder must find every acknowledged write
again. One gateway (with all its workers) uses a data directory at a time; give a second one on the
same machine its own `--data-dir`, or let both use one store by `ACKGATE_REDIS_URL`.
"""


def render() -> str:
    """The whole page as Markdown."""
    rows = ["| name | environment | type | default | meaning |", "|---|---|---|---|---|"]
    for name, field in Settings.model_fields.items():
        cells = (
            f"`{name}`",
            f"`{env_name(name)}`",
            _type(name, field),
            _default(name, field),
            (field.description or "").replace("|", "\\|"),
        )
        rows.append(f"| {' | '.join(cells)} |")
    return _HEAD + "\n".join(rows) + "\n" + _TAIL


def write(path: Path = PAGE) -> None:
    """Write the page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(), encoding="utf-8")


def is_current(path: Path = PAGE) -> bool:
    """Whether the page is there and says what the class says."""
    return path.is_file() and path.read_text(encoding="utf-8") == render()


def _declared(name: str) -> str:
    """The type of a setting as it is written in its class."""
    for owner in Settings.__mro__:
        declared = get_annotations(owner).get(name)
        if declared is not None:
            return str(declared)
    raise KeyError(name)


def _type(name: str, field: FieldInfo) -> str:
    return _UNITS.get(_declared(name)) or _type_name(field.annotation)


def _type_name(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _type_name(get_args(annotation)[0])
    if origin is dict:
        return "table"
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in get_args(annotation))
    if origin in (Union, UnionType):
        return _type_name(next(arm for arm in get_args(annotation) if arm is not NoneType))
    if annotation is SecretStr:
        return "secret text"
    names = {str: "text", int: "integer", float: "number", bool: "`true`, `false`", Path: "path"}
    return names[annotation]


def _default(name: str, field: FieldInfo) -> str:
    if name == "data_dir":
        return "`$XDG_DATA_HOME/ackgate`, else `~/.local/share/ackgate`"
    if field.default is None:
        return "not set"
    if isinstance(field.default, bool):
        return f"`{str(field.default).lower()}`"
    if field.default in ((), {}):
        return "none"
    declared = _declared(name)
    if declared == "Size":
        return f"`{_size(field.default)}`"
    if declared == "Duration":
        return f"`{field.default:g}s`"
    if isinstance(field.default, SecretStr):
        return f"`{field.default.get_secret_value()}`"  # what everybody has is no secret
    if isinstance(field.default, tuple):
        return f"`{','.join(map(str, field.default))}`"
    return f"`{field.default}`"


def _size(value: int) -> str:
    for unit, factor in (("MiB", 2**20), ("KiB", 2**10)):
        if value % factor == 0:
            return f"{value // factor}{unit}"
    return str(value)
