"""``send_cancels=False``, for servers that die of a cancel notification."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio
from tests.client.rounds import FORM
from tests.interaction.client.raw import RawPeer, RawServer, Serve, cancels_in, methods_in, scripted, text_of
from tests.patience import PATIENCE

from trio_mcp.client.opening import open_client
from trio_mcp.hosting import MemberDescription, open_group
from trio_mcp.types import ElicitFormParams

DIES_OF_A_CANCEL = """
opened()
first = until("tools/call")
second = read()
while second["method"] == "tools/list":  # of a group, which asks for tools that aren't declared
    second = read()
if second["method"] == "notifications/cancelled":
    os._exit(1)
text(first, "late")
text(second, "in time")
"""


async def test_client_with_send_cancels_false_sends_no_cancel_and_drops_the_late_response(
    serve_raw: Serve, era: Any
) -> None:
    raw = serve_raw(DIES_OF_A_CANCEL)
    with trio.fail_after(PATIENCE):
        async with raw.client(era=era, send_cancels=False) as client:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "slow")
                await raw.got("tools/call")
                nursery.cancel_scope.cancel()
            assert text_of(await client.call_tool("quick")) == "in time"
    assert cancels_in(raw.wire) == []


async def test_client_group_sends_no_cancel_to_a_server_with_send_cancels_false(tmp_path: Path) -> None:
    raw = RawServer(tmp_path, DIES_OF_A_CANCEL)
    members = {"frail": MemberDescription(raw.command, options={"era": "legacy", "send_cancels": False})}
    with trio.fail_after(PATIENCE):
        async with open_group(members) as group:
            client = await group.client("frail")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "slow")
                await raw.got("tools/call")
                nursery.cancel_scope.cancel()
            assert text_of(await client.call_tool("quick")) == "in time"
    assert cancels_in(raw.wire) == []


async def test_client_with_send_cancels_false_does_not_cancel_an_unanswered_discover(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.until("server/discover")
        await peer.handshake()
        await peer.result(await peer.until("ping"), {})

    async with scripted(script) as (channel, peer), open_client(channel, send_cancels=False) as client:
        await client.ping()
    assert "notifications/cancelled" not in methods_in(peer.wire)


async def test_client_with_send_cancels_false_sends_no_cancel_when_a_listen_stream_closes(
    autojump_clock: object,
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.discovered(capabilities={"tools": {"listChanged": True}})
        listen = await peer.until("subscriptions/listen")
        meta = {"io.modelcontextprotocol/subscriptionId": listen["id"]}
        asked = {"_meta": meta, "notifications": {"toolsListChanged": True}}
        await peer.notify("notifications/subscriptions/acknowledged", asked)
        call = await peer.until("tools/call")
        await peer.notify("notifications/tools/list_changed", {"_meta": meta})
        await peer.text(call)

    async with scripted(script) as (channel, peer), open_client(channel, send_cancels=False) as client:
        async with client.listen(tools=True):
            pass
        assert text_of(await client.call_tool("any")) == "done"
    assert "notifications/cancelled" not in methods_in(peer.wire)


async def test_client_with_send_cancels_false_sends_no_cancel_before_an_input_required_retry(
    autojump_clock: object,
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.discovered()
        await peer.result(
            await peer.until("tools/call"), {"resultType": "input_required", "inputRequests": {"q": FORM}}
        )
        await peer.text(await peer.until("tools/call"))

    asked = trio.Event()

    async def think(_: ElicitFormParams) -> Any:
        asked.set()
        await trio.sleep_forever()

    options = {"send_cancels": False, "elicitation": think}
    async with scripted(script) as (channel, peer), open_client(channel, **options) as client:  # type: ignore[arg-type]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "asks")
            await asked.wait()
            nursery.cancel_scope.cancel()
        assert text_of(await client.call_tool("any")) == "done"
    assert "notifications/cancelled" not in methods_in(peer.wire)
