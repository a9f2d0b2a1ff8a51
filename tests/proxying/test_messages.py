"""What a proxy writes to either side, message by message."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trio_mcp import proxy
from trio_mcp.testing import ScriptedClient, ScriptedServer, open_scripted_client, open_scripted_server
from trio_mcp.testing.scripted_sides import Script

LEGACY, MODERN = "2025-11-25", "2026-07-28"
TOOLS: dict[str, Any] = {"tools": {}, "logging": {}}
REVISIONS = pytest.mark.parametrize("revision", [LEGACY, MODERN])


@asynccontextmanager
async def between(
    script: Script, revision: str = LEGACY, capabilities: dict[str, Any] | None = None
) -> AsyncGenerator[ScriptedClient]:
    """A client, a proxy, and a server that does what ``script`` says."""
    opening = partial(open_scripted_server, script)
    async with open_scripted_client(proxy(opening), revision, capabilities) as client:
        yield client


def text(words: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}]}


@REVISIONS
async def test_can_17_cancel_forwarded_by_a_proxy_has_the_request_id_that_the_server_knows(
    autojump_clock: MockClock, revision: str
) -> None:
    cancelled: list[Any] = []

    async def behind(server: ScriptedServer) -> None:
        await server.accept(revision, TOOLS)
        for _ in range(5):  # so that the ids are others than the client's
            await server.answer_text(await server.expect_request("tools/call"), "earlier")
        calls = {call["params"]["name"]: call for call in [await server.expect_request("tools/call") for _ in range(4)]}
        await server.expect_cancel(calls["left"], "the user pressed stop")
        cancelled.append(calls["left"]["id"])
        for name in ("one", "two", "three"):
            await server.answer_text(calls[name], name)

    async with between(behind, revision) as client:
        for _ in range(5):
            await client.expect_text(await client.call_tool("earlier"), "earlier")
        ids = {name: await client.request("tools/call", {"name": name}, id=name) for name in ("one", "two", "three")}
        left = await client.request("tools/call", {"name": "left"}, id="left")
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(1):
            await client.cancel(left, "the user pressed stop")
            await trio.testing.wait_all_tasks_blocked()
            assert cancelled
        answered = {(await client.receive())["id"] for _ in ids}
        assert answered == {"one", "two", "three"}
        assert cancelled != [left]
        await client.expect_silence(1)


@REVISIONS
async def test_proxy_forwards_a_cancel_without_a_reason_unchanged(autojump_clock: MockClock, revision: str) -> None:
    over = trio.Event()

    async def behind(server: ScriptedServer) -> None:
        await server.accept(revision, TOOLS)
        call = await server.expect_request("tools/call")
        cancel = await server.expect({"method": "notifications/cancelled", "params": ...})
        assert cancel["params"] == {"requestId": call["id"]}
        over.set()

    async with between(behind, revision) as client:
        call = await client.call_tool("t")
        await trio.testing.wait_all_tasks_blocked()
        await client.cancel(call)
        await over.wait()


@REVISIONS
async def test_proxy_preserves_unknown_fields_and_meta_in_both_directions(
    autojump_clock: MockClock, revision: str
) -> None:
    result = {**text("hi"), "com.example": {"a": [1, None]}, "_meta": {"com.example/b": 2}}

    async def behind(server: ScriptedServer) -> None:
        await server.accept(LEGACY, TOOLS)
        call = await server.expect_request("tools/call")
        assert call["params"] == {"name": "t", "arguments": {}, "new": True, "_meta": {"com.example/k": "v"}}
        await server.answer(call, result)

    async with between(behind, revision) as client:
        call = await client.request(
            "tools/call", {"name": "t", "arguments": {}, "new": True}, meta={"com.example/k": "v"}
        )
        got = await client.expect_result(call)
        assert got["com.example"] == result["com.example"]
        assert got["_meta"]["com.example/b"] == 2
        assert ("resultType" in got) is (revision == MODERN)
        if revision == LEGACY:
            assert got == result


async def test_proxy_removes_modern_result_fields_for_a_legacy_client(autojump_clock: MockClock) -> None:
    async def modern_only(server: ScriptedServer) -> None:
        await server.accept(MODERN, TOOLS)
        listing = await server.expect_request("tools/list")
        meta = {"io.modelcontextprotocol/serverInfo": {"name": "s", "version": "1"}}
        result = {"resultType": "complete", "tools": [], "ttlMs": 5, "cacheScope": "public", "_meta": meta, "x": 1}
        await server.answer(listing, result)

    async with open_scripted_client(proxy(_modern(modern_only)), LEGACY) as client:
        assert await client.expect_result(await client.request("tools/list")) == {"tools": [], "x": 1}


def _modern(script: Script) -> Any:
    """Opens a server that is modern, whatever era is asked for."""

    def opening(**options: Any) -> Any:
        options.pop("revision", None)
        return open_scripted_server(script, **{**options, "era": "modern"})

    return opening


async def test_proxied_call_fails_if_the_revision_of_the_client_lacks_a_content_type_in_the_result(
    autojump_clock: MockClock,
) -> None:
    async def behind(server: ScriptedServer) -> None:
        await server.accept(MODERN, TOOLS)
        call = await server.expect_request("tools/call")
        audio = {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}
        await server.answer(call, {"resultType": "complete", "content": [audio]})
        await server.answer(await server.expect_request("tools/call"), {"resultType": "complete", **text("fine")})

    async with open_scripted_client(proxy(_modern(behind)), "2024-11-05") as client:
        error = await client.expect_error(await client.call_tool("sing"), -32603)
        assert "2024-11-05" in error["message"]
        await client.expect_text(await client.call_tool("speak"), "fine")


async def test_proxy_forwards_a_server_request_and_its_cancel_to_the_client_under_a_new_id(
    autojump_clock: MockClock,
) -> None:
    over = trio.Event()

    async def behind(server: ScriptedServer) -> None:
        await server.accept(LEGACY, TOOLS)
        call = await server.expect_request("tools/call")
        await server.request("q1", "roots/list", {"_meta": {"com.example/k": 1}})
        answer = await server.expect({"id": "q1", "result": ...})
        assert answer["result"] == {"roots": [{"uri": "file:///a", "other": 1}]}
        await server.request("q2", "roots/list")
        await trio.testing.wait_all_tasks_blocked()
        await server.cancel("q2", "never mind")
        await trio.testing.wait_all_tasks_blocked()
        await server.answer_text(call, "done")
        over.set()

    async with between(behind, LEGACY, {"roots": {}}) as client:
        call = await client.call_tool("t")
        question = await client.expect({"id": ..., "method": "roots/list", ...: ...})
        assert question["params"] == {"_meta": {"com.example/k": 1}}
        assert question["id"] != "q1"
        await client.answer(question, {"roots": [{"uri": "file:///a", "other": 1}]})
        question = await client.expect({"id": ..., "method": "roots/list"})
        cancel = await client.expect({"method": "notifications/cancelled", "params": ...})
        assert cancel["params"] == {"requestId": question["id"], "reason": "never mind"}
        await client.expect_text(call, "done")
        await over.wait()


async def test_proxy_forwards_logs_and_a_later_server_request_in_order(
    autojump_clock: MockClock,
) -> None:
    async def behind(server: ScriptedServer) -> None:
        await server.accept(LEGACY, TOOLS)
        call = await server.expect_request("tools/call")
        for number in range(20):
            await server.log("warning", number)
            await server.request(number, "roots/list")
            await server.expect({"id": number, "result": {"roots": []}})
        await server.answer_text(call, "done")

    async with between(behind, LEGACY, {"roots": {}}) as client:
        call = await client.call_tool("t")
        for number in range(20):
            await client.expect({"method": "notifications/message", "params": {"level": "warning", "data": number}})
            await client.answer(await client.expect({"id": ..., "method": "roots/list"}), {"roots": []})
        await client.expect_text(call, "done")


async def test_proxy_answers_discover_with_the_current_capabilities_of_the_backend(autojump_clock: MockClock) -> None:
    now = {"supportedVersions": ["2099-01-01", MODERN], "capabilities": {"tools": {}, "prompts": {}}, "x": 1}

    async def behind(server: ScriptedServer) -> None:
        await server.accept(MODERN, TOOLS)
        await server.answer(await server.expect_request("server/discover"), {"resultType": "complete", **now})

    async with between(behind, MODERN) as client:
        got = await client.expect_result(await client.request("server/discover"))
        assert (got["capabilities"], got["x"]) == (now["capabilities"], 1)
        assert got["supportedVersions"] == [MODERN]


@REVISIONS
async def test_proxy_does_not_forward_methods_unknown_to_all_revisions(
    autojump_clock: MockClock, revision: str
) -> None:
    async def behind(server: ScriptedServer) -> None:
        await server.accept(revision, TOOLS)
        await server.answer_text(await server.expect_request("tools/call"), "done")

    async with between(behind, revision) as client:
        await client.notify("notifications/com.example/told")
        await client.expect_error(await client.request("com.example/do", {"x": 1}), -32601)
        await client.expect_text(await client.call_tool("t"), "done")


async def test_proxy_forwards_the_error_of_a_roots_request_unchanged(autojump_clock: MockClock) -> None:
    async def behind(server: ScriptedServer) -> None:
        await server.accept(LEGACY, TOOLS)
        call = await server.expect_request("tools/call")
        await server.request(7, "roots/list")
        answer = await server.expect({"id": 7, "error": ...})
        assert answer["error"] == {"code": -1, "message": "I said no", "data": {"x": 1}}
        await server.answer_text(call, "done")

    async with between(behind, LEGACY, {"roots": {}}) as client:
        call = await client.call_tool("t")
        question = await client.expect({"id": ..., "method": "roots/list"})
        await client.refuse(question, -1, "I said no", {"x": 1})
        await client.expect_text(call, "done")


@REVISIONS
async def test_proxy_forwards_each_progress_notification_with_the_token_of_the_client(
    autojump_clock: MockClock, revision: str
) -> None:
    async def behind(server: ScriptedServer) -> None:
        await server.accept(revision, TOOLS)
        call = await server.expect_request("tools/call")
        assert call["params"]["_meta"]["progressToken"] != "mine"
        for step in range(1, 4):
            await server.progress(call, step, total=3, message=f"{step}")
        await server.answer_text(call, "done")

    async with between(behind, revision) as client:
        call = await client.request("tools/call", {"name": "t"}, meta={"progressToken": "mine"})
        for step in range(1, 4):
            params = {"progressToken": "mine", "progress": step, "total": 3, "message": f"{step}"}
            await client.expect({"method": "notifications/progress", "params": params})
        await client.expect_text(call, "done")


async def test_proxy_forwards_log_elicitation_and_list_change_notifications_unchanged(
    autojump_clock: MockClock,
) -> None:
    told = {"level": "warning", "data": {"x": None}, "logger": "l", "_meta": {"com.example/k": 1}}

    async def behind(server: ScriptedServer) -> None:
        await server.accept(LEGACY, TOOLS)
        call = await server.expect_request("tools/call")
        await server.notify("notifications/message", told)
        await server.notify("notifications/elicitation/complete", {"elicitationId": "e"})
        await server.notify("notifications/tools/list_changed")
        await server.answer_text(call, "done")
        await server.expect({"method": "notifications/roots/list_changed"})
        await server.answer_text(await server.expect_request("tools/call"), "again")

    async with between(behind, LEGACY, {"roots": {"listChanged": True}}) as client:
        call = await client.call_tool("t")
        await client.expect({"method": "notifications/message", "params": told})
        await client.expect({"method": "notifications/elicitation/complete", "params": {"elicitationId": "e"}})
        await client.expect({"method": "notifications/tools/list_changed"})
        await client.expect_text(call, "done")
        await client.notify("notifications/roots/list_changed")
        await trio.testing.wait_all_tasks_blocked()
        await client.expect_text(await client.call_tool("t"), "again")


async def test_proxy_drops_a_queued_log_message_when_its_call_is_cancelled(autojump_clock: MockClock) -> None:
    async def behind(server: ScriptedServer) -> None:
        await server.accept(MODERN, TOOLS)
        call = await server.expect_request("tools/call")
        for number in range(5):
            await server.log("error", [number, "x" * 70_000])  # more than the wire or the outbox holds beside others
        await server.expect_cancel(call)

    async with between(behind, MODERN) as client:
        call = await client.call_tool("t", meta={"io.modelcontextprotocol/logLevel": "error"})
        await trio.testing.wait_all_tasks_blocked()
        await client.cancel(call)
        mark = await client.request("no/such")
        await trio.testing.wait_all_tasks_blocked()
        before: list[int] = []
        while (message := await client.receive()).get("id") != mark:
            before.append(message["params"]["data"][0])
        assert before == [0, 1, 2]
        await client.expect_silence(1)


@REVISIONS
async def test_proxy_that_loses_the_server_closes_the_connection_to_the_client(
    autojump_clock: MockClock, revision: str
) -> None:
    async def behind(server: ScriptedServer) -> None:
        await server.accept(revision, TOOLS)
        await server.expect_request("tools/call")
        await server.aclose()

    async with between(behind, revision) as client:
        error = await client.expect_error(await client.call_tool("t"), -31001)
        assert error["message"] == "The server behind this proxy is gone"
        await client.expect_end()


async def test_proxy_forwards_an_initialize_error_of_the_backend(autojump_clock: MockClock) -> None:
    async def behind(server: ScriptedServer) -> None:
        await server.refuse(await server.receive(), -32000, "not you")

    async with open_scripted_client(proxy(partial(open_scripted_server, behind)), None) as client:
        params = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
        await client.expect_error(await client.request("initialize", params), -32000, "not you")
        await client.expect_end()


async def test_proxy_forwards_client_info_and_capabilities_to_the_backend(autojump_clock: MockClock) -> None:
    async def behind(server: ScriptedServer) -> None:
        opening = await server.accept("2025-03-26", TOOLS)
        assert opening["params"] == {
            "protocolVersion": "2025-03-26",
            "clientInfo": {"name": "scripted-client", "version": "1"},
            "capabilities": {"sampling": {}, "experimental": {"x": {"y": 1}}},
        }
        await server.answer_text(await server.expect_request("tools/call"), "done")

    async with between(behind, "2025-03-26", {"sampling": {}, "experimental": {"x": {"y": 1}}}) as client:
        await client.expect_text(await client.call_tool("t"), "done")


FORM = {"method": "elicitation/create", "params": {"mode": "form", "message": "Who?", "requestedSchema": {}}}
ROOTS = {"method": "roots/list"}
FILLED: dict[str, Any] = {"action": "accept", "content": {"name": "Ada"}}


async def test_proxy_between_a_modern_client_and_server_keeps_the_keys_of_input_requests(
    autojump_clock: MockClock,
) -> None:
    async def behind(server: ScriptedServer) -> None:
        await server.accept(MODERN, TOOLS)
        call = await server.expect_request("tools/call")
        asked = {"resultType": "input_required", "inputRequests": {"who": FORM, "where": ROOTS}, "requestState": "mine"}
        await server.answer(call, asked)
        again = await server.expect_request("tools/call")
        assert again["params"]["inputResponses"] == {"who": FILLED, "where": {"roots": []}}
        assert again["params"]["requestState"] == "mine"
        await server.answer_text(again, "done")

    async with between(behind, MODERN, {"elicitation": {"form": {}}, "roots": {}}) as client:
        result = await client.expect_result(await client.call_tool("t"))
        assert result["inputRequests"].keys() == {"who", "where"}
        answers = {"who": FILLED, "where": {"roots": []}, "other": FILLED}
        more = {"requestState": result["requestState"], "inputResponses": answers}
        again = await client.request("tools/call", {"name": "t", "arguments": {}, **more})
        await client.expect_text(again, "done")


async def test_proxy_forwards_input_responses_without_request_state(autojump_clock: MockClock) -> None:
    async def behind(server: ScriptedServer) -> None:
        await server.accept(MODERN, TOOLS)
        call = await server.expect_request("tools/call")
        assert call["params"]["inputResponses"] == {"who": FILLED}
        assert "requestState" not in call["params"]
        await server.answer_text(call, "done")

    async with between(behind, MODERN) as client:
        params = {"name": "t", "arguments": {}, "inputResponses": {"who": FILLED}}
        await client.expect_text(await client.request("tools/call", params), "done")


async def test_proxy_removes_unrequested_input_responses_for_a_legacy_server(autojump_clock: MockClock) -> None:
    async def behind(server: ScriptedServer) -> None:
        await server.accept(LEGACY, TOOLS)
        call = await server.expect_request("tools/call")
        assert "inputResponses" not in call["params"]
        await server.answer_text(call, "done")

    async with between(behind, MODERN) as client:
        params = {"name": "t", "arguments": {}, "inputResponses": {"who": FILLED}}
        await client.expect_text(await client.request("tools/call", params), "done")
