"""``trio-mcp run``: serves a file over stdio, with nothing but the protocol on standard output."""

import io
import json
import sys
from pathlib import Path

import pytest
import trio
from tests.cli.commands import TRIO_MCP, run, written
from tests.patience import PATIENCE

from trio_mcp import open_stdio
from trio_mcp.types import CallToolResult, TextContent


async def answer_of(target: str, tool: str, stderr: io.StringIO | None = None) -> str:
    """What ``tool`` of the server that ``trio-mcp run target`` serves answers."""
    with trio.fail_after(PATIENCE):
        async with open_stdio([*TRIO_MCP, "run", target], stderr=stderr, era="modern") as client:
            return text_of(await client.call_tool(tool))


def text_of(result: CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


async def test_run_command_imports_the_served_file_in_the_same_way_as_python(tmp_path: Path):
    written(tmp_path / "sibling.py", "WORD = 'found'")
    file = written(
        tmp_path / "batch.py",
        """
        import sys
        from sibling import WORD
        from trio_mcp import Server

        server, other = Server("batch"), Server("other")

        @server.tool
        def about() -> str:
            return f"sibling {WORD}, rich imported: {'rich' in sys.modules}, arguments: {len(sys.argv) - 1}"

        if __name__ == "__main__":
            sys.exit("main ran")
        """,
    )
    assert await answer_of(file, "about") == "sibling found, rich imported: False, arguments: 0"


async def test_run_command_redirects_output_printed_while_the_file_is_imported_to_stderr(tmp_path: Path):
    file = written(
        tmp_path / "talkative.py",
        """
        import os, subprocess, sys
        from trio_mcp import Server

        print("by print")
        os.write(1, b"by write\\n")
        subprocess.run(["sh", "-c", "echo by child"])
        rest = sys.stdin.read()
        only = Server("talkative")

        @only.tool
        def input() -> str:
            return f"the file has read {rest!r}"
        """,
    )
    stderr = io.StringIO()
    assert await answer_of(file, "input", stderr) == "the file has read ''"
    assert sorted(stderr.getvalue().splitlines()) == ["by child", "by print", "by write"]


async def test_run_command_serves_the_server_named_by_its_argument_if_a_file_has_several_servers(tmp_path: Path):
    file = written(
        tmp_path / "several.py",
        """
        from trio_mcp import Server

        for name in ("first", "second"):
            globals()[name] = Server(name)
            globals()[name].tool(lambda name=name: name, name="who")
        """,
    )
    assert await answer_of(f"{file}:second", "who") == "second"


async def test_run_command_serves_a_file_that_calls_serve_stdio_at_import_once(tmp_path: Path):
    file = written(
        tmp_path / "unguarded.py",
        """
        import sys, trio
        from trio_mcp import Server, serve_stdio

        server, state = Server("unguarded"), ["closed"]

        @server.tool
        def door() -> str:
            return state[0]

        async def main():
            state[0] = "open"
            await serve_stdio(server)
            state[0] = "closed"
            print("served", file=sys.stderr)

        trio.run(main)
        """,
    )
    stderr = io.StringIO()
    assert await answer_of(file, "door", stderr) == "open"
    assert stderr.getvalue() == "served\n"


async def test_run_command_serves_a_file_that_calls_run_at_import_only_over_stdio(tmp_path: Path):
    text = """
    from trio_mcp import Server, run

    server = Server("unguarded")

    @server.tool
    def door() -> str:
        return "open"

    run(server{})
    """
    assert await answer_of(written(tmp_path / "unguarded.py", text.format("")), "door") == "open"
    written(tmp_path / "listens.py", text.format(', "http", port=0'))
    ended = await run([*TRIO_MCP, "run", "listens.py"], cwd=tmp_path)
    assert (ended.status, ended.stdout) == (2, "")
    assert "listens.py calls run when it is imported" in ended.stderr


@pytest.mark.parametrize("name", ["serve_http", "serve_tcp", "serve_unix", "serve_websocket"])
async def test_run_command_refuses_a_file_that_starts_a_network_server_when_imported(tmp_path: Path, name: str):
    written(
        tmp_path / "listens.py",
        f"""
        import trio
        from trio_mcp import Server, {name}

        server = Server("listens")

        async def main():
            await {name}(server, "127.0.0.1", 0)

        trio.run(main)
        """,
    )
    ended = await run([*TRIO_MCP, "run", "listens.py"], cwd=tmp_path)
    words = f'listens.py calls {name} when it is imported; move that call below the line: if __name__ == "__main__":'
    assert (ended.status, ended.stdout, ended.stderr) == (2, "", f"trio-mcp: {words}\n")


@pytest.mark.parametrize(
    ("code", "name", "message"),
    [
        ("", "", 'no server in it.py; it needs a global variable like: server = Server("name")'),
        ("a = Server('a'); b = Server('b')", "", "several servers in it.py: a, b; choose one with it.py:NAME"),
        ("a = Server('a')", ":b", "it.py has no 'b'; its servers are: a"),
        ("a = 1", ":a", "it.py:a must be a Server, not int"),
    ],
)
async def test_run_command_reports_a_missing_server_name_in_the_file_as_a_usage_error(
    tmp_path: Path, code: str, name: str, message: str
):
    written(tmp_path / "it.py", f"from trio_mcp import Server\n{code}")
    ended = await run([*TRIO_MCP, "run", f"it.py{name}"], cwd=tmp_path)
    assert (ended.status, ended.stdout, ended.stderr) == (2, "", f"trio-mcp: {message}\n")


@pytest.mark.parametrize(
    ("target", "message"), [("it.py:a", "no such file: it.py"), (".", ". is a directory, not a Python file")]
)
async def test_run_command_reports_a_target_that_is_not_a_file_as_a_usage_error(
    tmp_path: Path, target: str, message: str
):
    ended = await run([*TRIO_MCP, "run", target], cwd=tmp_path)
    assert (ended.status, ended.stdout, ended.stderr) == (2, "", f"trio-mcp: {message}\n")


async def test_run_command_shows_the_traceback_of_a_failing_file_without_frames_of_trio_mcp(tmp_path: Path):
    file = written(tmp_path / "broken.py", "def connect():\n    raise OSError('no database')\nconnect()\n")
    ended = await run([*TRIO_MCP, "run", "broken.py"], cwd=tmp_path)
    assert (ended.status, ended.stdout) == (1, "")
    first, frame, *_, error, last = ended.stderr.splitlines()
    assert first == "Traceback (most recent call last):"
    assert frame == f'  File "{file}", line 3, in <module>'
    assert error == "OSError: no database"
    assert last == "trio-mcp: broken.py could not be loaded"


@pytest.mark.parametrize(("options", "stderr"), [([], ""), (["--log-level", "info"], "INFO root: loading\n")])
async def test_log_level_option_of_the_run_command_applies_to_logs_on_stderr(
    tmp_path: Path, options: list[str], stderr: str
):
    code = """
        import logging
        from trio_mcp import Server
        server = Server("it")
        logging.info("loading")
        """
    written(tmp_path / "it.py", code)
    ended = await run([*TRIO_MCP, "run", "it.py", *options], cwd=tmp_path)
    assert (ended.status, ended.stdout, ended.stderr) == (0, "", stderr)


async def test_run_command_reports_a_closed_stdin_as_a_usage_error(tmp_path: Path):
    ended = await run(["sh", "-c", 'exec "$@" <&-', "sh", *TRIO_MCP, "run", "it.py"], cwd=tmp_path)
    assert (ended.status, ended.stdout) == (2, "")
    assert ended.stderr == "trio-mcp: standard input and output must be open, because the client uses them\n"


async def test_run_command_answers_requests_received_before_the_end_of_its_input(tmp_path: Path):
    written(tmp_path / "it.py", "from trio_mcp import Server\nserver = Server('it')")
    ping = json.dumps({"jsonrpc": "2.0", "id": "p", "method": "ping"}).encode()
    ended = await run([*TRIO_MCP, "run", "it.py"], stdin=ping + b"\n", cwd=tmp_path)
    assert (ended.status, json.loads(ended.stdout)) == (0, {"jsonrpc": "2.0", "id": "p", "result": {}})


TASKS = """
    from trio_mcp import RequestContext, Server
    server = Server("slow")

    @server.tool(task="required")
    async def roast(ctx: RequestContext) -> str:
        return "roasted"
"""


async def test_run_command_with_tasks_option_keeps_tasks_in_a_private_file_across_restarts(tmp_path: Path):
    file, tasks = written(tmp_path / "slow.py", TASKS), tmp_path / "tasks.db"
    command = [*TRIO_MCP, "run", file, "--tasks", str(tasks)]
    with trio.fail_after(PATIENCE):
        async with open_stdio(command, era="legacy") as client:
            params = {"name": "roast", "task": {}}
            task = (await client.request("tools/call", params, dict))["task"]["taskId"]
        async with open_stdio(command, era="legacy") as client:
            result = await client.request("tasks/result", {"taskId": task}, dict)
    assert result["content"] == [{"type": "text", "text": "roasted"}]
    assert tasks.stat().st_mode & 0o077 == 0


async def test_tasks_option_with_an_unusable_file_is_reported_in_one_line(tmp_path: Path):
    file, other = written(tmp_path / "slow.py", TASKS), tmp_path / "other"
    other.write_text("this is something else " * 100)
    ended = await run([*TRIO_MCP, "run", file, "--tasks", str(other)])
    assert ended.status == 2
    assert "file is not a database" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    ended = await run([*TRIO_MCP, "run", file, "--tasks", str(tmp_path / "none" / "tasks.db")])
    assert ended.status == 2
    assert "there is no folder" in ended.stderr


PACKAGE = """
    import sys
    from trio_mcp import Server

    def make(word: str = " ".join(sys.argv[1:])) -> Server:
        server = Server("made")

        @server.tool
        def about() -> str:
            return f"made with {word}"

        return server

    async def make_later() -> Server:
        return Server("later")

    def make_nothing() -> str:
        return "nothing"

    def fail() -> Server:
        raise RuntimeError("no such database")

    server = make()
    constant = 3
"""


@pytest.mark.parametrize(
    "words",
    [
        ["notes.wire:make", "--", "--db", "x"],
        ["notes.wire", "--", "--db", "x"],
        ["-m", "notes.wire:make", "--", "--db", "x"],
        ["notes/wire.py:make", "--", "--db", "x"],
        ["notes/wire.py", "--", "--db", "x"],
    ],
)
async def test_run_command_passes_arguments_after_two_dashes_to_the_module_or_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
):
    (tmp_path / "notes").mkdir()
    written(tmp_path / "notes" / "wire.py", PACKAGE)
    monkeypatch.chdir(tmp_path)
    with trio.fail_after(PATIENCE):
        async with open_stdio([*TRIO_MCP, "run", *words], era="modern") as client:
            assert text_of(await client.call_tool("about")) == "made with --db x"


@pytest.mark.parametrize(
    ("target", "status", "told"),
    [
        ("notes.wire:make_later", 2, "must be a plain def, not async"),
        ("notes.wire:make_nothing", 2, "must return a Server, not str"),
        ("notes.wire:fail", 1, "RuntimeError: no such database"),
        ("notes.wire:constant", 2, "must be a Server, not int"),
        ("notes.wire:other", 2, "has no 'other'"),
        ("notes.other", 2, "there is neither a file nor a module 'notes.other'"),
        ("other.wire", 2, "there is neither a file nor a module 'other.wire'"),
    ],
)
async def test_run_command_reports_a_module_without_the_named_server_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, status: int, told: str
):
    (tmp_path / "notes").mkdir()
    written(tmp_path / "notes" / "wire.py", PACKAGE)
    ended = await run([*TRIO_MCP, "run", target], cwd=tmp_path)
    assert ended.status == status
    assert told in ended.stderr
    assert "loading.py" not in ended.stderr


async def test_run_command_reports_a_missing_file_or_module_as_a_usage_error():
    ended = await run([*TRIO_MCP, "run"])
    assert ended.status == 2
    assert "either FILE or -m MODULE is required" in ended.stderr


@pytest.mark.parametrize("own", [None, 50_000])
@pytest.mark.parametrize("command", [[*TRIO_MCP, "run"], [sys.executable]], ids=["trio-mcp run", "python"])
async def test_run_command_raises_the_gc_threshold_if_the_file_does_not_set_one(
    tmp_path: Path, command: list[str], own: int | None
):
    file = written(
        tmp_path / "collected.py",
        f"""
        import gc
        import trio
        from trio_mcp import Server, serve_stdio

        gc.set_threshold({own or 700}, 5, 5)
        server = Server("collected")

        @server.tool
        def threshold() -> str:
            return str(gc.get_threshold())

        if __name__ == "__main__":
            trio.run(serve_stdio, server)
        """,
    )
    with trio.fail_after(PATIENCE):
        async with open_stdio([*command, file], stderr=None, era="modern") as client:
            assert text_of(await client.call_tool("threshold")) == f"({own or 10_000}, 5, 5)"
