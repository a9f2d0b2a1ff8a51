"""What each modern request says of itself: read once, however often it is said."""

from __future__ import annotations

from typing import Any

import pytest
from tests.state.peers import meta_of

from trio_mcp.jsonrpc.errors import INVALID_PARAMS, CodedError
from trio_mcp.protocol.errors import UNSUPPORTED_PROTOCOL_VERSION
from trio_mcp.protocol.meta import CLIENT_CAPABILITIES, CLIENT_INFO, LOG_LEVEL, PROTOCOL_VERSION
from trio_mcp.protocol.revisions import LATEST_LEGACY, LATEST_MODERN, MODERN_REVISIONS, REVISIONS
from trio_mcp.state.requests import PerRequestFields

INFO = {"name": "buoy", "version": "2"}


@pytest.fixture
def fields() -> PerRequestFields:
    return PerRequestFields()


def test_revision_in_meta_selects_the_revision_of_a_modern_request(fields: PerRequestFields) -> None:
    for revision in MODERN_REVISIONS:
        assert fields.revision({PROTOCOL_VERSION: revision.name}) is revision


@pytest.mark.parametrize("name", [LATEST_LEGACY.name, "2027-01-01", "x" * 1000])
def test_error_for_an_unknown_revision_lists_supported_revisions_and_truncates_the_requested_one(
    fields: PerRequestFields, name: str
) -> None:
    with pytest.raises(CodedError) as caught:
        fields.revision({PROTOCOL_VERSION: name})
    supported = [row.name for row in REVISIONS.values() if not row.handshake]
    assert (caught.value.code, caught.value.data) == (
        UNSUPPORTED_PROTOCOL_VERSION, {"supported": supported, "requested": name[:200]}
    )  # fmt: skip


@pytest.mark.parametrize("meta", [{}, {PROTOCOL_VERSION: None}, {PROTOCOL_VERSION: 1}, {PROTOCOL_VERSION: []}])
def test_revision_in_meta_that_is_not_a_string_gets_error_invalid_params(
    fields: PerRequestFields, meta: dict[str, Any]
) -> None:
    with pytest.raises(CodedError, match=PROTOCOL_VERSION) as caught:
        fields.revision(meta)
    assert caught.value.code == INVALID_PARAMS


def test_modern_request_has_the_log_level_of_its_meta_or_none_if_absent(fields: PerRequestFields) -> None:
    assert fields.log_level({LOG_LEVEL: "debug"}) == "debug", "the least severe"
    assert fields.log_level({LOG_LEVEL: "emergency"}) == "emergency"
    assert fields.log_level({}) is None
    assert fields.log_level({LOG_LEVEL: None}) is None


@pytest.mark.parametrize("level", ["", "loud", 0, False, []])
def test_unknown_log_level_in_meta_gets_error_invalid_params(fields: PerRequestFields, level: Any) -> None:
    with pytest.raises(CodedError, match=LOG_LEVEL) as caught:
        fields.log_level({LOG_LEVEL: level})
    assert caught.value.code == INVALID_PARAMS


def test_requests_with_equal_capabilities_in_meta_share_a_cached_object(fields: PerRequestFields) -> None:
    roots = fields.capabilities(meta_of(**{CLIENT_CAPABILITIES: {"roots": {}}}), LATEST_MODERN)
    assert roots.supports("roots")
    assert fields.capabilities(meta_of(**{CLIENT_CAPABILITIES: {"roots": {}}}), LATEST_MODERN) is roots
    sampling = fields.capabilities(meta_of(**{CLIENT_CAPABILITIES: {"sampling": {}}}), LATEST_MODERN)
    assert (sampling.supports("sampling"), sampling.supports("roots")) == (True, False)
    assert fields.capabilities(meta_of(**{CLIENT_CAPABILITIES: {"sampling": {}}}), LATEST_MODERN) is sampling


def test_request_without_client_capabilities_in_meta_gets_error_invalid_params(
    fields: PerRequestFields,
) -> None:
    assert not fields.capabilities({CLIENT_CAPABILITIES: {}}, LATEST_MODERN).supports("roots")
    for meta in ({}, {CLIENT_CAPABILITIES: None}):
        with pytest.raises(CodedError, match=f"missing {CLIENT_CAPABILITIES}") as caught:
            fields.capabilities(meta, LATEST_MODERN)
        assert caught.value.code == INVALID_PARAMS


def test_requests_with_equal_client_info_in_meta_share_a_cached_object(fields: PerRequestFields) -> None:
    buoy = fields.client_info({CLIENT_INFO: dict(INFO)}, LATEST_MODERN)
    assert buoy is not None
    assert (buoy.name, buoy.version) == ("buoy", "2")
    assert fields.client_info({CLIENT_INFO: dict(INFO)}, LATEST_MODERN) is buoy
    cairn = fields.client_info({CLIENT_INFO: {**INFO, "name": "cairn"}}, LATEST_MODERN)
    assert cairn is not None
    assert cairn.name == "cairn"


def test_request_without_client_info_has_none_even_after_a_request_with_client_info(fields: PerRequestFields) -> None:
    for meta in ({}, {CLIENT_INFO: None}, {CLIENT_INFO: INFO}, {}):
        assert (fields.client_info(meta, LATEST_MODERN) is None) is (meta.get(CLIENT_INFO) is None)


def test_invalid_capabilities_and_client_info_in_meta_are_rejected_every_time(fields: PerRequestFields) -> None:
    for _ in range(2):
        with pytest.raises(CodedError):
            fields.capabilities({CLIENT_CAPABILITIES: {"roots": 3}}, LATEST_MODERN)
        with pytest.raises(CodedError):
            fields.client_info({CLIENT_INFO: {"name": 3}}, LATEST_MODERN)
