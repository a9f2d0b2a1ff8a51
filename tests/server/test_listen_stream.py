"""ListenStream, and what of a filter is honoured (2026-07-28 subscriptions, Acknowledgment)."""

from __future__ import annotations

import pytest

from trio_mcp.protocol.types.lifecycle import (
    PromptsCapability,
    ResourcesCapability,
    ServerCapabilities,
    ToolsCapability,
)
from trio_mcp.protocol.types.notifications import SubscriptionFilter
from trio_mcp.server.subscriptions import honoured_part

EVERYTHING = SubscriptionFilter(True, True, True, ["note://a", "note://b"])


def test_listen_filter_acknowledges_only_declared_list_changes() -> None:
    declared = ServerCapabilities(
        tools=ToolsCapability(list_changed=True),
        prompts=PromptsCapability(),
        resources=ResourcesCapability(list_changed=True),
    )
    assert honoured_part(EVERYTHING, declared, []) == SubscriptionFilter(True, None, True)


def test_listen_filter_acknowledges_the_available_resource_subscriptions() -> None:
    assert honoured_part(EVERYTHING, ServerCapabilities(), ["note://b"]) == SubscriptionFilter(
        resource_subscriptions=["note://b"]
    )


@pytest.mark.parametrize("refused", [None, False])
def test_listen_filter_acknowledges_no_unrequested_list_changes(refused: bool | None) -> None:
    declared = ServerCapabilities(tools=ToolsCapability(list_changed=True))
    assert honoured_part(SubscriptionFilter(refused), declared, []) == SubscriptionFilter()
