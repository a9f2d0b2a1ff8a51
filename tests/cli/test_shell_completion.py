"""Shell completion of commands, hosts, configured names, and tools of listening servers."""

import json
import os
import shutil
import sysconfig
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from tests.auth.oauth_client.protected_world import protected
from tests.auth.storage.places import record
from tests.cli.commands import plain_environment
from tests.connecting.http.scripted import Answer, Got
from tests.patience import PATIENCE

from trio_mcp import Server, serve_tcp
from trio_mcp.auth import FileTokenStorage

from .desk import server

SCRIPTS = sysconfig.get_path("scripts")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The user's home, and the current directory."""
    (tmp_path / ".mcp.json").write_text(
        json.dumps({"mcpServers": {"desk": {"command": "d"}, "deck": {"command": "e"}}})
    )
    (tmp_path / "mine.json").write_text(json.dumps({"mcpServers": {"devil": {"command": "d"}}}))
    return tmp_path


async def shell(home: Path, command: list[str], **variables: str) -> str:
    env = {**plain_environment(), "HOME": str(home), "PATH": f"{SCRIPTS}:{os.environ['PATH']}", **variables}
    env.pop("XDG_CONFIG_HOME", None)
    with trio.fail_after(PATIENCE):
        done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, env=env, cwd=home, check=False)
    assert done.stderr == b""
    return done.stdout.decode()


async def completed(home: Path, words: str) -> list[str]:
    """What bash offers for the last of ``words``."""
    typed = words.split(" ")
    script = (
        'eval "$(_TRIO_MCP_COMPLETE=bash_source trio-mcp)"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
        'compopt() { echo "compopt $*"; }; _trio_mcp_completion trio-mcp; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    return (await shell(home, ["bash", "-c", script, "bash", *typed])).split("\n")[:-1]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash, to complete in it")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("trio-mcp ins", ["inspect", "install"]),
        ("trio-mcp install server.py --client c", ["claude-desktop", "claude-code", "cursor"]),
        ("trio-mcp inspect de", ["deck", "desk"]),
        ("trio-mcp inspect --config mine.json de", ["devil"]),
        ("trio-mcp call desk pa", [""]),
        ("trio-mcp call -- ", [""]),
        ("trio-mcp run server.py --h", ["--http", "--health", "--help"]),
        ("trio-mcp run server.py --s", ["--stateless", "--shared", "--scope"]),
        ("trio-mcp demo --h", ["--http", "--help"]),
    ],
)
async def test_bash_completion_lists_matching_words(home: Path, words: str, offered: list[str]):
    assert await completed(home, words) == offered


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash, to complete in it")
async def test_bash_completion_lists_files_if_no_word_matches(home: Path):
    assert " ".join(await completed(home, "trio-mcp inspect serv")) == "compopt -o default "


async def test_shell_completion_lists_tools_prompts_and_resources_of_a_running_server(
    home: Path, nursery: trio.Nursery
):
    listeners: Any = await nursery.start(serve_tcp, server, "127.0.0.1", 0)
    url = f"tcp://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
    words = {"_TRIO_MCP_COMPLETE": "fish_complete", "COMP_WORDS": f"trio-mcp call {url} p", "COMP_CWORD": "p"}
    assert await shell(home, ["trio-mcp"], **words) == "plain,pack\nplain,picture\n"
    for command, word, offered in [
        ("read", "desk://no", "plain,desk://note\n"),
        ("prompt", "p", "plain,praise\n"),
        ("complete", "p", "plain,praise\n"),
    ]:
        more = {**words, "COMP_WORDS": f"trio-mcp {command} {url} {word}", "COMP_CWORD": word}
        assert await shell(home, ["trio-mcp"], **more) == offered
    gone = {**words, "COMP_WORDS": "trio-mcp call tcp://127.0.0.1:9 p"}
    assert await shell(home, ["trio-mcp"], **gone) == "\n"


async def test_shell_completion_starts_no_sign_in(home: Path):
    async def serves(got: Got, answer: Answer) -> None:
        pytest.fail("let in")

    (home / "browser").write_text(f"#!/bin/sh\ntouch {home}/opened\n")
    (home / "browser").chmod(0o700)
    async with protected(serves) as world:
        storage = FileTokenStorage(home / "state" / "trio-mcp" / "tokens")
        await storage.save(world.url, record("kept"))
        words = {
            "_TRIO_MCP_COMPLETE": "fish_complete",
            "COMP_WORDS": f"trio-mcp call {world.url} --sign-in p",
            "COMP_CWORD": "p",
            "BROWSER": str(home / "browser"),
            "XDG_STATE_HOME": str(home / "state"),
        }
        assert await shell(home, ["trio-mcp"], **words) == "\n"
    assert not (home / "opened").exists()
    assert (world.tokens, world.registrations, world.token_requests) == (set(), 0, [])


async def test_shell_completion_omits_names_with_shell_or_terminal_control_characters(
    home: Path, nursery: trio.Nursery
):
    hostile = Server("hostile")

    @hostile.tool(name="p.ok-1")
    async def nothing() -> None: ...

    entry = hostile._tools.registry.get("p.ok-1")
    assert entry is not None
    for name in (
        "p$(touch owned)",
        "p;reboot",
        "p\x1b[2J",
        "p\nplain,pwned",
        "p*",
        "-p",
    ):  # past what declaring refuses
        hostile._tools.registry.add(name, attrs.evolve(entry, listed=attrs.evolve(entry.listed, name=name)))
    listeners: Any = await nursery.start(serve_tcp, hostile, "127.0.0.1", 0)
    url = f"tcp://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
    words = {"_TRIO_MCP_COMPLETE": "fish_complete", "COMP_WORDS": f"trio-mcp call {url} p", "COMP_CWORD": "p"}
    assert await shell(home, ["trio-mcp"], **words) == "plain,p.ok-1\n"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bash", "complete -o nosort -F _trio_mcp_completion trio-mcp"),
        ("zsh", "#compdef trio-mcp"),
        ("fish", "complete"),
    ],
)
async def test_completion_command_prints_a_script_for_each_shell(home: Path, name: str, words: str):
    assert words in await shell(home, ["trio-mcp"], _TRIO_MCP_COMPLETE=f"{name}_source")


async def test_zsh_completion_lists_configured_names(home: Path):
    words = {"_TRIO_MCP_COMPLETE": "zsh_complete", "COMP_WORDS": "trio-mcp call des", "COMP_CWORD": "2"}
    assert await shell(home, ["trio-mcp"], **words) == "plain\ndesk\n_\n"
