"""`tests/words.py` counts phrases in what people read, and in nothing else."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests import words
from tests.pages import ROOT


def test_word_counter_ignores_code_blocks_and_tables_of_a_page() -> None:
    page = "The server is told.\n\n```\ntold told\n```\n\n| told | told |\n\nSee [the page](told.md) and `told`.\n"
    assert words.frequencies([words.prose(page)])["told/asked"] == 1000 / 9


def test_word_counter_counts_docstrings_and_error_texts_of_a_module() -> None:
    module = 'def f():\n    """Nobody calls this."""\n    text = "nobody"\n    raise ValueError(f"nobody has {text}")\n'
    assert words.frequencies([words.strings(module)])["nobody & co."] == 1000 / 6


def test_word_report_marks_figures_above_their_limit_and_quotes_the_worst_sentence() -> None:
    texts = {ROOT / "README.md": "The client sends a request.\n\nThe server is told by nobody."}
    first, second = words.report("pages", texts, 1)
    assert "told/asked 90.91!" in first
    assert "semicolons 0.00," in first
    assert second == "  README.md: The server is told by nobody."


@pytest.mark.commands
def test_word_report_command_exits_with_0_even_if_figures_are_above_their_limits() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.words", "--worst", "1"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert [line.partition(",")[0] for line in done.stdout.splitlines()[::2]] == ["pages", "docstrings and errors"]
