"""What cannot be is refused where it is written, with words that say what to write instead."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from tests.tasks.callers import LEASE, Caller, calling, settings
from tests.tasks.touchy_store import TouchyStore
from trio.testing import MockClock

from trio_mcp import CodedError, InputRequired, RequestContext, Server, open_memory
from trio_mcp.client.opening import open_client
from trio_mcp.runtime.peer import Auth, Peer, Principal, PrincipalId
from trio_mcp.server.servable import connection_to
from trio_mcp.stores.memory import MemoryTaskStore
from trio_mcp.stores.task_store import TaskStore
from trio_mcp.transports.lines import memory_transport_pair
from trio_mcp.types import CreateMessageParams, CreateMessageResult, ElicitFormParams, ElicitResult, InputRequest

NAME: Any = {"type": "object", "properties": {"name": {"type": "string"}}}
WISH: Any = {"ttl": 1000}


@pytest.mark.parametrize("task", [True, 0, 1, "Optional", "forbidden", "", ["required"]])
def test_invalid_task_option_of_a_tool_raises_at_registration(task: Any) -> None:
    server = Server("words")
    with pytest.raises(ValueError, match=r"tool 'work': task must be \"optional\", \"required\" or False, not"):
        server.tool(name="work", task=task)(_nothing)


@pytest.mark.parametrize("on_restart", ["never", None, False, "Again"])
def test_unknown_on_restart_value_raises_at_registration(on_restart: Any) -> None:
    with pytest.raises(ValueError, match=r"on_restart must be \"fail\", \"again\" or \"resume\", not"):
        Server("words").tool(name="work", task="required", on_restart=on_restart)(_nothing)


async def _nothing() -> str:
    return ""


async def test_handler_that_uses_ctx_task_in_a_call_without_a_task_fails_and_instructions_are_logged(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server("words")

    @server.tool()
    async def work(ctx: RequestContext) -> str:
        await ctx.task.start()  # type: ignore[union-attr]
        return "never"

    @server.tool()
    async def other(ctx: RequestContext) -> str:
        return None.title()  # type: ignore[attr-defined]

    async with open_memory(server) as client:
        assert (await client.call_tool("work")).is_error
        assert "ctx.task is None in this call, which is not a task: check `if ctx.task is not None`" in _logged(caplog)
        caplog.clear()
        assert (await client.call_tool("other")).is_error
        assert "ctx.task" not in _logged(caplog)


def _logged(caplog: pytest.LogCaptureFixture) -> str:
    format_ = logging.Formatter()
    return "\n".join(format_.formatException(each.exc_info) for each in caplog.records if each.exc_info)


ASKING: dict[str, Callable[[RequestContext], Awaitable[Any]]] = {
    "sample": lambda ctx: ctx.sample("hi", max_tokens=1, task=WISH),  # type: ignore[call-arg]
    "sample_raw": lambda ctx: ctx.sample_raw({"messages": [], "maxTokens": 1, "task": WISH}),
    "elicit_raw": lambda ctx: ctx.elicit_raw({"message": "m", "requestedSchema": NAME, "task": WISH}),
    "send_request": lambda ctx: ctx.send_request("elicitation/create", {"message": "m", "task": WISH}, ElicitResult),
}
RETURNED: dict[str, Any] = {
    "sampling": CreateMessageParams([], 1, task=WISH),
    "form": ElicitFormParams("m", NAME, task=WISH),
    "plain": InputRequest("elicitation/create", {"message": "m", "requestedSchema": NAME, "task": WISH}),
}


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("title", [*ASKING, *RETURNED])
async def test_raw_request_with_task_params_raises_an_error_with_instructions(
    autojump_clock: MockClock, title: str, era: Any
) -> None:
    server, failures = Server("words"), list[Exception]()

    @server.tool()
    async def work(ctx: RequestContext) -> str | InputRequired:
        if title in RETURNED:
            return InputRequired({"q": RETURNED[title]})
        try:
            await ASKING[title](ctx)
        except (TypeError, CodedError) as failure:
            failures.append(failure)
        return "asked"

    options: Any = {"sampling": lambda _: CreateMessageResult("assistant", [], "m"), "elicitation": lambda _: "cancel"}
    async with open_memory(server, era=era, **options) as client:
        if title in RETURNED:
            with pytest.raises(Exception, match=r"task_ttl=") as caught:
                await client.call_tool("work")
            assert getattr(caught.value, "code", None) == -32602
            return
        await client.call_tool("work")
    [failure] = failures
    assert "task_ttl=" in str(failure)
    assert isinstance(failure, TypeError) if title == "sample" else getattr(failure, "code", None) == -32602


async def test_task_that_runs_again_after_a_restart_has_the_principal_of_its_caller(autojump_clock: MockClock) -> None:
    seen = list[Auth | None]()

    def server_that_sees(way: TaskStore) -> Server:
        server = Server("seeing", tasks=settings(way))

        @server.tool(task="required", on_restart="again")
        async def look(ctx: RequestContext) -> str:
            assert ctx.task is not None
            await ctx.task.start()
            seen.append(ctx.auth)
            await trio.sleep(60)
            return "seen"

        return server

    for ada in (Principal(issuer="https://as", subject="ada", client_id="app"), Principal(client_id="app")):
        seen.clear()
        store = MemoryTaskStore()
        way, auth = TouchyStore(store), Auth("secret", ada)
        async with trio.open_nursery() as nursery, server_that_sees(way)._running() as running:
            ours, theirs = memory_transport_pair()
            nursery.start_soon(connection_to(running, theirs, Peer(principal=ada.id, auth=auth)).run)
            async with open_client(ours, era="modern") as client:
                await Caller(client).start("look")
                way.die()
                nursery.cancel_scope.cancel()
        async with calling(server_that_sees(store)):
            await trio.sleep(2 * LEASE)
        first, again = seen
        assert first is auth
        assert again is not None
        assert (again.token, again.principal.id, again.scopes) == ("", ada.id, frozenset())
        assert PrincipalId(*again.principal.id) == ada.id


@pytest.mark.parametrize("task", [{}, {"task": False}, {"task": None}])
@pytest.mark.parametrize("on_restart", ["again", "resume"])
def test_on_restart_option_without_a_task_option_raises_value_error(on_restart: Any, task: dict[str, Any]) -> None:
    server = Server("words")
    words = (
        f'tool \'work\': on_restart="{on_restart}" has an effect only on tasks: add task="optional" or task="required"'
    )
    with pytest.raises(ValueError, match=words):

        @server.tool(on_restart=on_restart, **task)
        def work() -> str:
            return ""

    with pytest.raises(ValueError, match="has an effect only on tasks"):
        server.tool(work_plainly, on_restart=on_restart, **task)
    server.tool(work_plainly, task="optional", on_restart=on_restart)


@pytest.mark.parametrize("task", [{}, {"task": False}, {"task": "optional"}])
def test_on_restart_with_the_default_value_does_not_need_a_task_option(task: dict[str, Any]) -> None:
    server = Server("words")
    server.tool(work_plainly, on_restart="fail", **task)
    server.tool(work_plainly, name="again", on_restart="again", task="required")


def work_plainly() -> str:
    return ""
