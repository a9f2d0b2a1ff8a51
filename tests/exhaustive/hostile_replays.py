"""Replays the traces of `tests.exhaustive.hostile` and of arrays: a scripted side of `trio_mcp.testing` sends the
messages of the trace to a real server or to a real client, and checks all that it receives.

Handlers end as the trace orders. After the trace, everything that still runs ends, and one more call shows that the
connection can still be used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs
import trio
import trio.testing
from tests.exhaustive.explorer import Action
from tests.exhaustive.replays import until
from tests.patience import PATIENCE

from trio_mcp import Client, ConnectionLost, MCPError, RequestContext, Server
from trio_mcp.protocol.meta import PROGRESS_TOKEN
from trio_mcp.testing import ScriptedClient, ScriptedServer

__all__ = ["HostileClientReplay", "HostileServerReplay"]

_EXTRA: Final = 99
"""The id of the request that shows that the connection can still be used."""


@attrs.define
class _Handler:
    orders: trio.MemorySendChannel[str]
    ended: str = ""
    """``returned`` or ``cancelled``."""
    late: trio.Event = attrs.Factory(trio.Event)
    """Lets the cleanup of a cancelled handler end."""


@attrs.define
class _Work:
    """A request that the server has accepted: ``runs``, ``parked``, ``cancelled`` or ``over``."""

    id: int
    state: str = "runs"
    in_array: bool = False


class HostileClientReplay:
    """A real server, and a scripted client that sends the messages of a trace."""

    def __init__(self, cushion: float) -> None:
        self._cushion = cushion
        """Seconds in which a message passes the wire to a waiting task."""
        self.server = Server("replayed")
        self.server.tool(name="work")(self._work)
        self._handlers: list[_Handler] = []
        self._works: list[_Work] = []
        self._refused_in_array = 0
        self._are_cleanups_short = False

    async def _work(self, ctx: RequestContext) -> str:
        send, receive = trio.open_memory_channel[str](10)
        number, handler = len(self._handlers), _Handler(send)
        self._handlers.append(handler)
        try:
            async for order in receive:
                if order == "return":
                    handler.ended = "returned"
                    return f"result {number}"
                await ctx.elicit("more?", str)  # which parks the request
            raise AssertionError
        except trio.Cancelled:
            handler.ended = "cancelled"
            if self._are_cleanups_short:
                raise
            with trio.CancelScope(shield=True, deadline=trio.current_time() + PATIENCE):
                await handler.late.wait()
            raise

    async def run(self, client: ScriptedClient, trace: Sequence[Action], size: int) -> None:
        """Send the messages of ``trace``, end all requests, and check the replies. ``size`` is the length of an array
        of different requests."""
        self._client, self._size = client, size
        for name, *of in trace:
            match name, of:
                case "request", [request_id]:
                    await self._request(request_id)
                case "request twice in an array", [request_id]:
                    await self._array([request_id, request_id])
                case "call all", []:
                    await self._array(list(range(1, size + 1)))
                case "cancel", [request_id]:
                    await self._cancel(request_id)
                case "answer to nothing", [request_id]:
                    await client.send({"id": request_id, "result": {}})
                case "end", [number]:
                    await self._end(number)
                case "park", [number]:
                    self._handlers[number].orders.send_nowait("ask")
                    await client.expect_result(self._works[number].id, {"resultType": "input_required", ...: ...})
                    self._works[number].state = "parked"
                case "late end", [number]:
                    self._handlers[number].late.set()
                case "up", _:
                    pass  # delivered already
                case _:
                    raise AssertionError(name)
            await trio.testing.wait_all_tasks_blocked(self._cushion)
        await self._finish()

    def end_cleanups(self) -> None:
        """Let the cleanup of each cancelled handler end, now and later."""
        self._are_cleanups_short = True
        for handler in self._handlers:
            handler.late.set()

    async def _accepted(self, works: list[_Work]) -> None:
        self._works += works
        await until(lambda: len(self._handlers) >= len(self._works))
        assert len(self._handlers) == len(self._works), "more handlers than accepted requests"

    async def _request(self, request_id: int) -> None:
        is_refused = any(each.id == request_id and each.state == "runs" for each in self._works)
        await self._client.call_tool("work", id=request_id)
        if is_refused:
            await self._client.expect_error(request_id, -32600)
        else:
            await self._accepted([_Work(request_id)])

    async def _array(self, ids: list[int]) -> None:
        params = {"name": "work", "arguments": {}}
        await self._client.send([self._client.request_message("tools/call", params, id=each) for each in ids])
        self._refused_in_array = len(ids) - len(set(ids))
        await self._accepted([_Work(each, in_array=True) for each in dict.fromkeys(ids)])

    async def _cancel(self, request_id: int) -> None:
        mine = [number for number, each in enumerate(self._works) if each.id == request_id]
        running = [number for number in mine if self._works[number].state == "runs"]
        parked = [number for number in mine[-1:] if self._works[number].state == "parked"]
        await self._client.cancel(request_id)
        for number in running or parked:
            await until(lambda number=number: self._handlers[number].ended)
            assert self._handlers[number].ended == "cancelled", f"request {number} has {self._handlers[number].ended}"
            self._works[number].state = "cancelled"

    async def _end(self, number: int) -> None:
        work = self._works[number]
        self._handlers[number].orders.send_nowait("return")
        if not work.in_array:
            await self._client.expect_text(work.id, f"result {number}")
        work.state = "over"

    async def _finish(self) -> None:
        for request_id in dict.fromkeys(each.id for each in self._works if each.state == "cancelled"):
            if not any(each.id == request_id and each.state == "runs" for each in self._works):
                await self._request(request_id)  # the id is free, though the cleanup may still run
        self.end_cleanups()
        for number, work in enumerate(self._works):
            if work.state == "runs":
                await self._end(number)
            elif work.state == "parked" and self._last_of(work.id) is work:
                await self._cancel(work.id)
        if any(each.in_array for each in self._works):
            replies = await self._client.receive()
            texts = sorted(each["result"]["content"][0]["text"] for each in replies if "result" in each)
            assert texts == [f"result {number}" for number in range(len(self._works))], replies
            assert len(replies) - len(texts) == self._refused_in_array, replies
        number = len(self._handlers)
        await self._client.call_tool("work", id=_EXTRA)
        await until(lambda: len(self._handlers) > number)
        self._handlers[number].orders.send_nowait("return")
        await self._client.expect_text(_EXTRA, f"result {number}")  # the next message, so nothing came before
        # A parked request whose id was used again can't be cancelled. Its handler ends with the connection.
        nameless = [number for number, each in enumerate(self._works) if each.state == "parked"]
        for number, handler in enumerate(self._handlers):
            expected = "nothing" if number in nameless else "returned or cancelled"
            assert bool(handler.ended) is (number not in nameless), f"handler {number}: not {expected}"

    def _last_of(self, request_id: int) -> _Work:
        return [each for each in self._works if each.id == request_id][-1]


@attrs.define
class _Call:
    scope: trio.CancelScope = attrs.Factory(trio.CancelScope)
    message: dict[str, Any] = attrs.Factory(dict)
    outcomes: list[Any] = attrs.Factory(list)
    progress: int = 0
    is_over: bool = False


class HostileServerReplay:
    """A real client, and a scripted server that sends the messages of a trace."""

    def __init__(self, cushion: float) -> None:
        self._cushion = cushion
        self._calls: list[_Call] = []
        self._open: list[_Call] = []

    async def run(self, client: Client, server: ScriptedServer, trace: Sequence[Action], *, is_modern: bool) -> None:
        """Send the messages of ``trace`` to ``client``, which ``server`` has accepted. End all calls, and check what
        they and the server have received."""
        self._client, self._server, self._is_modern = client, server, is_modern
        self._last_id = max(each["id"] for way, each in server.transcript if way == "received" and "id" in each)
        is_lost = False
        async with trio.open_nursery() as nursery:
            for name, *of in trace:
                match name, of:
                    case "call", _:
                        nursery.start_soon(self._call, call := _Call())
                        call.message = await server.expect_call("work")
                        self._calls.append(call)
                        self._open.append(call)
                    case "leave", [number]:
                        call = self._open.pop(number)
                        call.scope.cancel()
                        await server.expect_cancel(call.message)
                    case "leave ended", [number]:
                        self._calls[number].scope.cancel()
                    case "lose", _:
                        await server.aclose()
                        await until(lambda: all(each.is_over for each in self._open))
                        assert all(isinstance(each.outcomes[0], ConnectionLost) for each in self._open)
                        self._open, is_lost = [], True
                    case "send", [kind, number]:
                        await self._send(kind, self._last_id + number)
                    case _:
                        raise AssertionError(name)
            for call in list(self._open):
                await server.answer_text(call.message, "result")
                await until(lambda call=call: call.is_over)
                assert call.outcomes == ["result"], call.outcomes
            if not is_lost:
                nursery.start_soon(self._call, call := _Call())
                message = await server.expect_call("work")  # the next message, so nothing came before
                assert all(message["id"] != each.message["id"] for each in self._calls), "an id is used twice"
                await server.answer_text(message, "result")
                await until(lambda: call.is_over)
                assert call.outcomes == ["result"], call.outcomes
        left = list(self._client._connection.state.outbound)
        assert not left, f"the table of calls is not empty at the end: {left}"
        assert all(len(each.outcomes) <= 1 for each in self._calls), "a call has ended twice"
        assert all(not each.progress for each in self._calls), "progress meets another call"

    async def _call(self, call: _Call) -> None:
        def progressed(_: object) -> None:
            call.progress += 1

        with call.scope:
            try:
                call.outcomes.append((await self._client.call_tool("work", on_progress=progressed)).text)
            except MCPError as error:
                call.outcomes.append(error)
        call.is_over = True

    async def _send(self, kind: str, request_id: int) -> None:
        named = next((each for each in self._open if each.message["id"] == request_id), None)
        await self._server.send(_MESSAGES[kind](request_id))
        await trio.testing.wait_all_tasks_blocked(self._cushion)
        if kind == "ping" and not self._is_modern:
            await self._server.expect({"id": request_id, "result": {}})
        if kind in _ENDING and named is not None:
            await until(lambda: named.is_over)
            self._open.remove(named)


_RESULT: Final = {"content": [{"type": "text", "text": "result"}]}


def _message(**members: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", **members}


_MESSAGES: Final[dict[str, Callable[[int], Any]]] = {
    "result": lambda request_id: _message(id=request_id, result=_RESULT),
    "error": lambda request_id: _message(id=request_id, error={"code": -32603, "message": "no"}),
    "error that names nothing": lambda _: _message(id=None, error={"code": -32603, "message": "no"}),
    "result with the id as text": lambda request_id: _message(id=str(request_id), result=_RESULT),
    "array of two results": lambda request_id: [_message(id=request_id, result=_RESULT)] * 2,
    "unreadable result": lambda request_id: f'{{"jsonrpc": "2.0", "id": {request_id}, "result": {{"no JSON": NaN}}}}',
    "own request sent back": lambda request_id: _message(id=request_id, method="tools/call", params={"name": "work"}),
    "ping": lambda request_id: _message(id=request_id, method="ping"),
    "cancel": lambda request_id: _message(method="notifications/cancelled", params={"requestId": request_id}),
    "progress": lambda request_id: _message(
        method="notifications/progress", params={PROGRESS_TOKEN: request_id, "progress": 1}
    ),
}
"""The messages of `tests.exhaustive.hostile`, as they are on a wire."""

_ENDING: Final = ("result", "error", "array of two results", "unreadable result", "own request sent back")
