"""What a connection's document means, and whether it can mean it (spec websocket-... 4.1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from acks.errors import GatewayError, error
from acks.labels import BUILT_IN, LIVE_RESPONSE, is_label
from acks.signals import JsonObject
from connections.documents.reading import MAX_SOURCES, MAX_TARGETS, read_document, wrong
from connections.documents.topics import CONNECTION_ANNOUNCEMENTS, parse_topic
from connections.documents.uris import parse_uri
from connections.mapping.ack_requests import parse_ack_filter
from connections.mapping.enforcement import parse_enforcement
from connections.mapping.headers import parse_header_mapping
from connections.mapping.payloads import check_definitions, mappers_of
from connections.model import (
    HTTP_METHODS,
    Connection,
    Enforcement,
    Kind,
    ReplyTarget,
    Source,
    Target,
)
from connections.placeholders.lookups import read_template
from connections.placeholders.templates import PlaceholderError, parse_template

_AMQP = ("amqp", "amqps")
_MQTT = ("tcp", "ssl", "mqtt", "mqtts")
_SCHEMES: dict[str, tuple[str, ...]] = {
    "amqp-091": _AMQP,
    "amqp-10": _AMQP,
    "mqtt": _MQTT,
    "mqtt-5": _MQTT,
    "kafka": ("tcp", "ssl"),
    "http-push": ("http", "https"),
}
_CREDENTIALS: dict[str, tuple[str, ...]] = {
    "mqtt": ("client-cert", "user-pass", "plain"),
    "mqtt-5": ("client-cert", "user-pass", "plain"),
    "http-push": ("client-cert", "oauth-client-credentials", "user-pass", "plain"),
}
_LABEL_FORM = (
    "Declared acknowledgement labels of a connection must have the form "
    "<connection-id>:<alphanumeric-suffix>"
)


def check_connection(value: object, connection_id: str) -> tuple[JsonObject, Connection]:
    """The document in full and what it means, of whatever JSON somebody sends.

    Raises what :func:`read_document` and :func:`connection_of` raise.
    """
    document = read_document(value, connection_id)
    return document, connection_of(document)


def connection_of(document: JsonObject) -> Connection:
    """What a document that :func:`read_document` made means.

    Raises ``connectivity:connection.configuration.invalid``, ``...connection.uri.invalid``,
    ``...topic.invalid``, ``placeholder:unresolved``, ``acknowledgement:label.invalid``,
    ``acknowledgement:label.not.unique``, and what the filters and fields of topics raise.
    """
    sources, targets, kind = document["sources"], document["targets"], document["connectionType"]
    _check_counts(sources, targets)
    _check_kind(document)
    uri = parse_uri(document["uri"])
    if uri.scheme not in _SCHEMES[kind]:
        raise wrong(
            f"The scheme '{uri.scheme}' of the URI does not fit a connection of type '{kind}'.",
            f"There is: {', '.join(_SCHEMES[kind])}.",
        )
    resolve = _resolver(document["id"])
    connection = Connection(
        id=document["id"],
        kind=cast(Kind, kind),
        open=document["connectionStatus"] == "open",
        uri=uri,
        sources=tuple(_source(one, place, document, resolve) for place, one in enumerate(sources)),
        targets=tuple(_target(one, place, document, resolve) for place, one in enumerate(targets)),
        name=document.get("name"),
        clients=document["clientCount"],
        failover=document["failoverEnabled"],
        validate_certificates=document["validateCertificates"],
        ca=document.get("ca") or None,
        credentials=document.get("credentials") or {},
        specific=document["specificConfig"],
        mapping_definitions=document["mappingDefinitions"],
        tags=tuple(document["tags"]),
    )
    check_definitions(document["mappingDefinitions"])
    _check_targets(connection)
    return connection


# --- the whole


def _check_counts(sources: Sequence[JsonObject], targets: Sequence[JsonObject]) -> None:
    if not sources and not targets:
        raise wrong(
            "Either a source or a target must be specified in the configuration of a connection!"
        )
    for name, items, most in (("sources", sources, MAX_SOURCES), ("targets", targets, MAX_TARGETS)):
        if len(items) > most:
            raise wrong(f"A connection has at most {most} {name}, but there are {len(items)}.")
    lone_sources = [one for one in sources if not _has_subjects(one)]
    lone_targets = [one for one in targets if not _has_subjects(one)]
    if lone_sources or lone_targets:
        consumed = ", ".join(address for one in lone_sources for address in one["addresses"])
        published = ", ".join(one["address"] for one in lone_targets)
        raise wrong(
            f"The Sources [{consumed}] and Targets [{published}] are missing an authorization "
            f"context."
        )


def _has_subjects(item: JsonObject) -> bool:
    subjects = item["authorizationContext"]
    return bool(subjects) and all(subject.strip() for subject in subjects)


def _check_kind(document: JsonObject) -> None:
    kind = document["connectionType"]
    if kind not in _SCHEMES:
        raise wrong(f"Connections of type '{kind}' are not supported.")
    if document.get("sshTunnel", {}).get("enabled"):
        raise wrong("SSH tunneling not supported.")
    if kind == "http-push" and document["sources"]:
        raise wrong("A connection of type 'http-push' has no sources, only targets.")
    most = document["specificConfig"].get("maxRedeliveries", "0")
    if not (most.isascii() and most.isdigit() and len(most) <= 9):
        raise wrong("'specificConfig.maxRedeliveries' has to be a whole number from 0 on.")
    credentials = document.get("credentials")
    allowed = _CREDENTIALS.get(kind, ("client-cert",))
    if credentials and credentials["type"] not in allowed:
        raise wrong(
            f"Credentials of type '{credentials['type'][:100]}' are not supported for connections "
            f"of type '{kind}'.",
            f"There is: {', '.join(allowed)}. A user and a password can be in the URI.",
        )


def _check_targets(connection: Connection) -> None:
    issued = [target.issued for target in connection.targets if target.issued is not None]
    if len(issued) != len(set(issued)):
        raise error(
            "acknowledgement:label.not.unique",
            message="An issued acknowledgement label may only be used for one target of the "
            "connection.",
            description="Issue another label, or none, at all targets but one.",
        )
    topics = {topic.path for target in connection.targets for topic in target.topics}
    if CONNECTION_ANNOUNCEMENTS in topics and connection.clients > 1:
        raise wrong("Connection announcements can only be had with a 'clientCount' of 1.")


# --- sources and targets

Resolve = Callable[[str, str], str]


def _source(item: JsonObject, index: int, document: JsonObject, resolve: Resolve) -> Source:
    place = f"sources[{index}]"
    addresses = item["addresses"]
    if not addresses or not all(address.strip() for address in addresses):
        raise wrong(f"'{place}.addresses' has to name at least one address, none of them empty.")
    if document["connectionType"] == "kafka" and item.get("qos", 0) > 1:
        raise wrong(f"'{place}.qos' has to be 0 or 1 for connections of type 'kafka'.")
    requests = item.get("acknowledgementRequests", {})
    source = Source(
        index=index,
        addresses=tuple(addresses),
        subjects=_templates(item["authorizationContext"], f"{place}.authorizationContext"),
        consumers=item["consumerCount"],
        qos=item.get("qos"),
        enforcement=_enforcement(item.get("enforcement"), place),
        includes=_included(requests.get("includes", []), place, resolve),
        ack_filter=requests.get("filter"),
        header_mapping=_headers(item["headerMapping"], place),
        mappers=_mappers(item, document),
        declared=tuple(
            dict.fromkeys(
                _own_label(label, document["id"], f"{place}.declaredAcks", resolve)
                for label in item.get("declaredAcks", [])
            )
        ),
        reply=_reply(item["replyTarget"], place),
    )
    _read(lambda: parse_ack_filter(source.ack_filter), f"{place}.acknowledgementRequests.filter")
    return source


def _target(item: JsonObject, index: int, document: JsonObject, resolve: Resolve) -> Target:
    place = f"targets[{index}]"
    address = _address(item["address"], place)
    if document["connectionType"] == "http-push":
        _check_http_address(address)
    if not item["topics"]:
        raise wrong(f"'{place}.topics' has to name at least one topic.")
    issued = item.get("issuedAcknowledgementLabel")
    if issued is not None:
        issued = resolve(issued, f"{place}.issuedAcknowledgementLabel")
        if issued != LIVE_RESPONSE:
            _own_label(issued, document["id"], place, resolve)
    return Target(
        index=index,
        address=address,
        topics=tuple(parse_topic(text) for text in dict.fromkeys(item["topics"])),
        subjects=tuple(
            resolve(subject, f"{place}.authorizationContext")
            for subject in item["authorizationContext"]
        ),
        qos=item.get("qos"),
        issued=issued,
        header_mapping=_headers(item["headerMapping"], place),
        mappers=_mappers(item, document),
    )


def _reply(item: JsonObject, place: str) -> ReplyTarget | None:
    if not item["enabled"]:
        return None
    place = f"{place}.replyTarget"
    return ReplyTarget(
        address=_address(item["address"], place),
        header_mapping=_headers(item["headerMapping"], place),
        expected=frozenset(item["expectedResponseTypes"]),
    )


def _enforcement(item: JsonObject | None, place: str) -> Enforcement | None:
    if item is None:
        return None
    enforcement = Enforcement(item["input"], tuple(item["filters"]))
    _read(lambda: parse_enforcement(enforcement), f"{place}.enforcement")
    return enforcement


def _mappers(item: JsonObject, document: JsonObject) -> tuple[str, ...]:
    names = tuple(item.get("payloadMapping", []))
    mappers_of(names, document["mappingDefinitions"])
    return names


def _included(labels: Sequence[str], place: str, resolve: Resolve) -> tuple[str, ...]:
    place = f"{place}.acknowledgementRequests.includes"
    found = tuple(resolve(label, place) for label in labels)
    for label in found:
        if label not in BUILT_IN and not is_label(label):
            raise error("acknowledgement:label.invalid", label=label)
    return tuple(dict.fromkeys(found))


def _own_label(label: str, connection_id: str, place: str, resolve: Resolve) -> str:
    """A label that only this connection can have; raises ``acknowledgement:label.invalid``."""
    resolved = resolve(label, place)
    prefix = f"{connection_id}:"
    if not (resolved.startswith(prefix) and resolved != prefix and is_label(resolved)):
        raise error("acknowledgement:label.invalid", label=label, description=_LABEL_FORM)
    return resolved


# --- texts with placeholders


def _read(read: Callable[[], object], place: str) -> None:
    try:
        read()
    except PlaceholderError as problem:
        raise _unresolved(place, problem) from None


def _unresolved(place: str, problem: PlaceholderError) -> GatewayError:
    message = f"A placeholder in '{place}' cannot be resolved."
    return error("placeholder:unresolved", message=message, reason=str(problem)[:500])


def _templates(texts: Sequence[str], place: str) -> tuple[str, ...]:
    _read(lambda: [read_template(text) for text in texts], place)
    return tuple(texts)


def _headers(mapping: Mapping[str, str], place: str) -> Mapping[str, str]:
    _read(lambda: parse_header_mapping(mapping), f"{place}.headerMapping")
    return dict(mapping)


def _address(text: str, place: str) -> str:
    if not text.strip():
        raise wrong(f"'{place}.address' may not be empty.")
    _templates([text], f"{place}.address")
    return text


def _check_http_address(address: str) -> None:
    method, colon, _ = address.partition(":")
    if "{{" not in method and not (colon and method in HTTP_METHODS):
        raise wrong(
            f"The address '{address[:200]}' of a target has to be of the form METHOD:/path.",
            f"The methods are {', '.join(HTTP_METHODS)}, e.g. POST:/api/events.",
        )


def _resolver(connection_id: str) -> Resolve:
    """What resolves ``{{ connection:id }}``, the only placeholder that is known beforehand."""

    def lookup(prefix: str, name: str) -> tuple[str, ...]:
        return (connection_id,) if (prefix, name) == ("connection", "id") else ()

    def resolve(text: str, place: str) -> str:
        try:
            values = parse_template(text, frozenset({"connection"})).resolve(lookup)
        except PlaceholderError as problem:
            raise _unresolved(place, problem) from None
        if len(values) != 1:
            raise error(
                "placeholder:unresolved",
                placeholder=text[:200],
                reason=f"'{place}' may have the placeholder connection:id alone.",
            )
        return values[0]

    return resolve
