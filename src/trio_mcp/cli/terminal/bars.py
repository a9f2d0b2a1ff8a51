"""progress_bar: show the progress of a call in a terminal."""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bars

from ...concurrency.contexts import contextmanager
from ...runtime.on_progress import Progress
from .printable import on_one_line

_LONGEST: Final = 60
_LARGEST: Final = 1e300


class Bar:
    """A bar that is drawn at each report only: no thread is needed, and calls without progress show no bar."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._task = bars.add_task("", total=None, visible=False, count="")

    def show(self, news: Progress) -> None:
        """Draw the bar anew. For `Client.call_tool`."""
        self._bars.update(
            self._task,
            completed=_drawn(news.progress),
            total=None if news.total is None else _drawn(news.total),
            description=on_one_line(news.message or "", _LONGEST),
            count=_count(news),
            visible=True,
            refresh=True,
        )

    @contextmanager
    def put_away(self) -> Generator[None]:
        """Leave the terminal to others meanwhile."""
        self._bars.stop()
        try:
            yield
        finally:
            self._bars.start()


@contextmanager
def progress_bar(console: Console) -> Generator[Bar]:
    """Show a bar at the bottom of the terminal; text printed to ``console`` appears above the bar."""
    # What servers say is not markup.
    columns = (
        TextColumn("  {task.description}", markup=False),
        BarColumn(finished_style="green"),
        TextColumn("{task.fields[count]}", markup=False),
    )
    with Bars(*columns, console=console, auto_refresh=False) as bars:
        yield Bar(bars)


def progress_words(news: Progress) -> str:
    """Return the progress in words, for where there is no bar."""
    message = f": {on_one_line(news.message)}" if news.message else ""
    return f"progress {_count(news, ' of ')}{message}"


def _count(news: Progress, between: str = "/") -> str:
    progress = f"{_drawn(news.progress):g}"
    return progress if news.total is None else f"{progress}{between}{_drawn(news.total):g}"


def _drawn(number: float) -> float:
    """Return a number that can be divided and written, whatever integer the server sends."""
    return max(-_LARGEST, min(number, _LARGEST))
