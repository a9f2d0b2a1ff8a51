"""The examples of the migration pages in `docs/get-started`: those on trio-mcp run, the others are valid Python."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.pages import Page
from trio.testing import MockClock

PAGES = {name: Page(f"get-started/{name}.md") for name in ("from-python-sdk", "from-fastmcp")}
OURS = [(page, name) for page in PAGES for name in PAGES[page].blocks]


@pytest.fixture
def page(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    yield from PAGES[request.param].write(tmp_path, monkeypatch)


@pytest.mark.parametrize(("page", "name"), OURS, indirect=["page"])
async def test_documented_example_program_runs_without_an_exception(
    page: Page, name: str, autojump_clock: MockClock
) -> None:
    module = page.load(name)
    if hasattr(module, "main"):
        await module.main()


@pytest.mark.parametrize("page", ["from-python-sdk"], indirect=True)
async def test_migration_client_example_sees_the_tools_and_results_of_the_server(page: Page) -> None:
    assert await page.load("greeting_client").ask(sys.executable, "greeting.py") == ["greet", "Hello Ann", "Hallo"]


@pytest.mark.parametrize("name", PAGES)
def test_migration_example_for_the_other_sdk_is_valid_python_and_has_a_trio_mcp_version(name: str) -> None:
    theirs = dict(
        re.findall(r"```python\n# (?:python-sdk 1|fastmcp 3)\.x: (\w+)\n(.*?)```", PAGES[name].text, re.DOTALL)
    )
    for title, code in theirs.items():
        compile(code, title, "exec")
    assert len(theirs) > 5
    assert theirs.keys() <= PAGES[name].blocks.keys()
