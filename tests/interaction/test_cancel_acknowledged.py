"""trio-mcp/cancelAcknowledged: a cancelled call waits until the server has stopped its handler. Legacy and modern, in
memory and over HTTP.
"""

from __future__ import annotations

import math
import threading
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Literal

import pytest
import trio

from trio_mcp import (
    CancelAcknowledged,
    CancelCause,
    Client,
    HTTPError,
    Limits,
    PeerError,
    RequestContext,
    Server,
    WorkerContext,
    confirm_cancels,
    fail_after_work,
    open_memory,
)
from trio_mcp.types import CallEnding, Extension

Era = Literal["modern", "legacy"]
TOKEN = "trio-mcp/cancelToken"


@pytest.fixture(params=["modern", "legacy"])
def era(request: pytest.FixtureRequest) -> Era:
    return request.param


class Slow:
    """A server whose tool cleans up for as long as told, and what its handler has done."""

    def __init__(self, **options: Any) -> None:
        self.begun = trio.Event()
        self.lines: list[str] = []
        self.cancels: list[CancelCause] = []
        self.metas: list[dict[str, Any]] = []
        self.server = Server("slow", extensions=[CancelAcknowledged()], **options)

        @self.server.tool
        async def slow(ctx: RequestContext, cleanup: float = 0.0) -> str:
            self.metas.append(dict(ctx.meta))
            self.begun.set()
            try:
                await trio.sleep_forever()
            finally:
                assert ctx.cancellation is not None
                self.cancels.append(ctx.cancellation.cause)
                with trio.CancelScope(shield=True):
                    await trio.sleep(cleanup)
                self.lines.append("cleaned up")
            raise AssertionError

        @self.server.tool
        async def quick() -> str:
            return "quick"


def opened(server: Server, **options: Any) -> AbstractAsyncContextManager[Client]:
    return open_memory(server, extensions=[CancelAcknowledged()], **options)


async def left(client: Client, arguments: dict[str, Any], *, within: float = 6.0, begun: trio.Event) -> CallEnding:
    """How a call ends that is left once its handler has begun."""
    with confirm_cancels(within=within) as endings:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "slow", arguments)
            await begun.wait()
            nursery.cancel_scope.cancel(reason="enough")
    (ending,) = endings
    return ending


async def call_with(client: Client, token: str, cleanup: float = 0.0) -> None:
    """Call with a token, and wait though the server was told to stop."""
    with suppress(HTTPError):  # over HTTP, a call that is cancelled by somebody else ends without a reply
        await client.call_tool("slow", {"cleanup": cleanup}, meta={TOKEN: token})


async def cancelled(client: Client, token: str, **more: Any) -> dict[str, Any]:
    """What the server says of the call with a token."""
    answer = await client.request("trio-mcp/cancel", {"cancelToken": token, **more}, dict[str, Any])
    return {name: value for name, value in answer.items() if name not in ("resultType", "_meta")}


# What a caller learns


async def test_cancelled_call_waits_until_its_handler_has_cleaned_up(era: Era, autojump_clock: Any) -> None:
    slow = Slow()
    async with opened(slow.server, era=era) as client:
        ending = await left(client, {"cleanup": 3.0}, begun=slow.begun)
        assert slow.lines == ["cleaned up"]
    assert (ending.method, ending.name, ending.state) == ("tools/call", "slow", "stopped")
    assert ending.cleanup == pytest.approx(3.0, abs=0.1)
    assert ending.seconds == pytest.approx(3.0, abs=0.1)
    assert not ending.never_ran


async def test_cancelled_call_raises_cancelled_after_it_waits_for_the_handler(era: Era, autojump_clock: Any) -> None:
    slow = Slow()
    async with opened(slow.server, era=era) as client:
        with confirm_cancels() as endings, pytest.raises(trio.TooSlowError):
            with trio.fail_after(1):
                await client.call_tool("slow", {"cleanup": 2})
        with pytest.raises(trio.TooSlowError), confirm_cancels() as others, fail_after_work(1):
            await client.call_tool("slow", {"cleanup": 2})
    assert [each.state for each in [*endings, *others]] == ["stopped", "stopped"]


async def test_cancelled_call_waits_for_a_shielded_handler_only_for_the_seconds_of_the_within_option(
    era: Era, autojump_clock: Any
) -> None:
    slow = Slow(limits=Limits(cleanup_grace=1))
    async with opened(slow.server, era=era) as client:
        began = trio.current_time()
        ending = await left(client, {"cleanup": 1000}, within=2, begun=slow.begun)
        assert ending.state == "overran"
        assert trio.current_time() - began == pytest.approx(2, abs=0.3)
        assert slow.lines == []
        with trio.CancelScope(shield=True):
            await trio.sleep(1000)


async def test_call_cancelled_while_it_waits_in_the_queue_never_runs(era: Era, way: str, autojump_clock: Any) -> None:
    if (way, era) == ("http", "modern"):
        return  # none waits there: the bound is that of all clients
    slow = Slow(limits=Limits(max_in_flight=1))
    async with opened(slow.server, era=era) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "slow")
        await slow.begun.wait()
        with confirm_cancels() as endings, trio.move_on_after(1):
            await client.call_tool("slow")
        nursery.cancel_scope.cancel()
    (ending,) = endings
    assert (ending.state, ending.never_ran, ending.cleanup) == ("stopped", True, 0.0)
    assert len(slow.metas) == 1


async def test_confirm_cancels_reports_state_abandoned_if_the_handler_thread_exceeds_cleanup_grace(
    era: Era,
) -> None:
    server = Server("threads", extensions=[CancelAcknowledged()], limits=Limits(cleanup_grace=0.3))
    begun, go_on = trio.Event(), threading.Event()

    @server.tool
    def hang(ctx: WorkerContext) -> str:
        trio.from_thread.run_sync(begun.set)
        go_on.wait(60)
        return "late"

    try:
        async with opened(server, era=era) as client:
            with confirm_cancels(within=30) as endings:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(client.call_tool, "hang")
                    await begun.wait()
                    nursery.cancel_scope.cancel()
            go_on.set()
    finally:
        go_on.set()
    (ending,) = endings
    assert ending.state == "abandoned"
    assert ending.seconds < 20


async def test_confirm_cancels_reports_state_unsent_for_a_call_cancelled_before_it_was_sent(era: Era) -> None:
    slow = Slow()
    async with opened(slow.server, era=era) as client:
        with confirm_cancels() as endings, trio.CancelScope() as scope:
            scope.cancel()
            await client.call_tool("slow")
        await client.call_tool("quick")
    assert endings == [CallEnding("tools/call", "slow", "unsent", 0.0)]
    assert slow.metas == []


async def test_cancel_token_is_sent_only_if_client_and_server_declare_the_extension(era: Era) -> None:
    slow = Slow()
    plain = Server("plain")
    begun = trio.Event()
    metas: list[dict[str, Any]] = []

    @plain.tool(name="slow")
    async def same(ctx: RequestContext) -> str:
        metas.append(dict(ctx.meta))
        begun.set()
        await trio.sleep_forever()
        return ""

    async with opened(plain, era=era) as client:
        assert (await left(client, {}, begun=begun)).state == "undeclared"
        assert "extensions" not in str(client.server_capabilities) or not client.server_capabilities.extensions
    async with open_memory(slow.server, era=era) as client:
        assert (await left(client, {}, begun=slow.begun)).state == "undeclared"
    async with opened(slow.server, era=era) as client:
        await client.call_tool("quick")
        with trio.move_on_after(0):
            await client.call_tool("slow")
    assert [TOKEN in meta for meta in metas + slow.metas] == [False, False]


async def test_call_outside_confirm_cancels_sends_no_cancel_token(era: Era) -> None:
    slow = Slow()
    async with opened(slow.server, era=era) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "slow")
            await slow.begun.wait()
            nursery.cancel_scope.cancel()
        await left(client, {}, begun=slow.begun)
    assert TOKEN not in slow.metas[0]


async def test_confirm_cancels_lists_no_call_that_completed(era: Era) -> None:
    slow = Slow()
    async with opened(slow.server, era=era) as client:
        with confirm_cancels() as endings:
            await client.call_tool("quick")
            with pytest.raises(PeerError):
                await client.read_resource("none://here")
            await client.ping() if era == "legacy" else None
    assert endings == []


async def test_call_whose_progress_callback_raises_is_confirmed_as_stopped(era: Era) -> None:
    server = Server("telling", extensions=[CancelAcknowledged()])
    ended = trio.Event()

    @server.tool
    async def tell(ctx: RequestContext) -> str:
        ctx.progress(1)
        try:
            await trio.sleep_forever()
        finally:
            ended.set()
        return ""

    def fail(_: Any) -> None:
        raise KeyError("mine")

    async with opened(server, era=era) as client:
        with confirm_cancels() as endings, pytest.raises(KeyError, match="mine"):
            await client.call_tool("tell", on_progress=fail)
        assert [each.state for each in endings] == ["stopped"]
        assert ended.is_set()


async def test_cancelled_call_stops_a_handler_that_waits_for_an_elicitation(autojump_clock: Any) -> None:
    """A modern call that is left between two rounds: its handler is parked."""
    server = Server("asking", extensions=[CancelAcknowledged()])
    ended: list[CancelCause] = []

    @server.tool
    async def ask(ctx: RequestContext) -> str:
        try:
            await ctx.elicit("sure?", bool)
        finally:
            assert ctx.cancellation is not None
            ended.append(ctx.cancellation.cause)
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
        return ""

    asked = trio.Event()

    async def never(_: Any) -> Any:
        asked.set()
        await trio.sleep_forever()

    async with opened(server, era="modern", elicitation=never) as client:
        with confirm_cancels() as endings:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "ask")
                await asked.wait()
                nursery.cancel_scope.cancel()
        assert [each.state for each in endings] == ["stopped"]
        assert ended == [CancelCause.PEER]


async def test_each_of_a_thousand_calls_cancelled_together_is_confirmed_as_stopped(
    era: Era, way: str, autojump_clock: Any
) -> None:
    slow, running = Slow(), 1000 if way == "direct" else 200  # over HTTP, a thousand take half a minute
    count = 0
    all_begun = trio.Event()

    @slow.server.tool
    async def counted() -> str:
        nonlocal count
        count += 1
        if count == running:
            all_begun.set()
        try:
            await trio.sleep_forever()
        finally:
            count -= 1
        return ""

    async with opened(slow.server, era=era) as client:
        with confirm_cancels(within=60) as endings:
            async with trio.open_nursery() as nursery:
                for _ in range(running):
                    nursery.start_soon(client.call_tool, "counted")
                await all_begun.wait()
                nursery.cancel_scope.cancel()
        assert count == 0
    assert [each.state for each in endings] == ["stopped"] * running


async def test_confirm_cancels_inside_a_cancelled_handler_stops_waiting_before_cleanup_grace_ends(
    autojump_clock: Any,
) -> None:
    behind = Slow()
    front = Server("front", limits=Limits(cleanup_grace=2))
    endings: list[CallEnding] = []
    waited: list[float] = []
    left_behind = trio.Event()

    async with opened(behind.server) as inner:

        @front.tool
        async def through() -> str:
            with confirm_cancels(within=60) as found:
                try:
                    await inner.call_tool("slow", {"cleanup": 1000})
                finally:
                    endings.extend(found)
                    left_behind.set()
            return ""

        async with open_memory(front) as client:
            with trio.move_on_after(1):
                await client.call_tool("through")
            began = trio.current_time()
            with trio.CancelScope(shield=True):
                await left_behind.wait()
            waited.append(trio.current_time() - began)
        await trio.sleep(1000)
    assert endings[0].state in ("overran", "silent")
    assert waited[0] < 2


async def test_confirm_cancels_reports_state_lost_if_the_client_closes(era: Era, autojump_clock: Any) -> None:
    slow = Slow(limits=Limits(cleanup_grace=1, drain_timeout=0.1))
    endings: list[CallEnding] = []
    async with trio.open_nursery() as nursery, opened(slow.server, era=era) as client:

        async def call() -> None:
            with confirm_cancels(within=50) as found, trio.move_on_after(1):
                await client.call_tool("slow", {"cleanup": 20})
            endings.extend(found)

        nursery.start_soon(call)
        await slow.begun.wait()
        await trio.sleep(2)
    assert [each.state for each in endings] == ["lost"]
    assert endings[0].seconds < 30


@pytest.mark.parametrize("within", [0, -1, math.inf, math.nan])
def test_confirm_cancels_raises_for_an_infinite_or_nonpositive_timeout(within: float) -> None:
    with pytest.raises(ValueError, match="positive and finite"), confirm_cancels(within=within):
        raise AssertionError


@pytest.mark.parametrize("wait", [0, -1, math.inf, math.nan, 1e9])
def test_cancel_acknowledged_extension_raises_for_an_invalid_max_wait(wait: float) -> None:
    with pytest.raises(ValueError, match="max_wait"):
        CancelAcknowledged(max_wait=wait)


# What a server says


async def test_cancel_request_sent_after_the_reply_gets_the_state_finished_and_the_outcome_of_the_call(
    era: Era,
) -> None:
    slow = Slow()
    async with opened(slow.server, era=era) as client:
        await client.call_tool("quick", meta={TOKEN: "q" * 22})
        with pytest.raises(PeerError):
            await client.call_tool("none", meta={TOKEN: "n" * 22})
        assert await cancelled(client, "q" * 22) == {"state": "finished", "outcome": "result"}
        assert await cancelled(client, "n" * 22) == {"state": "finished", "outcome": "error"}


async def test_concurrent_cancel_requests_with_the_same_cancel_token_all_get_the_state_stopped(
    era: Era, autojump_clock: Any
) -> None:
    slow = Slow()
    token = "t" * 22
    async with opened(slow.server, era=era) as client, trio.open_nursery() as nursery:
        nursery.start_soon(call_with, client, token, 3.0)
        await slow.begun.wait()
        assert await cancelled(client, token, waitMs=0, reason="enough") == {"state": "overran"}
        first, second = dict[str, Any](), dict[str, Any]()

        async def ask(into: dict[str, Any]) -> None:
            into.update(await cancelled(client, token))

        async with trio.open_nursery() as both:
            both.start_soon(ask, first)
            both.start_soon(ask, second)
        assert first == second
        assert (first["state"], slow.cancels) == ("stopped", [CancelCause.PEER])
        nursery.cancel_scope.cancel()


async def test_cancel_request_that_its_sender_stops_awaiting_does_not_affect_the_cancelled_handler(
    era: Era, autojump_clock: Any
) -> None:
    slow = Slow()
    token = "t" * 22
    async with opened(slow.server, era=era) as client, trio.open_nursery() as nursery:
        nursery.start_soon(call_with, client, token, 3.0)
        await slow.begun.wait()
        with trio.move_on_after(1):
            await cancelled(client, token)
        assert (await cancelled(client, token))["state"] == "stopped"
        nursery.cancel_scope.cancel()


async def test_cancel_request_for_unknown_or_expired_token_returns_unknown(era: Era, autojump_clock: Any) -> None:
    slow = Slow(limits=Limits(max_endings=2, ending_timeout=30))
    tokens = [letter * 22 for letter in "abcd"]
    async with opened(slow.server, era=era) as client:
        for token in tokens[:3]:
            await client.call_tool("quick", meta={TOKEN: token})
        known = {token[0]: (await cancelled(client, token))["state"] for token in tokens}
        assert known == {"a": "unknown", "b": "finished", "c": "finished", "d": "unknown"}
        await trio.sleep(31)
        assert [(await cancelled(client, token))["state"] for token in tokens] == ["unknown"] * 4


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"cancelToken": "short"},
        {"cancelToken": "x" * 65},
        {"cancelToken": 1},
        {"cancelToken": "x y z" * 5},
        {"cancelToken": "t" * 22, "waitMs": -1},
        {"cancelToken": "t" * 22, "waitMs": "long"},
        {"cancelToken": "t" * 22, "waitMs": 10**12},
    ],
)
async def test_cancel_request_with_invalid_params_is_refused(era: Era, params: dict[str, Any]) -> None:
    async with opened(Slow().server, era=era) as client:
        with pytest.raises(PeerError) as caught:
            await client.request("trio-mcp/cancel", params, dict[str, Any])
        assert caught.value.code == -32602


async def test_server_ignores_a_malformed_or_duplicate_cancel_token(era: Era, autojump_clock: Any) -> None:
    slow = Slow()
    async with opened(slow.server, era=era) as client, trio.open_nursery() as nursery:
        for bad in (7, "short", "x" * 65, {"a": 1}):
            await client.call_tool("quick", meta={TOKEN: bad})
        token = "t" * 22
        nursery.start_soon(call_with, client, token)
        await slow.begun.wait()
        await client.call_tool("quick", meta={TOKEN: token})
        assert (await cancelled(client, token))["state"] == "stopped"
        nursery.cancel_scope.cancel()


async def test_cancel_request_from_client_without_the_extension_is_refused(era: Era) -> None:
    other = Extension("com.example/other")
    stolen = other.method("trio-mcp/cancel", dict[str, Any], dict[str, Any])
    async with open_memory(Slow().server, era=era, extensions=[other]) as client:
        with pytest.raises(PeerError) as caught:
            await cancelled(client, "t" * 22)
    assert caught.value.code == (-32021 if era == "modern" else -32600)
    assert stolen.name == "trio-mcp/cancel"


async def test_cancel_requests_beyond_max_cancel_waits_are_refused_as_busy(
    era: Era, way: str, autojump_clock: Any
) -> None:
    slow = Slow(limits=Limits(max_cancel_waits=1, max_in_flight=1, max_queued=1))
    token = "t" * 22
    async with opened(slow.server, era=era) as client, trio.open_nursery() as nursery:
        nursery.start_soon(call_with, client, token, 4.0)
        await slow.begun.wait()
        nursery.start_soon(cancelled, client, token)
        await trio.sleep(1)
        if (way, era) != ("http", "modern"):  # there, the bound is that of all clients
            with pytest.raises(PeerError) as caught:
                await cancelled(client, token)
            assert caught.value.code == -31000
        await trio.sleep(5)
        assert (await cancelled(client, token))["state"] == "stopped"
        nursery.cancel_scope.cancel()


async def test_server_forgets_how_calls_with_a_cancel_token_ended_after_ending_timeout(
    era: Era, autojump_clock: Any
) -> None:
    slow = Slow(limits=Limits(ending_timeout=10))
    async with slow.server._running() as running:
        endings = running.host.endings
        assert endings is not None
        assert len(endings) == 0
    async with opened(slow.server, era=era) as client:
        for number in range(20):
            await client.call_tool("quick", meta={TOKEN: f"{number:022}"})
        await trio.sleep(11)
        assert (await cancelled(client, f"{19:022}"))["state"] == "unknown"
