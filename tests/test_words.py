"""`tests/words.py` counts phrases in what people read, and in nothing else."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests import words
from tests.pages import ROOT


def test_count_of_unclear_words_on_a_page_ignores_code_blocks_and_tables() -> None:
    page = "The server is told.\n\n```\ntold told\n```\n\n| told | told |\n\nSee [the page](told.md) and `told`.\n"
    assert words.frequencies([words.prose(page)])["told/asked"] == 1000 / 9


def test_count_of_unclear_words_in_a_module_covers_docstrings_and_error_texts() -> None:
    module = 'def f():\n    """Nobody calls this."""\n    text = "nobody"\n    raise ValueError(f"nobody has {text}")\n'
    assert words.frequencies([words.strings(module)])["nobody & co."] == 1000 / 6


def test_report_on_the_words_of_the_documentation_marks_figures_above_a_limit() -> None:
    texts = {ROOT / "README.md": "The client sends a request.\n\nThe server is told by nobody."}
    first, second = words.report("pages", texts, 1)
    assert "told/asked 90.91!" in first
    assert "semicolons 0.00," in first
    assert second == "  README.md: The server is told by nobody."


@pytest.mark.commands
def test_command_that_reports_on_the_words_of_the_documentation_always_exits_with_0() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.words", "--worst", "1"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert [line.partition(",")[0] for line in done.stdout.splitlines()[::2]] == ["pages", "docstrings and errors"]
