"""A trio-mcp client and a trio-mcp server in two processes: a cancel scope does not end between them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.interaction.client.raw import Journal, text_of

from trio_mcp import CreateMessageParams, CreateMessageResult, open_stdio

FIXTURE = [sys.executable, str(Path(__file__).parents[1] / "fixture_server.py")]
ERAS = ["modern", "legacy"]


def connected(tmp_path: Path, **options: Any) -> tuple[Any, Journal]:
    journal = Journal(tmp_path / "fixture")
    return open_stdio(FIXTURE, env={"TRIO_MCP_TEST_JOURNAL": str(journal.path)}, **options), journal


@pytest.mark.parametrize("era", ERAS)
async def test_can_11_fifty_calls_left_by_their_limits_end_fifty_handlers_and_the_server_serves_on(
    tmp_path: Path, era: Any
) -> None:
    opening, journal = connected(tmp_path, era=era)
    with trio.fail_after(20):
        async with opening as client:

            async def abandoned() -> None:
                with trio.move_on_after(0.2) as scope:
                    await client.call_tool("sleep", {"ms": 10_000})
                assert scope.cancelled_caught

            async with trio.open_nursery() as nursery:
                for _ in range(50):
                    nursery.start_soon(abandoned)
            assert text_of(await client.call_tool("echo", {"text": "still here"})) == "still here"
            await journal.has("finally", 50)
    assert len({entry["call"] for entry in journal.of("cancelled")}) == 50
    assert {entry["cause"] for entry in journal.of("cancelled")} == {"peer"}


@pytest.mark.parametrize("era", ERAS)
async def test_leaving_a_scope_around_the_whole_connection_lets_the_handler_clean_up(tmp_path: Path, era: Any) -> None:
    opening, journal = connected(tmp_path, era=era, close_grace=60)
    with trio.fail_after(20), trio.CancelScope() as scope:
        async with opening as client, trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "cleanup", {"ms": 100})
            await journal.has("start", 2)  # the lifespan's and the tool's
            scope.cancel(reason="the host was closed")
    events = [entry["event"] for entry in journal.entries if entry["tool"] == "cleanup"]
    assert events[0] == "start"
    assert "finally" in events
    [cancelled] = [entry for entry in journal.of("cancelled") if entry["tool"] == "cleanup"]
    assert (cancelled["cause"], cancelled["reason"]) == ("peer", "the host was closed")


async def test_the_question_of_a_cancelled_handler_is_cancelled_here_with_the_same_reason(tmp_path: Path) -> None:
    asked = trio.Event()
    reasons: list[str | None] = []

    async def sampling(_: CreateMessageParams) -> CreateMessageResult:
        asked.set()
        try:
            await trio.sleep_forever()
        except trio.Cancelled as cancelled:
            reasons.append(cancelled.reason)
            answered.set()
            raise

    answered = trio.Event()
    opening, _ = connected(tmp_path, era="legacy", sampling=sampling)
    with trio.fail_after(20):
        async with opening as client:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(client.call_tool, "ask", {"kind": "sampling", "n": 1})
                    await asked.wait()
                    scope.cancel(reason="the user pressed stop")
            await answered.wait()
            assert text_of(await client.call_tool("echo", {"text": "still here"})) == "still here"
    assert reasons == ["the user pressed stop"]
