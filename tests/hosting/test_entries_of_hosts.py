"""Entries of configuration files in the shapes that hosts write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.hosting.test_config_files import config_of, entry_of

from trio_mcp import Address, Command
from trio_mcp.connecting.targets import Target
from trio_mcp.hosting import read_config

URL = "https://mcp.example.com/mcp"


@pytest.mark.parametrize(
    ("fields", "target"),
    [
        ({"serverUrl": URL}, Address(URL)),
        ({"httpUrl": URL, "timeout": 5000}, Address(URL)),
        ({"httpUrl": URL, "url": "https://mcp.example.com/sse"}, Address(URL)),
        *[
            ({"url": URL, key: kind}, Address(URL))
            for key, kind in [
                ("type", "streamable_http"),
                ("type", "STREAMABLE-HTTP"),
                ("type", "remote"),
                ("transport", "streamable_http"),
                ("transport", "http"),
                ("type", "sse"),
                ("transportType", "streamableHttp"),
            ]
        ],
        ({"command": "a", "transport": "stdio"}, Command(["a"])),
        ({"type": "local", "command": ["npx", "b"], "environment": {"A": "1"}}, Command(["npx", "b"], env={"A": "1"})),
        ({"url": URL, "command": None, "args": None, "env": None, "type": None, "oauth": None}, Address(URL)),
        ({"url": URL, "command": "", "args": [], "env": {}, "cwd": "", "type": ""}, Address(URL)),
        ({"command": "a", "url": None, "headers": None, "disabled": None, "enabled": None}, Command(["a"])),
        ({"command": "a", "url": "", "serverUrl": "", "headers": {}, "auth": ""}, Command(["a"])),
        ({"command": "a", "env": {"PORT": 8080, "RATE": 0.5, "ON": True, "NONE": None, "EMPTY": ""}},
         Command(["a"], env={"PORT": "8080", "RATE": "0.5", "ON": "true", "EMPTY": ""})),
        ({"command": "a", "args": ["--port", 8080, False, ""]}, Command(["a", "--port", "8080", "false", ""])),
        ({"command": "/opt/my tools/server -x"}, Command(["/opt/my tools/server -x"])),
    ],
)  # fmt: skip
def test_config_entry_in_the_format_of_another_mcp_host_is_read_as_a_server(
    tmp_path: Path, fields: dict[str, Any], target: Target
) -> None:
    assert entry_of(tmp_path, **fields).target == target


@pytest.mark.parametrize(
    ("fields", "disabled"),
    [
        ({"enabled": False}, True),
        ({"isActive": False}, True),
        ({"disabled": "true"}, True),
        ({"enabled": "${ON:-False}"}, True),
        ({"disabled": False, "enabled": False}, True),
        ({"enabled": True, "isActive": True, "disabled": False}, False),
        ({"enabled": None}, False),
    ],
)
def test_config_entry_disabled_in_the_format_of_another_mcp_host_is_read_as_disabled(
    tmp_path: Path, fields: dict[str, Any], disabled: bool
) -> None:
    config = config_of(tmp_path, {"it": {"command": "a", **fields}}, variables={})
    assert (config.problems, config.ignored, config.members["it"].disabled) == ({}, {}, disabled)


@pytest.mark.parametrize("name", ["", " "])
def test_config_entry_with_an_empty_name_is_reported_as_a_problem(tmp_path: Path, name: str) -> None:
    config = config_of(tmp_path, {name: {"command": "a"}, "b": {"command": "b"}})
    assert list(config.members) == ["b"]
    assert config.problems == {name: "the name of an entry must not be empty"}


LAST_ENTRY = "the file has several entries of this name, and the last one counts"


@pytest.mark.parametrize(
    ("text", "members", "problems"),
    [
        ('{"mcpServers": {"a": {"command": "x"}, "a": {"command": "b"}}}', ["a"], {"a": LAST_ENTRY}),
        (
            '{"mcpServers": {"a": {"command": "b"}, "a": 1}}',
            [],
            {"a": f"{LAST_ENTRY}; the entry must be a JSON object"},
        ),
        (
            '{"mcpServers": {"a": {"command": "x", "command": "b", "env": {"T": "1", "T": "2"}}}}',
            ["a"],
            {"a": "command, env.T: given several times, and the last value counts"},
        ),
        (
            '{"servers": {"x": {"command": "x"}}, "servers": {"a": {"command": "b"}}}',
            ["a"],
            {"servers": "the file has several objects of this name, and the last one counts"},
        ),
        ('{"mcpServers": {"a": {"command": "b", "args": ["c", "c"]}}, "x": 1, "x": 2}', ["a"], {}),
    ],
)
def test_last_of_two_config_entries_with_one_name_is_used_and_reported(
    tmp_path: Path, text: str, members: list[str], problems: dict[str, str]
) -> None:
    (path := tmp_path / "mcp.json").write_text(text)
    config = read_config(path)
    assert (list(config.members), config.problems) == (members, problems)
    assert all(isinstance(each.target, Command) and each.target.words[0] == "b" for each in config.members.values())


def test_config_entry_with_two_url_keys_reports_the_overridden_url_as_ignored(tmp_path: Path) -> None:
    assert config_of(tmp_path, {"it": {"httpUrl": URL, "url": "x"}}).ignored == {"it": ("url",)}
