"""The progress bar of a call, and its text form without a terminal."""

import io

import pytest
from rich.console import Console

from trio_mcp import Progress
from trio_mcp.cli.terminal import progress_bar, progress_words

HUGE = 10**400


def short(value: object) -> str:
    return str(value)[:12]


@pytest.mark.parametrize(
    ("progress", "total", "words"),
    [
        (3, 10, "progress 3 of 10: x"),
        (0.25, None, "progress 0.25: x"),
        (HUGE, 1, "progress 1e+300 of 1: x"),
        (-HUGE, HUGE, "progress -1e+300 of 1e+300: x"),
    ],
    ids=short,
)
def test_progress_is_printed_as_text_if_there_is_no_terminal(progress: float, total: float | None, words: str):
    assert progress_words(Progress(progress, total, "x")) == words


@pytest.mark.parametrize("width", [1, 10, 80])
@pytest.mark.parametrize(
    ("progress", "total"),
    [(0, 0), (1, -5), (7, 5), (HUGE, 1), (1, HUGE), (HUGE, None), (1e308, 1e-308), (-1, 2)],
    ids=short,
)
def test_progress_bar_draws_any_number_without_control_characters(progress: float, total: float | None, width: int):
    out = io.StringIO()
    with progress_bar(Console(file=out, force_terminal=True, width=width)) as bar:
        bar.show(Progress(progress, total, "[red]news[/blue]\x1b[2J"))
    assert "\x1b[2J" not in out.getvalue()
