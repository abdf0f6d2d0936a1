"""Documents of connections: their shape, their defaults, and what they mean."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from acks.errors import GatewayError
from connections.documents.masking import masked
from connections.documents.reading import read_document
from connections.documents.topics import TOPICS
from connections.documents.uris import parse_uri
from connections.documents.validation import check_connection, connection_of
from connections.model import Enforcement, ReplyTarget, Topic, Uri
from tests.connections.documents import document, source, target

INVALID = "connectivity:connection.configuration.invalid"


def refused(value: object, connection_id: str = "C") -> GatewayError:
    """The error that a document ends with."""
    before = copy.deepcopy(value)
    with pytest.raises(GatewayError) as caught:
        check_connection(value, connection_id)
    assert value == before
    return caught.value


# --- what is right


def test_defaults_are_filled_in() -> None:
    given = {
        "connectionType": "amqp-091",
        "uri": "amqp://broker:5672",
        "sources": [{"addresses": ["in"], "authorizationContext": ["a:b"], "replyTarget": None}],
    }
    full, connection = check_connection(given, "C")
    assert full == {
        "id": "C",
        "connectionType": "amqp-091",
        "connectionStatus": "unknown",
        "uri": "amqp://broker:5672",
        "sources": [
            {
                "addresses": ["in"],
                "consumerCount": 1,
                "authorizationContext": ["a:b"],
                "headerMapping": {
                    "correlation-id": "{{header:correlation-id}}",
                    "content-type": "{{header:content-type}}",
                    "reply-to": "{{header:reply-to}}",
                },
                "replyTarget": {
                    "address": "{{header:reply-to}}",
                    "headerMapping": {
                        "correlation-id": "{{header:correlation-id}}",
                        "content-type": "{{header:content-type}}",
                    },
                    "expectedResponseTypes": ["response", "error"],
                    "enabled": True,
                },
            }
        ],
        "targets": [],
        "clientCount": 1,
        "failoverEnabled": True,
        "validateCertificates": True,
        "processorPoolSize": 1,
        "specificConfig": {},
        "mappingDefinitions": {},
        "tags": [],
    }
    assert read_document(full, "C") == full
    assert not connection.open
    assert connection.sources[0].reply == ReplyTarget(
        "{{header:reply-to}}",
        {
            "correlation-id": "{{header:correlation-id}}",
            "content-type": "{{header:content-type}}",
        },
    )


def test_mqtt_3_has_no_header_to_reply_to() -> None:
    full, connection = check_connection(document(), "C")
    assert full["sources"][0]["replyTarget"] == {"enabled": False}
    assert full["sources"][0]["headerMapping"] == {}
    assert connection.sources[0].reply is None


def test_everything_arrives() -> None:
    given = document(
        name="n",
        connectionType="mqtt-5",
        connectionStatus="open",
        uri="ssl://me:p%40ss@[::1]:8883/base",
        clientCount=2,
        failoverEnabled=False,
        validateCertificates=False,
        ca="-----BEGIN CERTIFICATE-----\nx\n",
        credentials={"type": "client-cert", "cert": "c\n", "key": "k\n"},
        specificConfig={"clientId": "x", "maxRedeliveries": 3, "cleanSession": True, "none": None},
        mappingDefinitions={"plain": {"mappingEngine": "RawMessage", "options": {}}},
        tags=["t"],
        sources=[
            source(
                addresses=["a", "b"],
                consumerCount=2,
                qos=1,
                authorizationContext=["ditto:{{ header:device_id }}"],
                enforcement={"input": "{{ source:address }}", "filters": ["{{ thing:id }}"]},
                acknowledgementRequests={
                    "includes": ["twin-persisted", "{{connection:id}}:done"],
                    "filter": "fn:filter(header:qos,'ne','0')",
                },
                headerMapping={"x": "{{ header:y }}"},
                payloadMapping=["plain", "Ditto"],
                declaredAcks=["{{ connection:id }}:done", "C:done"],
                replyTarget={
                    "address": "{{ header:reply-to }}",
                    "expectedResponseTypes": ["nack", "unheard-of"],
                },
            )
        ],
        targets=[
            target(
                address="out/{{ thing:id }}",
                qos=0,
                issuedAcknowledgementLabel="{{connection:id}}:sent",
                authorizationContext=["integration:{{connection:id}}"],
                topics=["_/_/things/live/messages?namespaces=a,b&extraFields=attributes"],
                headerMapping={"key": "{{ thing:id }}"},
            )
        ],
    )
    _, connection = check_connection(given, "C")
    assert (connection.id, connection.name, connection.kind) == ("C", "n", "mqtt-5")
    assert connection.uri == Uri("ssl", "::1", 8883, "/base", "me", "p@ss")
    assert connection.uri.secure
    assert (connection.open, connection.clients, connection.failover) == (True, 2, False)
    assert (connection.validate_certificates, connection.tags) == (False, ("t",))
    assert connection.specific == {"clientId": "x", "maxRedeliveries": "3", "cleanSession": "true"}
    one = connection.sources[0]
    assert (one.addresses, one.consumers, one.qos) == (("a", "b"), 2, 1)
    assert one.subjects == ("ditto:{{ header:device_id }}",)
    assert one.enforcement == Enforcement("{{ source:address }}", ("{{ thing:id }}",))
    assert one.includes == ("twin-persisted", "C:done")
    assert one.ack_filter == "fn:filter(header:qos,'ne','0')"
    assert (one.declared, one.mappers) == (("C:done",), ("plain", "Ditto"))
    assert one.reply == ReplyTarget("{{ header:reply-to }}", {}, frozenset({"nack"}))
    two = connection.targets[0]
    assert (two.address, two.qos, two.issued) == ("out/{{ thing:id }}", 0, "C:sent")
    assert two.subjects == ("integration:C",)
    assert two.topics == (
        Topic("_/_/things/live/messages", frozenset({"a", "b"}), "", "attributes"),
    )
    assert two.header_mapping == {"key": "{{ thing:id }}"}


def test_a_stored_document_means_the_same() -> None:
    full, connection = check_connection(document(), "C")
    assert connection_of(read_document(masked(full), "C")) == connection


def test_a_connection_does_not_show_its_secrets() -> None:
    given = document(
        uri="tcp://me:geheim@b:1", credentials={"type": "client-cert", "key": "geheim"}
    )
    connection = check_connection(given, "C")[1]
    assert connection.uri.password == "geheim"
    assert "geheim" not in repr(connection)


@pytest.mark.parametrize(
    ("kind", "uri"),
    [
        ("amqp-091", "amqps://b:5671/vhost"), ("amqp-10", "amqp://b:5672"), ("mqtt", "tcp://b:1"),
        ("mqtt-5", "ssl://b:1"), ("kafka", "tcp://b:9092"),
    ],
)  # fmt: skip
def test_kinds(kind: str, uri: str) -> None:
    _, connection = check_connection(document(connectionType=kind, uri=uri), "C")
    assert connection.kind == kind
    assert refused(document(connectionType=kind, uri="ftp://b:1")).code == INVALID


def test_http_push_has_methods_and_no_sources() -> None:
    def push(address: str, **more: Any) -> dict[str, Any]:
        return document(
            connectionType="http-push",
            uri="https://b:443/base",
            targets=[target(address=address)],
            **{"sources": [], **more},
        )

    for address in ("POST:/things/{{ thing:id }}", "{{ header:method }}:/x"):
        check_connection(push(address), "C")
    for address in ("/things", "FETCH:/x", "post:/x", "POST"):
        assert "METHOD:/path" in refused(push(address)).message
    assert "no sources" in refused(push("POST:/x", sources=[source()])).message
    secret = {"type": "oauth-client-credentials", "clientSecret": "s"}
    assert check_connection(push("POST:/x", credentials=secret), "C")[1].credentials == secret
    assert "oauth" in refused(document(credentials=secret)).message


@pytest.mark.parametrize("topic", TOPICS)
def test_topics(topic: str) -> None:
    _, connection = check_connection(document(targets=[target(topics=[topic])]), "C")
    assert connection.targets[0].topics == (Topic(topic),)


def test_a_filter_may_be_percent_encoded() -> None:
    text = "_/_/things/twin/events?filter=eq(attributes/a,%22x%26y+z%22)&unknown=1"
    _, connection = check_connection(document(targets=[target(topics=[text])]), "C")
    assert connection.targets[0].topics[0].filter == 'eq(attributes/a,"x&y+z")'


# --- what is wrong


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"sources": [], "targets": []},
         "Either a source or a target must be specified in the configuration of a connection!"),
        ({"connectionStatus": "ajar"}, "Connection status <ajar> is invalid!"),
        ({"connectionType": "pigeon"}, "Connection type <pigeon> is invalid!"),
        ({"connectionType": "hono"}, "Connections of type 'hono' are not supported."),
        ({"sshTunnel": {"enabled": True}}, "SSH tunneling not supported."),
        ({"sources": [source(authorizationContext=[], addresses=["a", "b"])],
          "targets": [target(), target(address="t", authorizationContext=[" "])]},
         "The Sources [a, b] and Targets [t] are missing an authorization context."),
        ({"sources": [source()] * 5}, "A connection has at most 4 sources, but there are 5."),
        ({"targets": [target()] * 5}, "A connection has at most 4 targets, but there are 5."),
        ({"clientCount": 2, "targets": [target(topics=["_/_/connections/announcements"])]},
         "Connection announcements can only be had with a 'clientCount' of 1."),
        ({"sources": [source(addresses=[])]},
         "'sources[0].addresses' has to name at least one address, none of them empty."),
        ({"targets": [target(topics=[])]}, "'targets[0].topics' has to name at least one topic."),
        ({"targets": [target(address=" ")]}, "'targets[0].address' may not be empty."),
        ({"connectionType": "kafka", "sources": [source(qos=2)]},
         "'sources[0].qos' has to be 0 or 1 for connections of type 'kafka'."),
        ({"specificConfig": {"maxRedeliveries": "many"}},
         "'specificConfig.maxRedeliveries' has to be a whole number from 0 on."),
        ({"mappingContext": {}}, "There is no 'mappingContext' here; use 'mappingDefinitions'."),
        ({"targets": [target(topic=[])]}, "There is no field 'targets[0].topic' in a connection."),
        ({"clientCount": 0}, "'clientCount' has to be a whole number from 1 to 9."),
        ({"clientCount": True}, "'clientCount' has to be a whole number from 1 to 9."),
        ({"failoverEnabled": "yes"}, "'failoverEnabled' has to be true or false."),
        ({"tags": "t"}, "'tags' has to be a JSON array."),
        ({"tags": [5]}, "'tags[0]' has to be a text."),
        ({"tags": ["t"] * 101}, "'tags' has more than 100 entries."),
        ({"name": "n" * 4_097}, "'name' has more than 4,096 characters."),
        ({"targets": [target(headerMapping={"a": "b\r\nc: d"})]},
         "'targets[0].headerMapping.a' has control characters."),
        ({"targets": [target(headerMapping={"a\nb": "c"})]},
         "'targets[0].headerMapping' has control characters."),
        ({"targets": [target(headerMapping={"": "c"})]},
         "'targets[0].headerMapping' has an entry without a name."),
        ({"sources": [source(payloadMapping=["Ditto"] * 11)]},
         "'sources[0].payloadMapping' has more than 10 payload mappings."),
        ({"specificConfig": {"a": {}}}, "'specificConfig.a' has to be a text."),
        ({"credentials": {"type": {}}}, "'credentials.type' has to be a text."),
        ({"credentials": {"type": "client-cert", "key": 5}},
         "'credentials.key' has to be a text."),
        ({"credentials": []}, "'credentials' has to be a JSON object."),
        ({"sources": [None]}, "'sources[0]' has to be a JSON object."),
        ({"ca": "x" * 70_000}, "'ca' has more than 65,536 characters."),
    ],
)  # fmt: skip
def test_configuration(wrong: dict[str, Any], message: str) -> None:
    base = document(uri="tcp://broker:9092")
    problem = refused(base | wrong)
    assert (problem.status, problem.code, problem.message) == (400, INVALID, message)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"uri": None}, "/uri"),
        ({"connectionType": None}, "/connectionType"),
        ({"sources": [{"authorizationContext": ["a"]}]}, "/sources[0]/addresses"),
        ({"targets": [{**target(), "topics": None}]}, "/targets[0]/topics"),
        ({"sources": [source(replyTarget={})]}, "/sources[0]/replyTarget/address"),
        ({"sources": [source(enforcement={})]}, "/sources[0]/enforcement/input"),
        ({"credentials": {"key": "k"}}, "/credentials/type"),
        ({"mappingDefinitions": {"m": {}}}, "/mappingDefinitions/m/mappingEngine"),
    ],
)
def test_what_is_missing_is_named(wrong: dict[str, Any], field: str) -> None:
    problem = refused(document(**wrong))
    assert problem.code == "json.field.missing"
    assert f"<{field}>" in problem.message


@pytest.mark.parametrize(
    "wrong",
    [
        {"targets": [target(address="{{ unknown:id }}")]},
        {"targets": [target(address="{{ thing:id ")]},
        {"targets": [target(address="{{ topic:nothing }}")]},
        {"targets": [target(headerMapping={"a": "{{ fn:nothing() }}"})]},
        {"targets": [target(authorizationContext=["{{ header:subject }}"])]},
        {"targets": [target(issuedAcknowledgementLabel="{{ thing:id }}:x")]},
        {"sources": [source(authorizationContext=["{{ jwt:sub }}"])]},
        {"sources": [source(headerMapping={"a": "{{ x:y }}"})]},
        {"sources": [source(declaredAcks=["{{ header:a }}:x"])]},
        {"sources": [source(enforcement={"input": "{{ x:y }}"})]},
        {"sources": [source(enforcement={"input": "a", "filters": ["{{ x:y }}"]})]},
        {"sources": [source(acknowledgementRequests={"filter": "fn:nothing()"})]},
        {"sources": [source(replyTarget={"address": "{{ x:y }}"})]},
    ],
)
def test_placeholders_exist(wrong: dict[str, Any]) -> None:
    problem = refused(document(**wrong))
    assert (problem.status, problem.code) == (400, "placeholder:unresolved")
    assert problem.description


@pytest.mark.parametrize("label", ["ack", "D:ack", "C:", "C:a b", "C", "live-response"])
def test_declared_labels_are_the_connections_own(label: str) -> None:
    problem = refused(document(sources=[source(declaredAcks=[label])]))
    assert (problem.status, problem.code) == (400, "acknowledgement:label.invalid")
    assert "must have the form" in (problem.description or "")


def test_requested_labels_are_labels() -> None:
    wrong = source(acknowledgementRequests={"includes": ["twin-persisted", "a b"]})
    assert refused(document(sources=[wrong])).code == "acknowledgement:label.invalid"


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        ("", "connectivity:topic.invalid"),
        ("_/_/things/twin/commands", "connectivity:topic.invalid"),
        ("_/_/things/twin/events?filter", "connectivity:topic.invalid"),
        ("_/_/things/twin/events?filter=eq(a,1)&filter=eq(a,1)", "connectivity:topic.invalid"),
        ("_/_/things/twin/events?filter=", "rql.expression.invalid"),
        ("_/_/things/twin/events?filter=eq(no:such,1)", "rql.expression.invalid"),
        ("_/_/things/live/messages?extraFields=nothing", "things:field.selection.invalid"),
    ],
)
def test_topics_that_are_none(topic: str, code: str) -> None:
    assert refused(document(targets=[target(topics=[topic])])).code == code


@pytest.mark.parametrize("mapping", ["nothing", "JavaScript"])
def test_mappings_exist(mapping: str) -> None:
    assert refused(document(sources=[source(payloadMapping=[mapping])])).code == INVALID
    engine = {"m": {"mappingEngine": mapping}}
    assert refused(document(mappingDefinitions=engine)).code == INVALID


@pytest.mark.parametrize(
    "uri",
    [
        "", "broker:1883", "tcp:/broker:1883", "tcp://", "tcp://broker:0", "tcp://broker:65536",
        "tcp://broker:1x", "tcp://a:b@c:d@broker:1?x=1", "tcp://broker:1#f", "tcp://bro ker:1",
        "tcp://broker\n:1", "tcp://[::1:1", "tcp://a/b:1", "tcp://broker:1/" + "x" * 2_100,
    ],
)  # fmt: skip
def test_uris_that_are_none(uri: str) -> None:
    with pytest.raises(GatewayError) as caught:
        parse_uri(uri)
    assert caught.value.code == "connectivity:connection.uri.invalid"
    assert len(caught.value.message) < 500
    assert "b@c:d" not in caught.value.message
