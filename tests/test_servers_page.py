"""The examples of `docs/servers.md` run as they stand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.pages import Page
from tests.serving.http.memory_listener import listening
from trio.testing import MockClock

from trio_mcp import open_memory
from trio_mcp.types import ElicitFormParams, ElicitResult, PromptOptions, ToolOptions

PAGE = Page("servers.md")


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    yield from PAGE.write(tmp_path, monkeypatch)


@pytest.mark.parametrize("name", PAGE.blocks)
async def test_each_example_can_be_imported_and_its_main_runs(page: Page, name: str, autojump_clock: MockClock) -> None:
    module = page.load(name)
    if hasattr(module, "main"):
        await module.main()


def test_the_page_has_each_option_of_a_tool_and_no_other() -> None:
    table = PAGE.text.split("| option | default | |\n")[1].split("\n\n")[0]
    options = re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)
    assert sorted(options) == sorted(ToolOptions.__annotations__)
    assert options[:9] == [*PromptOptions.__annotations__]  # as the sentence above the table says


async def test_a_handler_runs_on_asyncio(page: Page) -> None:
    async with open_memory(page.load("on_asyncio").server) as client:
        assert (await client.call_tool("fetch")).text == "a row"


async def test_pages_stand_beside_the_endpoint(page: Page, capsys: pytest.CaptureFixture[str]) -> None:
    module = page.load("beside")
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
    assert answers == [(200, b'{"version":"0.0.0"}'), (403, b"who are you?"), (204, b"")]
    assert capsys.readouterr().out == "a call from outside: hi\n"


async def test_a_section_of_a_docstring_describes_the_parameters(page: Page) -> None:
    async with open_memory(page.load("described").server) as client:
        (tool,) = [each async for each in client.list_tools()]
    assert tool.description == "Search the archive."
    described = [each["description"] for each in tool.input_schema["properties"].values()]
    assert described == ["What to look for.", "How many names at most."]


async def test_a_handler_asks_for_one_value_at_a_time(page: Page) -> None:
    async def answer(question: ElicitFormParams) -> ElicitResult:
        return ElicitResult("accept", {"value": 2 if question.message == "How many?" else "large"})

    async with open_memory(page.load("ordering").server, elicitation=answer) as client:
        assert (await client.call_tool("order")).text == "2 large"
    async with open_memory(page.load("ordering").server, elicitation=lambda _: ElicitResult("decline")) as client:
        assert (await client.call_tool("order")).text == "nothing ordered"
