from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No setting of the machine reaches a test, and no ackgate.toml of the working directory."""
    for name in list(os.environ):
        if name.upper().startswith("ACKGATE_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
