"""``trio-mcp install``: adds a server to the configuration file of a host."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.cli.commands import TRIO_MCP, run, written

from trio_mcp.cli.group import trio_mcp
from trio_mcp.cli.targets import HOSTS

SERVER = """
    import os
    from trio_mcp import Server
    server = Server("echo server")

    @server.tool
    async def where() -> str:
        return os.getcwd() + os.environ.get("KEY", "")
"""
THEIRS = '{\n    "theme": "dark", "mcpServers": {\n        "other": {"command": "npx"}\n    }\n}\n'


@pytest.fixture
def server(tmp_path: Path) -> str:
    return written(tmp_path / "echo.py", SERVER)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's home, and the current directory."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.chdir(home)
    return home


def install(*words: str) -> Result:
    return CliRunner().invoke(trio_mcp, ["install", *words], standalone_mode=False)


def test_install_command_writes_one_entry_for_a_file_given_by_two_different_paths(
    server: str, home: Path, tmp_path: Path
) -> None:
    (home / "link").symlink_to(tmp_path / "elsewhere" / "deep", target_is_directory=True)
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    other = written(tmp_path / "elsewhere" / "echo.py", SERVER)
    for typed, meant in (
        (server, server),
        ("../echo.py", server),
        ("./../echo.py:server", server),
        ("link/../echo.py", other),
    ):
        done = install(typed, "--client", "cursor", "--replace")
        assert done.return_value == 0, done.stderr
        entry = json.loads((home / ".cursor" / "mcp.json").read_text())["mcpServers"]["echo server"]
        assert entry["args"][-1].removesuffix(":server") == meant
        if typed == "../echo.py":
            assert "has it already" in done.stderr


async def test_install_command_reports_a_missing_file_in_one_line_without_usage() -> None:
    ended = await run([*TRIO_MCP, "install", "nowhere.py", "--client", "cursor"])
    assert (ended.status, ended.stderr) == (2, "trio-mcp: there is no Python file 'nowhere.py'\n")


def test_install_command_adds_an_entry_and_keeps_the_rest_of_the_file(server: str, home: Path):
    path = home / ".cursor" / "mcp.json"
    path.parent.mkdir()
    path.write_text(THEIRS)
    done = install(server, "--client", "cursor", "--env", "KEY=a=b")
    assert done.return_value == 0, done.stderr
    text = path.read_text()
    assert text.startswith(THEIRS.partition("\n    }\n}")[0] + ',\n        "echo server": {\n            "command": ')
    assert text.endswith("\n    }\n}\n")
    entry = json.loads(text)["mcpServers"]["echo server"]
    assert entry["args"][-2:] == ["run", server]
    assert entry["env"] == {"KEY": "a=b"}
    assert (path.parent / "mcp.json.bak").read_text() == THEIRS
    assert "the server answered, with 1 tool\n" in done.stderr


async def test_server_added_by_the_install_command_can_be_called_by_its_configured_name(server: str, home: Path):
    installed = await run([*TRIO_MCP, "install", server, "--client", "claude-code", "--env", "KEY=!"], cwd=home)
    assert installed.status == 0, installed.stderr
    called = await run([*TRIO_MCP, "call", "echo server", "where"], cwd=home)
    assert (called.status, called.stdout) == (0, f"{home}!\n")


@pytest.mark.parametrize(
    ("client", "where", "section"),
    [
        ("claude-desktop", ".config/Claude/claude_desktop_config.json", "mcpServers"),
        ("claude-code", ".mcp.json", "mcpServers"),
        ("cursor", ".cursor/mcp.json", "mcpServers"),
        ("vscode", ".vscode/mcp.json", "servers"),
        ("windsurf", ".codeium/windsurf/mcp_config.json", "mcpServers"),
        ("gemini-cli", ".gemini/settings.json", "mcpServers"),
    ],
)
def test_install_command_writes_the_configuration_file_of_each_mcp_host_in_its_format(
    server: str, home: Path, client: str, where: str, section: str
):
    assert install(server, "--client", client, "--name", "mine").return_value == 0
    entry = json.loads((home / where).read_text())[section]["mine"]
    assert entry.pop("type", None) == ("stdio" if client == "vscode" else None)
    assert set(entry) == {"command", "args"}


def test_install_command_supports_exactly_six_mcp_hosts():
    assert set(HOSTS) == {"claude-desktop", "claude-code", "cursor", "vscode", "windsurf", "gemini-cli"}
    assert all(host.source.startswith("https://") for host in HOSTS.values())


def test_install_command_dry_run_prints_the_change_and_writes_nothing(server: str, home: Path):
    path = home / "settings.json"
    path.write_text(THEIRS)
    done = install(server, "--client", "gemini-cli", "--path", str(path), "--dry-run")
    assert done.return_value == 0
    assert '+        "echo server": {\n' in done.stdout
    assert ' {\n     "theme": "dark"' in done.stdout
    assert path.read_text() == THEIRS
    assert os.listdir(home) == ["settings.json"]


def test_second_installation_of_a_server_leaves_the_configuration_file_unchanged(server: str, home: Path):
    install(server, "--client", "claude-code")
    before = (home / ".mcp.json").read_text()
    done = install(server, "--client", "claude-code")
    assert done.return_value == 0
    assert "has it already, as 'echo server'" in done.stderr
    assert (home / ".mcp.json").read_text() == before
    assert os.listdir(home) == [".mcp.json"]


def test_install_command_replaces_another_entry_of_the_same_name_only_with_the_replace_option(server: str, home: Path):
    path = home / ".mcp.json"
    path.write_text('{"mcpServers": {"echo server": {"command": "npx", "alwaysAllow": ["where"], "args": []}}}')
    before = path.read_text()
    refused = install(server, "--client", "claude-code")
    assert refused.return_value == 1
    assert "already has a different server 'echo server'" in refused.stderr
    assert path.read_text() == before
    assert install(server, "--client", "claude-code", "--replace").return_value == 0
    entry = json.loads(path.read_text())["mcpServers"]["echo server"]
    assert list(entry) == ["command", "alwaysAllow", "args"]
    assert entry["alwaysAllow"] == ["where"]
    assert entry["args"][-1] == server


async def test_server_installed_into_a_configuration_file_with_comments_can_be_called(server: str, home: Path):
    path = home / ".vscode" / "mcp.json"
    path.parent.mkdir()
    path.write_text('{\n  // mine\n  "servers": {\n    "other": { "command": "npx" }, // theirs\n  },\n}\n')
    installed = await run([*TRIO_MCP, "install", server, "--client", "vscode"], cwd=home)
    assert installed.status == 0, installed.stderr
    text = path.read_text()
    assert text.startswith(
        '{\n  // mine\n  "servers": {\n    "other": { "command": "npx" }, // theirs\n    "echo server": {'
    )
    assert text.endswith("\n    }\n  },\n}\n")
    called = await run([*TRIO_MCP, "call", "echo server", "where"], cwd=home)
    assert (called.status, called.stdout) == (0, f"{home}\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{\n  mine\n}", "was left unchanged: the file is not valid JSON: Expecting property name"),
        ("[]", "the file must contain a JSON object"),
        ('{"mcpServers": []}', "mcpServers in the file must be a JSON object"),
    ],
)
def test_install_command_leaves_an_invalid_configuration_file_unchanged(server: str, home: Path, text: str, words: str):
    path = home / ".mcp.json"
    path.write_text(text)
    done = install(server, "--client", "claude-code")
    assert done.return_value == 1
    assert words in done.stderr
    assert path.read_text() == text
    assert os.listdir(home) == [".mcp.json"]


def test_install_command_adds_an_entry_to_an_empty_configuration_file(server: str, home: Path):
    (home / ".mcp.json").write_text("\n")
    assert install(server, "--client", "claude-code").return_value == 0
    assert "echo server" in json.loads((home / ".mcp.json").read_text())["mcpServers"]


def test_install_command_does_not_write_a_server_that_does_not_start(tmp_path: Path, home: Path):
    broken = written(tmp_path / "broken.py", "raise SystemExit('no luck')")
    done = install(broken, "--client", "claude-code")
    assert done.return_value == 3
    assert "did not respond" in done.stderr
    assert "no luck" in done.stderr
    assert os.listdir(home) == []


async def test_install_command_reports_invalid_arguments_as_usage_errors(server: str, home: Path):
    for words, told in [
        (["no.py", "--client", "cursor"], "there is no Python file 'no.py'"),
        ([server, "--client", "emacs"], "'emacs' is not one of 'claude-desktop'"),
        ([server, "--client", "cursor", "--env", "KEY"], "a variable must be like KEY=VALUE, not 'KEY'"),
        ([server], "Missing option '--client'"),
    ]:
        ended = await run([*TRIO_MCP, "install", *words], cwd=home)
        assert ended.status == 2
        assert told in ended.stderr
    assert os.listdir(home) == []


async def test_install_command_refuses_a_fifo_as_configuration_file_without_blocking(server: str, home: Path):
    os.mkfifo(home / ".mcp.json")
    ended = await run([*TRIO_MCP, "install", server, "--client", "claude-code"], cwd=home)
    assert ended.status == 1
    assert ended.stderr.endswith(".mcp.json is not a regular file\n")


def test_install_command_keeps_huge_numbers_in_the_file_unchanged(server: str, home: Path):
    path = home / ".mcp.json"
    path.write_text(
        '{"size": ' + "9" * 5000 + ', "mcpServers": {"other": {"command": "npx", "n": -' + "8" * 5000 + "}}}"
    )
    done = install(server, "--client", "claude-code")
    assert done.return_value == 0, done.stderr
    assert "9" * 5000 in path.read_text()
    assert "-" + "8" * 5000 in path.read_text()


def test_install_command_creates_no_directory_behind_a_broken_symlink(server: str, home: Path):
    (home / ".cursor").symlink_to(home / "disk" / "cursor")
    done = install(server, "--client", "cursor")
    assert done.return_value == 1
    assert "which does not exist" in done.stderr
    assert os.listdir(home) == [".cursor"]
