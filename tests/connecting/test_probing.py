"""Servers that die of ``server/discover``, and what is remembered about them."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from tests.interaction.client.raw import RawServer, methods_in, text_of
from tests.patience import PATIENCE

from trio_mcp import Command, ConnectionLost, open_stdio
from trio_mcp.client.opening import LegacyServers, LostInProbe
from trio_mcp.hosting import MemberDescription, open_group

DIES_OF_THE_PROBE = """
note("pid", pid=os.getpid())
first = read()
if first["method"] != "initialize":
    os.write(2, b"no such method\\n")
    os._exit(1)
_initialized(first)
text(until("tools/call"))
"""


async def called(raw: RawServer) -> str:
    async with open_stdio(raw.command, close_grace=PATIENCE) as client:
        return text_of(await client.call_tool("any"))


async def test_client_restarts_a_server_that_exits_on_discover_and_sends_initialize(tmp_path: Path) -> None:
    raw = RawServer(tmp_path, DIES_OF_THE_PROBE)
    with trio.fail_after(PATIENCE):
        assert await called(raw) == "done"
    assert methods_in(raw.wire) == ["server/discover", "initialize", "notifications/initialized", "tools/call"]
    assert len(raw.of("pid")) == 2


async def test_client_remembers_a_stdio_server_that_exits_on_discover_as_legacy(tmp_path: Path) -> None:
    raw = RawServer(tmp_path, DIES_OF_THE_PROBE)
    with trio.fail_after(PATIENCE):
        await called(raw)
        await called(raw)
        async with open_group({"old": MemberDescription(raw.command)}) as group:
            await (await group.client("old")).call_tool("any")
    assert methods_in(raw.wire).count("server/discover") == 1
    assert len(raw.of("pid")) == 4


async def test_client_restarts_a_stdio_server_that_starts_slowly_and_exits_on_discover(tmp_path: Path) -> None:
    raw = RawServer(tmp_path, "while not os.path.exists(sys.argv[1] + '.go'): time.sleep(0.01)\n" + DIES_OF_THE_PROBE)

    async def go() -> None:
        await trio.sleep(0.5)  # much more than the timeout of the probe; if not, it dies of that alone
        (tmp_path / "journal.go").touch()

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(go)
            async with open_stdio(raw.command, probe_timeout=0.01) as client:
                assert text_of(await client.call_tool("any")) == "done"
    assert len(raw.of("pid")) == 2


async def test_client_does_not_restart_a_stdio_server_that_exits_on_initialize(tmp_path: Path) -> None:
    raw = RawServer(tmp_path, 'note("pid", pid=os.getpid()); error(read(), -32601); read(); os._exit(4)')
    with trio.fail_after(PATIENCE), pytest.raises(ConnectionLost) as caught:
        await called(raw)
    assert caught.value.exit_status == 4
    assert len(raw.of("pid")) == 1


async def test_client_starts_a_stdio_server_that_always_exits_only_twice(tmp_path: Path) -> None:
    raw = RawServer(tmp_path, 'note("pid", pid=os.getpid()); os.write(2, b"no licence\\n"); os._exit(3)')
    with trio.fail_after(PATIENCE), pytest.raises(ConnectionLost) as caught:
        await called(raw)
    assert (caught.value.exit_status, caught.value.stderr) == (3, ("no licence",))
    assert len(raw.of("pid")) == 2


@pytest.mark.parametrize(
    "of_initialize", ["error(first, -32601); first = read()", "os._exit(1)"], ids=["refuses", "dies"]
)
async def test_client_detects_a_modern_revision_of_a_server_command_remembered_as_legacy(
    tmp_path: Path, of_initialize: str
) -> None:
    raw = RawServer(
        tmp_path,
        f"""
        if not os.path.exists(sys.argv[1] + ".modern"):
            handshake()
            text(until("tools/call"))
            ended()
            os._exit(0)
        first = read()
        if first["method"] == "initialize":
            {of_initialize}
        discovered(first)
        text(until("tools/call"), "modern")
        """,
    )
    with trio.fail_after(PATIENCE):
        assert await called(raw) == "done"
        (tmp_path / "journal.modern").touch()
        assert await called(raw) == "modern"
        before = len(raw.wire)
        assert await called(raw) == "modern"
    assert methods_in(raw.wire)[before:] == ["server/discover", "tools/call"]


async def test_connection_error_raised_inside_the_client_with_block_does_not_restart_the_server(tmp_path: Path) -> None:
    raw = RawServer(tmp_path, 'note("pid", pid=os.getpid()); handshake()')
    with trio.fail_after(PATIENCE), pytest.raises(LostInProbe, match="another server"):
        async with open_stdio(raw.command):
            raise LostInProbe("another server")
    assert len(raw.of("pid")) == 1


def test_client_remembers_a_limited_number_of_server_commands_as_legacy() -> None:
    known = LegacyServers()
    for number in range(300):
        known.record(Command(["server", str(number)])._identity, is_legacy=True)
    assert not known.is_known(Command(["server", "43"])._identity)
    assert known.is_known(Command(["server", "44"])._identity)
    assert not known.is_known(Command(["server", "299"], env={"MODE": "modern"})._identity)
    known.record(Command(["server", "299"])._identity, is_legacy=False)
    assert not known.is_known(Command(["server", "299"])._identity)
