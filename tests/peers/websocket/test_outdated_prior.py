"""Clients that open with the saved answer of a modern server (``prior=``) find ``mcp`` 1.x there: the first call is
refused, and sent again after the handshake."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from tests.patience import PATIENCE
from tests.peers.journals import Journal
from tests.peers.websocket.children import listening, peer_server

from trio_mcp import open_http, open_websocket

SAVED = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}


@pytest.mark.parametrize("transport", ["http", "websocket"])
async def test_first_call_with_a_saved_discover_result_succeeds_if_the_server_changed_to_a_legacy_revision(
    transport: str, peer_python: Path, tmp_path: Path
) -> None:
    scheme, opening = ("http", open_http) if transport == "http" else ("ws", open_websocket)
    with listening(peer_server(peer_python, transport), Journal(tmp_path / "journal"), scheme) as child:
        with trio.fail_after(PATIENCE):
            async with opening(child.url, prior=SAVED) as client:
                assert client.revision.name == "2026-07-28"
                assert (await client.call_tool("add", {"a": 1, "b": 2})).text == "3"
                assert client.revision.name == "2025-11-25"
                assert client.discovery is None
