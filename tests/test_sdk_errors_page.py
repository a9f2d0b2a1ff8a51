"""The examples of `docs/get-started/sdk-errors.md`. `tests/peers/test_sdk_errors.py` runs them beside other SDKs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.pages import Page

PAGE = Page("get-started/sdk-errors.md")


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    yield from PAGE.write(tmp_path, monkeypatch)


@pytest.mark.parametrize("name", PAGE.blocks)
def test_sdk_errors_page_example_can_be_imported_and_runs_on_asyncio(page: Page, name: str) -> None:
    module = page.load(name)
    if hasattr(module, "main"):
        asyncio.run(module.main())
