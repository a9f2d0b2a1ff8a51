"""A server that is started as a child process."""

import sys
from pathlib import Path

import pytest

from trio_mcp import open_stdio


async def test_invalid_stdio_options_start_no_process(tmp_path: Path) -> None:
    started = tmp_path / "started"
    command = [sys.executable, "-c", f"open({str(started)!r}, 'w').close()"]
    with pytest.raises(ValueError, match="call_timeout must be greater than 0"):
        async with open_stdio(command, call_timeout=0):
            pytest.fail("it is not opened")
    assert not started.exists()
