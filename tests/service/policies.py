"""Policies for tests: the owner may do everything, others what a test says."""

from __future__ import annotations

from typing import Any


def policy_of(**readers: dict[str, str]) -> dict[str, Any]:
    """A policy of ``nginx:ditto`` with READ granted ("+") or revoked ("-") for other users."""
    full = {"grant": ["READ", "WRITE"], "revoke": []}
    everything = dict.fromkeys(("thing:/", "policy:/", "message:/"), full)
    entries: dict[str, Any] = {
        "owner": {"subjects": {"nginx:ditto": {"type": "t"}}, "resources": everything}
    }
    for user, paths in readers.items():
        resources = {
            path: {
                "grant": ["READ"] if effect == "+" else [],
                "revoke": ["READ"] if effect == "-" else [],
            }
            for path, effect in paths.items()
        }
        entries[user] = {"subjects": {f"nginx:{user}": {"type": "t"}}, "resources": resources}
    return {"entries": entries}
