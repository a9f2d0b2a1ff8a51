"""The user's terminal: shows the progress and log messages of a call, and asks the user to answer a server's input
requests: forms, URLs to visit, and sampling."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import nullcontext
from typing import Any, Final, cast
from urllib.parse import urlsplit

import trio
from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bars
from rich.text import Text

from ..classes import frozen
from ..client.options import ClientOptions
from ..concurrency.contexts import asynccontextmanager, contextmanager
from ..hosting.member import current_member
from ..jsonrpc.errors import INVALID_PARAMS, CodedError
from ..protocol.fields import JSONObject, as_object
from ..protocol.form_defaults import CHECKS_FORMATS, fitting_defaults, required_nullable
from ..protocol.inlining import inlined
from ..protocol.meta import related_task_of
from ..protocol.schema_validator import SchemaValidator
from ..protocol.types.content import TextContent
from ..protocol.types.elicitation import ElicitFormParams, ElicitResult, ElicitURLParams, check_form_size, check_url
from ..protocol.types.notifications import LogParams, should_log
from ..protocol.types.sampling import CreateMessageParams, CreateMessageResult
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


_REFUSED: Final = -1
"""Error code of a sampling request that the user rejected (2025-11-25 sampling, Error Handling)."""


class Questions:
    """Client handlers that ask the user at ``terminal`` when a server requests input (elicitation, sampling).

    ``server`` returns the name of the requesting server.

    A question that is left alone is neither shown nor answered. It stays open until the connection closes, so that the
    server can ask the next client that wants the task's result. Questions of tasks are left alone unless ``of_tasks``.
    """

    def __init__(self, terminal: Terminal, server: Callable[[], str], *, of_tasks: bool = True) -> None:
        self._terminal = terminal
        self._server = server
        self._of_tasks = of_tasks
        self._over = False
        self._open: set[trio.CancelScope] = set()
        self.refused = False
        """Whether the user has refused to answer in place of a model. The server then gets an error."""

    def options(self) -> ClientOptions:
        """Return the options for a client whose user answers input requests at the terminal.

        Without a terminal, the options contain no handlers, so that servers send no input requests.
        """
        if not self._terminal.can_ask:
            return {}
        return {
            "elicitation": self.form,
            "elicitation_url": self.url,
            "sampling": self.sample,
            "sampling_asks_user": True,
        }

    def give_up(self) -> None:
        """Answer all open input requests with ``cancel``, because the user has dismissed them."""
        for scope in self._open:
            scope.cancel(reason="the user dismissed the question")

    def leave_alone(self) -> None:
        """Stop asking the user, because the command is ending. Open input requests stay unanswered: their handlers wait
        until they are cancelled."""
        self._over = True
        for scope in self._open:
            scope.cancel(reason="the command is over")

    @asynccontextmanager
    async def _asking(self, meta: JSONObject | None) -> AsyncGenerator[None]:
        """Inside the block, use the terminal for an input request with the metadata ``meta``. If the user dismisses the
        request with Ctrl-C, leave the block."""
        if self._over or not (self._of_tasks or related_task_of({"_meta": meta}) is None):
            await trio.sleep_forever()
        with trio.CancelScope() as scope:
            self._open.add(scope)
            try:
                async with self._terminal.asking():
                    yield
            finally:
                self._open.discard(scope)
        if scope.cancelled_caught and self._over:
            await trio.sleep_forever()

    async def form(self, question: ElicitFormParams) -> ElicitResult:
        """Ask the user to fill in an elicitation form, field by field. Before the form is sent, the user sees all
        values."""
        fields = form_fields(question.requested_schema)
        async with self._asking(question.meta):
            self._terminal.say(f"{self._server()} asks: {question.message}", "bold")
            if fields:
                self._terminal.say("  (an empty line accepts the value in brackets; Ctrl-D declines)", "dim")
            content: dict[str, Any] = {field.name: field.default for field in fields if field.default is not None}
            while True:
                for field in fields:
                    if not await self._fill_in(field, content):
                        return ElicitResult("decline")
                for field in fields:
                    self._terminal.say(f"  {name_shown(field.name)} = {content.get(field.name, '(left out)')}")
                match await self._terminal.read("  send this? yes, no or edit [yes]"):
                    case "" | "y" | "yes":
                        return ElicitResult("accept", content)
                    case "e" | "edit":
                        continue
                    case _:
                        return ElicitResult("decline")
        return ElicitResult("cancel")

    async def _fill_in(self, field: FormField, content: dict[str, Any]) -> bool:
        """Ask the user for the value of one form field until the value is valid, and store it in ``content``. Returns
        false if the user doesn't answer."""
        for number, (value, title) in enumerate(field.choices, start=1):
            self._terminal.say(
                f"  {number}) {name_shown(title)}" + (f" ({name_shown(value)})" if title != value else "")
            )
        while True:
            default = content.get(field.name)
            typed = await self._terminal.read(f"  {field.question(default)}")
            if typed is None:
                return False
            if not typed and (default is not None or not field.required):
                return True
            try:
                content[field.name] = field.value(typed)
                return True
            except ValueError as error:
                self._terminal.say(f"  {error}", "red")

    async def url(self, question: ElicitURLParams) -> ElicitResult:
        """Show the URL that the server wants the user to visit, and ask whether the user agrees. The URL is neither
        opened nor fetched."""
        check_url(question.url)
        async with self._asking(question.meta):
            host = urlsplit(question.url).hostname or ""
            self._terminal.say(f"{self._server()} asks you to visit a page: {question.message}", "bold")
            self._terminal.say(f"  {ascii(question.url)[1:-1]}")
            self._terminal.say(f"  This page is on {ascii(host)[1:-1]}.")
            if not host.isascii() or "xn--" in host:
                self._terminal.say("  Warning: this host name has letters that look like others.", "red")
            match await self._terminal.read("  do you agree to visit it? yes or no [no]"):
                case "y" | "yes":
                    self._terminal.say("  The server is notified that you agree. Open the page in your browser.")
                    return ElicitResult("accept")
                case None:
                    return ElicitResult("cancel")
                case _:
                    return ElicitResult("decline")
        return ElicitResult("cancel")

    async def sample(self, request: CreateMessageParams) -> CreateMessageResult:
        """Ask the user to type the response to a sampling request, in place of a model. Raises `CodedError` if the user
        refuses."""
        async with self._asking(request.meta):
            self._terminal.say(f"{self._server()} asks a language model, and there is none here:", "bold")
            if request.system_prompt:
                self._terminal.say(f"  system: {request.system_prompt}")
            for message in request.messages:
                blocks = message.content if isinstance(message.content, list) else [message.content]
                for block in blocks:
                    words = block.text if isinstance(block, TextContent) else f"[{block.type}]"
                    self._terminal.say(f"  {message.role}: {words}")
            typed = await self._terminal.read("  type the model's answer, or an empty line to refuse")
            if typed:
                return CreateMessageResult("assistant", TextContent(typed), "a person at a terminal", "endTurn")
            self._terminal.say("  Refused; the server is notified.")
        self.refused = True
        raise CodedError(_REFUSED, "the user refused to write a response in place of a model")


def terminal_options(*, log_level: str | None = None) -> ClientOptions:
    """Return client options that let the user answer a server's input requests at the terminal, as in ``trio-mcp
    call``.

    The user can fill in forms, visit URLs, and type responses to sampling requests.

        async with open_stdio(["python", "server.py"], **terminal_options()) as client:

    If standard input or standard error isn't a terminal, the client declares that it can't answer questions. In a
    `Group`, each question shows the name of its member. Only one question uses the terminal at a time, and cancellation
    ends a question.

    Args:
      log_level: log messages of this level and above are printed to standard error. `None` prints none.
    """
    terminal = Terminal(log_level)
    options = Questions(terminal, lambda: current_member() or "the server").options()
    if log_level is not None:
        options["on_log"] = terminal.log
    return options


_CHECKED: Final = (
    *("type", "const", "enum", "format"),
    *("minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems"),
)
_TYPES: Final = ("string", "number", "integer", "boolean", "array")
_YES: Final = ("y", "yes", "true")
_NO: Final = ("n", "no", "false")


@frozen(kw_only=True)
class FormField:
    """A field of an elicitation form. ``choices`` contains the allowed values with their titles; it is empty if any
    value of the type ``kind`` is allowed."""

    name: str
    kind: str
    title: str
    required: bool
    default: Any
    choices: tuple[tuple[str, str], ...]
    rules: SchemaValidator

    def question(self, default: Any) -> str:
        """Return the text that asks the user for the value of this form field. An empty line chooses the value
        ``default``."""
        hint = {"boolean": " (y/n)", "array": " (numbers, with commas)"}.get(self.kind, "")
        if default is not None:
            return f"{self.title}{hint} [{_shown(default)}]"
        return f"{self.title}{hint}{'' if self.required else ' (optional)'}"

    def value(self, typed: str) -> Any:
        """Return the form field's value for the text that the user has typed. Raises `ValueError` with an explanation
        if the text is invalid."""
        value = self._converted(typed)
        faults = self.rules.faults(value)
        if faults is not None:
            raise ValueError(on_one_line(faults))
        return value

    def _converted(self, typed: str) -> Any:
        match self.kind:
            case "array":
                return [self._choice(part.strip()) for part in typed.split(",") if part.strip()]
            case "boolean":
                if typed.lower() not in _YES + _NO:
                    raise ValueError("answer y or n")
                return typed.lower() in _YES
            case "integer":
                return _number(int, typed, "a whole number")
            case "number":
                return _number(float, typed, "a number")
            case _:
                return self._choice(typed) if self.choices else typed

    def _choice(self, typed: str) -> str:
        for value, title in self.choices:
            if typed in (value, title):
                return value
        if typed.isdecimal() and 0 < int(typed) <= len(self.choices):
            return self.choices[int(typed) - 1][0]
        raise ValueError(f"{typed!r} is not one of the choices; their numbers are 1 to {len(self.choices)}")


def form_fields(schema: JSONObject) -> list[FormField]:
    """Return the fields of an elicitation form, in order. Raises `CodedError` (-32602) if the form can't be shown.

    Unknown keywords are ignored, because the server checks the values as well.
    """
    check_form_size(schema)
    schema = inlined(schema)
    properties, defaults = schema.get("properties"), fitting_defaults(schema)
    if not isinstance(properties, dict):
        raise _bad("a form must have properties")
    needed = {name for name in _list(schema.get("required")) if isinstance(name, str)} - {*required_nullable(schema)}
    fields = cast("JSONObject", properties).items()
    return [_field(name, field, name in needed, defaults.get(name)) for name, field in fields]


def _field(name: str, schema: Any, required: bool, default: Any) -> FormField:
    members = _without_null(schema)
    kind = members.get("type")
    choices = _choices(members if kind in (None, "string") else _without_null(members.get("items")))
    kind = "string" if kind is None and choices else kind
    if kind not in _TYPES:
        raise _bad(f"field {name_shown(name)!r} has a type that forms do not allow")
    if kind == "array" and not choices:
        raise _bad(f"field {name_shown(name)!r} is a list without choices, which forms do not allow")
    title = next((text for key in ("description", "title") if isinstance(text := members.get(key), str) and text), name)
    try:
        rules = SchemaValidator({"$schema": CHECKS_FORMATS} | {key: members[key] for key in _CHECKED if key in members})
    except ValueError as error:
        raise _bad(f"field {name_shown(name)!r}: {error}") from None
    return FormField(
        name=name, kind=kind, title=on_one_line(title), required=required, default=default, choices=choices, rules=rules
    )


def _without_null(schema: Any) -> JSONObject:
    """Return ``schema`` without null among its types and alternatives.

    python-sdk adds null for each ``Optional`` field, but an answer omits such a field.
    """
    field = as_object(schema)
    for key in ("anyOf", "oneOf"):
        options = _list(field.get(key))
        others = [option for option in options if as_object(option).get("type") != "null"]
        if len(others) < len(options):
            rest = {name: value for name, value in field.items() if name != key}
            field = {**as_object(others[0]), **rest} if len(others) == 1 else {**rest, key: others}
    kinds = [kind for kind in _list(field.get("type")) if kind != "null"]
    return {**field, "type": kinds[0]} if len(kinds) == 1 else field


def _choices(members: JSONObject) -> tuple[tuple[str, str], ...]:
    only = [members["const"]] if "const" in members else []
    values, names = _list(members.get("enum")) or only, _list(members.get("enumNames"))
    if values:
        pairs = zip(values, [*names, *values[len(names) :]], strict=False)
    else:
        titled = [as_object(one) for one in _list(members.get("oneOf") or members.get("anyOf"))]
        pairs = [(one.get("const"), one.get("title", one.get("const"))) for one in titled]
    return tuple((value, str(title)) for value, title in pairs if isinstance(value, str))


def _list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _number(kind: type[int] | type[float], typed: str, words: str) -> int | float:
    try:
        number = kind(typed)
    except ValueError:
        raise ValueError(f"{words}, please") from None
    if number != number or number in (float("inf"), float("-inf")):
        raise ValueError(f"{words}, please")
    return number


def _shown(value: Any) -> str:
    match value:
        case bool():
            return "y" if value else "n"
        case list():
            return ", ".join(map(str, cast("list[Any]", value)))
        case _:
            return str(value)


def _bad(reason: str) -> CodedError:
    return CodedError(INVALID_PARAMS, f"Invalid params: {reason}")
