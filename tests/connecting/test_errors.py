"""Invalid targets raise an `MCPError` with the reason before anything is started or sent."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trio_mcp import (
    Address,
    BadTarget,
    Command,
    ConnectionLost,
    MCPError,
    open_stdio,
    open_tcp,
    open_unix,
    open_websocket,
)

LABEL = "a" * 64


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Command([]), "a command must be a list"),
        (lambda: Command(["", "x"]), "the first item of a command must be the name of a program"),
        (lambda: Command([sys.executable, "a\0b"]), "an item of the command must not contain a NUL"),
        (lambda: Command([sys.executable, "\ud800"]), "a character that can't be passed to a program"),
        (lambda: Command(["x"], cwd="/no\0where"), "a directory must not contain a NUL"),
        (lambda: Command(["x"], env={"A=B": "1"}), "must not be empty or contain '='"),
        (lambda: Command(["x"], env={"": "1"}), "must not be empty"),
        (lambda: Command(["x"], env={"A": "\0"}), "the variable A must not contain a NUL"),
        (lambda: Address("tcp://[h:9"), "not a valid URL"),
        (lambda: Address("tcp://h:99999"), "port must be a number from 1 to 65535"),
        (lambda: Address(f"tcp://{LABEL}:9").open(), "not a valid host name"),
        (lambda: Address("unix:///a%00b").open(), "NUL"),
        (lambda: open_stdio(["a\0b"]), "an item of the command must not contain a NUL"),
        (lambda: open_tcp(f"{LABEL}.example", 80), "not a valid host name"),
        (lambda: open_tcp("a..b", 80), "not a valid host name"),
        (lambda: open_tcp("localhost\0.example", 80), "not a valid host name"),
        (lambda: open_tcp("\u200b.example", 80), "not a valid host name"),
        (lambda: open_tcp("", 80), "not a valid host name"),
        (lambda: open_tcp("127.0.0.1", 0), "port must be a number from 1 to 65535"),
        (lambda: open_tcp("127.0.0.1", 10**30), "port must be a number from 1 to 65535"),
        (lambda: open_unix("\0abstract"), "the path of a Unix socket"),
    ],
)
def test_invalid_connection_target_raises_bad_target_when_constructed(make: Callable[[], Any], told: str) -> None:
    with pytest.raises(BadTarget, match=told) as caught:
        make()
    assert isinstance(caught.value, MCPError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        (f"ws://{LABEL}.example/mcp", "not a valid host name"),
        ("wss://a..b/mcp", "not a valid host name"),
        ("ws://127.0.0.1:99999/mcp", "Port out of range"),
        ("ws://127.0.0.1:0/mcp", "port must be a number from 1 to 65535"),
        ("ws://[::1/mcp", "not a valid URL"),
        ("http://127.0.0.1/mcp", "a WebSocket URL must be like"),
    ],
)
async def test_invalid_url_in_open_websocket_raises_bad_target(url: str, told: str) -> None:
    with pytest.raises(BadTarget, match=told):
        async with open_websocket(url):
            pass


async def test_error_for_a_missing_working_directory_names_the_directory(tmp_path: Path) -> None:
    with pytest.raises(ConnectionLost, match=r"could not be started in .*nowhere: No such file or directory"):
        async with open_stdio([sys.executable], cwd=tmp_path / "nowhere"):
            pass


async def test_tcp_targets_accept_host_names_with_unusual_characters() -> None:
    for host in ("localhost", "::1", "127.0.0.1", "example.com.", "bücher.example", "under_score"):
        open_tcp(host, 65535)
