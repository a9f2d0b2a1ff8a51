"""The examples of the pages on subscriptions, caching, OpenAPI, subprocesses, extensions, apps and skills run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.pages import Page
from tests.serving.http.raw import served

from trio_mcp import Server

PAGES = {
    name: Page(f"servers/{name}.md")
    for name in ("subscriptions", "caching", "openapi", "subprocesses", "extensions", "apps", "skills")
}


@pytest.fixture(autouse=True)
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    writing = [page.write(tmp_path, monkeypatch) for page in PAGES.values()]
    for each in writing:
        next(each)
    yield
    for each in writing:
        next(each, None)


@pytest.mark.parametrize(("page", "name"), [(page, name) for page, text in PAGES.items() for name in text.blocks])
async def test_documented_example_program_runs_without_an_exception(page: str, name: str) -> None:
    module = PAGES[page].load(name)
    if hasattr(module, "main"):
        await module.main()


async def test_feature_examples_print_the_documented_output(capsys: pytest.CaptureFixture[str]) -> None:
    await PAGES["subscriptions"].load("note_changes").main()
    assert f"It prints `{capsys.readouterr().out.strip()}`." in PAGES["subscriptions"].text
    await PAGES["caching"].load("shared_cache").main()
    once, again = capsys.readouterr().out.splitlines()
    assert once == again
    assert f"It prints `{once}` twice." in PAGES["caching"].text


async def test_extension_client_example_returns_an_empty_list_for_a_server_without_the_extension() -> None:
    library, client = PAGES["extensions"].load("search_server"), PAGES["extensions"].load("search_client")
    for server, names in ((library.server, ["trio.md"]), (Server("plain"), [])):
        async with served(server) as endpoint:
            assert await client.names(f"http://127.0.0.1:{endpoint.port}/mcp", "trio") == names
