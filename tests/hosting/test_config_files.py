"""The configuration files of hosts, as they are found in the wild."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from trio_mcp import Address, Command
from trio_mcp.hosting import Config, ConfigError, MemberDescription, RestartPolicy, open_group, read_config


def config_of(tmp_path: Path, section: Any = None, **more: Any) -> Config:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"mcpServers": section}))
    return read_config(path, **more)


def entry_of(tmp_path: Path, **fields: Any) -> MemberDescription:
    config = config_of(tmp_path, {"it": fields})
    assert config.problems == {}
    return config.members["it"]


def problem_of(tmp_path: Path, fields: Any, **more: Any) -> str:
    config = config_of(tmp_path, {"it": fields}, **more)
    assert config.members == {}
    return config.problems["it"]


def test_config_entry_with_command_args_env_and_cwd_is_read_as_a_command(tmp_path: Path) -> None:
    assert entry_of(
        tmp_path, type="stdio", command="npx", args=["-y", "server"], env={"TOKEN": "x"}, cwd="/tmp"
    ) == MemberDescription(Command(["npx", "-y", "server"], env={"TOKEN": "x"}, cwd="/tmp"))


@pytest.mark.parametrize("fields", [{"command": "server"}, {"url": "https://example.com/mcp"}])
def test_config_entry_with_a_protocol_version_sets_the_revision_of_the_server(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    for version in ("2024-11-05", "2025-06-18", "2026-07-28"):
        target = entry_of(tmp_path, **fields, protocolVersion=version).target
        assert isinstance(target, (Address, Command))
        assert target.revision == version
    for version in ("", None):
        assert entry_of(tmp_path, **fields, protocolVersion=version) == entry_of(tmp_path, **fields)
    assert "(protocolVersion) must be one of 2024-11-05, " in problem_of(tmp_path, {**fields, "protocolVersion": "1"})
    assert "protocolVersion: must be a string" in problem_of(tmp_path, {**fields, "protocolVersion": 20250618})


def test_config_entry_with_a_unix_socket_url_is_read_as_an_address(tmp_path: Path) -> None:
    url = "http+unix://%2Frun%2Fuser%2F1000%2Fmcp.sock/mcp"
    for fields in ({}, {"type": "http"}, {"headers": {"Authorization": "Bearer x"}}):
        assert entry_of(tmp_path, url=url, **fields).target == Address(url, headers=fields.get("headers", {}))
    assert "absolute path of the socket" in problem_of(tmp_path, {"url": "http+unix://mcp.sock/mcp"})


def test_config_entry_with_only_a_command_is_read_as_a_command(tmp_path: Path) -> None:
    assert entry_of(tmp_path, command="server") == MemberDescription(Command(["server"]))


@pytest.mark.parametrize("declared", [{}, {"type": "ws"}, {"type": "websocket"}])
def test_config_entry_with_a_websocket_url_and_headers_is_read_as_an_address(
    tmp_path: Path, declared: dict[str, str]
) -> None:
    found = entry_of(tmp_path, url="wss://example.com/mcp", headers={"authorization": "Bearer x"}, **declared)
    assert found.target == Address("wss://example.com/mcp", headers={"authorization": "Bearer x"})


def test_config_entry_marked_disabled_is_read_as_a_disabled_server(tmp_path: Path) -> None:
    assert entry_of(tmp_path, command="server", disabled=True).disabled
    assert not entry_of(tmp_path, command="server", disabled=False).disabled


def test_unknown_keys_of_a_config_entry_are_reported_as_ignored(tmp_path: Path) -> None:
    config = config_of(
        tmp_path, {"it": {"command": "server", "autoApprove": [], "alwaysAllow": 1}, "b": {"command": "b"}}
    )
    assert config.ignored == {"it": ("alwaysAllow", "autoApprove")}
    assert list(config.members) == ["it", "b"]


def test_restart_policy_and_options_given_for_a_config_file_apply_to_all_its_entries(tmp_path: Path) -> None:
    policy = RestartPolicy()
    config = config_of(tmp_path, {"it": {"command": "a"}}, restart=policy, options={"call_timeout": 5})
    assert config.members["it"] == MemberDescription(["a"], restart=policy, options={"call_timeout": 5})


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ("server.py", "must be a JSON object"),
        ({}, "either command or url"),
        ({"command": "a", "url": "ws://b"}, "either command or url"),
        ({"command": 1}, "command: must be a string"),
        ({"command": ["a", {}]}, "command[1]: must be a string"),
        ({"command": ""}, "either command or url"),
        ({"command": "npx -y server"}, '"command": "npx", "args": ["-y", "server"]'),
        ({"command": "a", "args": "b"}, "args: must be a list"),
        ({"command": "a", "args": ["b", None]}, "args[1]: must be a string"),
        ({"command": "a", "env": {"A": [1]}}, "env.A: must be a string"),
        ({"command": "a", "env": ["A"]}, "env: must be an object"),
        ({"url": "ws://b", "headers": {"X-Team": 1}}, "X-Team: must be a string"),
        ({"command": "a", "cwd": 1}, "cwd: must be a string"),
        ({"command": "a", "disabled": "yes"}, "disabled: must be true or false"),
        ({"command": "a", "isActive": 0}, "isActive: must be true or false"),
        ({"command": "a", "headers": {"A": "b"}}, "headers: allowed only for servers with a URL"),
        ({"command": "a", "type": "ws"}, "the type 'ws' needs the key url"),
        ({"url": "ws://b", "type": "stdio"}, "the type 'stdio' needs the key command"),
        ({"url": "ws://b", "args": ["c"], "env": {"A": "b"}}, "args, env: allowed only for servers with a command"),
        ({"url": "https://b", "type": "ftp"}, "type: must be one of "),
        ({"url": "https://b", "transport": "FTP"}, "transport: must be one of "),
        ({"httpUrl": 1}, "httpUrl: must be a string"),
        ({"url": "https:///mcp"}, "the URL of an HTTP server must be like"),
        ({"url": "tcp://b:1", "headers": {"a": "b"}}, "need an HTTP or WebSocket URL"),
        ({"url": 1}, "url: must be a string"),
        ({"url": "ws://b", "type": 1}, "type: must be a string"),
    ],
)
def test_invalid_config_entry_is_reported_as_a_problem_that_names_the_key(
    tmp_path: Path, fields: Any, told: str
) -> None:
    assert told in problem_of(tmp_path, fields)


def test_invalid_config_entry_does_not_affect_other_entries(tmp_path: Path) -> None:
    config = config_of(tmp_path, {"bad": {}, "good": {"command": "a"}})
    assert (list(config.members), list(config.problems)) == (["good"], ["bad"])


def test_placeholders_in_a_config_file_are_expanded_only_if_variables_are_given(tmp_path: Path) -> None:
    fields = {"command": "${BIN:-npx}", "args": ["--token=${TOKEN}"], "env": {"T": "${env:TOKEN}${EMPTY:-}"}}
    section = {"it": fields}
    config = config_of(tmp_path, section, variables={"TOKEN": "x"})
    assert config.members["it"].target == Command(["npx", "--token=x"], env={"T": "x"})
    assert config_of(tmp_path, section).members["it"].target == Command(
        ["${BIN:-npx}", "--token=${TOKEN}"], env={"T": "${env:TOKEN}${EMPTY:-}"}
    )


def test_undefined_variable_in_a_config_entry_is_reported_as_a_problem_of_that_entry(tmp_path: Path) -> None:
    assert problem_of(tmp_path, {"command": "${NOWHERE}"}, variables={}) == "command: there is no variable NOWHERE"


def test_placeholder_for_user_input_in_a_config_entry_is_reported_as_a_problem_of_that_entry(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, {"command": "a", "env": {"KEY": "${input:key}"}}, variables={"key": "k"})
    assert problem == "env.KEY: only its host knows what ${input:key} stands for"


@pytest.mark.parametrize("text", ["", "{", "[]", "1", "{}", '{"mcpServers": []}', "[" * 100_000, "\udcff"])
def test_invalid_config_file_raises_config_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=r"config\.json (is not JSON|has no object named mcpServers)"):
        read_config(path)


@pytest.mark.parametrize(
    ("text", "cause"), [(None, FileNotFoundError), ("{", json.JSONDecodeError), ("[" * 100_000, RecursionError)]
)
def test_config_error_for_an_unreadable_file_has_the_cause(
    tmp_path: Path, text: str | None, cause: type[Exception]
) -> None:
    path = tmp_path / "config.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        read_config(path)
    assert type(raised.value.__cause__) is cause


def test_missing_config_file_raises_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_config(tmp_path / "nowhere.json")


def test_config_file_with_a_servers_section_and_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_bytes(b'\xef\xbb\xbf{"inputs": [], "servers": {"it": {"type": "stdio", "command": "a"}}}')
    assert read_config(path).members == {"it": MemberDescription(["a"])}


async def test_servers_from_a_config_file_can_be_opened_as_a_group(tmp_path: Path, autojump_clock: object) -> None:
    config = config_of(tmp_path, {"off": {"command": "/nowhere/a", "disabled": True}})
    async with open_group(config.members) as group:
        assert group.statuses == {}


def test_config_file_can_contain_comments_and_trailing_commas(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(
        '{ // mine\n"servers": {"it": {"command": "a", "args": ["// b", "/* c */", ", ]",],},}, /* and\nno "more" */ }'
    )
    assert read_config(path).members == {"it": MemberDescription(["a", "// b", "/* c */", ", ]"])}


@pytest.mark.parametrize("depth", [600, 900, 20_000])
@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_deeply_nested_config_entry_does_not_affect_other_entries(tmp_path: Path, depth: int, opening: str) -> None:
    value = opening * depth + "1" + {"[": "]"}.get(opening, "}") * depth
    (path := tmp_path / "config.json").write_text(
        '{"mcpServers": {"deep": {"command": "a", "x": ' + value + '}, "flat": {"command": "b"}}}'
    )
    with suppress(ConfigError):  # how deep is too deep for JSON depends on the Python
        config = read_config(path, variables={})
        assert config.members["flat"].target == Command(["b"])
        assert config.problems in ({}, {"deep": "the entry is nested too deeply"})


def test_config_file_longer_than_the_limit_raises_config_error() -> None:
    with pytest.raises(ConfigError, match="the file has more than 16,777,216 characters"):
        read_config("/dev/zero")


COMMENTS = ["/* ", "/*/", "//", "/", "*/", "/**", '"//', '/*"']
STRINGS = ['"', '\\"', '"\\', '"a', "\\\n"]
COMMAS = [",", ", ", ",\n", "[,", "{,"]
OF_VARIABLES = ["${", "${a", "${a:", "${a:-", "${a:b", "${a:b:", "$", "{", "a:", "${${"]
LONG = 1_000_000
"""Characters of which a scan of the rest at each piece would take an hour."""


@pytest.mark.parametrize("piece", [*COMMENTS, *STRINGS, *COMMAS])
@pytest.mark.parametrize("start", ["", '{"mcpServers": {}, '])
def test_malicious_comments_and_strings_in_a_config_file_are_parsed_in_linear_time(
    tmp_path: Path, piece: str, start: str
) -> None:
    (path := tmp_path / "config.json").write_text(start + piece * (LONG // len(piece)))
    with pytest.raises(ConfigError):
        read_config(path)


@pytest.mark.parametrize("piece", OF_VARIABLES)
@pytest.mark.parametrize("end", ["", "}", ":x}", ":-x}", "}}"])
def test_malicious_placeholders_in_a_config_file_are_expanded_in_linear_time(
    tmp_path: Path, piece: str, end: str
) -> None:
    (path := tmp_path / "config.json").write_text(
        json.dumps({"servers": {"x": {"command": piece * (LONG // len(piece)) + end}}})
    )
    config = read_config(path, variables={})
    assert len(config.members) + len(config.problems) == 1
