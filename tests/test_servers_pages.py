"""The examples of the pages in `docs/servers` run as they stand, and their tables agree with the code."""

from __future__ import annotations

import inspect
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import attrs
import pytest
from tests.forked import forked_command
from tests.pages import Page
from tests.patience import PATIENCE
from tests.serving.http.memory_listener import listening
from trio.testing import MockClock

from trio_mcp import RequestContext, RouteRequest, Server, ServerRequest, open_memory
from trio_mcp.types import ElicitFormParams, ElicitResult, LogParams, PromptOptions, ResourceOptions, Root, ToolOptions

PAGES = {
    name: Page(f"servers/{name}.md")
    for name in (
        "asyncio",
        "composition",
        "context",
        "dependency-injection",
        "middleware",
        "prompts",
        "rate-limits",
        "resources",
        "results",
        "routes",
        "tool-search",
        "tools",
        "user-input",
        "validation",
        "visibility",
    )
}
FOLDER = Page("servers")


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    yield from FOLDER.write(tmp_path, monkeypatch)


@pytest.mark.parametrize("name", [name for each in PAGES.values() for name in each.blocks])
async def test_documented_example_program_runs_without_an_exception(
    page: Page, name: str, autojump_clock: MockClock
) -> None:
    module = page.load(name)
    if hasattr(module, "main"):
        await module.main()


def names_in_table(page: str, head: str) -> list[str]:
    """The names in the first column of the table below ``head``."""
    table = PAGES[page].text.split(head)[1].split("\n\n")[0]
    cells = [row.split(" | ")[0] for row in table.splitlines()]
    return [name for cell in cells for name in re.findall(r"`(\w+)", cell)]


def test_documented_table_of_tool_options_is_complete() -> None:
    options = names_in_table("tools", "| option | default | meaning |\n")
    assert sorted(options) == sorted(ToolOptions.__annotations__)
    # "Resources, resource templates and prompts accept the first nine options too."
    assert options[:9] == [*PromptOptions.__annotations__]


def test_documented_table_of_server_options_is_complete() -> None:
    options = names_in_table("tools", "accepts these options:\n")
    parameters = inspect.signature(Server).parameters.values()
    assert sorted(options) == sorted(each.name for each in parameters if each.kind is not each.VAR_KEYWORD)


def test_documented_table_of_resource_options_is_complete() -> None:
    options = names_in_table("resources", "| option | default | meaning |\n")
    assert sorted(options) == sorted(set(ResourceOptions.__annotations__) - set(PromptOptions.__annotations__))


@pytest.mark.parametrize(
    ("page", "head", "kind"),
    [
        ("context", "| member of the context | value |\n", RequestContext),
        ("context", "| member of the context | use |\n", RequestContext),
        ("middleware", "| member of `ServerRequest` | value |\n", ServerRequest),
    ],
)
def test_documented_table_names_only_existing_attributes(page: str, head: str, kind: type) -> None:
    names = names_in_table(page, head)
    assert names
    assert [name for name in names if not hasattr(kind, name)] == []


def test_routes_page_names_each_field_of_route_request() -> None:
    (line,) = re.findall(r"^- `RouteRequest` has (.*)\.$", PAGES["routes"].text, flags=re.MULTILINE)
    assert re.findall(r"`(\w+)`", line) == [field.name for field in attrs.fields(RouteRequest)]


async def test_tool_of_the_asyncio_handler_example_returns_its_text(page: Page) -> None:
    async with open_memory(page.load("asyncio_handler").server) as client:
        assert (await client.call_tool("fetch")).text == "a row"


async def test_routes_example_serves_next_to_the_mcp_endpoint(page: Page, capsys: pytest.CaptureFixture[str]) -> None:
    module = page.load("webhooks")
    routes = {"/version": module.version, "/hooks/changed": module.hook}
    async with listening(module.server, routes=routes) as endpoint:
        answers: list[tuple[int, bytes]] = []
        for path, headers in (
            ("/version", {}),
            ("/hooks/changed", {}),
            ("/hooks/changed", {"X-Secret": "open sesame"}),
        ):
            connection = await endpoint.connect()
            await connection.send("POST", {"Host": "127.0.0.1", **headers}, b"hi", path)
            answer = await connection.answer()
            answers.append((answer.status, answer.body))
    assert answers == [(200, b'{"version":"0.0.0"}'), (403, b"wrong secret"), (204, b"")]
    assert capsys.readouterr().out == "webhook called: hi\n"


async def test_parameter_section_of_a_tool_docstring_becomes_parameter_descriptions_in_the_schema(page: Page) -> None:
    async with open_memory(page.load("archive_search").server) as client:
        (tool,) = [each async for each in client.list_tools()]
    assert tool.description == "Search the archive."
    described = [each["description"] for each in tool.input_schema["properties"].values()]
    assert described == ["What to look for.", "How many names at most."]


async def test_elicitation_example_requests_the_values_one_after_another(page: Page) -> None:
    async def answer(question: ElicitFormParams) -> ElicitResult:
        return ElicitResult("accept", {"value": 2 if question.message == "How many?" else "large"})

    async with open_memory(page.load("kiosk").server, elicitation=answer) as client:
        assert (await client.call_tool("order")).text == "2 large"
    async with open_memory(page.load("kiosk").server, elicitation=lambda _: ElicitResult("decline")) as client:
        assert (await client.call_tool("order")).text == "nothing ordered"


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_input_required_example_runs_its_handler_again_with_the_answer(
    page: Page, era: Literal["legacy", "modern"]
) -> None:
    async def answer(question: ElicitFormParams) -> ElicitResult:
        assert question.message == "New name?"
        return ElicitResult("accept", {"name": "b.txt"})

    async with open_memory(page.load("renaming").server, era=era, elicitation=answer) as client:
        assert (await client.call_tool("rename", {"path": "a.txt"})).text == "a.txt is now b.txt"


async def test_roots_example_reads_the_roots_after_each_change(page: Page) -> None:
    module = page.load("workspace")
    found = [Root("file:///home/ann")]
    async with open_memory(module.server, era="legacy", roots=lambda: found) as client:
        await client.roots_changed()
        while not module.roots:
            await client.ping()
    assert [*module.roots.values()] == [found]


async def test_logging_example_sends_messages_of_two_levels(page: Page) -> None:
    logged: list[tuple[str, object, str | None]] = []

    async def record(message: LogParams) -> None:
        logged.append((message.level, message.data, message.logger))

    async with open_memory(page.load("levels").server, on_log=record) as client:
        await client.set_log_level("debug")
        await client.call_tool("load", {"path": "a.csv"})
    assert logged == [("debug", "reading a.csv", None), ("warning", {"rows": 0, "path": "a.csv"}, "db")]


@pytest.mark.parametrize(
    ("command", "printed"),
    [
        pytest.param(*found, id=found[0])
        for each in PAGES.values()
        for found in re.findall(r"```console\n\$ ([^\n]*)\n([^`]*)```", each.text)
    ],
)
def test_documented_command_prints_the_documented_output(page: Page, command: str, printed: str) -> None:
    program, *arguments = command.split()
    words = ["-m", "trio_mcp.cli", *arguments] if program == "trio-mcp" else arguments
    ran = subprocess.run(forked_command(words), capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (ran.returncode, ran.stdout) == (0, printed), ran.stderr
