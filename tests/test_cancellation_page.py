"""The examples of `docs/cancellation.md` run as they stand, and print what the page says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.pages import ROOT, Page

PAGE = Page("cancellation.md")


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    yield from PAGE.write(tmp_path, monkeypatch)


async def test_the_caller_goes_on_before_the_handler_cleans_up(page: Page, capsys: pytest.CaptureFixture[str]) -> None:
    await page.load("two_moments").main()
    assert f"It prints `{capsys.readouterr().out.strip()}`" in page.text


async def test_a_thread_that_asks_stops(page: Page, capsys: pytest.CaptureFixture[str]) -> None:
    await page.load("asks").main()
    assert capsys.readouterr().out == "the thread has stopped\n"


async def test_the_caller_waits_until_the_handler_is_gone(page: Page, capsys: pytest.CaptureFixture[str]) -> None:
    await page.load("really_gone").main()
    ending, log = capsys.readouterr().out.splitlines()
    assert f"It prints `{ending}`, and `{log}`" in page.text


def test_each_ruling_that_the_page_names_is_there() -> None:
    named = {
        int(number) for told in re.findall(r"rulings? ([\d and]+)\)", PAGE.text) for number in re.findall(r"\d+", told)
    }
    rulings = (ROOT / "docs" / "rulings.md").read_text()
    assert named
    assert named <= {int(number) for number in re.findall(r"^### (\d+)\. ", rulings, flags=re.MULTILINE)}
