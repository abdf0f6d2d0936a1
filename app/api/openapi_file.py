"""The files in ``openapi/``: generated from the application and the catalogue, compared in CI."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from acks.errors import CATALOGUE
from app.api.auth import Authenticator
from app.api.operations import OPERATIONS, SCHEMAS, SECURITY
from app.api.rest import Rest

FOLDER = Path(__file__).resolve().parents[2] / "openapi"


def document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document: FastAPI's routes and the hand-kept operations of the hot ones."""
    built = dict(app.openapi())
    built["paths"] = {**OPERATIONS, **built["paths"]}
    components = built.setdefault("components", {})
    components["schemas"] = {**components.get("schemas", {}), **SCHEMAS}
    components["securitySchemes"] = SECURITY
    built["security"] = [{name: []} for name in SECURITY]
    for path in ("/health", "/health/live", "/health/ready"):
        built["paths"][path]["get"]["security"] = []
    built["info"]["description"] = (
        "Acknowledgement gateway in front of digital twins, wire-compatible with Eclipse Ditto's "
        "HTTP API where it covers it."
    )
    return built


def errors() -> list[dict[str, Any]]:
    """The error catalogue as data."""
    return [
        {
            "error": kind.code,
            "status": kind.status,
            "message": kind.message,
            "description": kind.description,
            "retryable": kind.retryable,
        }
        for kind in sorted(CATALOGUE.values(), key=lambda kind: kind.code)
    ]


async def _no_metrics() -> bytes:
    return b""


def _files() -> dict[str, str]:
    app = Rest(Authenticator({}), dict, _no_metrics).build()
    contents = {"openapi.json": document(app), "errors.json": errors()}
    return {name: json.dumps(value, indent=2) + "\n" for name, value in contents.items()}


def write() -> list[Path]:
    """Write the files; returns their paths."""
    written = []
    for name, text in _files().items():
        path = FOLDER / name
        path.write_text(text)
        written.append(path)
    return written


def check() -> list[Path]:
    """Paths of files that are out of date."""
    return [
        FOLDER / name
        for name, text in _files().items()
        if not (FOLDER / name).is_file() or (FOLDER / name).read_text() != text
    ]
