"""Servers named in a configuration file."""

import json
from pathlib import Path
from typing import Any

import pytest

from trio_mcp import Address, Command
from trio_mcp.cli.targets import NoTarget, SignIn, configured_names, target_typed


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's home, and the current directory."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, servers: dict[str, Any], section: str = "mcpServers") -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(json.dumps({section: servers}))
    return path


def test_server_name_is_looked_up_in_configuration_files_of_hosts(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KEY", "secret")
    write(home / ".cursor" / "mcp.json", {"files": {"command": "files", "env": {"KEY": "${KEY}"}, "type": "stdio"}})
    write(home / ".vscode" / "mcp.json", {"far": {"type": "ws", "url": "ws://far.example/mcp"}}, "servers")
    assert target_typed("files") == Command(["files"], env={"KEY": "secret"})
    assert target_typed("far") == Address("ws://far.example/mcp")
    assert configured_names(None) == ["far", "files"]


def test_config_option_reads_only_the_given_file(home: Path):
    write(home / ".mcp.json", {"files": {"command": "theirs"}})
    mine = write(home / "mine.json", {"files": {"command": "mine"}})
    assert target_typed("files", mine) == Command(["mine"])
    with pytest.raises(NoTarget, match=r"mine.json has no server 'other'; its servers are: files"):
        target_typed("other", mine)


def test_server_name_is_refused_if_configuration_files_define_different_servers_with_it(home: Path):
    write(home / ".mcp.json", {"files": {"command": "one"}})
    write(home / ".cursor" / "mcp.json", {"files": {"command": "two"}})
    with pytest.raises(NoTarget, match=r"the name 'files' means a different server in .* and .*; choose with --config"):
        target_typed("files")


def test_server_name_is_accepted_if_two_configuration_files_define_the_same_server_with_it(home: Path):
    for path in (".mcp.json", ".cursor/mcp.json"):
        write(home / path, {"files": {"command": "one"}})
    assert target_typed("files") == Command(["one"])


def test_invalid_configuration_entry_is_refused_with_the_reason(home: Path):
    write(home / ".mcp.json", {"web": {"url": "ftp://a.example/mcp"}})
    with pytest.raises(NoTarget, match=r"'web' in .*\.mcp\.json: .*a URL must be like"):
        target_typed("web")


def test_error_for_an_unknown_server_name_names_configuration_files_that_are_broken(home: Path):
    (home / ".mcp.json").write_text("{ // broken")
    write(home / ".cursor" / "mcp.json", {"mine": {"command": "mine"}})
    write(home / ".gemini" / "settings.json", {}, "theme")
    (home / ".vscode").mkdir()
    (home / ".vscode" / "mcp.json").touch()
    (home / ".codeium" / "windsurf").mkdir(parents=True)
    (home / ".codeium" / "windsurf" / "mcp_config.json").symlink_to("/nowhere")
    assert configured_names(None) == ["mine"]
    assert target_typed("mine") == Command(["mine"])
    with pytest.raises(
        NoTarget,
        match=r"there is no command 'files'; /\S+/\.mcp\.json is not JSON: [^;]*; \S+ cannot be read: No such file",
    ):
        target_typed("files")
    with pytest.raises(NoTarget, match="is not JSON"):
        target_typed("files", home / ".mcp.json")


def test_last_of_two_configuration_entries_with_the_same_name_is_used_with_a_warning(
    home: Path, capsys: pytest.CaptureFixture[str]
):
    (home / ".mcp.json").write_text('{"mcpServers": {"a": {"command": "b"}, "a": {"command": "c"}}}')
    assert target_typed("a", sign_in=SignIn()) == Command(["c"])
    assert "'a' in " in (warned := capsys.readouterr().err)
    assert "several entries of this name" in warned
    assert target_typed("a") == Command(["c"])  # as for a completion
    assert capsys.readouterr().err == ""
