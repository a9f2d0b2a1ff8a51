"""Signing in to a server: with the browser, with stored tokens, and with a token of the user."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trio
from tests.auth.oauth_client.protected_world import World, protected
from tests.auth.storage.places import record
from tests.cli.commands import TRIO_MCP, Ended, run, running
from tests.cli.terminals import in_terminal
from tests.connecting.http.scripted import Answer, Got, modern, result, text
from tests.patience import PATIENCE

from trio_mcp import open_http
from trio_mcp.auth import Bearer, FileTokenStorage
from trio_mcp.cli import NOT_AUTHORIZED, USAGE

BROWSER = f"""#!{sys.executable}
import sys, urllib.request
urllib.request.build_opener(urllib.request.ProxyHandler({{}})).open(sys.argv[1]).read()
"""
TOOL = {"name": "any", "inputSchema": {"type": "object"}}


async def serves(got: Got, answer: Answer) -> None:
    if got.name == "tools/list":
        await answer.json(result(got, resultType="complete", tools=[TOOL], ttlMs=0, cacheScope="private"))
    else:
        await answer.json(text(got))


@pytest.fixture
async def world(home: Path) -> AsyncIterator[World]:
    async with protected(modern(serves, tools={}), revoked=[]) as made:
        yield made


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user with a browser, in which everything is agreed to."""
    browser = tmp_path / "browser"
    browser.write_text(BROWSER)
    browser.chmod(0o700)
    monkeypatch.setenv("BROWSER", str(browser))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TRIO_MCP_TOKENS", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def kept(home: Path) -> FileTokenStorage:
    return FileTokenStorage(home / "state" / "trio-mcp" / "tokens")


async def call(world: World, *options: str) -> Ended:
    return await run([*TRIO_MCP, "call", world.url, "any", *options])


async def test_user_signs_in_with_the_browser_once_for_all_commands(home: Path, world: World) -> None:
    first = await call(world, "--sign-in")
    assert (first.status, first.stdout) == (0, "done\n"), first.stderr
    assert f"sign in, in your browser, at {urlsplit(world.url).netloc}:\n  {world.origin}/authorize?" in first.stderr
    for command in (["inspect", world.url], ["call", world.url, "any"]):
        assert (await run([*TRIO_MCP, *command])).status == 0
    assert len(world.authorizations) == world.registrations == 1
    assert await kept(home).server_urls() == [world.url]


async def test_call_command_without_a_terminal_starts_no_sign_in(world: World) -> None:
    ended = await call(world)
    assert (ended.status, ended.stdout) == (NOT_AUTHORIZED, "")
    assert ended.stderr == (
        "trio-mcp: the server requires you to sign in: run the command in a terminal, open your browser with "
        "--sign-in, or pass a token with --bearer-env NAME\n"
    )
    assert world.registrations == 0, "nothing is asked of the authorization server in vain"


async def test_command_in_a_terminal_signs_its_user_in_automatically(world: World) -> None:
    async with in_terminal([*TRIO_MCP, "call", world.url, "any"]) as terminal:
        assert await terminal.read_to_end() == 0, terminal.shown
    assert "done" in terminal.shown
    assert len(world.authorizations) == 1


async def test_command_with_the_flag_no_sign_in_does_not_sign_in(world: World) -> None:
    async with in_terminal([*TRIO_MCP, "inspect", world.url, "--no-sign-in"]) as terminal:
        assert await terminal.read_to_end() == NOT_AUTHORIZED
    assert world.authorizations == []


async def test_user_without_a_browser_signs_in_by_pasting_the_redirect_address(
    world: World, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(home / "empty"))
    async with in_terminal([*TRIO_MCP, "call", world.url, "any"], columns=2000) as terminal:
        await terminal.read_until("paste its address: ")
        (url,) = [word for word in terminal.shown.split() if word.startswith(f"{world.origin}/authorize")]
        terminal.type(f"{await world.visit(url)}\n")
        assert await terminal.read_to_end() == 0, terminal.shown
    assert "done" in terminal.shown


async def test_command_with_memory_token_storage_writes_no_tokens_to_disk(
    home: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIO_MCP_TOKENS", "memory")
    assert (await call(world, "--sign-in")).status == 0
    assert (await call(world)).status == NOT_AUTHORIZED
    assert not (home / "state").exists()


async def test_command_with_keyring_token_storage_reports_a_missing_keyring(world: World) -> None:
    ended = await call(world, "--sign-in", "--tokens", "keyring")
    assert ended.status == NOT_AUTHORIZED
    assert "this machine has no keyring that could be used" in ended.stderr
    assert world.authorizations == []


async def test_commands_do_not_print_or_log_access_tokens(world: World) -> None:
    ended = await call(world, "--sign-in", "--server-log-level", "debug")
    assert not any(secret in ended.stdout + ended.stderr for secret in world.secrets if "access" in secret)


async def test_ctrl_c_ends_the_sign_in_of_a_command(world: World, home: Path) -> None:
    (home / "browser").write_text(f"#!{sys.executable}\n")  # shows the page, and nobody agrees
    async with in_terminal([*TRIO_MCP, "call", world.url, "any"]) as terminal:
        await terminal.read_until("/authorize?")
        terminal.type("\x03")
        assert await terminal.read_to_end() == 130
    assert world.calls == []


# A token that the user has


async def test_command_with_bearer_env_option_sends_the_token_in_the_environment_variable(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.good["mine"] = ""
    monkeypatch.setenv("MY_TOKEN", "mine\n")
    ended = await call(world, "--bearer-env", "MY_TOKEN")
    assert (ended.status, ended.stdout) == (0, "done\n")


async def test_command_reports_the_status_of_a_refused_bearer_token_without_the_token(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "the.secret")
    ended = await call(world, "--bearer-env", "MY_TOKEN", "--sign-in")
    assert ended.status == NOT_AUTHORIZED
    assert ended.stderr == "trio-mcp: the server refused the token with HTTP status 401\n"
    assert world.authorizations == []


@pytest.mark.parametrize(
    ("target", "value", "told"),
    [
        ("http://127.0.0.1:1/mcp", None, "the environment variable MY_TOKEN is missing or empty"),
        ("http://127.0.0.1:1/mcp", " ", "the environment variable MY_TOKEN is missing or empty"),
        ("http://127.0.0.1:1/mcp", "the secret", "the environment variable MY_TOKEN does not contain a bearer token"),
        ("http://192.0.2.1/mcp", "the.secret", "refusing to send a token to this URL: use https or wss"),
        ("tcp://127.0.0.1:1", "the.secret", "refusing to send a token to this URL: use https or wss"),
        (f"{sys.executable} -c ''", "the.secret", "refusing to send a token to this URL: use https or wss"),
    ],
)
async def test_command_reports_a_bearer_token_with_invalid_characters_as_a_usage_error(
    home: Path, monkeypatch: pytest.MonkeyPatch, target: str, value: str | None, told: str
) -> None:
    if value is not None:
        monkeypatch.setenv("MY_TOKEN", value)
    ended = await run([*TRIO_MCP, "call", target, "any", "--bearer-env", "MY_TOKEN"])
    assert ended.status == USAGE
    assert told in ended.stderr
    assert "the.secret" not in ended.stderr


# Configured servers


async def test_configuration_entry_can_set_the_oauth_client_id_and_scopes(home: Path, world: World) -> None:
    entry = {"type": "http", "url": world.url, "oauth": {"clientId": "known", "scopes": "a"}}
    (home / "mine.json").write_text(json.dumps({"mcpServers": {"it": entry}}))
    ended = await run([*TRIO_MCP, "call", "it", "any", "--config", str(home / "mine.json"), "--sign-in"])
    assert ended.status == 0, ended.stderr
    (asked,) = world.authorizations
    assert (asked["client_id"], asked["scope"]) == ("known", "a")
    assert world.registrations == 0


# The bridge


async def test_bridge_calls_the_server_with_the_configured_token_and_not_with_the_client_token(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.good["of-the-bridge"] = ""
    monkeypatch.setenv("MY_TOKEN", "of-the-bridge")
    async with running("bridge", "--http", "0", world.url, "--bearer-env", "MY_TOKEN") as bridge:
        url = await bridge.line(r"serving '[^']+' at (\S+?)[,;]")
        with trio.fail_after(PATIENCE):
            async with open_http(url, auth=Bearer("of-the-client")) as client:
                assert (await client.call_tool("any")).text == "done"
    assert "tools/call" in world.calls
    assert world.tokens == {"of-the-bridge"}


async def test_bridge_without_a_token_does_not_forward_the_client_token(world: World) -> None:
    world.good["of-the-client"] = ""
    async with running("bridge", "--http", "0", world.url) as bridge:
        url = await bridge.line(r"serving '[^']+' at (\S+?)[,;]")
        with trio.fail_after(PATIENCE), pytest.raises(Exception, match="cannot be reached"):
            async with open_http(url, auth=Bearer("of-the-client"), era="modern"):
                pytest.fail("let in with the token of a client")
    assert world.calls == []
    assert world.tokens == set()


async def test_stdio_bridge_exits_with_not_authorized_status_without_a_token(world: World) -> None:
    initialize = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "host", "version": "1"},
        },
    }
    ended = await run([*TRIO_MCP, "bridge", world.url], stdin=f"{json.dumps(initialize)}\n".encode())
    assert ended.status == NOT_AUTHORIZED
    assert "the user must sign in" in ended.stderr
    assert "sign in" not in ended.stdout
    assert "cannot be reached" in ended.stdout


async def test_bridge_uses_the_stored_tokens_of_its_user(world: World) -> None:
    assert (await run([*TRIO_MCP, "inspect", world.url, "--sign-in"])).status == 0
    world.calls.clear()
    async with running("bridge", "--http", "0", world.url) as bridge:
        url = await bridge.line(r"serving '[^']+' at (\S+?)[,;]")
        with trio.fail_after(PATIENCE):
            async with open_http(url) as client:
                assert (await client.call_tool("any")).text == "done"
    assert len(world.authorizations) == 1


# Signing out


async def logout(*arguments: str) -> Ended:
    return await run([*TRIO_MCP, "logout", *arguments])


async def test_logout_command_revokes_and_deletes_tokens(home: Path, world: World) -> None:
    await call(world, "--sign-in")
    ended = await logout(world.url)
    assert (ended.status, ended.stdout) == (0, "")
    assert ended.stderr == f"trio-mcp: signed out of {world.url}; its tokens were revoked\n"
    assert world.revoked == ["refresh-1-s3cret", "access-1-s3cret"]
    assert await kept(home).load(world.url) is None
    assert (await call(world)).status == NOT_AUTHORIZED


async def test_logout_command_accepts_equivalent_urls_of_the_server(world: World) -> None:
    await call(world, "--sign-in")
    ended = await logout(world.url.replace("http://", "HTTP://") + "?tenant=1")
    assert "its tokens were revoked" in ended.stderr


async def test_logout_command_accepts_the_configured_name_of_the_server(home: Path, world: World) -> None:
    (home / ".mcp.json").write_text(json.dumps({"mcpServers": {"it": {"url": world.url, "type": "http"}}}))
    assert (await run([*TRIO_MCP, "call", "it", "any", "--sign-in"])).status == 0
    assert "its tokens were revoked" in (await logout("it")).stderr


async def test_logout_command_deletes_tokens_with_a_warning_if_the_server_cannot_revoke_them(
    home: Path, world: World
) -> None:
    world.revoked = None
    await call(world, "--sign-in")
    ended = await logout(world.url)
    assert ended.status == 0
    assert "may still be valid" in ended.stderr
    assert "does not support revocation" in ended.stderr
    assert await kept(home).server_urls() == []


async def test_logout_command_with_all_option_signs_out_of_every_server(home: Path, world: World) -> None:
    await call(world, "--sign-in")
    await kept(home).save("http://127.0.0.1:1/gone", record("old"))
    ended = await logout("--all")
    assert ended.status == 0
    assert len(ended.stderr.splitlines()) == 2
    assert "old" not in ended.stderr
    assert world.revoked == ["refresh-1-s3cret", "access-1-s3cret"]
    assert await kept(home).server_urls() == []
    assert (await logout("--all")).stderr == "trio-mcp: you are not signed in anywhere\n"


async def test_logout_command_reports_that_no_token_is_stored(world: World) -> None:
    ended = await logout(world.url)
    assert (ended.status, ended.stderr) == (0, f"trio-mcp: you are not signed in at {world.url}\n")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "either TARGET or --all"),
        (["http://127.0.0.1:1/mcp", "--all"], "either TARGET or --all"),
        (["tcp://127.0.0.1:1"], "TARGET must be a server over HTTP or WebSocket"),
        (["http+unix://%2Frun%2Fmcp.sock/mcp"], "TARGET must be a server over HTTP or WebSocket"),
        (["http://127.0.0.1:1/mcp", "--tokens", "memory"], "--tokens memory keeps no tokens"),
        (["--all", "--tokens", "keyring"], "a keyring can't list its entries"),
    ],
)
async def test_logout_command_reports_invalid_arguments_as_usage_errors(
    home: Path, arguments: list[str], told: str
) -> None:
    ended = await logout(*arguments)
    assert ended.status == USAGE
    assert told in ended.stderr


async def test_logout_command_removes_an_unreadable_token_record_with_a_warning(home: Path, world: World) -> None:
    await call(world, "--sign-in")
    (file,) = [name for name in os.listdir(kept(home).folder) if name.endswith(".json")]
    (kept(home).folder / file).write_text("{")
    assert "is not a record" in (await call(world, "--sign-in")).stderr
    assert "may still be valid" in (await logout(world.url)).stderr
    assert (await call(world, "--sign-in")).status == 0
