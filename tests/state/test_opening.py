"""How a connection opens: negotiation, both eras on one wire, and what comes too early (CX-09, SV-04, SV-06)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.state.peers import accepted, cancel, client_of, initialize, meta_of, modern, refused, server_of

from trio_mcp.jsonrpc.errors import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND
from trio_mcp.jsonrpc.messages import Notification, Request
from trio_mcp.protocol.errors import NOT_INITIALIZED, UNSUPPORTED_PROTOCOL_VERSION
from trio_mcp.protocol.meta import CLIENT_CAPABILITIES, CLIENT_INFO, LOG_LEVEL, PROTOCOL_VERSION
from trio_mcp.protocol.revisions import LATEST_LEGACY, LATEST_MODERN, LEGACY_REVISIONS, MODERN_REVISIONS, Revision
from trio_mcp.state.connection import ConnectionState
from trio_mcp.state.events import Ignored

# The handshake


@pytest.mark.parametrize("revision", LEGACY_REVISIONS, ids=str)
def test_initialize_sets_revision_capabilities_and_client_info(revision: Revision) -> None:
    server = ConnectionState("server")
    request = accepted(server.receive(initialize(revision.name, sampling={})))
    assert server.revision is request.revision is revision
    assert server.client_capabilities.supports("sampling")
    assert server.client_info is not None
    assert server.client_info.name == "pilot"


@pytest.mark.parametrize("version", ["1.0", "2099-01-01", "", LATEST_MODERN.name])
def test_initialize_with_an_unknown_version_negotiates_the_latest_legacy_revision(version: str) -> None:
    server = ConnectionState("server")
    accepted(server.receive(initialize(version)))
    assert server.revision is LATEST_LEGACY


def test_second_initialize_gets_error_invalid_request_and_changes_nothing() -> None:
    server = server_of(LATEST_LEGACY, sampling={})
    reply = refused(server.receive(initialize("2024-11-05", 9)))
    assert (reply.code, reply.id) == (INVALID_REQUEST, 9)
    assert server.revision is LATEST_LEGACY
    assert server.client_capabilities.supports("sampling")


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"protocolVersion": 1, "capabilities": {}, "clientInfo": {"name": "n", "version": "1"}},
        {"capabilities": {}, "clientInfo": {"name": "n", "version": "1"}},
        {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "n", "icons": [None] * 21}},
    ],
)
def test_invalid_initialize_is_rejected_and_can_be_retried(params: dict[str, Any]) -> None:
    server = ConnectionState("server")
    assert refused(server.receive(Request(1, "initialize", params))).code == INVALID_PARAMS
    assert server.revision is None
    assert accepted(server.receive(initialize("2025-06-18", 1)))


@pytest.mark.parametrize(
    ("members", "name", "declared"),
    [
        ({"capabilities": []}, "pilot", set[str]()),
        ({"capabilities": None}, "pilot", set[str]()),
        ({"capabilities": {"roots": True, "sampling": [], "elicitation": False}}, "pilot", {"roots", "sampling"}),
        ({"capabilities": {"roots": {"listChanged": "yes"}}}, "pilot", {"roots"}),
        ({"clientInfo": {"name": "n"}}, "n", set[str]()),
        ({"clientInfo": {"name": "n", "version": 1.5, "title": 3}}, "n", set[str]()),
        ({"clientInfo": {"name": "n", "version": "1", "icons": [{"src": "u", "theme": "pink"}]}}, "n", set[str]()),
        ({"clientInfo": "n"}, "n", set[str]()),
        ({"clientInfo": None}, "unknown", set[str]()),
    ],
)
def test_server_accepts_initialize_with_minor_faults_in_capabilities_or_client_info(
    members: dict[str, Any], name: str, declared: set[str]
) -> None:
    server = ConnectionState("server")
    message = initialize("2025-11-25")
    accepted(server.receive(Request(1, "initialize", {**message.params, **members})))
    assert server.client_info is not None
    assert server.client_info.name == name
    assert {
        each for each in ("roots", "sampling", "elicitation") if server.client_capabilities.supports(each)
    } == declared


@pytest.mark.parametrize("left_out", ["capabilities", "clientInfo"])
def test_initialize_without_client_info_or_capabilities_is_accepted(left_out: str) -> None:
    params = {name: value for name, value in initialize("2025-11-25").params.items() if name != left_out}
    accepted(ConnectionState("server").receive(Request(1, "initialize", params)))


def test_initialized_notification_before_initialize_has_no_effect() -> None:
    server = ConnectionState("server")
    server.receive(Notification("notifications/initialized"))
    assert not server.initialized
    accepted(server.receive(initialize("2025-06-18")))
    server.receive(Notification("notifications/initialized"))
    assert server.initialized


def test_requests_between_initialize_and_initialized_are_served() -> None:
    server = ConnectionState("server")
    accepted(server.receive(initialize("2025-06-18")))
    assert accepted(server.receive(Request(1, "tools/list"))).revision.name == "2025-06-18"


def test_cancelled_notification_for_initialize_is_ignored() -> None:
    server = ConnectionState("server")
    request = accepted(server.receive(initialize("2025-06-18", 7)))
    assert isinstance(server.receive(cancel(7)), Ignored)
    assert server.finish(request)


# Too early


def test_ping_is_answered_before_initialize() -> None:
    assert accepted(ConnectionState("server").receive(Request(1, "ping"))).revision is LATEST_LEGACY


def test_error_for_a_request_before_initialize_mentions_meta_and_initialize() -> None:
    reply = refused(ConnectionState("server").receive(Request(1, "tools/list")))
    assert reply.code == INVALID_PARAMS
    assert PROTOCOL_VERSION in reply.message
    assert "initialize" in reply.message


def test_unknown_method_before_initialize_gets_error_method_not_found() -> None:
    assert refused(ConnectionState("server").receive(Request(1, "x"))).code == METHOD_NOT_FOUND


def test_server_with_require_initialized_rejects_requests_before_initialize() -> None:
    server = ConnectionState("server", require_initialized=True)
    assert refused(server.receive(Request(1, "tools/list"))).code == NOT_INITIALIZED
    assert server.inbound == ()


def test_server_with_require_initialized_rejects_requests_before_initialized() -> None:
    server = ConnectionState("server", require_initialized=True)
    server.finish(accepted(server.receive(initialize("2025-06-18"))))
    assert refused(server.receive(Request(1, "tools/list"))).code == NOT_INITIALIZED
    server.receive(Notification("notifications/initialized"))
    assert accepted(server.receive(Request(1, "tools/list")))


def test_server_with_require_initialized_always_answers_pings() -> None:
    server = ConnectionState("server", require_initialized=True)
    assert accepted(server.receive(Request(1, "ping")))
    accepted(server.receive(initialize("2025-06-18")))
    assert accepted(server.receive(Request(2, "ping")))


def test_server_with_require_initialized_serves_modern_requests_without_a_handshake() -> None:
    assert accepted(ConnectionState("server", require_initialized=True).receive(modern(1)))


# Modern requests


def test_modern_request_is_served_without_a_handshake_and_without_setting_a_revision() -> None:
    server = ConnectionState("server")
    request = accepted(server.receive(modern(1, "server/discover")))
    assert request.revision is LATEST_MODERN
    assert server.revision is None
    assert not server.initialized


def test_modern_request_contains_the_capabilities_and_client_info_that_apply_to_the_request() -> None:
    server = ConnectionState("server")
    info = {"name": "buoy", "version": "2"}
    meta = meta_of(**{CLIENT_CAPABILITIES: {"sampling": {"tools": {}}}, CLIENT_INFO: info})
    request = accepted(server.receive(Request(1, "tools/list", {"_meta": meta})))
    assert request.capabilities.supports("sampling.tools")
    assert request.client_info is not None
    assert request.client_info.name == "buoy"
    plain = accepted(server.receive(modern(2)))
    assert not plain.capabilities.supports("sampling")
    assert plain.client_info is None


def test_each_modern_request_has_the_capabilities_in_its_own_meta() -> None:
    server = ConnectionState("server")
    for request_id, declared in enumerate([{"roots": {}}, {"roots": {}}, {}, {"roots": {}}, {"elicitation": {}}]):
        meta = meta_of(**{CLIENT_CAPABILITIES: declared})
        request = accepted(server.receive(Request(request_id, "tools/list", {"_meta": meta})))
        assert request.capabilities.supports("roots") is ("roots" in declared)
        assert request.capabilities.supports("elicitation") is ("elicitation" in declared)


def test_each_modern_request_has_the_client_info_in_its_own_meta() -> None:
    server = ConnectionState("server")
    for request_id, name in enumerate(["buoy", "buoy", "cairn"]):
        meta = meta_of(**{CLIENT_INFO: {"name": name, "version": "2"}})
        client = accepted(server.receive(Request(request_id, "tools/list", {"_meta": meta}))).client_info
        assert client is not None
        assert client.name == name


@pytest.mark.parametrize("version", ["2027-01-01", "", *(row.name for row in LEGACY_REVISIONS)])
def test_unsupported_version_error_lists_the_supported_versions(version: str) -> None:
    server = ConnectionState("server")
    reply = refused(server.receive(Request(1, "tools/list", {"_meta": meta_of(**{PROTOCOL_VERSION: version})})))
    assert reply.code == UNSUPPORTED_PROTOCOL_VERSION
    assert reply.data == {"supported": [row.name for row in MODERN_REVISIONS], "requested": version}


@pytest.mark.parametrize("version", [1, True, [], {}])
def test_protocol_version_in_meta_that_is_not_a_string_gets_error_invalid_params(version: Any) -> None:
    message = Request(1, "tools/list", {"_meta": meta_of(**{PROTOCOL_VERSION: version})})
    assert refused(ConnectionState("server").receive(message)).code == INVALID_PARAMS


def test_modern_request_without_client_capabilities_gets_error_invalid_params() -> None:
    message = Request(1, "tools/list", {"_meta": meta_of(**{CLIENT_CAPABILITIES: None})})
    reply = refused(ConnectionState("server").receive(message))
    assert reply.code == INVALID_PARAMS
    assert CLIENT_CAPABILITIES in reply.message


@pytest.mark.parametrize("initialized", [False, True])
@pytest.mark.parametrize("method", ["tools/list", "ping", "server/discover"])
def test_request_with_modern_capabilities_and_no_version_gets_error_invalid_params(
    initialized: bool, method: str
) -> None:
    server = server_of(LATEST_LEGACY) if initialized else ConnectionState("server")
    message = Request(1, method, {"_meta": meta_of(**{PROTOCOL_VERSION: None})})
    reply = refused(server.receive(message))
    assert reply.code == INVALID_PARAMS
    assert PROTOCOL_VERSION in reply.message


def test_modern_request_without_a_version_gets_invalid_params_if_require_initialized_is_on() -> None:
    server = ConnectionState("server", require_initialized=True)
    message = Request(1, "tools/list", {"_meta": meta_of(**{PROTOCOL_VERSION: None})})
    assert refused(server.receive(message)).code == INVALID_PARAMS


@pytest.mark.parametrize("key", [CLIENT_CAPABILITIES, CLIENT_INFO])
@pytest.mark.parametrize("value", [3, "x", [], True, {"name": 3, "roots": 3}])
def test_invalid_capabilities_or_client_info_of_a_modern_request_get_error_invalid_params(key: str, value: Any) -> None:
    message = Request(1, "tools/list", {"_meta": meta_of(**{key: value})})
    server = ConnectionState("server")
    assert refused(server.receive(message)).code == INVALID_PARAMS
    assert accepted(server.receive(modern(1)))


@pytest.mark.parametrize("level", ["debug", "info", "emergency"])
def test_modern_request_can_set_its_minimum_log_level(level: str) -> None:
    message = Request(1, "tools/list", {"_meta": meta_of(**{LOG_LEVEL: level})})
    assert accepted(ConnectionState("server").receive(message)).log_level == level


def test_modern_request_without_a_log_level_is_read_with_log_level_none() -> None:
    assert accepted(ConnectionState("server").receive(modern(1))).log_level is None


@pytest.mark.parametrize("level", ["loud", "", "INFO", 3, True, [], {}])
def test_unknown_log_level_of_a_modern_request_gets_error_invalid_params(level: Any) -> None:
    message = Request(1, "tools/list", {"_meta": meta_of(**{LOG_LEVEL: level})})
    reply = refused(ConnectionState("server").receive(message))
    assert reply.code == INVALID_PARAMS
    assert LOG_LEVEL in reply.message


@pytest.mark.parametrize(
    "method",
    ["ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe", "tasks/result", "tasks/list"],
)
def test_modern_request_for_a_removed_method_gets_error_method_not_found(method: str) -> None:
    assert refused(ConnectionState("server").receive(modern(1, method))).code == METHOD_NOT_FOUND


# Both eras on one connection


def test_modern_request_on_a_legacy_connection_is_served_in_the_modern_revision() -> None:
    server = server_of(LEGACY_REVISIONS[0], roots={})
    new = accepted(server.receive(modern(1)))
    old = accepted(server.receive(Request(2, "tools/list")))
    assert (new.revision, old.revision) == (LATEST_MODERN, LEGACY_REVISIONS[0])
    assert (new.capabilities.supports("roots"), old.capabilities.supports("roots")) == (False, True)
    assert server.revision is LEGACY_REVISIONS[0]


def test_initialize_after_modern_requests_negotiates_a_legacy_revision() -> None:
    server = ConnectionState("server")
    new = accepted(server.receive(modern(1)))
    accepted(server.receive(initialize("2025-06-18", 2)))
    assert accepted(server.receive(Request(3, "ping"))).revision.name == "2025-06-18"
    assert new.revision is LATEST_MODERN


def test_modern_request_with_the_id_of_a_legacy_request_in_flight_gets_error_invalid_request() -> None:
    server = server_of(LATEST_LEGACY)
    accepted(server.receive(Request(1, "tools/list")))
    assert refused(server.receive(modern(1))).code == INVALID_REQUEST


def test_initialize_with_modern_meta_negotiates_a_legacy_revision() -> None:
    server = ConnectionState("server")
    message = initialize("2025-06-18")
    message.params["_meta"] = meta_of()
    assert accepted(server.receive(message)).revision.name == "2025-06-18"


def test_log_level_in_meta_of_a_legacy_request_is_ignored() -> None:
    message = Request(1, "tools/list", {"_meta": {LOG_LEVEL: "loud"}})
    assert accepted(server_of(LATEST_LEGACY).receive(message)).log_level is None


def test_new_connection_state_has_log_level_info() -> None:
    assert server_of(LATEST_LEGACY).log_level == "info"
    assert client_of(LATEST_LEGACY).log_level == "info"
