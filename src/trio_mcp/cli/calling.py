"""call: one tool of one server, with all that happens on the way."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext
from difflib import get_close_matches
from typing import Any, Final, Literal

import attrs
import trio

from ..client.client import Client
from ..client.options import ClientOptions
from ..connecting.targets import Target
from ..jsonrpc.errors import MCPError, PeerError
from ..runtime.nurseries import open_service_nursery
from ..runtime.time_limits import fail_after_work
from ..spec.errors import URL_ELICITATION_REQUIRED
from ..spec.fields import JSONObject
from ..spec.tools import CallToolResult, Tool
from .arguments import arguments_typed
from .endings import WITH_SERVER, say, say_error
from .statuses import ENDED_WELL, INTERRUPTED, SIGNALLED, TOOL_FAILED
from .terminal.plain import on_one_line
from .terminal.questions import Questions
from .terminal.terminal import Terminal
from .terminal.tool_results import show_result
from .urls_required import say_urls

__all__ = ["Call", "NoSuchTool", "call_tool"]

_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)
_PATIENCE: Final = 5.0
"""Seconds for the server to show that it has read a cancel."""


class NoSuchTool(ValueError):
    """The server has no tool of this name. The text is one line for the user."""


@attrs.frozen(kw_only=True)
class Call:
    """What was typed. ``log_level`` `None`: no log lines; ``timeout`` is in seconds, without the user's time."""

    target: Target
    tool: str
    pairs: Sequence[str]
    given: JSONObject | None
    log_level: str | None
    era: Literal["auto", "modern", "legacy"]
    timeout: float | None
    raw: bool


def call_tool(call: Call) -> int:
    """Call it, print the result to standard output; return the exit status.

    The first Ctrl-C cancels the call and says what became of it, the next leaves. Raises `NoSuchTool` and
    `BadArgument`.
    """
    try:
        return trio.run(_Calling(call).until_interrupted)
    except WITH_SERVER as error:
        if isinstance(error, PeerError) and error.code == URL_ELICITATION_REQUIRED:
            say_urls(error.data)
        return say_error(error)


class _Calling:
    """One run of the command."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._terminal = Terminal(call.log_level)
        self._server = "the server"
        self._questions = Questions(self._terminal, lambda: self._server)
        self._scope: trio.CancelScope | None = None  # of the call, while it runs
        self._ended_by: int | None = None

    async def until_interrupted(self) -> int:
        status = INTERRUPTED
        # Whoever ends us, with the terminal for example: the server is told, and the terminal is as it was.
        with trio.open_signal_receiver(signal.SIGINT, *_ENDING) as signals:
            async with open_service_nursery("the command is over") as nursery:
                with trio.CancelScope() as leaving:
                    nursery.start_soon(self._obey, signals, leaving)
                    status = await self._connected()
        if leaving.cancelled_caught:
            say("interrupted; the connection is closed")
        return self._ended_by or status

    async def _obey(self, signals: AsyncIterator[int], leaving: trio.CancelScope) -> None:
        async for number in signals:
            if number in _ENDING:
                self._ended_by = SIGNALLED + number
                leaving.cancel(reason=signal.Signals(number).name)
            elif self._scope is None or self._scope.cancel_called:
                leaving.cancel(reason="Ctrl-C")
            else:
                self._terminal.say("Ctrl-C: the call is being cancelled; once more to leave at once")
                self._scope.cancel(reason="the user pressed Ctrl-C")
                self._questions.give_up()

    async def _connected(self) -> int:
        call = self._call
        async with call.target.open(**self._options()) as client:
            if client.server_info is not None:
                self._server = on_one_line(client.server_info.name, 60) or self._server
            tool = await _find(client, call.tool)
            arguments = arguments_typed(call.pairs, tool.input_schema, call.given)
            await self._want_logs(client)
            result = await self._answered(client, arguments)
            if result is None:
                await _tell_of_cancel(client)
                return INTERRUPTED
        show_result(result, client.revision, raw=call.raw)
        if not result.is_error:
            return ENDED_WELL
        say(f"the tool {call.tool!r} failed")
        return TOOL_FAILED

    def _options(self) -> ClientOptions:
        options = ClientOptions(era=self._call.era, on_log=self._terminal.log)
        if self._call.timeout is not None:
            options["connect_timeout"] = self._call.timeout
        if self._terminal.can_ask:  # what is not declared, servers do not ask
            options["elicitation"] = self._questions.form
            options["elicitation_url"] = self._questions.url
            options["sampling"] = self._questions.sample
            options["sampling_asks_user"] = True
        return options

    async def _want_logs(self, client: Client) -> None:
        # A modern server sends none unless it is asked, a legacy one what it thinks fit unless it is told.
        if self._call.log_level is not None and client.server_capabilities.logging is not None:
            try:
                await client.set_log_level(self._call.log_level)
            except PeerError as error:
                say(f"no log level could be set: {error}")

    async def _answered(self, client: Client, arguments: JSONObject) -> CallToolResult | None:
        """The result, `None` after Ctrl-C."""
        limit: Any = nullcontext() if self._call.timeout is None else fail_after_work(self._call.timeout)
        with self._terminal.progress() as show, limit, trio.CancelScope() as self._scope:
            return await client.call_tool(self._call.tool, arguments, on_progress=show)
        return None


async def _find(client: Client, name: str) -> Tool:
    names: list[str] = []
    if client.server_capabilities.tools is not None:
        async for tool in client.list_tools():
            if tool.name == name:
                return tool
            names.append(tool.name)
    if not names:
        raise NoSuchTool("the server has no tools")
    near = get_close_matches(name, names, n=3) or names[:10]
    raise NoSuchTool(f"the server has no tool {name!r}; it has {', '.join(on_one_line(one, 60) for one in near)}")


async def _tell_of_cancel(client: Client) -> None:
    """Say that the call was cancelled, and whether the server knows: messages are read in order, so one that
    answers what came after the cancel has read that, too."""
    started = trio.current_time()
    with trio.move_on_after(_PATIENCE) as patience:
        try:
            await client.ping()
        except PeerError:
            pass  # that it will not be pinged is an answer
        except MCPError as error:
            say(f"the call is cancelled, but the connection was lost meanwhile: {error}")
            return
    if patience.cancelled_caught:
        say(f"the call is cancelled and the server was told, but it has answered nothing for {_PATIENCE:g} s")
        return
    took = (trio.current_time() - started) * 1000
    say(f"the call is cancelled; the server was told, and it answered a ping after that in {took:.0f} ms")
