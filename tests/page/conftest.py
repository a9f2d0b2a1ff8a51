"""The Chromium of a file of tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import trio
from tests.page.devtools import Browser, chromium, open_browser
from tests.patience import PATIENCE


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with chromium(tmp_path_factory.mktemp("profile")) as address:
        yield address


@pytest.fixture
async def browser(address: str) -> AsyncIterator[Browser]:
    with trio.fail_after(2 * PATIENCE):
        async with open_browser(address) as browser:
            yield browser
