"""Terminal: shows the events of a call, and asks the user."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import nullcontext

import trio
from rich.console import Console
from rich.text import Text

from ...concurrency.contexts import asynccontextmanager, contextmanager
from ...protocol.types.notifications import LogParams, should_log
from ...runtime.on_progress import OnProgress, Progress
from .bars import Bar, progress_bar, progress_words
from .keyboard import forget_typed, read_line
from .printable import name_shown, printable


class Terminal:
    """Standard error for output about the call, and standard input for answers. Standard output is for the result
    alone.

    Outside of a terminal, the output consists of plain lines without control codes. ``can_ask`` is true when both are a
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
        """Print a line or several, however long."""
        self._console.print(Text(printable(text), style), soft_wrap=True)

    def log(self, message: LogParams) -> None:
        """Print a log message of the server, above the bar; nothing below the requested level."""
        if self._log_level is None or not should_log(message.level, self._log_level):
            return
        logger = f" {name_shown(message.logger)}" if message.logger else ""
        words = message.data if isinstance(message.data, str) else json.dumps(message.data, ensure_ascii=False)
        self.say(f"{message.level}{logger}: {words}", "dim")

    @contextmanager
    def progress(self) -> Generator[OnProgress]:
        """Show each `Progress` passed to the yielded function, as a bar or as lines."""
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
        """Reserve the terminal for a question; concurrent questions wait for each other."""
        async with self._turn:
            with self._bar.put_away() if self._bar is not None else nullcontext():
                forget_typed()
                yield

    async def read(self, prompt: str) -> str | None:
        """Return what the user types, stripped; `None` at Ctrl-D. To be called inside of `asking`."""
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
