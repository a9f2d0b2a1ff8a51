"""Servers that exit while a child process keeps their output open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from tests.interaction.client.raw import RawServer, methods_in, text_of
from tests.patience import PATIENCE

from trio_mcp import ConnectionLost, open_stdio
from trio_mcp.connecting import stdio

HELPER = """
import subprocess
opened()
subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(1000)"])
if CALLED:
    until("tools/call")
    os.write(2, b"what a day\\n")
os._exit(7)
"""
DAEMON = """
opened()
if os.fork():
    os._exit(0)
call = until("tools/call")
asked = read()
error(asked, -32601) if asked["method"] == "ping" else discovered(asked)
text(call, "by the daemon")
"""


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """It is asked at once."""
    monkeypatch.setattr(stdio, "_SILENCE", 0.01)
    return monkeypatch


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_call_fails_with_the_exit_status_of_the_server_even_if_a_child_process_keeps_stdout_open(
    tmp_path: Path, soon: pytest.MonkeyPatch, era: Any
) -> None:
    soon.setattr(stdio, "_ANSWER_WITHIN", 0.01)
    raw = RawServer(tmp_path, "CALLED = True\n" + HELPER)
    with trio.fail_after(PATIENCE):
        async with open_stdio(raw.command, era=era, close_grace=0.1) as client:
            with pytest.raises(ConnectionLost, match="the server exited") as caught:
                await client.call_tool("any")
    assert (caught.value.exit_status, caught.value.stderr) == (7, ("what a day",))


async def test_idle_client_notices_that_the_server_exits_even_if_a_child_process_keeps_stdout_open(
    tmp_path: Path, soon: pytest.MonkeyPatch
) -> None:
    soon.setattr(stdio, "_ANSWER_WITHIN", 0.01)
    raw = RawServer(tmp_path, "CALLED = False\n" + HELPER)
    with trio.fail_after(PATIENCE):
        async with open_stdio(raw.command, era="legacy", close_grace=0.1) as client:
            with pytest.raises(ConnectionLost) as caught:
                await client.until_lost()
    assert caught.value.exit_status == 7


async def test_connecting_client_notices_that_the_server_exits_even_if_a_child_process_keeps_stdout_open(
    soon: pytest.MonkeyPatch,
) -> None:
    soon.setattr(stdio, "_ANSWER_WITHIN", 0.01)
    with trio.fail_after(PATIENCE), pytest.raises(ConnectionLost) as caught:
        async with open_stdio(["sh", "-c", "sleep 1000 & exit 3"], era="legacy", close_grace=0.1):
            pytest.fail("nobody answered")
    assert caught.value.exit_status == 3


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_server_that_daemonizes_and_answers_a_ping_stays_connected(
    tmp_path: Path, soon: pytest.MonkeyPatch, era: Any
) -> None:
    soon.setattr(stdio, "_ANSWER_WITHIN", PATIENCE)
    raw = RawServer(tmp_path, DAEMON)
    with trio.fail_after(PATIENCE):
        async with open_stdio(raw.command, era=era) as client:
            assert text_of(await client.call_tool("any")) == "by the daemon"
    assert methods_in(raw.wire)[-1] == ("ping" if era == "legacy" else "server/discover")


async def test_idle_daemonized_server_is_pinged_once(tmp_path: Path, soon: pytest.MonkeyPatch) -> None:
    soon.setattr(stdio, "_ANSWER_WITHIN", PATIENCE)
    raw = RawServer(
        tmp_path, 'handshake()\nif os.fork(): os._exit(0)\nresult(until("ping"), {})\ntext(until("tools/call"))'
    )
    with trio.fail_after(PATIENCE):
        async with open_stdio(raw.command, era="legacy") as client:
            await raw.got("ping")
            await trio.sleep(0.3)  # some thirty times the silence after which one is asked that is called
            assert methods_in(raw.wire).count("ping") == 1
            assert text_of(await client.call_tool("any")) == "done"


async def test_client_reads_the_last_response_of_a_server_that_exits_immediately(tmp_path: Path) -> None:
    raw = RawServer(tmp_path, 'handshake(); text(until("tools/call"), "x" * 10_000_000); os._exit(0)')
    with trio.fail_after(PATIENCE):
        async with open_stdio(raw.command, era="legacy") as client:
            assert len(text_of(await client.call_tool("any"))) == 10_000_000
