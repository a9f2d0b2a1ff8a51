"""``--header`` and ``--env``: headers and variables for the called server."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.commands import TRIO_MCP, run, running, written

from trio_mcp import Address, Command
from trio_mcp.cli.targets import NoTarget, with_extras

SERVER = """
    import os
    from trio_mcp import RequestContext, Server

    server = Server("told")

    @server.tool
    async def told(ctx: RequestContext) -> str:
        return f"{os.environ.get('KEY')} {(ctx.headers or {}).get('x-key')}"
"""


def test_header_and_env_options_extend_the_headers_of_a_url_and_the_environment_of_a_command() -> None:
    assert with_extras(Address("https://a/mcp", headers={"A": "1"}), ["B: 2: 3"], []) == Address(
        "https://a/mcp", headers={"A": "1", "B": "2: 3"}
    )
    assert with_extras(Command(["a"], env={"A": "1"}), [], ["B=2=3", "C="]) == Command(
        ["a"], env={"A": "1", "B": "2=3", "C": ""}
    )


@pytest.mark.parametrize(
    ("target", "headers", "env", "told"),
    [
        (Command(["a"]), ["A: 1"], [], "--header needs a URL"),
        (Address("https://a/mcp"), [], ["A=1"], "--env needs a command"),
        (Address("tcp://a:1"), ["A: 1"], [], "need an HTTP or WebSocket URL"),
        (Address("https://a/mcp"), ["secret"], [], "--header must be like 'Name: value'"),
        (Command(["a"]), [], ["secret"], "--env must be like NAME=value"),
        (Address("http://far.example/mcp"), ["Authorization: Bearer x"], [], "https"),
    ],
)
def test_error_for_an_invalid_header_or_env_option_does_not_contain_its_secret(
    target: Command | Address, headers: list[str], env: list[str], told: str
) -> None:
    with pytest.raises(NoTarget, match=told) as caught:
        with_extras(target, headers, env)
    assert "secret" not in str(caught.value)


async def test_values_of_header_and_env_options_reach_the_server(tmp_path: Path) -> None:
    file = written(tmp_path / "server.py", SERVER)
    ended = await run([*TRIO_MCP, "call", file, "told", "--env", "KEY=from the user"])
    assert ended.stdout == "from the user None\n"
    async with running("run", file, "--http", "0") as server:
        url = await server.line(r"at (http://127\.0\.0\.1:\d+/mcp);")
        ended = await run([*TRIO_MCP, "call", url, "told", "--header", "X-Key: 42"])
        assert ended.stdout == "None 42\n"
        assert "told" in (await run([*TRIO_MCP, "inspect", url, "--header", "X-Key: 42"])).stdout
