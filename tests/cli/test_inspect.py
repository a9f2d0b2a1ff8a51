"""``trio-mcp inspect``: lists tools, resources and prompts of a server."""

import json
import shlex
import sys
from pathlib import Path

import pytest
from tests.cli.commands import TRIO_MCP, run, written
from tests.connecting.http.scripted import Answer, Got
from tests.connecting.http.scripted import serving as serving_http

from trio_mcp import Server, serve_tcp

INSPECT = [*TRIO_MCP, "inspect"]
SHOP = """
    from dataclasses import dataclass
    from trio_mcp import Server
    server = Server("shop", "2.5", instructions="Be \\x1b[31mquick.")

    @server.tool
    async def order(item: str, number: int = 1) -> str:
        '''Order something.

        More words.'''
        return item

    @server.resource("shop://menu", mime_type="text/plain")
    async def menu() -> str:
        return "soup"

    @server.resource("shop://menu/{day}")
    async def menu_of(day: str) -> str:
        return day

    @server.prompt
    async def praise(dish: str, tone: str = "warm") -> str:
        '''Words for the cook.'''
        return dish
"""


async def test_inspect_command_explains_what_to_change_in_a_file_that_serves_http_when_imported(tmp_path: Path):
    file = written(
        tmp_path / "listens.py",
        """
        import trio
        from trio_mcp import Server, serve_http

        trio.run(serve_http, Server("listens"), "127.0.0.1", 0)
        """,
    )
    ended = await run([*INSPECT, file])
    assert (ended.status, ended.stdout) == (3, "")
    assert (
        'calls serve_http when it is imported; move that call below the line: if __name__ == "__main__":'
        in ended.stderr
    )


async def test_inspect_command_reports_a_file_whose_import_never_finishes(tmp_path: Path):
    file = written(tmp_path / "waits.py", "import threading; threading.Event().wait()")
    ended = await run([*INSPECT, file, "--timeout", "1"])
    assert ended.status == 5
    assert 'move that code below the line: if __name__ == "__main__":\n' in ended.stderr


@pytest.fixture
def shop(tmp_path: Path) -> str:
    return written(tmp_path / "shop.py", SHOP)


async def test_inspect_command_prints_tables_of_the_tools_and_resources_that_a_file_serves(shop: str):
    ended = await run([*INSPECT, shop])
    assert (ended.status, ended.stderr) == (0, "")
    lines = [" ".join(line.replace("│", " ").split()) for line in ended.stdout.splitlines()]
    for line in (
        "server shop 2.5",
        "revision 2026-07-28 (modern)",
        "instructions Be \ufffd[31mquick.",
        "order item: string Order something.",
        "number?: integer",
        "shop://menu menu text/plain",
        "praise dish Words for the cook.",
        "tone?",
    ):
        assert line in lines
    assert any(line.startswith("shop://menu/{day} menu_of") for line in lines)
    assert "\x1b" not in ended.stdout


async def test_inspect_command_with_json_option_prints_everything_with_protocol_field_names(shop: str):
    ended = await run([*INSPECT, shop, "--json", "--era", "legacy"])
    offers = json.loads(ended.stdout)
    assert offers["server"] == {"name": "shop", "version": "2.5"}
    assert (offers["revision"], offers["era"]) == ("2025-11-25", "legacy")
    (tool,) = offers["tools"]
    assert tool["inputSchema"]["required"] == ["item"]
    assert [resource["uri"] for resource in offers["resources"]] == ["shop://menu"]
    assert [template["uriTemplate"] for template in offers["resourceTemplates"]] == ["shop://menu/{day}"]
    assert [prompt["name"] for prompt in offers["prompts"]] == ["praise"]


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-06-18", "2026-07-28"])
async def test_protocol_revision_can_be_set_by_option_or_configuration_entry(shop: str, tmp_path: Path, revision: str):
    entry = {"command": sys.executable, "args": ["-m", "trio_mcp.cli", "run", shop], "protocolVersion": revision}
    config = written(tmp_path / "config.json", json.dumps({"mcpServers": {"named": entry}}))
    for typed in ([shop, "--revision", revision], ["named", "--config", config]):
        ended = await run([*INSPECT, *typed, "--json"])
        assert json.loads(ended.stdout)["revision"] == revision


async def test_inspect_command_refuses_an_unknown_revision_as_a_usage_error(shop: str):
    ended = await run([*INSPECT, shop, "--revision", "2025-01-01"])
    assert ended.status == 2
    assert "must be one of 2024-11-05, 2025-03-26, 2025-06-18, 2025-11-25, 2026-07-28, not '2025-01-01'" in ended.stderr


async def test_inspect_command_marks_tools_that_run_as_tasks(tmp_path: Path):
    code = """
        from trio_mcp import Server
        server = Server("slow")

        @server.tool(task="required")
        async def roast() -> str:
            "Roast beans."

        @server.tool(task="optional")
        async def grind() -> str:
            "Grind beans."

        @server.tool
        async def pour() -> str:
            "Pour a cup."
    """
    file = written(tmp_path / "slow.py", code)
    legacy = (await run([*INSPECT, file, "--era", "legacy"])).stdout
    lines = [" ".join(line.replace("│", " ").split()) for line in legacy.splitlines()]
    for line in ("roast Roast beans. required", "grind Grind beans. optional", "pour Pour a cup."):
        assert line in lines
    assert "tasks (" in legacy
    modern = (await run([*INSPECT, file])).stdout  # whose servers decide on their own
    assert "required" not in modern
    assert "extensions (io.modelcontextprotocol/tasks)" in modern


async def test_inspect_command_lists_skills_with_their_file_counts(tmp_path: Path):
    file = written(
        tmp_path / "skilled.py",
        """
        from trio_mcp import Server, Skills
        skills = Skills()
        text = "---\\nname: pdf\\ndescription: Fill in forms\\n---\\n"
        skills.add_files("pdf", {"SKILL.md": text, "more": ""})
        server = Server("skilled", extensions=[skills])
        """,
    )
    ended = await run([*INSPECT, file])
    lines = [" ".join(line.replace("│", " ").split()) for line in ended.stdout.splitlines()]
    assert "skill://pdf/SKILL.md pdf 2 Fill in forms" in lines
    offers = json.loads((await run([*INSPECT, file, "--json"])).stdout)
    assert [skill["frontmatter"]["name"] for skill in offers["skills"]] == ["pdf"]


async def test_inspect_command_shows_undeclared_features_as_null_in_json_and_not_at_all_in_tables(tmp_path: Path):
    bare = written(tmp_path / "bare.py", "from trio_mcp import Server\nserver = Server('bare')")
    ended = await run([*INSPECT, bare, "--json"])
    offers = json.loads(ended.stdout)
    assert [offers[kind] for kind in ("tools", "resources", "resourceTemplates", "prompts", "skills")] == [None] * 5
    assert "tool" not in (await run([*INSPECT, bare])).stdout


async def test_inspect_command_accepts_a_quoted_server_command_or_a_server_command_after_two_dashes(shop: str):
    command = [*TRIO_MCP, "run", shop]
    quoted = await run([*INSPECT, shlex.join(command), "--json"])
    after_dashes = await run([*INSPECT, "--json", "--", *command])
    assert quoted.status == after_dashes.status == 0
    assert quoted.stdout == after_dashes.stdout
    assert json.loads(quoted.stdout)["server"]["name"] == "shop"


async def test_inspect_command_connects_to_a_tcp_url(nursery):
    listeners = await nursery.start(serve_tcp, Server("listening", "1"), "127.0.0.1", 0)
    ended = await run([*INSPECT, f"tcp://127.0.0.1:{listeners[0].socket.getsockname()[1]}"])
    assert "listening 1" in ended.stdout
    assert ended.status == 0


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("no-such-thing", "there is no command 'no-such-thing'"),
        ("http:///mcp", "the URL of an HTTP server must be like"),
        ("ws:///mcp", "a WebSocket URL must be like"),
        ("tcp://127.0.0.1", "a TCP address must be like"),
        ("say 'hello", "cannot be split into words"),
        ("", "the target must not be an empty string"),
        ("tcp://127.0.0.1:99999", "port must be a number from 1 to 65535"),
        ("ws://" + "a" * 64 + ".example/mcp", "not a valid host name"),
    ],
)
async def test_inspect_command_reports_an_invalid_target_as_a_usage_error(target: str, words: str):
    ended = await run([*INSPECT, target])
    assert ended.status == 2
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr


async def test_inspect_command_reports_two_dashes_without_a_command_as_a_usage_error():
    ended = await run([*INSPECT, "--"])
    assert ended.status == 2
    assert "a command is missing after --" in ended.stderr


async def test_inspect_command_shows_the_last_output_of_a_server_that_exits():
    code = "import sys; print('usage', file=sys.stdout); sys.exit('out of \x1b[5mluck')"
    ended = await run([*INSPECT, "--", sys.executable, "-c", code])
    assert ended.status == 3
    assert "\ntrio-mcp: the server exited" in ended.stderr  # after a warning in the log
    assert "(exit status 1); its last lines on stderr:\n  out of \ufffd[5mluck\n" in ended.stderr
    assert f"\nits last lines on stdout:\n  usage\nits command: {sys.executable} -c 'import sys; " in ended.stderr


async def test_inspect_command_reports_an_unreachable_address_without_a_traceback():
    ended = await run([*INSPECT, "tcp://127.0.0.1:9"])
    assert ended.status == 3
    assert ended.stderr.startswith("trio-mcp: no connection to 127.0.0.1 port 9")
    assert "Traceback" not in ended.stderr


async def test_inspect_command_times_out_if_the_server_never_answers():
    ended = await run([*INSPECT, "--timeout", "0.3", "--", sys.executable, "-c", "import sys; sys.stdin.read()"])
    assert ended.status == 5
    words = "trio-mcp: the server did not respond in time: the time is over: 0.3 s; its command: "
    assert ended.stderr.startswith(f"{words}{sys.executable} -c ")


async def test_inspect_command_shows_server_stderr_on_request():
    code = "import sys; print('hello there', file=sys.stderr); sys.exit(3)"
    ended = await run([*INSPECT, "--stderr", "--", sys.executable, "-c", code])
    assert ended.stderr.startswith("hello there\n")


async def test_server_name_with_newlines_cannot_forge_inspect_output(tmp_path: Path):
    code = 'from trio_mcp import Server\nserver = Server("shop\\nrevision     2099-01-01", "1\\x1b[2J")\n'
    ended = await run([*INSPECT, written(tmp_path / "shop.py", code)])
    assert ended.stdout.splitlines()[1].startswith("revision     2026-07-28")
    assert "\x1b" not in ended.stdout


HOSTILE = """
    from trio_mcp import Server
    server = Server("hostile")
    loops = {"$ref": "#/$defs/n"}
    schema = {"type": "object"}

    async def loop(a1: int, a2: int) -> str:
        return "left"
    server.tool(loop, input_schema=schema)
    # Ours would refuse the schema where it is given.
    schema["properties"] = {f"a{number}": loops for number in range(100)}
    schema["$defs"] = {"n": {"anyOf": [loops] * 20}}
"""


@pytest.mark.parametrize("command", [[*INSPECT], [*TRIO_MCP, "call"]])
async def test_recursive_schema_does_not_block_the_inspect_and_call_commands(tmp_path: Path, command: list[str]):
    words = ["loop", "a1=1", "a2=2"] if command[-1] == "call" else []
    ended = await run([*command, written(tmp_path / "hostile.py", HOSTILE), *words, "--timeout", "50"])
    assert ended.status == 0, ended.stderr
    assert ("a1?: any" if command[-1] == "inspect" else "left") in ended.stdout


async def test_inspect_command_shows_invisible_characters_in_names_as_escapes(tmp_path: Path):
    code = """
        from trio_mcp import Server
        server = Server("sh\\u200bop", "1\\u2028revision     2099-01-01")

        @server.resource("shop://menu\\u200d", name="me\\ufeffnu")
        async def menu() -> str:
            return "soup"
    """
    shown = (await run([*INSPECT, written(tmp_path / "shop.py", code)])).stdout
    assert shown.startswith("server       sh\\u200bop 1\\u2028revision     2099-01-01\n")
    assert "me\\ufeffnu" in shown
    assert "shop://menu%E2%80%8D" in shown  # as it is listed
    assert not {"\u200b", "\u200d", "\u2028", "\ufeff"} & set(shown)


@pytest.mark.parametrize(("status", "ending"), [(403, 4), (503, 4), (None, 3)])
async def test_inspect_command_has_different_exit_statuses_for_an_http_error_and_an_unreachable_server(
    status: int | None, ending: int
):
    async def refuse(_: Got, answer: Answer) -> None:
        await answer.whole(status or 500, b"not you")

    async with serving_http(refuse) as server:
        if status is None:
            await server.stop()
        ended = await run([*INSPECT, server.url])
    assert ended.status == ending
    assert ("not you" in ended.stderr) is (status is not None)
    assert len(ended.stderr.splitlines()) == 1


async def test_inspect_command_shows_the_argument_description_after_its_type(tmp_path: Path):
    code = """
        from typing import Annotated
        from trio_mcp import Server
        server = Server("shop")

        @server.tool
        async def order(number: Annotated[int, "How many.\\nAt most nine."], note: str = "") -> str:
            return "ordered"
    """
    shown = (await run([*INSPECT, written(tmp_path / "shop.py", code)])).stdout
    assert "number: integer - How many." in shown
    assert "At most nine" not in shown


ODD = """
    import json, os, sys
    NAMED = {"tools/list": "tools", "prompts/list": "prompts"}
    capabilities, answers = json.loads(sys.argv[1])
    for line in sys.stdin:
        message = json.loads(line)
        method = message.get("method")
        if "id" not in message:
            continue
        reply = {"error": {"code": -32601, "message": "Method not found"}}
        if method == "initialize":
            info = {"name": "odd", "version": "1"}
            result = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}
            reply = {"result": result}
        elif answers.get(method) == "exit":
            sys.exit("crashed")
        elif answers.get(method) == "silence":
            continue
        elif method in answers:
            reply = answers[method]
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **reply}), flush=True)
"""
_TOOLS = {"tools": [{"name": "good", "inputSchema": {"type": "object"}}]}
_BOOM = {"error": {"code": -32603, "message": "boom"}}
_BOTH = {"tools": {}, "prompts": {}}


@pytest.mark.parametrize(
    ("capabilities", "answers", "kind", "problem", "status"),
    [
        ({"tools": {}}, {"tools/list": {"result": {**_TOOLS, "nextCursor": "x"}}}, "tools", "repeats a cursor", 0),
        (_BOTH, {"tools/list": {"result": _TOOLS}, "prompts/list": _BOOM}, "prompts", "boom", 0),
        (_BOTH, {"tools/list": {"result": _TOOLS}, "prompts/list": {"result": {}}}, "prompts", "missing 'prompts'", 0),
        (_BOTH, {"tools/list": {"result": _TOOLS}}, "prompts", "Method not found", 0),
        (_BOTH, {"tools/list": {"result": _TOOLS}, "prompts/list": "exit"}, "prompts", "crashed", 0),
        (_BOTH, {"tools/list": {"result": _TOOLS}, "prompts/list": "silence"}, "prompts", "has not answered", 5),
        ({}, {"tools/list": {"result": _TOOLS}}, "tools", "without declaring", 0),
    ],
)
async def test_inspect_command_shows_the_problem_of_a_failed_list_request_and_the_other_lists(
    tmp_path: Path, capabilities: object, answers: object, kind: str, problem: str, status: int
):
    file = written(tmp_path / "odd.py", ODD)
    command = ["--timeout", "3", "--", sys.executable, file, json.dumps([capabilities, answers])]
    as_json = await run([*INSPECT, "--json", *command])
    offers = json.loads(as_json.stdout)
    assert [tool["name"] for tool in offers["tools"]] == ["good"]
    assert list(offers["problems"]) == [kind]
    assert problem in offers["problems"][kind]
    as_text = await run([*INSPECT, *command])
    assert (as_text.status, as_json.status) == (status, status)
    (line,) = [line for line in as_text.stdout.splitlines() if line.startswith("problem")]
    assert f"{kind}: " in line
    assert "good" in as_text.stdout
    assert ("did not respond in time" in as_text.stderr) is (status == 5)


async def test_inspect_command_reports_no_problem_if_a_server_without_tools_capability_has_no_tools(tmp_path: Path):
    file = written(tmp_path / "odd.py", ODD)
    for answers in ({}, {"tools/list": {"result": {"tools": []}}}):
        command = ["--json", "--", sys.executable, file, json.dumps([{}, answers])]
        offers = json.loads((await run([*INSPECT, *command])).stdout)
        assert (offers["tools"], offers["problems"]) == (None, {})


async def test_call_command_can_call_a_tool_of_a_server_that_declares_no_tools_capability(tmp_path: Path):
    result = {"result": {"content": [{"type": "text", "text": "done"}]}}
    answers = {"tools/list": {"result": _TOOLS}, "tools/call": result}
    server = ["--", sys.executable, written(tmp_path / "odd.py", ODD), json.dumps([{}, answers])]
    ended = await run([*TRIO_MCP, "call", "good", *server])
    assert (ended.status, ended.stdout) == (0, "done\n")
    ended = await run([*TRIO_MCP, "call", "good", *server[:-1], json.dumps([{}, {}])])
    assert (ended.status, "the server has no tools" in ended.stderr) == (2, True)


async def test_call_command_warns_if_the_result_does_not_fit_the_output_schema(tmp_path: Path):
    tool = {**_TOOLS["tools"][0], "outputSchema": {"type": "object", "required": ["n"]}}
    result = {"content": [{"type": "text", "text": "done"}], "structuredContent": {}}
    answers = {"tools/list": {"result": {"tools": [tool]}}, "tools/call": {"result": result}}
    server = ["--", sys.executable, written(tmp_path / "odd.py", ODD), json.dumps([{"tools": {}}, answers])]
    ended = await run([*TRIO_MCP, "call", "good", *server])
    assert (ended.status, ended.stdout) == (0, "done\n")
    (line,) = ended.stderr.splitlines()
    assert line.endswith("""the result of tool good doesn't fit its output schema: "n" is a required property""")
