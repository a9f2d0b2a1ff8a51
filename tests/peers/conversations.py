"""Conversations: a client of ours, connected to a peer's server, for tests outside of trio."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any

import attrs
import trio
from anyio.from_thread import BlockingPortal, start_blocking_portal
from tests.patience import PATIENCE
from tests.peers.journals import Journal

from trio_mcp import Client, CodedError
from trio_mcp.types import (
    CallToolResult,
    CreateMessageParams,
    CreateMessageResult,
    ElicitFormParams,
    ElicitResult,
    ElicitURLParams,
    LogParams,
    Root,
    TextContent,
)

__all__ = ["Conversation", "conversation", "expire", "hang_until"]


class Ignored(logging.Handler):
    """What the client got and had no use for: late replies, late progress."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("ignored"):
            self.messages.append(record.getMessage())


@attrs.define(eq=False)
class Conversation:
    """A client of ours, connected to a peer's server. It lives in a trio thread; tests run things there."""

    name: str
    era: str
    journal: Journal
    over: str = "stdio"
    ignored: Ignored = attrs.Factory(Ignored)
    portal: BlockingPortal = attrs.field(init=False)
    client: Client = attrs.field(init=False)
    logs: list[LogParams] = attrs.Factory(list)
    changes: list[str] = attrs.Factory(list)
    samplings: list[CreateMessageParams] = attrs.Factory(list)
    elicitations: list[ElicitFormParams] = attrs.Factory(list)
    visits: list[ElicitURLParams] = attrs.Factory(list)
    never_asked: trio.Event = attrs.Factory(trio.Event)
    never_cancelled: trio.Event = attrs.Factory(trio.Event)

    @property
    def is_legacy(self) -> bool:
        return self.era == "legacy"

    def run(self, function: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        async def patiently() -> Any:
            with trio.fail_after(PATIENCE):
                return await function(*args)

        return self.portal.call(patiently)

    def call(self, tool: str, **arguments: Any) -> CallToolResult:
        return self.run(self.client.call_tool, tool, arguments)

    def text(self, tool: str, **arguments: Any) -> str:
        (content,) = self.call(tool, **arguments).content
        assert isinstance(content, TextContent)
        return content.text

    async def has_heard(self, *changes: str) -> None:
        """Wait until these were told: the answer of a call does not wait for them."""
        while not set(changes) <= set(self.changes):  # noqa: ASYNC110 - callbacks are plain functions here
            await trio.sleep(0.01)

    async def has_logged(self, data: object) -> None:
        """Wait until the server has logged ``data``."""
        while all(log.data != data for log in self.logs):  # noqa: ASYNC110 - callbacks are plain functions here
            await trio.sleep(0.01)

    async def sample(self, params: CreateMessageParams) -> CreateMessageResult:
        self.samplings.append(params)
        (question,) = params.messages
        if question.content.text == "never":
            self.never_asked.set()
            try:
                await trio.sleep_forever()
            finally:
                self.never_cancelled.set()
        if question.content.text == "rude":
            raise CodedError(-1, "the user said no")
        return CreateMessageResult("assistant", TextContent("forty-two"), "deep-thought")

    async def elicit(self, params: ElicitFormParams) -> dict[str, Any]:
        self.elicitations.append(params)
        return {"colour": "green"}

    async def visit(self, params: ElicitURLParams) -> ElicitResult:
        self.visits.append(params)
        return ElicitResult("accept")


@contextmanager
def conversation(
    name: str,
    era: str,
    journal: Journal,
    connect: Callable[..., AbstractAsyncContextManager[Client]],
    over: str = "stdio",
) -> Iterator[Conversation]:
    """``connect`` is what opens the client, given its options."""
    talk = Conversation(name, era, journal, over)
    ours = logging.getLogger("trio_mcp")
    level = ours.level
    ours.addHandler(talk.ignored)
    ours.setLevel(logging.DEBUG)
    connection = connect(
        # Peers that serve both eras are found to speak the modern one.
        era="legacy" if talk.is_legacy else "auto",
        sampling=talk.sample,
        elicitation=talk.elicit,
        elicitation_url=talk.visit,
        roots=[Root("file:///home/pilot", "home")],
        on_log=talk.logs.append,
        on_list_changed=talk.changes.append,
        on_resource_updated=talk.changes.append,
    )
    try:
        with (
            start_blocking_portal("trio") as talk.portal,
            talk.portal.wrap_async_context_manager(connection) as talk.client,
        ):
            yield talk
    finally:
        ours.removeHandler(talk.ignored)
        ours.setLevel(level)


def hang_until(peer: Conversation, leave: Callable[[trio.CancelScope], None]) -> bool:
    """Call a tool that never returns, and leave the call at its first sign of life."""

    async def hang() -> bool:
        with trio.move_on_after(math.inf) as scope:
            await peer.client.call_tool("hang", on_progress=lambda _: leave(scope))
        return scope.cancelled_caught

    before = len(peer.journal.lines)
    left = peer.run(hang)
    peer.journal.wait_for("hang ended", after=before)
    assert peer.journal.lines[before:] == ["hang began", "hang ended"]
    return left


def expire(scope: trio.CancelScope) -> None:
    """Leave as by a deadline."""
    scope.deadline = trio.current_time()
