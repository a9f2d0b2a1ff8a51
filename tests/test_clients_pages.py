"""The examples of the pages on clients print what the pages show, and the tables have the defaults of the code."""

from __future__ import annotations

import asyncio
import inspect
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.forked import forked_command
from tests.pages import ROOT, Page
from tests.patience import PATIENCE
from tests.serving.http.raw import served
from trio.testing import MockClock

from trio_mcp import Command, Limits, RouteRequest, Server, confirm_cancels, gateway
from trio_mcp.types import ClientSettings

PAGE = Page("clients")
PROGRAMS = {name for name, code in PAGE.blocks.items() if re.search(r"^trio\.run\(", code, flags=re.MULTILINE)}
"""The examples that run when they are imported."""


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    yield from PAGE.write(tmp_path, monkeypatch)


@pytest.mark.parametrize("name", sorted(PAGE.blocks.keys() - PROGRAMS - {"saved_discovery"}))
async def test_documented_example_program_runs_without_an_exception(
    page: Page, name: str, autojump_clock: MockClock
) -> None:
    module = page.load(name)
    if hasattr(module, "main"):
        await module.main()


@pytest.mark.commands
@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_client_page_program_prints_the_documented_output(page: Page, name: str) -> None:
    command = forked_command([f"{name}.py"])
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ran.returncode == 0, ran.stderr
    shown = re.search(r"^It prints (.*?)\.(?:\s|$)", page.text.split(f"# {name}.py\n")[1], flags=re.MULTILINE)
    assert shown is not None
    assert re.findall(r"`(.*?)`", shown[1]) == ran.stdout.splitlines()


@pytest.mark.parametrize("name", ["delivery_host", "answers_per_user"])
async def test_elicitation_example_prints_the_documented_answer(
    page: Page, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await page.load(name).main()
    assert f"It prints `{capsys.readouterr().out.strip()}`." in page.text


def test_asyncio_host_example_places_an_order_after_a_cancelled_call(page: Page) -> None:
    printed = asyncio.run(page.load("asyncio_host").program())
    assert printed == "accept: {'number': 3}"
    assert f"It prints `{printed}`." in page.text


def test_blocking_script_example_places_an_order(page: Page) -> None:
    assert page.load("order_script").run() == "accept: {'number': 3}"


async def test_discovery_example_finds_a_server_by_its_domain(page: Page) -> None:
    async def catalog(request: RouteRequest) -> dict[str, Any]:
        remote = {"type": "streamable-http", "url": "https://example.com/mcp"}
        card = {"name": "com.example/weather", "version": "1", "description": "Weather", "remotes": [remote]}
        return {"entries": [{"identifier": "urn:x", "type": "application/mcp-server-card+json", "data": card}]}

    async with served(Server("weather"), routes={"/.well-known/ai-catalog.json": catalog}) as endpoint:
        found = await page.load("find_servers").find(f"http://127.0.0.1:{endpoint.port}")
    assert found == {"com.example/weather": "https://example.com/mcp"}


# Tables


def timeouts() -> dict[str, str]:
    """The defaults in the tables of time limits, by the code in their first columns."""
    text = (ROOT / "docs/clients/timeouts.md").read_text().split("## All time limits\n")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return {row[0].split("`")[1]: row[1] for row in rows}


def seconds(default: str) -> float:
    return float("inf") if default == "none" else float(default.removesuffix(" s").replace(",", ""))


def test_documented_table_of_timeouts_lists_the_defaults_in_the_code() -> None:
    table = {name: seconds(default) for name, default in timeouts().items()}
    settings = attrs.fields_dict(ClientSettings)
    for name in ("call_timeout", "connect_timeout", "probe_timeout"):
        assert table[f"{name}="] == settings[name].default
    assert settings["keep_alive"].default is None
    assert table["Command(close_grace=...)"] == attrs.fields_dict(Command)["close_grace"].default
    assert table["gateway(patience=...)"] == inspect.signature(gateway).parameters["patience"].default
    assert table["confirm_cancels(within=...)"] == inspect.signature(confirm_cancels).parameters["within"].default
    limits = {name: value for name, value in table.items() if name.startswith("Limits.")}
    assert len(limits) >= 8
    assert limits == {name: getattr(Limits(), name.removeprefix("Limits.")) for name in limits}


def test_documented_limit_of_concurrent_server_requests_equals_the_default_in_the_code() -> None:
    assert f"({attrs.fields_dict(ClientSettings)['max_questions'].default} by default)" in PAGE.text


@pytest.mark.parametrize("name", sorted(PAGE.blocks))
def test_documented_client_example_has_at_most_40_lines(name: str) -> None:
    assert len([line for line in PAGE.blocks[name].splitlines() if line.strip()]) <= 40
