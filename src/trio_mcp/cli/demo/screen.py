"""Screen: shows the demo, with a bar and questions in a terminal, and as plain lines anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ... import ElicitFormParams, ElicitResult, LogParams, Progress, Tool
from ...concurrency.contexts import contextmanager
from ...runtime.on_progress import OnProgress
from ..terminal.bars import progress_bar, progress_words
from ..terminal.keyboard import read_line


class Screen:
    """Standard output and, for answers, standard input.

    ``is_terminal`` is true when both are a terminal, so that there is a user to ask. Otherwise only plain lines are
    written, without control codes.
    """

    def __init__(self) -> None:
        self.is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        self._console = Console(highlight=False, force_terminal=None if self.is_terminal else False)

    def headline(self, text: str) -> None:
        """Print the headline of a new part."""
        self._console.print()
        self.say(text, "bold")

    def say(self, text: str, style: str = "") -> None:
        """Print a line, however long."""
        self._console.print(Text(text, style), soft_wrap=True)

    def tools(self, tools: Iterable[Tool]) -> None:
        """Print a table of the tools."""
        table = Table("tool", "arguments", "description")
        for tool in tools:
            names = ", ".join(tool.input_schema.get("properties", {}))
            table.add_row(Text(tool.name, "cyan"), Text(names), Text(tool.description or ""))
        self._console.print(table)

    def log(self, message: LogParams) -> None:
        """Print a log line of the server, above the bar while there is one."""
        self.say(f"  log {message.level}: {message.data}", "dim")

    @contextmanager
    def progress(self) -> Generator[OnProgress]:
        """Show each `Progress` passed to the yielded function, as a bar or as lines."""
        if not self.is_terminal or self._console.is_dumb_terminal:
            yield self._progress_line
            return
        with progress_bar(self._console) as bar:
            yield bar.show

    def _progress_line(self, news: Progress) -> None:
        self.say(f"  {progress_words(news)}")

    async def answer(self, question: ElicitFormParams) -> ElicitResult:
        """Have the user fill in the form, or take its defaults when there is nobody to ask."""
        self.say(f"  the server asks: {question.message}")
        content: dict[str, str] = {}
        for name, field in question.requested_schema["properties"].items():
            prompt, default = f"  {field.get('description', name)}", str(field.get("default", ""))
            if not self.is_terminal:
                self.say(f"{prompt}: {default} (answered automatically: this is not a terminal)")
                content[name] = default
                continue
            self._console.print(Text(f"{prompt} [{default}]: ", "bold"), end="")
            line = await read_line()
            if not line:  # Ctrl-D
                self._console.print()
                return ElicitResult("decline")
            content[name] = line.strip() or default
        return ElicitResult("accept", content)
