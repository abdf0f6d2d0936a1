"""Policy documents: their parts, what makes them valid, how a command changes them.

Sources: spec websocket-... 5.2, 5.7. Not served yet, and refused where they would mean something:
imports, references, allowed additions, entries for certain namespaces.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

from acks.announcement_settings import check_announcement
from acks.document import MAX_ID_LENGTH, check_thing_id
from acks.errors import GatewayError, error
from acks.policy import WRITE, Policy, check_permissions, expiry_ms, split_resource
from acks.resources import ABSENT
from acks.signals import JsonObject

Part = tuple[str, ...]
"""A part of a policy document: (), ("entries",), ("entries", label), ("entries", label,
"subjects" or "resources"), and those with the id of a subject or the key of a resource."""

MAX_POLICY_BYTES: Final = 100 * 1024
SPECIAL = ("_revision", "_created", "_modified")
"""What a stored policy has beside its document, and shows if it is asked for."""
WATCHES = "_watches"
"""Field of a stored policy for what will become of its subjects (acks/announcements.py)."""
_DELETED = "_deleted"
_HIDDEN = (*SPECIAL, WATCHES)
_LISTS = ("subjects", "resources")
_LABEL = re.compile(r"[^\x00-\x1F\x7F/]+")
_RESERVED_LABELS = ("imported", "nsimported-")
_SUBJECT_ID = re.compile(r"[^:\x00-\x1F\x7F]+:[^\x00-\x1F\x7F]+")
_REQUESTER = re.compile(r"\{\{\s*request:subjectId\s*\}\}")
_IMPORTABLE = ("implicit", "explicit", "never")


class PolicyChange(NamedTuple):
    """What a command makes of a policy; ``document`` None: it is deleted.

    ``created``: the part was not there before; ``value`` is what is there now.
    """

    document: JsonObject | None
    value: Any
    created: bool


# --- parts -------------------------------------------------------------------------------------


def check_policy_id(text: str) -> str:
    """Return ``text`` if it is ``namespace:name``; raises ``policies:id.invalid``."""
    try:
        return check_thing_id(text)
    except GatewayError:
        raise error("policies:id.invalid", policy_id=text) from None


def parse_part(path: str, segments: list[str]) -> Part:
    """The part of a policy that URL ``segments`` (decoded) below its id name.

    What follows ``subjects/`` or ``resources/`` is one name, with its slashes. One trailing slash
    is tolerated. Raises ``gateway:resource.notfound`` with the ``path``.
    """
    if len(segments) > 4 and segments[0] == "entries" and segments[2] in _LISTS:
        name = "/".join(segments[3:])
        return (*segments[:3], resource_key(name) if segments[2] == "resources" else name)
    if segments and segments[-1] == "":
        segments = segments[:-1]
    fits = segments[:1] in ([], ["entries"]) and len(segments) <= 4 and "" not in segments
    if not fits or (len(segments) > 2 and segments[2] not in _LISTS):
        raise error("gateway:resource.notfound", path=path)
    if len(segments) == 4 and segments[2] == "resources":
        return (*segments[:3], resource_key(segments[3]))
    return tuple(segments)


def resource_key(text: str) -> str:
    """A resource such as ``thing:/attributes/`` in its one form.

    Raises ``policies:entry.invalid``.
    """
    kind, separator, path = text.partition(":")
    if separator and not path:
        path = "/"
    split_resource(f"{kind}{separator}{path}")
    return f"{kind}:/" + "/".join(name for name in path.split("/") if name)


def find_part(document: JsonObject, part: Part) -> Any:
    """What is at ``part``, or ABSENT."""
    value: Any = document
    for name in part:
        if name not in value:
            return ABSENT
        value = value[name]
    return value


def shown(document: JsonObject) -> JsonObject:
    """The document as everybody sees it."""
    return {name: value for name, value in document.items() if name not in _HIDDEN}


def not_found(policy_id: str, part: Part) -> GatewayError:
    """404 of the part's own code, also for those who may not read it."""
    return _part_error("notfound", policy_id, part)


def not_modifiable(policy_id: str, part: Part) -> GatewayError:
    """403 of the part's own code."""
    return _part_error("notmodifiable", policy_id, part)


def _part_error(what: str, policy_id: str, part: Part) -> GatewayError:
    if len(part) < 2:
        kind, label = "policy", ""
    else:
        kind, label = "entry", part[1]
    if len(part) > 2:
        kind = part[2] if len(part) == 3 else part[2].removesuffix("s")
    return error(
        f"policies:{kind}.{what}", policy_id=policy_id, label=label, name="".join(part[3:])
    )


# --- validity ----------------------------------------------------------------------------------


def check_policy(policy_id: str, value: Any, requester: str, now_ms: int) -> JsonObject:
    """Check a policy document and return what is to be stored of it; its id is ``policy_id``.

    ``requester`` is the subject that ``{{ request:subjectId }}`` stands for. Raises GatewayError.
    """
    check_policy_id(policy_id)
    value = _object(value, "The Policy")
    _refuse(value, "imports", "Policy imports")
    if "entries" not in value:
        raise error("json.field.missing", field="entries")
    entries = check_part(("entries",), value["entries"], requester, now_ms)
    checked = {"policyId": policy_id, "entries": entries}
    _check_size(checked)
    return checked


def check_part(part: Part, value: Any, requester: str, now_ms: int) -> Any:
    """Check a part given in a PUT (but not the whole policy) and return what is to be stored.

    Raises ``json.format.invalid``, ``json.field.missing``, ``policies:label.invalid``,
    ``policies:subjectid.invalid``, ``policies:subjectexpiry.invalid``, ``policies:entry.invalid``,
    ``acknowledgement:label.invalid``.
    """
    if len(part) > 1:
        _check_label(part[1])
    if part == ("entries",):
        entries = _object(value, "The Policy's entries")
        if not entries:
            raise _invalid("A Policy has at least one entry.")
        return {
            _check_label(label): _check_entry(entry, requester, now_ms)
            for label, entry in entries.items()
        }
    if len(part) == 2:
        return _check_entry(value, requester, now_ms)
    if part[2] == "subjects":
        if len(part) == 4:
            return _check_subject(value, now_ms)
        return _check_subjects(value, requester, now_ms)
    return _check_resource(value) if len(part) == 4 else _check_resources(value)


def resolve_part(part: Part, requester: str) -> Part:
    """The part with the requester's subject in the place of ``{{ request:subjectId }}``."""
    if len(part) == 4 and part[2] == "subjects":
        return (*part[:3], _check_subject_id(part[3], requester))
    return part


def _check_label(label: str) -> str:
    if (
        len(label) > MAX_ID_LENGTH
        or _LABEL.fullmatch(label) is None
        or label.startswith(_RESERVED_LABELS)
    ):
        raise error("policies:label.invalid", label=label)
    return label


def _check_entry(value: Any, requester: str, now_ms: int) -> JsonObject:
    value = _object(value, "A Policy entry")
    _refuse(value, "namespaces", "Policy entries for certain namespaces")
    _refuse(value, "references", "References to other entries")
    _refuse(value, "allowedAdditions", "Allowed additions")
    for name in _LISTS:
        if value.get(name) is None:
            raise error("json.field.missing", field=name)
    entry = {
        "subjects": _check_subjects(value["subjects"], requester, now_ms),
        "resources": _check_resources(value["resources"]),
    }
    importable = value.get("importable")
    if importable is not None:
        if importable not in _IMPORTABLE:
            raise _invalid(f"'importable' is one of {', '.join(_IMPORTABLE)}.")
        entry["importable"] = importable
    return entry


def _check_subjects(value: Any, requester: str, now_ms: int) -> JsonObject:
    subjects = _object(value, "The subjects of a Policy entry")
    return {
        _check_subject_id(name, requester): _check_subject(subject, now_ms)
        for name, subject in subjects.items()
    }


def _check_subject_id(text: str, requester: str) -> str:
    if _REQUESTER.fullmatch(text):
        return requester
    if len(text) > MAX_ID_LENGTH or _SUBJECT_ID.fullmatch(text) is None or "{{" in text:
        raise error("policies:subjectid.invalid", subject=text)
    return text


def _check_subject(value: Any, now_ms: int) -> JsonObject:
    value = _object(value, "A Policy subject")
    kind = value.get("type")
    if kind is None:
        raise error("json.field.missing", field="type")
    if not isinstance(kind, str):
        raise error("json.format.invalid", reason="The field 'type' must be a string.")
    subject: JsonObject = {"type": kind}
    expiry = value.get("expiry")
    if expiry is not None:
        try:
            moment = expiry_ms(value)
        except ValueError:
            reason = "It must be an ISO-8601 instant, such as 2030-01-31T12:00:00Z."
            raise error("policies:subjectexpiry.invalid", expiry=expiry, reason=reason) from None
        if moment is not None and moment <= now_ms:
            reason = "It must not be in the past."
            raise error("policies:subjectexpiry.invalid", expiry=expiry, reason=reason)
        subject["expiry"] = expiry
    announcement = value.get("announcement")
    if announcement is not None:
        subject["announcement"] = check_announcement(announcement)
    return subject


def _check_resources(value: Any) -> JsonObject:
    resources: JsonObject = {}
    for text, permissions in _object(value, "The resources of a Policy entry").items():
        key = resource_key(text)
        if key in resources:
            raise _invalid(f"The resource '{key}' is there twice.")
        resources[key] = _check_resource(permissions)
    return resources


def _check_resource(value: Any) -> JsonObject:
    value = _object(value, "A Policy resource")
    if value.get("grant") is None and value.get("revoke") is None:
        raise error("json.field.missing", field="grant")
    checked = {}
    for name in ("grant", "revoke"):
        given = value.get(name)
        given = [] if given is None else given
        check_permissions(given)
        checked[name] = list(dict.fromkeys(given))
    return checked


def _object(value: Any, what: str) -> JsonObject:
    if not isinstance(value, dict):
        raise error("json.format.invalid", reason=f"{what} must be a JSON object.")
    return value


def _refuse(value: JsonObject, name: str, what: str) -> None:
    """Refuse a field that would mean something; an empty one means nothing."""
    if value.get(name):
        raise _invalid(f"{what} ('{name}') are not supported yet.")


def _invalid(reason: str) -> GatewayError:
    return error("policies:entry.invalid", reason=reason)


# --- changes -----------------------------------------------------------------------------------


def put_part(document: JsonObject, part: Part, value: Any) -> PolicyChange:
    """Set a part (not the whole policy) of a policy to a checked ``value``.

    ``document`` stays as it is. Raises ``policies:entry.notfound`` if the entry is missing of which
    a part is set.
    """
    policy_id = document["policyId"]
    if len(part) > 2 and part[1] not in document["entries"]:
        raise not_found(policy_id, part[:2])
    created = find_part(document, part) is ABSENT
    changed = _copied(document, part)
    find_part(changed, part[:-1])[part[-1]] = value
    return PolicyChange(changed, value, created)


def delete_part(document: JsonObject, part: Part) -> PolicyChange:
    """Take a part out of a policy, () for all of it; raises the part's ``notfound``."""
    policy_id = document["policyId"]
    if not part:
        return PolicyChange(None, None, False)
    if find_part(document, part) is ABSENT:
        raise not_found(policy_id, part)
    changed = _copied(document, part)
    del find_part(changed, part[:-1])[part[-1]]
    return PolicyChange(changed, None, False)


def _copied(document: JsonObject, part: Part) -> JsonObject:
    """A copy of the objects along the way to ``part``."""
    root = dict(document)
    node = root
    for name in part[:-1]:
        node[name] = dict(node[name])
        node = node[name]
    return root


def check_result(
    policy_id: str,
    part: Part,
    document: JsonObject,
    subjects: tuple[str, ...],
    *,
    before: Policy | None,
    now_ms: int,
    allow_lockout: bool,
) -> None:
    """Check what a change makes of a policy: its size, and who can still change it.

    A subject that does not expire must have WRITE on all of ``policy:/``, and so must the requester
    unless he had it not ``before`` (None: there was no policy), unless ``allow_lockout``
    (spec websocket-... 5.7). Raises ``policies:policy.toolarge``,
    ``policies:policy.modificationinvalid`` or ``policies:entry.modificationinvalid``.
    """
    _check_size(document)
    kind = "entry" if len(part) > 1 else "policy"
    code, label = f"policies:{kind}.modificationinvalid", part[1] if len(part) > 1 else ""
    if not document["entries"]:
        raise error(
            code, policy_id=policy_id, label=label, description="A Policy has at least one entry."
        )
    if allow_lockout:
        return
    compiled = Policy(document, now_ms)
    if not any(compiled.may((one,), WRITE, "policy", ()) for one in _permanent(document)):
        raise error(code, policy_id=policy_id, label=label)
    had_it = before is None or before.may(subjects, WRITE, "policy", ())
    if had_it and not compiled.may(subjects, WRITE, "policy", ()):
        reason = "You would lose your own 'WRITE' permission on resource 'policy:/'; "
        hint = "to do so, set the header 'allow-policy-lockout' to 'true'."
        raise error(code, policy_id=policy_id, label=label, description=reason + hint)


def revision(document: JsonObject) -> int:
    """How often a policy was written; one that a thing brought along says nothing of it."""
    return int(document.get("_revision", 1))


def tombstone(document: JsonObject) -> JsonObject:
    """What a deleted policy leaves: its revision goes on, and its entries say who may go on."""
    return {**document, "_revision": revision(document) + 1, _DELETED: True}


def is_tombstone(document: JsonObject) -> bool:
    """Whether it is what a deleted policy has left."""
    return _DELETED in document


def _check_size(document: JsonObject) -> None:
    size = len(json.dumps(shown(document), separators=(",", ":"), ensure_ascii=False).encode())
    if size > MAX_POLICY_BYTES:
        raise error("policies:policy.toolarge", size=size, limit=MAX_POLICY_BYTES)


def _permanent(document: JsonObject) -> set[str]:
    """The subjects that have an entry in which they do not expire."""
    return {
        name
        for entry in document["entries"].values()
        for name, subject in entry["subjects"].items()
        if expiry_ms(subject) is None
    }
