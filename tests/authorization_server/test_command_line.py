"""The command line with a real authorization server: signing in, working on, signing out."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import trio
from examples.authorization.provider import authorization_server
from tests.authorization_server.protected import READ, SERVER, WRITE, introspection, protected
from tests.cli.commands import TRIO_MCP, run
from tests.patience import PATIENCE

from trio_mcp import open_http
from trio_mcp.auth import FileTokenStorage, MemoryTokenStorage, OAuth, SignInNeeded

BROWSER = f"""#!{sys.executable}
import sys
import trio
sys.path.insert(0, {str(Path(__file__).parents[2])!r})  # whose examples are in no package
from examples.authorization.provider import press

trio.run(press, sys.argv[1])
"""


async def test_trio_mcp_command_signs_in_once_requests_more_scopes_and_signs_out(
    provider: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = tmp_path / "browser"
    browser.write_text(BROWSER)
    browser.chmod(0o700)
    for name, value in (("BROWSER", browser), ("HOME", tmp_path), ("XDG_STATE_HOME", tmp_path / "state")):
        monkeypatch.setenv(name, str(value))
    with trio.fail_after(PATIENCE):
        async with (
            authorization_server(provider, scopes=[READ, WRITE], opaque=True, clients=[SERVER]) as server,
            protected(server.issuer, introspection(server.issuer, cache_for=0)) as url,
        ):
            for tool, told in (("who", "alice"), ("who", "alice"), ("write", "written"), ("write", "written")):
                ended = await run([*TRIO_MCP, "call", url, tool, "--sign-in"])
                assert ended.status == 0, ended.stderr
                assert told in ended.stdout
            assert server.done == {"registration": 1, "authorization": 2, "authorization_code": 2}

            stored = await FileTokenStorage(tmp_path / "state" / "trio-mcp" / "tokens").load(url)
            assert stored is not None
            ended = await run([*TRIO_MCP, "logout", url])
            assert ended.stderr == f"trio-mcp: signed out of {url}; its tokens were revoked\n"

            copied = MemoryTokenStorage()
            await copied.save(url, stored)
            with pytest.raises(SignInNeeded):
                async with open_http(url, auth=OAuth(storage=copied, asks_user=False)):
                    pytest.fail("opened with tokens that were revoked")
