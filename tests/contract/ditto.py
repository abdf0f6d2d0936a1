"""Ditto's own documents, if they are here: ``DITTO_SPEC``, or a folder beside the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.gateways import ROOT

_FOLDER = Path(os.environ.get("DITTO_SPEC") or ROOT.parent / "shared" / "spec" / "ditto")


def ditto_file(name: str) -> Path:
    """A file of Ditto's documentation; skips the test if it is not here."""
    file = _FOLDER / name
    if not file.is_file():
        pytest.skip(f"Ditto's {name} is not here; DITTO_SPEC may name its folder")
    return file
