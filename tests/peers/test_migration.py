"""The servers of the migration pages in `docs/get-started`: a client sees the same of the other SDK's server and of
trio-mcp's."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.pages import Page
from tests.patience import PATIENCE
from tests.peers.installed import python_with

from trio_mcp import Client, Progress, open_memory, open_stdio
from trio_mcp.types import CallToolResult, CreateMessageResult, ElicitResult, LogParams, Root, TextContent

FASTMCP = "3.4.11"
SERVES = Path(__file__).parent / "servers" / "of_a_page.py"
PAGES = {name: Page(f"get-started/{name}.md") for name in ("from-python-sdk", "from-fastmcp")}
THEIRS = re.compile(r"```python\n# (?:python-sdk 1|fastmcp 3)\.x: (\w+)\n(.*?)```", flags=re.DOTALL)

STEPS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "greeting": [
        ("greet", {"name": "Ann", "times": 2}),
        ("read", {"uri": "greeting://de"}),
        ("prompt", {"name": "praise", "arguments": {"dish": "soup"}}),
    ],
    "weather": [("forecast", {"city": "Bern"}), ("rain", {"days": 2}), ("radar", {}), ("sentence", {"city": "Bern"})],
    "bookshelf": [("read_all", {})],
    "reading_list": [("read_all", {})],
    "reservation": [("book", {}), ("poem", {"topic": "tea"}), ("folders", {})],
    "restaurant": [("book", {}), ("poem", {"topic": "tea"}), ("folders", {})],
    "recipes": [
        ("find", {"name": "soup"}),
        ("find", {"name": "soup", "style": "slow"}),
        ("find", {"name": "stone"}),
        ("prompt", {"name": "praise", "arguments": {"dish": "soup"}}),
    ],
    "notepad": [("latest", {})],
    "office": [("files_delete", {"path": "/tmp/a"}), ("files_delete", {"path": "/etc/hosts"})],
    "grocer": [("buy-tea", {"count": 2}), ("buy-tea", {"count": 9})],
}
"""What a client asks of each server: tools by their names, resources and prompts."""


@pytest.fixture(scope="session")
def python(request: pytest.FixtureRequest) -> Path:
    """The interpreter of an environment with ``fastmcp`` 3.x, and so with ``mcp`` 1.x."""
    return python_with(request.config, f"fastmcp-{FASTMCP}", f"fastmcp=={FASTMCP}", "mcp[cli]<2")


@pytest.fixture
def page(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    for name, code in THEIRS.findall(PAGES[request.param].text):
        (tmp_path / f"their_{name}.py").write_text(code)
    yield from PAGES[request.param].write(tmp_path, monkeypatch)


PAIRS = [(page, name) for page in PAGES for name, _ in THEIRS.findall(PAGES[page].text) if name in STEPS]


class Observer:
    """A client that answers the same way each time, and keeps what it is told."""

    def __init__(self) -> None:
        self.logs: list[Any] = []
        self.progress: list[Any] = []

    def hear(self, message: LogParams) -> None:
        data = message.data
        self.logs.append((message.level, data["msg"] if isinstance(data, dict) else data))

    def note(self, progress: Progress) -> None:
        self.progress.append((progress.progress, progress.total, progress.message))

    def options(self) -> dict[str, Any]:
        return {
            "elicitation": lambda question: ElicitResult("accept", {"guests": 3}),
            "sampling": lambda params: CreateMessageResult("assistant", TextContent("Ode to tea"), "deep-thought"),
            "roots": [Root("file:///home/ann")],
            "on_log": self.hear,
        }

    async def take(self, client: Client, name: str) -> list[Any]:
        seen: list[Any] = [
            (tool.name, tool.description or "", outline(tool.input_schema)) async for tool in client.list_tools()
        ]
        for step, arguments in STEPS[name]:
            if step == "read":
                seen.append((await client.read_resource(arguments["uri"])).text)
            elif step == "prompt":
                seen.append((await client.get_prompt(**arguments)).messages)
            else:
                result = await client.call_tool(step, arguments, on_progress=self.note)
                seen.append((bool(result.is_error), told(result)))
        return [*seen, self.logs, self.progress]


def told(result: CallToolResult) -> Any:
    """The structured content, but for a text: text has no schema here, and there it is content as well."""
    data = result.structured_content
    return result.content if data is None or isinstance(data.get("result"), str) else data


def outline(schema: dict[str, Any]) -> Any:
    """The names of the parameters with their types and defaults, and those that are required."""
    parameters = {
        name: (each.get("enum") or each.get("type"), each.get("default"), each.get("description"))
        for name, each in schema.get("properties", {}).items()
    }
    return parameters, sorted(schema.get("required", []))


@asynccontextmanager
async def theirs(python: Path, name: str, options: dict[str, Any]) -> AsyncIterator[Client]:
    command = [str(python), "-W", "ignore", str(SERVES), f"their_{name}.py"]
    async with open_stdio(command, era="legacy", **options) as client:
        yield client


@pytest.mark.parametrize(("page", "name"), PAIRS, indirect=["page"])
async def test_migrated_server_behaves_like_the_original_server_for_the_same_client(
    page: Page, name: str, python: Path
) -> None:
    there, here = Observer(), Observer()
    async with theirs(python, name, there.options()) as client:
        expected = await there.take(client, name)
    async with open_memory(page.load(name).server, era="legacy", **here.options()) as client:
        assert await here.take(client, name) == expected


@pytest.mark.parametrize("page", ["from-python-sdk"], indirect=True)
def test_client_of_the_mcp_package_can_call_a_tool_of_the_migrated_example_server(page: Page, python: Path) -> None:
    program = "import sys, anyio, their_greeting_client; print(anyio.run(their_greeting_client.ask, *sys.argv[1:]))"
    command = [str(python), "-W", "ignore", "-c", program, sys.executable, "greeting.py"]  # -c finds modules beside it
    asked = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert asked.stdout == "['greet', 'Hello Ann', 'Hallo']\n", asked.stderr
