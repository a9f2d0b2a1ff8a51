"""Error classes of MCP, and their codes and data."""

from __future__ import annotations

import pytest

from trio_mcp.jsonrpc.errors import INTERNAL_ERROR, INVALID_REQUEST
from trio_mcp.protocol.converters import structure
from trio_mcp.protocol.errors import (
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    CapabilityMissing,
    NoBackChannel,
)
from trio_mcp.protocol.revisions import LATEST_MODERN, LEGACY_REVISIONS, Revision
from trio_mcp.protocol.types.lifecycle import ClientCapabilities


@pytest.mark.parametrize("revision", LEGACY_REVISIONS, ids=str)
def test_missing_capability_error_has_code_invalid_request_in_legacy_revisions(revision: Revision) -> None:
    error = CapabilityMissing("sampling.tools", revision)
    assert (error.code, error.data) == (INVALID_REQUEST, None)
    assert "sampling.tools" in error.message


@pytest.mark.parametrize(
    ("capability", "required"),
    [("roots", {"roots": {}}), ("elicitation.url", {"elicitation": {"url": {}}})],
)
def test_missing_capability_error_data_names_the_capability_as_an_object_in_modern_revisions(
    capability: str, required: dict[str, object]
) -> None:
    error = CapabilityMissing(capability, LATEST_MODERN)
    assert error.code == MISSING_REQUIRED_CLIENT_CAPABILITY
    assert error.data == {"requiredCapabilities": required}
    assert structure(error.data["requiredCapabilities"], ClientCapabilities).supports(capability)


def test_error_of_a_stateless_server_that_cannot_send_requests_is_an_internal_error() -> None:
    assert NoBackChannel("this server is run stateless").code == INTERNAL_ERROR
