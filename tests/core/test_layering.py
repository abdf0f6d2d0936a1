"""Rule 1 where import-linter ends: `acks` uses an allowlist of standard modules, nothing else."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "acks").rglob("*.py"))

IMPURE = {
    "asyncio", "concurrent", "contextvars", "http", "io", "logging", "multiprocessing", "os",
    "pathlib", "queue", "random", "secrets", "select", "selectors", "shutil", "signal", "socket",
    "sqlite3", "ssl", "subprocess", "sys", "tempfile", "threading", "time", "urllib", "uuid",
}  # fmt: skip
CLOCKS = {"now", "utcnow", "today", "open", "print", "input"}


def imported(source: str) -> set[str]:
    """Top-level names of all modules that `source` imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
    return names


def called(source: str) -> set[str]:
    """Names of all functions and methods that `source` calls."""
    functions = [node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    names = {function.id for function in functions if isinstance(function, ast.Name)}
    return names | {function.attr for function in functions if isinstance(function, ast.Attribute)}


def test_there_is_a_core() -> None:
    assert ROOT / "acks" / "__init__.py" in MODULES


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_core_imports_pure_standard_library_only(module: Path) -> None:
    names = imported(module.read_text())
    assert names - set(sys.stdlib_module_names) - {"acks"} == set()
    assert names & IMPURE == set()


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_core_asks_no_clock_and_no_file(module: Path) -> None:
    assert called(module.read_text()) & CLOCKS == set()


def test_the_check_sees_hidden_imports() -> None:
    source = "def f():\n    from time import monotonic\n    import redis.asyncio\n"
    assert imported(source) == {"time", "redis"}
    assert called("datetime.now()\nopen('x')") == {"now", "open"}
