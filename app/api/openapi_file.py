"""The files in ``openapi/``: generated from the application and the catalogue, compared in CI."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from acks.errors import CATALOGUE
from acks.signals import JsonObject
from app.api.auth import Authenticator
from app.api.openapi_answers import ANSWERS
from app.api.openapi_answers import errors as error_answers
from app.api.openapi_parameters import PARAMETERS
from app.api.openapi_schemas import SCHEMAS
from app.api.operations import OPERATIONS
from app.api.rest import Rest

_OPEN = ("/health", "/health/live", "/health/ready")
_GUARDED = {
    "/": (400, 401, 429, 431, 503),
    "/metrics": (400, 401, 403, 429, 431, 503),
    "/devops/search": (400, 401, 403, 429, 431, 503),
    "/devops/search/rebuild": (400, 401, 403, 429, 431, 503),
}
"""Errors of FastAPI's routes that need authentication."""
FOLDER = Path(__file__).resolve().parents[2] / "openapi"


def document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document: the operations of the plain endpoints, and FastAPI's routes."""
    built = dict(app.openapi())
    built["paths"] = {**OPERATIONS, **built["paths"]}
    for path, statuses in _GUARDED.items():
        for operation in built["paths"][path].values():
            operation["responses"].update(error_answers("General", *statuses))
    components = dict(built.get("components", {}))
    components["schemas"] = {**components.get("schemas", {}), **SCHEMAS}
    components["parameters"] = PARAMETERS
    components["responses"] = _used(built["paths"])
    components["securitySchemes"] = {
        "basic": {"type": "http", "scheme": "basic"},
        "token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
    }
    built["components"] = components
    built["security"] = [{"basic": []}, {"token": []}]
    for path in _OPEN:
        built["paths"][path]["get"]["security"] = []
    built["info"]["description"] = (
        "Acknowledgement gateway in front of digital twins, wire-compatible with Eclipse Ditto's "
        "HTTP API where it covers it."
    )
    return built


def _used(paths: dict[str, Any]) -> dict[str, Any]:
    """The answers that the paths refer to: not every status is possible in every area."""
    text = json.dumps(paths)
    return {name: one for name, one in ANSWERS.items() if f'/responses/{name}"' in text}


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


async def _no_status() -> JsonObject:
    return {}


async def _no_rebuild() -> None:
    return None


def _files() -> dict[str, str]:
    app = Rest(Authenticator({}), dict, _no_metrics, _no_status, _no_rebuild).build()
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
