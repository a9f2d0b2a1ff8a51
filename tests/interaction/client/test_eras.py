"""Negotiation: detection of legacy and modern servers, and the choice of the revision. All on a virtual clock."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from tests.interaction.client.raw import RawPeer, discovery, methods_in, scripted, text_of

from trio_mcp import ConnectionLost, PeerError, ProtocolViolation
from trio_mcp.client.opening import open_client
from trio_mcp.protocol.meta import CLIENT_CAPABILITIES, CLIENT_INFO, PROTOCOL_VERSION
from trio_mcp.types import REVISIONS

LEGACY = [name for name, row in REVISIONS.items() if row.handshake]
MODERN = "2026-07-28"


async def test_client_sends_no_initialize_if_the_server_answers_discover(
    autojump_clock: object,
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.discovered()
        await peer.text(await peer.until("tools/call"))

    async with scripted(script) as (channel, peer), open_client(channel) as client:
        assert client.revision.name == MODERN
        assert text_of(await client.call_tool("any")) == "done"
    assert methods_in(peer.wire) == ["server/discover", "tools/call"]


async def test_modern_requests_contain_protocol_version_client_info_and_capabilities(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.discovered()
        await peer.text(await peer.until("tools/call"))

    async with scripted(script) as (channel, peer), open_client(channel) as client:
        await client.call_tool("any")
    for message in peer.wire:
        meta = message["params"]["_meta"]
        assert meta[PROTOCOL_VERSION] == MODERN
        assert meta[CLIENT_INFO]["name"] == "trio-mcp"
        assert meta[CLIENT_CAPABILITIES] == {"extensions": {"io.modelcontextprotocol/tasks": {}}}


@pytest.mark.parametrize("code", [-32601, -32602, -32600, -32002, 0])
async def test_client_sends_initialize_if_the_server_rejects_discover(autojump_clock: object, code: int) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.error(await peer.until("server/discover"), code)
        await peer.handshake()

    async with scripted(script) as (channel, peer), open_client(channel) as client:
        assert client.revision.name == LEGACY[-1]
        assert client.server_info is not None
        assert client.server_info.name == "raw"
    assert methods_in(peer.wire)[:3] == ["server/discover", "initialize", "notifications/initialized"]


@pytest.mark.parametrize(
    "answer",
    [
        '{"jsonrpc":"2.0","id":%d,"error":"Method not found"}',
        '{"jsonrpc":"2.0","id":%d,"error":{"code":"METHOD_NOT_FOUND","message":"Method not found"}}',
        '{"id":%d,"error":{"code":-32601,"message":"Method not found"}}',
        '{"jsonrpc":"2.0","id":%d,"result":null,"error":{"code":-32601,"message":"Method not found"}}',
    ],
)
async def test_client_sends_initialize_if_the_server_rejects_discover_with_malformed_json_rpc(
    autojump_clock: object, answer: str
) -> None:
    async def script(peer: RawPeer) -> None:
        probe = await peer.until("server/discover")
        await peer.write(answer % probe["id"])
        await peer.handshake()

    async with scripted(script) as (channel, peer), open_client(channel) as client:
        assert client.revision.handshake
    assert methods_in(peer.wire)[:3] == ["server/discover", "initialize", "notifications/initialized"]


@pytest.mark.parametrize("version", LEGACY)
async def test_client_accepts_each_legacy_revision_chosen_by_server(autojump_clock: object, version: str) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake(version)
        await peer.text(await peer.until("tools/call"))

    async with scripted(script) as (channel, peer), open_client(channel) as client:
        assert client.revision is REVISIONS[version]
        assert text_of(await client.call_tool("any")) == "done"
    assert "_meta" not in peer.wire[-1]["params"]


@pytest.mark.parametrize("version", LEGACY)
async def test_revision_option_of_the_client_sets_the_protocol_version_in_initialize(
    autojump_clock: object, version: str
) -> None:
    async with (
        scripted(RawPeer.handshake) as (channel, peer),
        open_client(channel, era="legacy", revision=version) as client,
    ):
        assert client.revision is REVISIONS[version]
    assert peer.wire[0]["method"] == "initialize"
    assert peer.wire[0]["params"]["protocolVersion"] == version


@pytest.mark.parametrize("era", ["auto", "legacy"])
async def test_modern_revision_as_revision_option_raises_value_error(autojump_clock: object, era: Any) -> None:
    async with scripted(RawPeer.handshake) as (channel, peer):
        with pytest.raises(ValueError, match=r"revision must be a legacy revision \(2024-11-05"):
            async with open_client(channel, era=era, revision=MODERN):
                pass
    assert "initialize" not in methods_in(peer.wire)


@pytest.mark.parametrize("version", ["2023-01-01", MODERN, "", "draft"])
async def test_unsupported_revision_chosen_by_server_raises_protocol_violation(
    autojump_clock: object, version: str
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.error(await peer.until("server/discover"), -32601)
        await peer.result(
            await peer.until("initialize"),
            {"protocolVersion": version, "capabilities": {}, "serverInfo": {"name": "raw", "version": "1"}},
        )

    async with scripted(script) as (channel, peer):
        with pytest.raises(ProtocolViolation, match="which trio-mcp doesn't support"):
            async with open_client(channel):
                pass
    assert methods_in(peer.wire) == ["server/discover", "initialize"]


async def test_client_sends_no_initialize_to_a_modern_server_without_a_common_version(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        discover = await peer.until("server/discover")
        await peer.error(discover, -32022, "no", data={"supported": ["2031-01-01"], "requested": MODERN})

    async with scripted(script) as (channel, peer):
        with pytest.raises(ProtocolViolation, match="2031-01-01"):
            async with open_client(channel):
                pass
    assert methods_in(peer.wire) == ["server/discover"]


@pytest.mark.parametrize("offered", [["2025-06-18"], ["2031-01-01", "2024-11-05", "2025-06-18"]])
async def test_client_sends_initialize_with_the_legacy_revision_listed_in_unsupported_version_error(
    autojump_clock: object, offered: list[str]
) -> None:
    async def script(peer: RawPeer) -> None:
        discover = await peer.until("server/discover")
        await peer.error(discover, -32022, "no", data={"supported": offered, "requested": MODERN})
        await peer.handshake()

    async with scripted(script) as (channel, peer), open_client(channel) as client:
        assert client.revision.name == "2025-06-18"
    assert methods_in(peer.wire)[:2] == ["server/discover", "initialize"]
    assert peer.wire[1]["params"]["protocolVersion"] == "2025-06-18"


@pytest.mark.parametrize("era", ["auto", "modern"])
async def test_client_retries_discover_once_if_the_version_error_lists_the_revision_of_the_client(
    autojump_clock: object, era: Any
) -> None:
    async def refuse(peer: RawPeer) -> None:
        discover = await peer.until("server/discover")
        await peer.error(discover, -32022, "no", data={"supported": ["2031-01-01", MODERN], "requested": MODERN})

    async def script(peer: RawPeer) -> None:
        await refuse(peer)
        await peer.discovered()

    async def refuse_twice(peer: RawPeer) -> None:
        await refuse(peer)
        await refuse(peer)

    async with scripted(script) as (channel, peer), open_client(channel, era=era) as client:
        assert client.revision.name == MODERN
    assert methods_in(peer.wire) == ["server/discover", "server/discover"]
    async with scripted(refuse_twice) as (channel, peer):
        with pytest.raises(
            ProtocolViolation, match="no modern revision in common with the server, which has 2031-01-01, 2026-07-28"
        ):
            async with open_client(channel, era=era):
                pass
    assert methods_in(peer.wire) == ["server/discover", "server/discover"]


async def test_modern_only_client_ignores_legacy_revisions_in_version_error(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        discover = await peer.until("server/discover")
        await peer.error(discover, -32022, "no", data={"supported": ["2025-06-18"], "requested": MODERN})

    async with scripted(script) as (channel, peer):
        with pytest.raises(ProtocolViolation, match="2025-06-18"):
            async with open_client(channel, era="modern"):
                pass
    assert methods_in(peer.wire) == ["server/discover"]


async def test_client_sends_initialize_if_discover_result_lacks_the_modern_revision(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.discovered("2031-01-01", "2025-11-25")
        await peer.handshake()

    async with scripted(script) as (channel, peer), open_client(channel) as client:
        assert client.revision.name == "2025-11-25"
    assert "initialize" in methods_in(peer.wire)


async def test_client_sends_initialize_if_discover_is_unanswered_after_probe_timeout(autojump_clock: object) -> None:
    asked_at: list[float] = []

    async def script(peer: RawPeer) -> None:
        await peer.until("server/discover")
        await peer.until("initialize")
        asked_at.append(trio.current_time())
        await peer.result(
            peer.wire[-1],
            {"protocolVersion": "2024-11-05", "capabilities": {}, "serverInfo": {"name": "raw", "version": "1"}},
        )

    async with scripted(script) as (channel, _):
        begun = trio.current_time()
        async with open_client(channel, probe_timeout=3) as client:
            assert client.revision.name == "2024-11-05"
    assert asked_at == [pytest.approx(begun + 3)]


async def test_unanswered_discover_is_cancelled_after_initialize_succeeds(autojump_clock: object) -> None:
    async with scripted(_silent_about_discovery) as (channel, peer), open_client(channel) as client:
        await client.ping()
    methods = methods_in(peer.wire)
    assert methods.count("notifications/cancelled") == 1
    cancel = peer.wire[methods.index("notifications/cancelled")]
    assert cancel["params"]["requestId"] == peer.wire[0]["id"]


async def _silent_about_discovery(peer: RawPeer) -> None:
    await peer.until("server/discover")
    await peer.handshake()
    await peer.result(await peer.until("ping"), {})


async def test_client_uses_a_late_discover_result_while_initialize_is_unanswered(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        discover = await peer.until("server/discover")
        initialize = await peer.until("initialize")
        await peer.result(discover, discovery())
        await peer.text(await peer.until("tools/call"))
        await peer.error(initialize, -32600)

    async with scripted(script) as (channel, peer), open_client(channel) as client:
        assert client.revision.name == MODERN
        assert text_of(await client.call_tool("any")) == "done"
    # 2025-11-25 cancellation: initialize MUST NOT be cancelled.
    assert "notifications/cancelled" not in methods_in(peer.wire)


async def test_client_waits_for_slow_discover_result_if_initialize_is_refused(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        discover = await peer.until("server/discover")
        await peer.error(await peer.until("initialize"), -32601)
        await trio.sleep(20)
        await peer.result(discover, discovery())

    async with scripted(script) as (channel, _), open_client(channel) as client:
        assert client.revision.name == MODERN


async def test_discover_result_after_initialize_is_ignored(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        discover = await peer.until("server/discover")
        await peer.handshake()
        await peer.result(discover, discovery())
        await peer.result(await peer.until("ping"), {})

    async with scripted(script) as (channel, _), open_client(channel) as client:
        await client.ping()
        assert client.revision.handshake


async def test_connect_raises_peer_error_if_server_refuses_discover_and_initialize(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.error(await peer.until("server/discover"), -32601)
        await peer.error(await peer.until("initialize"), -32000, "not today", data={"try": "tomorrow"})

    async with scripted(script) as (channel, _):
        with pytest.raises(PeerError, match="not today") as caught:
            async with open_client(channel):
                pass
    assert (caught.value.code, caught.value.data) == (-32000, {"try": "tomorrow"})


@pytest.mark.parametrize("opening", ["server/discover", "initialize"])
async def test_connect_raises_connection_lost_if_the_connection_closes_during_negotiation(
    autojump_clock: object, opening: str
) -> None:
    async def script(peer: RawPeer) -> None:
        if opening == "initialize":
            await peer.error(await peer.until("server/discover"), -32601)
        await peer.until(opening)
        await peer.close()

    async with scripted(script) as (channel, _):
        with pytest.raises(ConnectionLost):
            async with open_client(channel):
                pass


async def test_client_sends_initialize_after_an_empty_discover_result(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.result(await peer.until("server/discover"), {})
        await peer.handshake()

    async with scripted(script) as (channel, _), open_client(channel) as client:
        assert client.revision.handshake


@pytest.mark.parametrize(
    "answer",
    [
        None,
        [],
        {},
        {"supportedVersions": 5},
        {"supportedVersions": [5]},
        {"supportedVersions": ["2026-07-28"], "capabilities": {}, "resultType": "hologram"},
        "text",
    ],
)
async def test_malformed_discover_result_raises_protocol_violation_in_modern_client(
    autojump_clock: object, answer: Any
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.result(await peer.until("server/discover"), answer)

    async with scripted(script) as (channel, _):
        with pytest.raises(ProtocolViolation):
            async with open_client(channel, era="modern"):
                pass


@pytest.mark.parametrize("answer", [None, [], {}, {"protocolVersion": 5}, "text"])
async def test_malformed_initialize_result_raises_protocol_violation(autojump_clock: object, answer: Any) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.result(await peer.until("initialize"), answer)

    async with scripted(script) as (channel, _):
        with pytest.raises(ProtocolViolation):
            async with open_client(channel, era="legacy"):
                pass


async def test_modern_only_client_does_not_fall_back_to_initialize(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.error(await peer.until("server/discover"), -32601)

    async with scripted(script) as (channel, peer):
        with pytest.raises(PeerError):
            async with open_client(channel, era="modern"):
                pass
    assert methods_in(peer.wire) == ["server/discover"]


async def test_ping_from_server_during_negotiation_is_answered(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        discover = await peer.until("server/discover")
        await peer.request("p1", "ping")
        assert await peer.read() == {"jsonrpc": "2.0", "id": "p1", "result": {}}
        await peer.error(discover, -32601)
        await peer.handshake()

    async with scripted(script) as (channel, _), open_client(channel) as client:
        assert client.revision.handshake


async def test_client_exposes_instructions_and_capabilities_of_server(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.result(
            await peer.until("initialize"),
            {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {"listChanged": True}, "experimental": {"x": {}}},
                "serverInfo": {"name": "S", "version": "2", "unknown": 1},
                "instructions": "be kind",
                "unknown": {},
            },
        )

    async with scripted(script) as (channel, _), open_client(channel, era="legacy") as client:
        assert client.instructions == "be kind"
        assert client.server_capabilities.tools is not None
        assert client.server_capabilities.tools.list_changed
        assert client.server_capabilities.prompts is None


@pytest.mark.parametrize(
    "described",
    [
        {"capabilities": {}},
        {"serverInfo": {"name": "raw"}},
        {"capabilities": {}, "protocolVersion": None},
    ],
)
async def test_client_uses_the_requested_revision_if_initialize_result_has_no_version(
    autojump_clock: object, described: dict[str, Any]
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.result(await peer.until("initialize"), described)

    async with scripted(script) as (channel, _), open_client(channel, era="legacy") as client:
        assert client.revision.name == "2025-11-25"


@pytest.mark.parametrize(
    ("info", "name"), [("raw", "raw"), ({}, "unknown"), ([], "unknown"), (5, "unknown"), ({"version": "1"}, "unknown")]
)
async def test_client_accepts_a_discover_result_whose_supported_versions_field_is_a_single_string(
    autojump_clock: object, info: Any, name: str
) -> None:
    async def script(peer: RawPeer) -> None:
        meta = {"io.modelcontextprotocol/serverInfo": info}
        await peer.result(await peer.read(), {**discovery(), "supportedVersions": "2026-07-28", "_meta": meta})

    async with scripted(script) as (channel, _), open_client(channel, era="modern") as client:
        assert client.server_info is not None
        assert client.server_info.name == name
