"""A trio-mcp client and a trio-mcp server in two processes: cancellation reaches the other process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import trio
from tests.forked import forked_command
from tests.interaction.client.raw import Journal, text_of
from tests.patience import LONG, PATIENCE
from tests.ports import url_on_socket
from trio.testing import MockClock

from trio_mcp import Address, Client, CodedError, open_stdio
from trio_mcp.protocol.revisions import REVISIONS
from trio_mcp.types import (
    CreateMessageParams,
    CreateMessageResult,
    ElicitFormParams,
    ElicitResult,
    ElicitURLParams,
    Root,
    TextContent,
)

FIXTURE = str(Path(__file__).parents[1] / "fixture_server.py")

_NO_WORD = "modern HTTP has no cancel between two rounds: the handler waits for its client until retry_timeout"

Connect: TypeAlias = Callable[..., AbstractAsyncContextManager[Client]]


@pytest.fixture(params=("stdio", "websocket", "http", "http+unix"))
def transport(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """What the handlers write down."""
    return Journal(tmp_path / "fixture")


@pytest.fixture
def connect(transport: str, journal: Journal) -> Connect:
    """Opens a client of a new fixture server over the transport."""
    variables = {"TRIO_MCP_TEST_JOURNAL": str(journal.path)}
    if transport == "stdio":
        return partial(open_stdio, forked_command([FIXTURE]), env=variables)
    return partial(_over_socket, transport, {**os.environ, **variables})


@asynccontextmanager
async def _over_socket(transport: str, env: dict[str, str], **options: Any) -> AsyncIterator[Client]:
    process = await trio.lowlevel.open_process(forked_command([FIXTURE, transport]), env=env, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        async with process.stdout:
            line = b""
            async for chunk in process.stdout:  # unbuffered, the newline comes by itself
                line += chunk
                if line.endswith(b"\n"):
                    break
            where = line.decode().strip()
        scheme = "http" if transport == "http" else "ws"
        url = url_on_socket(Path(where)) if transport == "http+unix" else f"{scheme}://127.0.0.1:{where}/mcp"
        async with Address(url).open(**options) as client:
            yield client
        process.terminate()
        with trio.fail_after(PATIENCE):
            assert await process.wait() == 0
    finally:
        with trio.CancelScope(shield=True):
            process.terminate()
            with trio.move_on_after(PATIENCE):
                await process.wait()
            process.kill()
            await process.wait()


def cause_of_leaving(transport: str, era: str) -> str:
    """What a server takes the end of a call for: over HTTP, the end of the answer is the cancel of a modern call."""
    return "disconnect" if transport.startswith("http") and era == "modern" else "peer"


async def test_can_11_fifty_calls_that_time_out_cancel_their_handlers_and_the_server_continues(
    connect: Connect, journal: Journal, transport: str, era: str, jump_clock: MockClock
) -> None:
    with trio.fail_after(LONG + PATIENCE):
        async with connect(era=era) as client:

            async def abandoned() -> None:
                with trio.move_on_after(LONG) as scope:
                    await client.call_tool("sleep", {"ms": 1_000_000})
                assert scope.cancelled_caught

            async with trio.open_nursery() as nursery:
                for _ in range(50):
                    nursery.start_soon(abandoned)
                await journal.has("start", 51)  # the lifespan's and the tools'
                jump_clock.jump(LONG)
            assert text_of(await client.call_tool("echo", {"text": "still here"})) == "still here"
            await journal.has("finally", 50)
    assert len({entry["call"] for entry in journal.of("cancelled")}) == 50
    assert {entry["cause"] for entry in journal.of("cancelled")} == {cause_of_leaving(transport, era)}


async def test_cancelled_scope_around_a_client_lets_the_server_handler_clean_up(
    connect: Connect, journal: Journal, transport: str, era: str
) -> None:
    patience = {"close_grace": 60} if transport == "stdio" else {}
    with trio.fail_after(PATIENCE), trio.CancelScope() as scope:
        async with connect(era=era, **patience) as client, trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "cleanup", {"ms": 100})
            await journal.has("start", 2)  # the lifespan's and the tool's
            scope.cancel(reason="the host was closed")
    events = [entry["event"] for entry in journal.entries if entry["tool"] == "cleanup"]
    assert events[0] == "start"
    assert "finally" in events
    [cancelled] = [entry for entry in journal.of("cancelled") if entry["tool"] == "cleanup"]
    assert cancelled["cause"] == cause_of_leaving(transport, era)
    if cancelled["cause"] == "peer":
        assert cancelled["reason"] == "the host was closed"


async def sample(params: CreateMessageParams) -> CreateMessageResult:
    question = params.messages[0].content
    assert isinstance(question, TextContent)
    return CreateMessageResult("assistant", TextContent(f"an answer to {question.text}"), "model")


async def fill_in(_: ElicitFormParams) -> dict[str, Any]:
    return {"name": "Ann"}


async def visit(_: ElicitURLParams) -> ElicitResult:
    return ElicitResult("decline")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("sampling", "an answer to question {}"),
        ("elicitation", "{{'name': 'Ann'"),
        ("url", "decline"),
        ("roots", "file:///a file:///b"),
    ],
)
async def test_handler_with_three_concurrent_input_requests_is_answered_and_runs_once(
    connect: Connect, journal: Journal, era: str, kind: str, words: str
) -> None:
    roots = [Root("file:///a"), Root("file:///b")]
    with trio.fail_after(PATIENCE):
        async with connect(era=era, sampling=sample, elicitation=fill_in, elicitation_url=visit, roots=roots) as client:
            result = await client.call_tool("ask", {"kind": kind, "n": 3})
    assert result.structured_content is not None
    answers = result.structured_content["result"]
    assert [words.format(place) in answer for place, answer in enumerate(answers)] == [True] * 3, answers
    assert [entry["event"] for entry in journal.entries if entry["tool"] == "ask"] == ["start", "end", "finally"]


async def test_cancel_of_a_call_during_sampling_stops_both_handlers_with_the_reason_of_the_cancel(
    connect: Connect, journal: Journal, transport: str, era: str
) -> None:
    """In the modern era the handler is parked then, and no request is in flight."""
    if transport.startswith("http") and era == "modern":
        pytest.skip(_NO_WORD)
    asked, answered = trio.Event(), trio.Event()
    reasons: list[str | None] = []

    async def sampling(_: CreateMessageParams) -> CreateMessageResult:
        asked.set()
        try:
            await trio.sleep_forever()
        except trio.Cancelled as cancelled:
            reasons.append(cancelled.reason)
            answered.set()
            raise

    with trio.fail_after(PATIENCE):
        async with connect(era=era, sampling=sampling) as client:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(client.call_tool, "ask", {"kind": "sampling", "n": 1})
                    await asked.wait()
                    scope.cancel(reason="the user pressed stop")
            await answered.wait()
            [cancelled] = [entry for entry in await journal.has("cancelled") if entry["tool"] == "ask"]
            assert (cancelled["cause"], cancelled["reason"]) == ("peer", "the user pressed stop")
            assert text_of(await client.call_tool("echo", {"text": "still here"})) == "still here"
    assert reasons == ["the user pressed stop"]


async def test_sampling_refused_by_user_raises_in_the_waiting_handler_with_the_message_of_the_user(
    connect: Connect, journal: Journal, transport: str
) -> None:
    if transport.startswith("http"):
        pytest.skip(_NO_WORD)

    async def refuse(_: CreateMessageParams) -> CreateMessageResult:
        raise CodedError(-1, "the user said no")

    with trio.fail_after(PATIENCE):
        async with connect(era="modern", sampling=refuse) as client:
            with pytest.raises(CodedError, match="the user said no"):
                await client.call_tool("ask", {"kind": "sampling", "n": 2})
            [cancelled] = [entry for entry in await journal.has("cancelled") if entry["tool"] == "ask"]
    assert (cancelled["cause"], cancelled["reason"]) == ("peer", "the user said no")


@pytest.mark.parametrize("revision", REVISIONS)
async def test_client_can_call_a_tool_in_every_protocol_revision(connect: Connect, revision: str) -> None:
    chosen = {"era": "legacy", "revision": revision} if REVISIONS[revision].handshake else {"era": "modern"}
    with trio.fail_after(PATIENCE):
        async with connect(**chosen) as client:
            assert client.revision.name == revision
            assert text_of(await client.call_tool("echo", {"text": "hi"})) == "hi"
