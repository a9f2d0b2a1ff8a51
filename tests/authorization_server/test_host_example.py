"""The example of a host: servers over stdio, HTTP with a sign-in, and WebSocket, and a user at the terminal."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing
from examples import host
from examples.authorization.provider import authorization_server
from tests.authorization_server.protected import READ, SERVER, WRITE, introspection, protected
from tests.authorization_server.test_command_line import BROWSER
from tests.cli.commands import TRIO_MCP
from tests.cli.terminals import answer, in_terminal, plain
from tests.interaction.websocket.raw_peer import port_of, serving
from tests.patience import PATIENCE

from trio_mcp import Progress, RequestContext, Server, ToolError, serve_websocket
from trio_mcp.hosting import MemberDescription, open_group

ROOT = Path(__file__).parents[2]
DESK = ROOT / "tests" / "cli" / "desk.py"


@attrs.define
class Sleeper:
    """A server whose tool sleeps until its call is cancelled."""

    began: trio.Event = attrs.field(factory=trio.Event)
    """Set when a call has begun."""
    ended: list[str] = attrs.field(factory=list[str])
    """The names of the calls whose handlers have ended."""

    def server(self) -> Server:
        server = Server("sleeper")

        @server.tool
        async def sleep(name: str) -> None:
            self.began.set()
            try:
                await trio.sleep_forever()
            finally:
                self.ended.append(name)

        return server


def test_host_example_has_at_most_eighty_lines() -> None:
    assert len((ROOT / "examples" / "host.py").read_text().splitlines()) <= 80


async def test_host_example_supports_timeouts_progress_elicitation_sign_in_and_ctrl_c(
    provider: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser, sleeper = tmp_path / "browser", Sleeper()
    browser.write_text(BROWSER)
    browser.chmod(0o700)
    for name, value in (("BROWSER", browser), ("HOME", tmp_path), ("PYTHONPATH", ROOT)):
        monkeypatch.setenv(name, str(value))
    with trio.fail_after(PATIENCE):
        async with (
            authorization_server(provider, scopes=[READ, WRITE], opaque=True, clients=[SERVER]) as issuer,
            protected(issuer.issuer, introspection(issuer.issuer, cache_for=0)) as url,
            serving(serve_websocket, sleeper.server(), "127.0.0.1", 0) as listeners,
        ):
            members = {
                "desk": {"command": TRIO_MCP[0], "args": [*TRIO_MCP[1:], "run", str(DESK)]},
                "notes": {"url": url},
                "sleeper": {"url": f"ws://127.0.0.1:{port_of(listeners)}/mcp"},
            }
            (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": members}))
            program = [sys.executable, "-m", "examples.host", str(tmp_path / "servers.json"), "2"]
            async with in_terminal(program) as terminal:
                await answer(
                    terminal,
                    ("desk__pack", ""),
                    ("> ", 'desk__pack {"files": 30}\n'),
                    ("] 100% file", ""),
                    ("packed 30", "notes__who\n"),
                    ('"sub":', 'sleeper__sleep {"name": "limit"}\n'),
                    ("cancelled after 2 seconds", "desk__order\n"),
                    ("Dish: ", "soup\n"),
                    ("size: ", "small\n"),
                    ("plates [2]: ", "\n"),
                    ("spicy (y/n) [n]: ", "y\n"),
                    ("edit [yes]: ", "\n"),
                    ("accept Order(dish='soup'", "nobody__nothing\n"),
                    ("no server of this group offers", "desk__pack [\n"),
                    ("Expecting", ""),
                )
                shown = plain(terminal.shown)
                assert "notes: ready" in shown
                assert "desk asks: What will it be?" in shown
                sleeper.began = trio.Event()
                terminal.type('sleeper__sleep {"name": "Ctrl-C"}\n')
                await sleeper.began.wait()
                terminal.shown = ""
                await answer(terminal, ("", "\x03"), ("\ncancelled", ""), ("> ", "notes__who\n"), ('"sub":', "\x04"))
                assert await terminal.read_to_end() == 0
    assert sleeper.ended == ["limit", "Ctrl-C"]


@pytest.mark.parametrize(("progress", "total"), [(1e13, 1), (1e300, 1e-300), (-1e13, 1), (1, -1), (1, 0)])
def test_progress_bar_of_the_host_example_keeps_its_width_for_any_number(
    progress: float, total: float, capsys: pytest.CaptureFixture[str]
) -> None:
    host.show(Progress(progress, total))
    assert len(capsys.readouterr().err) <= host.WIDTH + 10


async def test_host_example_escapes_control_characters_in_server_text(capsys: pytest.CaptureFixture[str]) -> None:
    server = Server("hostile")

    @server.tool
    async def escape(ctx: RequestContext, fail: bool) -> str:
        ctx.progress(1, 2, "\x1b[2J")
        await trio.testing.wait_all_tasks_blocked()
        if fail:
            raise ToolError("\x1b]0;failed\x07")
        return "\x1b]0;done\x07"

    async with open_group({"m": MemberDescription(server)}) as group:
        await group.settled()
        for fail in ("true", "false"):
            await host.call(group, f'm__escape {{"fail": {fail}}}', 5)
    shown = capsys.readouterr()
    assert "done" in shown.out
    assert "failed: " in shown.out
    assert "50%" in shown.err
    assert not {"\x1b", "\x07"} & {*shown.out, *shown.err}
