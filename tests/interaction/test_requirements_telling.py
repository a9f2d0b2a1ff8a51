"""PR and LG: progress and logs of one request, on a virtual clock."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trio_mcp import ClientLogHandler, Limits, RequestContext, Server

from .memory_peer import LATEST_LEGACY, MODERN, REVISIONS, connected

ERAS = pytest.mark.parametrize("revision", [LATEST_LEGACY, MODERN])
LEVELS = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]


@pytest.fixture
def server() -> Server:
    server = Server("rows", "1.0.0")

    @server.tool
    async def report(values: list[list[float]], ctx: RequestContext) -> list[bool]:
        """Report each value after waiting for as many milliseconds; whether each went out."""
        sent: list[bool] = []
        for wait, value in values:
            await trio.sleep(wait / 1000)
            sent.append(ctx.progress(value))
        return sent

    @server.tool
    async def once(value: int | float, ctx: RequestContext, total: int | float | None = None) -> bool:
        return ctx.progress(value, total, message="m")

    @server.tool
    async def hold(ctx: RequestContext) -> str:
        ctx.progress(1)
        ctx.progress(2)
        await trio.sleep(1)
        ctx.progress(3)
        ctx.progress(4)
        return "held"

    @server.tool
    async def data(value: Any, ctx: RequestContext) -> str:
        await ctx.log.error(value)
        return "logged"

    @server.tool
    async def level(name: str, ctx: RequestContext) -> bool:
        return ctx.log.log_nowait(name, "x")

    @server.tool
    async def every(ctx: RequestContext) -> str:
        for name in LEVELS:
            await getattr(ctx.log, name)(name)
        return "logged"

    return server


@pytest.mark.parametrize("revision", REVISIONS)
async def test_pr_01_pr_05_progress_has_only_fields_of_the_negotiated_revision(
    autojump_clock: MockClock, server: Server, revision: str
) -> None:
    async with connected(server, revision) as peer:
        await peer.call("once", {"value": 1, "total": 2}, token="t")
        message = {} if revision == "2024-11-05" else {"message": "m"}
        assert peer.progress_of("t") == [{"progressToken": "t", "progress": 1, "total": 2, **message}]


@ERAS
async def test_pr_02_pr_04_progress_method_of_the_context_returns_false_without_a_valid_progress_token(
    autojump_clock: MockClock, server: Server, revision: str
) -> None:
    async with connected(server, revision) as peer:
        for token, said in ((..., False), (0, True), ("", True), (True, False), (None, False), (1.5, False)):
            result = await peer.call("once", {"value": 1}, token=token)
            assert result["structuredContent"] == {"result": said}, token
        assert len(peer.notifications("notifications/progress")) == 2


@ERAS
async def test_pr_03_pr_04_progress_interval_applies_per_token_and_keeps_the_latest_value(
    autojump_clock: MockClock, server: Server, revision: str
) -> None:
    async with connected(server, revision) as peer:
        values = [[0, 1], [0, 2], [50, 3], [49, 4], [2, 5], [100, 6]]
        one = await peer.start("report", {"values": values}, token="one")
        other = await peer.start("once", {"value": 1}, token="other")
        assert (await peer.reply(other))["result"]["structuredContent"] == {"result": True}
        result = (await peer.reply(one))["result"]["structuredContent"]["result"]
        # 1 goes out; 2 to 4 come within its 100 ms and 4 is sent when they are over, so 5 has to wait in turn,
        # and so has 6, but for the end of the call.
        assert [params["progress"] for params in peer.progress_of("one")] == [1, 4, 5, 6]
        assert result == [True, False, False, False, False, False]


async def test_pr_03_progress_interval_can_be_configured_and_can_be_zero(autojump_clock: MockClock) -> None:
    for interval, expected in ((0.0, [1, 2, 3]), (5.0, [1, 3])):
        server = Server("rows", limits=Limits(progress_interval=interval))

        @server.tool
        async def thrice(ctx: RequestContext) -> str:
            for value in (1, 2, 3):
                ctx.progress(value)
                await trio.sleep(1)
            return "done"

        async with connected(server) as peer:
            await peer.call("thrice", token=1)
            assert [params["progress"] for params in peer.progress_of(1)] == expected


@ERAS
async def test_pr_04_pr_08_delayed_progress_is_sent_at_the_next_interval_or_before_the_reply(
    autojump_clock: MockClock, server: Server, revision: str
) -> None:
    async with connected(server, revision) as peer:
        begin = trio.current_time()
        call = await peer.start("hold", token="t")
        assert (await peer.notification("notifications/progress"))["progress"] == 1
        assert (await peer.notification("notifications/progress"))["progress"] == 2
        assert trio.current_time() - begin == pytest.approx(0.1)
        await peer.reply(call)
        # 3 may still have been queued when 4 came, and a queued value is replaced by a later one (ruling 11).
        assert [params["progress"] for params in peer.progress_of("t")] in ([1, 2, 4], [1, 2, 3, 4])
        assert "result" in peer.messages[-1]
        await peer.everything()
        assert "result" in peer.messages[-1], "nothing follows the reply"


@ERAS
async def test_pr_06_pr_09_progress_numbers_and_tokens_keep_their_types(
    autojump_clock: MockClock, server: Server, revision: str
) -> None:
    async with connected(server, revision) as peer:
        for token, value in ((7, 1), ("7", 1.5), (0, 2**53 + 1)):
            await peer.call("once", {"value": value, "total": value}, token=token)
            (params,) = peer.progress_of(token)
            assert [params["progress"], params["total"]] == [value, value]
            assert type(params["progress"]) is type(value)


VALUES: list[Any] = [None, True, 0, -1.5, "", "text", [1, [2]], {"a": {"b": None}}, 2**53 + 1]


@ERAS
async def test_lg_01_lg_03_lg_05_handler_can_log_any_json_value(
    autojump_clock: MockClock, server: Server, revision: str
) -> None:
    async with connected(server, revision) as peer:
        for value in VALUES:
            await peer.call("data", {"value": value}, log_level="debug")
        messages = [m for m in peer.messages if m.get("method") == "notifications/message"]
        assert [m["params"] for m in messages] == [{"level": "error", "data": value} for value in VALUES]
        assert all("id" not in m for m in messages)


@pytest.mark.parametrize("minimum", LEVELS)
async def test_lg_06_lg_07_logs_below_the_requested_level_are_not_sent(
    autojump_clock: MockClock, server: Server, minimum: str
) -> None:
    async with connected(server) as peer:
        await peer.request("logging/setLevel", {"level": minimum})
        await peer.call("every")
        assert [level for level, _ in peer.logged()] == LEVELS[LEVELS.index(minimum) :]
        peer.revision = MODERN
        peer.forget()
        await peer.call("every", log_level=minimum)
        assert [level for level, _ in peer.logged()] == LEVELS[LEVELS.index(minimum) :]


@ERAS
async def test_lg_08_log_message_with_an_unknown_level_passes_every_level_filter(
    autojump_clock: MockClock, server: Server, revision: str
) -> None:
    async with connected(server, revision) as peer:
        if not peer.is_modern:
            await peer.request("logging/setLevel", {"level": "emergency"})
        for name, passes in (("trace", True), ("INFO", True), ("info", False), ("emergency", True)):
            result = await peer.call("level", {"name": name}, log_level="emergency")
            assert result["structuredContent"] == {"result": passes}
        assert [level for level, _ in peer.logged()] == ["trace", "INFO", "emergency"]


async def test_lg_10_lg_11_legacy_log_level_defaults_to_info_and_modern_to_none(
    autojump_clock: MockClock, server: Server
) -> None:
    async with connected(server) as peer:
        await peer.call("every")
        assert [level for level, _ in peer.logged()] == LEVELS[1:]
        peer.forget()
        peer.revision = MODERN
        await peer.call("every")
        assert peer.logged() == []


async def test_lg_12_modern_request_with_unknown_log_level_is_refused(
    autojump_clock: MockClock, server: Server
) -> None:
    async with connected(server, MODERN) as peer:
        for level in ("loud", "INFO", ""):
            assert (await peer.error("every", log_level=level))["code"] == -32602
        assert peer.logged() == []


@pytest.mark.parametrize("revision", REVISIONS)
async def test_lg_13_server_without_logging_capability_sends_no_logs(autojump_clock: MockClock, revision: str) -> None:
    server = Server("quiet", "1.0.0", logging=False)

    @server.tool
    async def loud(ctx: RequestContext) -> str:
        await ctx.log.emergency("fire")
        ctx.log.log_nowait("emergency", "fire")
        ctx.log.log_nowait("unheard of", "fire")
        return "burned"

    async with connected(server, None) as peer:
        opened = await peer.open(revision)
        assert "logging" not in opened.get("capabilities", {})
        assert await peer.text("loud", log_level="debug") == "burned"
        reply = await peer.request("logging/setLevel", {"level": "debug"})
        assert reply["error"]["code"] == -32601
        assert peer.logged() == []


@ERAS
async def test_lg_01_standard_logging_handler_sends_records_to_the_client_of_the_request(
    autojump_clock: MockClock, server: Server, revision: str
) -> None:
    log = logging.getLogger("tests.requirements.bridge")
    log.propagate = False
    log.setLevel(logging.DEBUG)
    handler = ClientLogHandler()
    log.addHandler(handler)

    @server.tool
    async def standard() -> str:
        log.warning("disk %d%% full", 93)
        log.debug("below the level")
        return "logged"

    try:
        async with connected(server, revision) as peer:
            log.error("of no request")
            await peer.text("standard", log_level="info")
            (params,) = peer.notifications("notifications/message")
            assert params == {"level": "warning", "logger": log.name, "data": "disk 93% full"}
    finally:
        log.removeHandler(handler)
