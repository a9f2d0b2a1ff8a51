"""The examples of the pages on observability run, and the table of metrics has each metric of the code."""

from __future__ import annotations

import inspect
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.forked import forked_command
from tests.pages import ROOT, Page
from tests.patience import PATIENCE
from trio.testing import MockClock

from trio_mcp import Recorder
from trio_mcp.diagnostics.log import _MOST_CHARACTERS, _MOST_WAITING
from trio_mcp.diagnostics.log_shares import BURST, LONGEST, OVERALL, WINDOW
from trio_mcp.recording.reading import MOST_REQUESTS
from trio_mcp.recording.svg import MOST_ROWS

PAGE, CLIENTS = Page("observability"), Page("clients")


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    (tmp_path / "word_server.py").write_text(CLIENTS.blocks["word_server"])
    yield from PAGE.write(tmp_path, monkeypatch)


async def test_recording_example_replays_against_server_and_client(page: Page, autojump_clock: MockClock) -> None:
    await page.load("record_calls").main()


@pytest.mark.commands
def test_tracing_example_prints_its_result(page: Page) -> None:
    pytest.importorskip("opentelemetry")
    command = forked_command(["traced_words.py"])
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (ran.returncode, ran.stdout) == (0, "2\n"), ran.stderr
    assert "It prints `2`." in page.text


def test_metrics_and_logging_examples_can_be_imported(page: Page) -> None:
    pytest.importorskip("opentelemetry.exporter.prometheus", reason="the extra prometheus is not installed")
    assert page.load("metrics_page").server.info.name == "batch"
    assert page.load("logged_server").server.info.name == "logged"


def test_documented_table_of_metrics_is_complete() -> None:
    source = (ROOT / "src/trio_mcp/otel.py").read_text().partition("\n_GAUGES: Final")[2]
    made = set(re.findall(r'"((?:trio_mcp|mcp\.server|mcp\.client)\.[a-z_.]+)"', source))
    page = (ROOT / "docs/observability/metrics.md").read_text()
    table = page.split("| metric | meaning |\n")[1].split("\n\n")[0]
    named = {name for cell in re.findall(r"^\| (.*?) \|", table, flags=re.MULTILINE) for name in named_in(cell)}
    assert named == made - {"trio_mcp.cancel.cause"}


def named_in(cell: str) -> list[str]:
    return re.findall(r"`([a-z_.]+)`", cell)


def test_documented_limits_of_recordings_match_the_code() -> None:
    options = inspect.signature(Recorder).parameters
    page = " ".join((ROOT / "docs/observability/recording.md").read_text().split())
    assert f"at most {options['max_bytes'].default // 1_000_000} MB (`Recorder.max_bytes`)" in page
    assert f"`Recorder.max_line_bytes` ({options['max_line_bytes'].default // 1_000_000} MB by default)" in page
    assert f"at most {MOST_REQUESTS:,} requests of a recording and draws the first {MOST_ROWS}." in page


def test_documented_log_rate_limits_match_the_code() -> None:
    page = " ".join((ROOT / "docs/observability/logging.md").read_text().split())
    assert f"at most {BURST} log records of a kind in {WINDOW:g} seconds, and all peers together {OVERALL}." in page
    assert f"more than {LONGEST:,} characters" in page
    assert f"At most {_MOST_WAITING:,} log records, or {_MOST_CHARACTERS // 2**20} Mi characters, wait" in page
