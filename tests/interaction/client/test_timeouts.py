"""Timeouts: of a call, of a call without progress, and of connecting."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from tests.interaction.client.raw import RawServer, alive, cancels_in, methods_in, text_of
from tests.patience import LONG, PATIENCE
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import Client, ConnectionLost, PeerError, Progress, fail_after_silence, open_stdio
from trio_mcp.client.opening import Opening
from trio_mcp.client.options import ClientSettings
from trio_mcp.testing import ScriptedServer, open_scripted_server
from trio_mcp.transports.lines import memory_transport_pair

LEGACY = "2025-11-25"


async def _answers_late(server: ScriptedServer) -> None:
    await server.accept(LEGACY)
    call = await server.expect_call("sleep")
    await server.expect_cancel(call)
    await trio.sleep(10)
    await server.answer_text(call, "late")
    await server.answer_text(await server.expect_call("any"), "next")
    await server.expect_end()


async def test_tmo_01_timeout_around_a_call_is_exact_and_a_late_response_is_dropped(autojump_clock: object) -> None:
    async with open_scripted_server(_answers_late, patience=60) as client:
        begun = trio.current_time()
        with pytest.raises(trio.TooSlowError), trio.fail_after(0.3):
            await client.call_tool("sleep", {"ms": 10_000})
        assert trio.current_time() == pytest.approx(begun + 0.3)
        await trio.sleep(15)
        assert text_of(await client.call_tool("any")) == "next"


async def test_tmo_01_call_to_another_process_that_times_out_sends_one_cancel(
    tmp_path: Path, jump_clock: MockClock
) -> None:
    raw = RawServer(
        tmp_path,
        """
        handshake()
        call = until("tools/call")
        until("notifications/cancelled")
        text(call, "late")
        text(until("tools/call"), "next")
        """,
    )
    with trio.fail_after(LONG + PATIENCE):
        async with open_stdio(raw.command, era="legacy") as client:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(raw.jump_when_got, jump_clock, "tools/call")
                with pytest.raises(trio.TooSlowError), trio.fail_after(LONG):
                    await client.call_tool("sleep", {"ms": 10_000})
            assert text_of(await client.call_tool("any")) == "next"
    assert len(cancels_in(raw.wire)) == 1


async def _reports_every_200_ms(server: ScriptedServer, times: int) -> dict[str, object]:
    await server.accept(LEGACY)
    call = await server.expect_call("any")
    for count in range(times):
        await trio.sleep(0.2)
        await server.progress(call, count)
    return call


async def test_tmo_02_progress_restarts_silence_timeout_even_without_a_progress_callback(
    autojump_clock: object,
) -> None:
    async def script(server: ScriptedServer) -> None:
        await server.answer_text(await _reports_every_200_ms(server, 10), "finished")
        await server.expect_end()

    async with open_scripted_server(script) as client:
        with fail_after_silence(0.5, maximum=100):
            assert text_of(await client.call_tool("any")) == "finished"


async def test_tmo_02_silence_timeout_expires_if_no_progress_arrives(autojump_clock: object) -> None:
    async def script(server: ScriptedServer) -> None:
        await server.accept(LEGACY)
        await server.expect_cancel(await server.expect_call("any"))
        await server.expect_end()

    async with open_scripted_server(script) as client:
        begun = trio.current_time()
        with pytest.raises(trio.TooSlowError), fail_after_silence(0.5, maximum=100):
            await client.call_tool("any")
        assert trio.current_time() == pytest.approx(begun + 0.5)


async def test_tmo_03_progress_does_not_extend_silence_timeout_beyond_its_maximum(autojump_clock: object) -> None:
    async def script(server: ScriptedServer) -> None:
        call = await _reports_every_200_ms(server, 100)
        await server.expect_cancel(call)
        await server.expect_end()

    async with open_scripted_server(script) as client:
        begun = trio.current_time()
        with pytest.raises(trio.TooSlowError), fail_after_silence(0.5, maximum=2):
            await client.call_tool("any")
        assert trio.current_time() == pytest.approx(begun + 2)
        await trio.sleep(20)


async def test_tmo_03_progress_of_one_call_does_not_extend_the_timeout_of_another_call(autojump_clock: object) -> None:
    async def script(server: ScriptedServer) -> None:
        await server.accept(LEGACY)
        silent = await server.expect_call("silent")
        call = await server.expect_call("talkative")
        for count in range(100):
            await trio.sleep(0.2)
            await server.progress(call, count)
        await server.expect_cancel(silent)
        await server.answer_text(call, "done")

    async with open_scripted_server(script) as client, trio.open_nursery() as nursery:
        begun = trio.current_time()

        async def silent() -> None:
            with pytest.raises(trio.TooSlowError), fail_after_silence(0.5, maximum=100):
                await client.call_tool("silent")
            assert trio.current_time() == pytest.approx(begun + 0.5)

        nursery.start_soon(silent)
        await wait_all_tasks_blocked()

        def ignore(_: Progress) -> None:
            pass

        await client.call_tool("talkative", on_progress=ignore)
        assert trio.current_time() == pytest.approx(begun + 20)


@pytest.mark.parametrize("child", ["reads one line and sleeps", "answers discovery only", "never reads"])
async def test_tmo_05_connect_timeout_raises_and_ends_a_child_that_never_answers(
    tmp_path: Path, child: str, jump_clock: MockClock
) -> None:
    program = {
        "reads one line and sleeps": 'note("pid", pid=os.getpid()); read(); note("silent"); time.sleep(1000)',
        "answers discovery only": (
            'note("pid", pid=os.getpid()); error(read(), -32601); read(); note("silent"); time.sleep(1000)'
        ),
        "never reads": 'note("pid", pid=os.getpid()); note("silent"); time.sleep(1000)',
    }[child]
    raw = RawServer(tmp_path, program)

    async def jump_when_silent() -> None:
        await raw.has("silent")
        jump_clock.jump(LONG)

    with trio.move_on_after(LONG + PATIENCE) as outer:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(jump_when_silent)
            with pytest.raises(trio.TooSlowError):
                async with open_stdio(raw.command, connect_timeout=LONG, close_grace=0.2):
                    pytest.fail("nobody answered")
    assert not outer.cancelled_caught
    assert not alive(raw.of("pid")[0]["pid"])
    if "initialize" in methods_in(raw.wire):
        initialize = next(m for m in raw.wire if m["method"] == "initialize")
        assert initialize["id"] not in cancels_in(raw.wire)


async def test_tmo_06_connect_timeout_does_not_apply_after_connecting(autojump_clock: object) -> None:
    async def script(server: ScriptedServer) -> None:
        await server.accept(LEGACY)
        await server.answer_text(await server.expect_call("any"), "done")

    async with open_scripted_server(script, connect_timeout=1) as client:
        await trio.sleep(3)
        assert text_of(await client.call_tool("any")) == "done"


async def test_tmo_06_connect_timeout_includes_time_before_negotiation(autojump_clock: object) -> None:
    ours, _ = memory_transport_pair()
    begun = trio.current_time()
    await trio.sleep(3)
    with pytest.raises(trio.TooSlowError, match=r"the server was not ready within 5 s \(connect_timeout\)"):
        async with Opening(ClientSettings(connect_timeout=5), begun=begun).open_over(ours):
            pytest.fail("nobody answered")
    assert trio.current_time() == pytest.approx(begun + 5)


async def test_tmo_06_client_opened_under_a_deadline_continues_after_that_deadline_passes(
    tmp_path: Path, jump_clock: MockClock
) -> None:
    raw = RawServer(tmp_path, 'handshake(); note("pid", pid=os.getpid()); text(until("tools/call"))')
    over = trio.Event()

    async def own(*, task_status: trio.TaskStatus[Client]) -> None:
        async with open_stdio(raw.command) as client:
            task_status.started(client)
            await over.wait()

    with trio.fail_after(2 * LONG + PATIENCE):
        async with trio.open_nursery() as nursery:
            with trio.fail_after(LONG):
                client = await nursery.start(own)
            jump_clock.jump(2 * LONG)  # past the deadline, which is what is tested
            await wait_all_tasks_blocked()
            (child,) = await raw.has("pid")
            assert alive(child["pid"])
            assert text_of(await client.call_tool("any")) == "done"
            over.set()


async def test_tmo_07_cancels_timeouts_lost_connections_and_peer_errors_raise_distinct_exception_types(
    autojump_clock: object,
) -> None:
    async def script(server: ScriptedServer) -> None:
        await server.accept(LEGACY)
        await server.expect_cancel(await server.expect_call("user cancel"), "enough")
        await server.expect_cancel(await server.expect_call("timeout"), "the caller's deadline passed")
        await server.refuse(await server.expect_call("peer error"), -32001, "Request timed out", data=[1])
        await server.expect_call("loss")
        await server.aclose()

    async with open_scripted_server(script) as client:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "user cancel")
                await wait_all_tasks_blocked()
                scope.cancel(reason="enough")
        assert scope.cancelled_caught
        with pytest.raises(trio.TooSlowError), trio.fail_after(1):
            await client.call_tool("timeout")
        with pytest.raises(PeerError) as refused:
            await client.call_tool("peer error")
        assert (refused.value.code, refused.value.message, refused.value.data) == (-32001, "Request timed out", [1])
        with pytest.raises(ConnectionLost):
            await client.call_tool("loss")
    kinds = (trio.Cancelled, trio.TooSlowError, PeerError, ConnectionLost)
    assert not any(issubclass(one, other) for one in kinds for other in kinds if one is not other)
