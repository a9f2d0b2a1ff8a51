"""The examples in `docs/guarantees` run and print what the pages say, and the tables agree with the code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import get_args

import pytest
from tests.pages import ROOT, Page
from trio.testing import MockClock

from trio_mcp import CancelCause
from trio_mcp.client.confirming import EndState

FOLDER = Page("guarantees")
CANCELLATION = Page("guarantees/cancellation.md")
CONFIRMED = Page("guarantees/confirmed-cancels.md")


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    yield from FOLDER.write(tmp_path, monkeypatch)


@pytest.mark.parametrize("name", ["two_moments", "stopping_thread", "with_deadline"])
async def test_example_on_a_guarantees_page_prints_the_documented_line(
    page: Page, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await page.load(name).main()
    assert f"prints `{capsys.readouterr().out.strip()}`" in page.text


async def test_confirm_cancels_example_ends_after_the_cleanup_of_the_handler(
    page: Page, capsys: pytest.CaptureFixture[str], autojump_clock: MockClock
) -> None:
    await page.load("confirmed_cancel").main()
    ending, log = capsys.readouterr().out.splitlines()
    assert f"prints `{ending}`, and `{log}`" in page.text


async def test_legacy_client_example_prints_the_newest_legacy_and_modern_revisions(
    page: Page, capsys: pytest.CaptureFixture[str]
) -> None:
    await page.load("legacy_client").main()
    modern, legacy = capsys.readouterr().out.split()
    assert f"It prints `{modern}` and `{legacy}`." in page.text


def test_custom_limits_example_can_be_imported(page: Page) -> None:
    module = page.load("small_limits")
    assert module.server.limits == module.limits


def first_cells(page: Page, heading: str) -> list[str]:
    section = page.text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)


def test_documented_tables_of_cancel_causes_and_ways_a_cancelled_call_ends_are_complete() -> None:
    assert sorted(first_cells(CANCELLATION, "Causes")) == sorted(CancelCause.__members__)
    assert sorted(first_cells(CONFIRMED, "Endings")) == sorted(get_args(EndState))


def test_rules_cited_by_number_on_the_cancellation_page_exist_on_the_rulings_page() -> None:
    named = {
        int(number)
        for numbers in re.findall(r"rulings? ([\d and]+)\)", CANCELLATION.text)
        for number in re.findall(r"\d+", numbers)
    }
    rulings = (ROOT / "docs" / "rulings.md").read_text()
    assert named
    assert named <= {int(number) for number in re.findall(r"^### (\d+)\. ", rulings, flags=re.MULTILINE)}


def test_accepted_deviations_page_cites_existing_test_files() -> None:
    files = set(re.findall(r"`(tests/\S+\.py)`", Page("guarantees/accepted-deviations.md").text))
    assert files
    assert [file for file in files if not (ROOT / file).is_file()] == []


def test_notification_throughput_page_quotes_the_benchmark_figures() -> None:
    text = Page("guarantees/notification-throughput.md").text
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    shown = {row[0]: row[1:] for row in rows}
    page = (ROOT / "benchmarks" / "README.md").read_text()

    def measured(section: str, measure: str, *subjects: str) -> list[str]:
        lines = page.split(f"\n### {section}\n")[1].split("\n### ")[0].splitlines()
        head, _, *found = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line[:1] == "|"]
        (row,) = (row for row in found if row[0] == measure)
        return [row[head.index(subject)] if subject else "" for subject in subjects]

    logs, peers = "log notifications, /s", ("trio-mcp", "mcp, asyncio", "fastmcp")
    assert shown["server, stdio"] == measured("Stdio", logs, *peers, "")
    assert shown["server, WebSocket"] == measured("Websocket", logs, "trio-mcp", "", "", "")
    modern = measured("Streamable HTTP, modern era", logs, "trio-mcp", "mcp", "fastmcp", "TypeScript 2")
    assert shown["server, HTTP, modern era"] == modern
    legacy = measured("Streamable HTTP, legacy era", logs, "trio-mcp", "mcp", "fastmcp", "TypeScript 1")
    assert shown["server, HTTP, legacy era"] == legacy
    assert shown["client, handled by a callback"] == measured("Client", "notifications handled, /s", *peers, "")
    assert shown["a call, µs"] == measured("Stdio", "a call of `ctx.progress()`, µs", *peers)
    written = measured("Stdio", "of these calls, notifications written, %", *peers)
    assert shown["notifications written per 100 calls"] == written
    assert f"trio-mcp {version('trio-mcp')}" in text
