"""The user's terminal: shows the progress and log messages of a call, and asks the user to answer input requests."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import nullcontext
from typing import Final

import trio
from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bars
from rich.text import Text

from ..concurrency.contexts import asynccontextmanager, contextmanager
from ..protocol.types.notifications import LogParams, should_log
from ..runtime.calls import OnProgress, Progress
from .printable import name_shown, on_one_line, printable


class Terminal:
    """The user's terminal: prints messages about a call on standard error, and reads the user's input from standard
    input. Standard output is only for the result.

    Without a terminal, the output consists of plain lines without control codes. ``can_ask`` is true if both are a
    terminal, so that there is a user to ask.
    """

    def __init__(self, log_level: str | None) -> None:
        is_terminal = sys.stderr.isatty()
        self.can_ask = is_terminal and sys.stdin.isatty()
        self._console = Console(stderr=True, highlight=False, force_terminal=is_terminal)
        self._log_level = log_level
        self._bar: Bar | None = None
        self._turn = trio.Lock()

    def say(self, text: str, style: str = "") -> None:
        """Print one or more lines for the user, without wrapping them."""
        self._console.print(Text(printable(text), style), soft_wrap=True)

    def log(self, message: LogParams) -> None:
        """Print a log message of the server above the progress bar. Messages below the requested level are ignored."""
        if self._log_level is None or not should_log(message.level, self._log_level):
            return
        logger = f" {name_shown(message.logger)}" if message.logger else ""
        words = message.data if isinstance(message.data, str) else json.dumps(message.data, ensure_ascii=False)
        self.say(f"{message.level}{logger}: {words}", "dim")

    @contextmanager
    def progress(self) -> Generator[OnProgress]:
        """Yield a function that shows each `Progress` passed to it: as a progress bar on a terminal, and otherwise as
        lines."""
        if not self._console.is_terminal or self._console.is_dumb_terminal:
            yield self._progress_line
            return
        with progress_bar(self._console) as self._bar:
            yield self._bar.show
        self._bar = None

    def _progress_line(self, news: Progress) -> None:
        self.say(progress_words(news))

    @asynccontextmanager
    async def asking(self) -> AsyncGenerator[None]:
        """Inside the block, reserve the terminal for one question to the user. Other tasks that want to ask the user
        wait until the block ends."""
        async with self._turn:
            with self._bar.put_away() if self._bar is not None else nullcontext():
                forget_typed()
                yield

    async def read(self, prompt: str) -> str | None:
        """Wait for a line that the user types, and return it without surrounding blanks; `None` after Ctrl-D. Call this
        inside `asking`."""
        self._console.print(Text(f"{printable(prompt)}: ", "bold"), end="", soft_wrap=True)
        try:
            line = await read_line()
        except trio.Cancelled:
            self._console.print()
            raise
        if not line:
            self._console.print()
            return None
        return line.strip()


_LONGEST_MESSAGE: Final = 60
_LARGEST_DRAWN: Final = 1e300


class Bar:
    """A progress bar on the terminal. Calls without progress show no bar.

    The bar needs no thread, because it is drawn only when progress is reported.
    """

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._task = bars.add_task("", total=None, visible=False, count="")

    def show(self, news: Progress) -> None:
        """Draw the progress bar for a progress report. Pass this method as ``on_progress`` to `Client.call_tool`."""
        self._bars.update(
            self._task,
            completed=_drawn(news.progress),
            total=None if news.total is None else _drawn(news.total),
            description=on_one_line(news.message or "", _LONGEST_MESSAGE),
            count=_count(news),
            visible=True,
            refresh=True,
        )

    @contextmanager
    def put_away(self) -> Generator[None]:
        """Hide the progress bar inside the block, so that other code can use the terminal."""
        self._bars.stop()
        try:
            yield
        finally:
            self._bars.start()


@contextmanager
def progress_bar(console: Console) -> Generator[Bar]:
    """Show a progress bar at the bottom of the terminal while inside the block. Text printed to ``console`` appears
    above the bar."""
    # Disable markup, because texts come from servers.
    columns = (
        TextColumn("  {task.description}", markup=False),
        BarColumn(finished_style="green"),
        TextColumn("{task.fields[count]}", markup=False),
    )
    with Bars(*columns, console=console, auto_refresh=False) as bars:
        yield Bar(bars)


def progress_words(news: Progress) -> str:
    """Return a progress report as a line of text, for output without a progress bar."""
    message = f": {on_one_line(news.message)}" if news.message else ""
    return f"progress {_count(news, ' of ')}{message}"


def _count(news: Progress, between: str = "/") -> str:
    progress = f"{_drawn(news.progress):g}"
    return progress if news.total is None else f"{progress}{between}{_drawn(news.total):g}"


def _drawn(number: float) -> float:
    """Return a ``number`` from a progress report, limited to ±1e300, so that the progress bar can calculate with it."""
    return max(-_LARGEST_DRAWN, min(number, _LARGEST_DRAWN))


async def read_line() -> str:
    """Wait for a line from the terminal and return it. An empty string means the end of input (Ctrl-D).

    Waits without a thread, so that Ctrl-C can interrupt the wait: a terminal is readable when a line is complete.
    """
    await trio.lowlevel.wait_readable(sys.stdin.fileno())
    return os.read(sys.stdin.fileno(), 4096).decode(errors="replace")


def forget_typed() -> None:
    """Drop what the user typed before an input request was shown, since it wasn't meant as an answer to the request."""
    import termios  # Windows has none

    termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
