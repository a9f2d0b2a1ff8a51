"""Questions: ask the user at the terminal during a call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import trio

from ...jsonrpc.errors import CodedError
from ...protocol.fields import JSONObject
from ...protocol.meta import related_task_of
from ...protocol.types.content import TextContent
from ...protocol.types.elicitation import ElicitFormParams, ElicitResult, ElicitURLParams, check_url
from ...protocol.types.sampling import CreateMessageParams, CreateMessageResult
from .form_fields import FormField, form_fields
from .printable import name_shown
from .terminal import Terminal

T = TypeVar("T")

_REFUSED: Final = -1
"""The user rejected the request (2025-11-25 sampling, Error Handling)."""


class Questions:
    """Handlers for the user at ``terminal``. ``server`` returns the name of the asking server.

    A question that is left alone is neither shown nor answered, but open until the connection is closed, which is no
    answer, so that the server can ask the next client that wants the result of the task. Questions of tasks are left
    alone unless ``of_tasks``.
    """

    def __init__(self, terminal: Terminal, server: Callable[[], str], *, of_tasks: bool = True) -> None:
        self._terminal = terminal
        self._server = server
        self._of_tasks = of_tasks
        self._over = False
        self._open: set[trio.CancelScope] = set()
        self.refused = False
        """True once the user refused to answer in place of a model; the server gets an error."""

    def give_up(self) -> None:
        """Answer open questions with ``cancel``, because the user has left them."""
        for scope in self._open:
            scope.cancel(reason="the user left the question")

    def leave_alone(self) -> None:
        """Leave all questions alone from now on, because the command is over."""
        self._over = True
        for scope in self._open:
            scope.cancel(reason="the command is over")

    async def form(self, question: ElicitFormParams) -> ElicitResult:
        """Have a form filled in, field by field; it is sent only after the user has seen the whole."""
        fields = form_fields(question.requested_schema)
        ask = partial(self._form, question.message, fields)
        return await self._left_or(ask, ElicitResult("cancel"), question.meta)

    async def url(self, question: ElicitURLParams) -> ElicitResult:
        """Show the page that the server wants the user to visit, and ask whether the user agrees. Nothing is opened or
        fetched."""
        check_url(question.url)
        return await self._left_or(partial(self._url, question), ElicitResult("cancel"), question.meta)

    async def sample(self, request: CreateMessageParams) -> CreateMessageResult:
        """Let the user type the answer of a model. Raises `CodedError` when the user refuses."""
        result = await self._left_or(partial(self._sample, request), None, request.meta)
        if result is None:
            self.refused = True
            raise CodedError(_REFUSED, "the user refused to answer in place of a model")
        return result

    async def _left_or(self, ask: Callable[[], Awaitable[T]], left: T, meta: JSONObject | None) -> T:
        """Return the answer to a question with ``meta``, or ``left`` if `give_up` ended the question."""
        if self._over or not (self._of_tasks or related_task_of({"_meta": meta}) is None):
            await trio.sleep_forever()
        with trio.CancelScope() as scope:
            self._open.add(scope)
            try:
                async with self._terminal.asking():
                    return await ask()
            finally:
                self._open.discard(scope)
        if self._over:
            await trio.sleep_forever()
        return left

    # Forms

    async def _form(self, message: str, fields: list[FormField]) -> ElicitResult:
        self._terminal.say(f"{self._server()} asks: {message}", "bold")
        if fields:
            self._terminal.say("  (an empty line takes what is in brackets; Ctrl-D declines)", "dim")
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

    async def _fill_in(self, field: FormField, content: dict[str, Any]) -> bool:
        """Ask until the answer fits, and return whether the user gave one."""
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

    # The others

    async def _url(self, question: ElicitURLParams) -> ElicitResult:
        host = urlsplit(question.url).hostname or ""
        self._terminal.say(f"{self._server()} asks you to visit a page: {question.message}", "bold")
        self._terminal.say(f"  {ascii(question.url)[1:-1]}")
        self._terminal.say(f"  This page is on the host {ascii(host)[1:-1]}.")
        if not host.isascii() or "xn--" in host:
            self._terminal.say("  Its name has letters that can be mistaken for others.", "red")
        match await self._terminal.read("  do you agree to visit it? yes or no [no]"):
            case "y" | "yes":
                self._terminal.say("  The server is told that you agree. Open the page in your browser.")
                return ElicitResult("accept")
            case None:
                return ElicitResult("cancel")
            case _:
                return ElicitResult("decline")

    async def _sample(self, request: CreateMessageParams) -> CreateMessageResult | None:
        self._terminal.say(f"{self._server()} asks a model, and this terminal has none:", "bold")
        if request.system_prompt:
            self._terminal.say(f"  system: {request.system_prompt}")
        for message in request.messages:
            blocks = message.content if isinstance(message.content, list) else [message.content]
            for block in blocks:
                words = block.text if isinstance(block, TextContent) else f"[{block.type}]"
                self._terminal.say(f"  {message.role}: {words}")
        typed = await self._terminal.read("  answer in its place, or refuse with an empty line")
        if not typed:
            self._terminal.say("  Refused; the server is told.")
            return None
        return CreateMessageResult("assistant", TextContent(typed), "a person at a terminal", "endTurn")
