"""Replays a trace of `tests.exhaustive.connections` with a real client and a real server over a wire.

An event of the trace is an order to the caller, to the handler or to the client's user. After each order, the replay
waits until nothing can happen without another order. A `Gate` at the client holds each message until the trace
delivers it, so messages pass in the order of the trace.

After the trace, the gate is opened, and the remaining calls end: the handlers return, or the callers leave.
`Replay.finish` checks what the client and the handlers have observed.

Events that the runtime does itself aren't ordered: the start of a handler and the end of its cleanup.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, TypeAlias

import attrs
import trio
import trio.testing
from tests.exhaustive.explorer import Action
from tests.patience import PATIENCE

from trio_mcp import Client, ConnectionLost, Limits, RequestContext, Server
from trio_mcp.runtime.connection import Connection
from trio_mcp.runtime.transport import Transport
from trio_mcp.types import ElicitResult

__all__ = ["Gate", "OpenWire", "Replay", "Unreplayable", "replay", "tables_checked", "until"]

_BY_RUNTIME: Final = ("start", "end", "stop answering", "tear up", "tear down")
"""Events that need no order. Messages that are torn were never delivered, since `lose` discards them."""
_EXTRA: Final = 99
"""The number of the call that shows that the connection can still be used."""


class Unreplayable(Exception):
    """Raised for an event that a replay can't cause."""


class Gate(Transport):
    """Holds the messages of ``channel`` in both directions, once ``holds`` is true, until `let_up` and `let_down`."""

    def __init__(self, channel: Transport) -> None:
        self._channel = channel
        self.holds = False
        self.up: deque[bytes] = deque()
        self._arrived: deque[bytes | BaseException] = deque()
        self._credit = 0
        self._changed = trio.Event()
        self.passed_up: list[bytes] = []
        self.written: list[tuple[int, bytes]] = []
        """The messages of the server, each with the number of messages that had passed to the server before."""
        self.is_lost = False

    async def pump(self) -> None:
        """Read the messages of the server at once, until the connection ends."""
        buffered: list[Any] = getattr(self._channel, "buffered", [])
        while True:
            try:
                message: Any = buffered.pop() if buffered else await self._channel.receive()
            except (trio.EndOfChannel, ConnectionLost, OSError, trio.BrokenResourceError) as error:
                self._arrived.append(error)
                self._wake()
                return
            except trio.ClosedResourceError:
                return
            if not self.is_lost:
                self.written.append((len(self.passed_up), bytes(message)))
                self._arrived.append(bytes(message))
            self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def receive(self) -> bytes:
        while not (self._arrived and (self._credit or not self.holds)):
            await self._changed.wait()
        self._credit = max(0, self._credit - 1)
        message = self._arrived.popleft()
        if isinstance(message, BaseException):
            self._arrived.appendleft(message)
            raise message
        return message

    async def send(self, messages: bytes | bytearray) -> None:
        for line in bytes(messages).split(b"\n"):
            if line and self.holds:
                self.up.append(line)
            elif line and not self.is_lost:
                await self._pass_up(line)
        await trio.lowlevel.checkpoint()

    async def _pass_up(self, line: bytes) -> None:
        self.passed_up.append(line)
        await self._channel.send(line + b"\n")

    async def let_up(self) -> None:
        """Deliver the oldest message of the client, or the end of a lost connection."""
        await until(lambda: self.up or self.is_lost)
        if self.up:
            await self._pass_up(self.up.popleft())
        else:
            await self._channel.aclose()

    async def let_down(self) -> None:
        """Deliver the oldest message of the server, or the end of a lost connection."""
        await until(lambda: self._arrived or self.is_lost)
        if not self._arrived:
            self._arrived.append(ConnectionLost("the connection is lost"))
        self._credit += 1
        self._wake()

    def lose(self) -> None:
        """Lose the connection. Messages on the way can still be delivered."""
        self.is_lost = True

    async def open(self) -> None:
        """Deliver all messages, now and later."""
        self.holds = False
        while self.up and not self.is_lost:
            await self._pass_up(self.up.popleft())
        if self.is_lost:
            await self._channel.aclose()
            self._arrived.append(ConnectionLost("the connection is lost"))
        self._wake()

    async def aclose(self) -> None:
        self._wake()
        await self._channel.aclose()


async def until(holds: Callable[[], Any]) -> None:
    """Wait until the condition ``holds``, since a machine under load delivers late."""
    with trio.fail_after(PATIENCE):
        while not holds():  # noqa: ASYNC110 - nothing notifies of all these conditions
            await trio.sleep(0.002)


OpenWire: TypeAlias = "Callable[[Server, dict[str, Any]], AbstractAsyncContextManager[tuple[Client, Gate | None]]]"
"""Opens a client of a server over a wire, with these options. Without a `Gate`, messages pass at once."""


@attrs.define
class _Handler:
    orders: trio.MemorySendChannel[str]
    ended: str = ""
    """``returned`` or ``cancelled``."""
    asking: trio.CancelScope | None = None


@attrs.define
class _Question:
    gate: trio.Event = attrs.Factory(trio.Event)
    ended: str = ""


@attrs.define
class _Observed:
    """How a call ended for its caller."""

    scope: trio.CancelScope
    was_left: bool = False
    results: list[Any] = attrs.Factory(list[Any])
    """Texts of results, and errors."""
    is_over: bool = False


class Replay:
    """One client and one server, which carry out the orders of a trace."""

    def __init__(self) -> None:
        self.calls: dict[int, _Observed] = {}
        self.handlers: dict[int, _Handler] = {}
        self.questions: list[_Question] = []
        self.of_call: dict[int, _Question] = {}
        self.given_up: list[int] = []
        """Calls whose handler has given up its question."""
        self.late: set[int] = set()
        """Calls whose handler was ordered to return."""
        self.server = Server("replayed", limits=Limits(drain_timeout=0.05))
        self.server.tool(name="work")(self._work)
        self.gate: Gate | None = None
        self.cushion = 0.0

    async def _work(self, number: int, ctx: RequestContext) -> str:
        send, receive = trio.open_memory_channel[str](10)
        assert number not in self.handlers, f"the handler of call {number} runs twice"
        handler = self.handlers[number] = _Handler(send)
        try:
            if number == _EXTRA:
                return f"result {number}"
            async for order in receive:
                if order == "return":
                    handler.ended = "returned"
                    return f"result {number}"
                with trio.CancelScope() as handler.asking:
                    answer = await ctx.elicit(f"{number}", str)
                    assert answer.value == f"answer to {number}", answer
                handler.asking = None
            raise AssertionError
        except trio.Cancelled:
            handler.ended = "cancelled"
            raise

    async def _answer(self, asked: Any) -> ElicitResult:
        number = int(asked.message)
        question = self.of_call[number] = _Question()
        self.questions.append(question)
        try:
            await question.gate.wait()
            question.ended = "answered"
        except trio.Cancelled:
            question.ended = "cancelled"
            raise
        return ElicitResult("accept", {"value": f"answer to {number}"})

    async def run(self, open_wire: OpenWire, trace: Sequence[Action], options: dict[str, Any], *, leaves: bool) -> None:
        """Replay ``trace``, end everything, and check what was observed. With ``leaves``, the callers leave all open
        calls at the end. Otherwise the handlers return."""
        async with open_wire(self.server, {**options, "elicitation": self._answer}) as (self.client, self.gate):
            await self._quiet()
            if self.gate is not None:
                self.gate.holds = True
            async with trio.open_nursery() as self.nursery:
                for action in trace:
                    await self._do(*action)
                    await self._quiet()
                await self.finish(leaves=leaves)

    async def _quiet(self) -> None:
        await trio.testing.wait_all_tasks_blocked(self.cushion)

    async def _do(self, name: str, *of: int) -> None:
        match name, of:
            case "call", _:
                number = len(self.calls)
                observed = self.calls[number] = _Observed(trio.CancelScope())
                self.nursery.start_soon(self._call, number, observed)
            case "leave", (number,):
                self.calls[number].was_left = True
                self.calls[number].scope.cancel()
            case ("return", (number,)):
                await self._until_started(number)
                self.late.add(number)
                self._order(number, "return")
            case ("ask" | "park", (number,)):
                await self._until_started(number)
                self._order(number, "ask")
            case "give up", (number,):
                await until(lambda: self.handlers[number].asking is not None)
                asking = self.handlers[number].asking
                assert asking is not None
                asking.cancel()
                self.given_up.append(number)
            case "reply", (number,):
                await until(lambda: len(self.questions) > number)
                self.questions[number].gate.set()
            case "retry", (number, _):
                await until(lambda: number in self.of_call)
                self.of_call[number].gate.set()
            case "up" | "down" | "lose", _ if self.gate is None:
                if name == "lose":
                    raise Unreplayable("this wire can't be lost")
            case "up", _:
                assert self.gate is not None
                await self.gate.let_up()
            case "down", _:
                assert self.gate is not None
                await self.gate.let_down()
            case "lose", _:
                assert self.gate is not None
                self.gate.lose()
            case _ if name in _BY_RUNTIME:
                pass
            case _:
                raise Unreplayable(f"a real client or server doesn't do this: {name}")

    async def _until_started(self, number: int) -> None:
        if not self.calls[number].was_left:
            await until(lambda: number in self.handlers)

    def _order(self, number: int, order: str) -> None:
        handler = self.handlers.get(number)
        if handler is not None and not handler.ended:
            handler.orders.send_nowait(order)

    async def _call(self, number: int, observed: _Observed) -> None:
        with observed.scope:
            try:
                result: Any = await self.client.call_tool("work", {"number": number})
                observed.results.append(result.content[0].text)
            except ConnectionLost as error:
                observed.results.append(error)
        observed.is_over = True

    # The end

    async def finish(self, *, leaves: bool) -> None:
        """Open the gate, end all calls, and check what was observed."""
        for number, call in self.calls.items():
            if leaves and not call.is_over:
                await self._do("leave", number)
        await self._quiet()
        if self.gate is not None:
            await self.gate.open()
        await self._quiet()
        left = [number for number, call in self.calls.items() if call.was_left]
        for number in (*self.given_up, *left):
            if (question := self.of_call.get(number)) is not None:
                await until(lambda question=question: question.ended)
        for _ in range(2):  # a handler that asks continues after its answer
            for question in self.questions:
                question.gate.set()
            await self._quiet()
            for number in self.handlers:
                if number not in left:
                    self._order(number, "return")
            await self._quiet()
        await until(self._is_over)  # a server that has lost its client ends a moment later
        self._check_calls()
        self._check_wire()
        if self.gate is None or not self.gate.is_lost:
            with trio.fail_after(PATIENCE):
                result: Any = await self.client.call_tool("work", {"number": _EXTRA})
            assert result.content[0].text == f"result {_EXTRA}", result
        await self._quiet()

    def _is_over(self) -> bool:
        handlers = (each.ended for number, each in self.handlers.items() if number != _EXTRA)
        return all(each.is_over for each in self.calls.values()) and all(handlers)

    def _check_calls(self) -> None:
        is_lost = self.gate is not None and self.gate.is_lost
        for number, call in self.calls.items():
            assert len(call.results) <= 1, f"call {number} has ended twice"
            if call.was_left:
                handler = self.handlers.get(number)
                texts = [each for each in call.results if isinstance(each, str)]
                assert not texts, f"call {number} has a result after it was left"
                if handler is not None and number not in self.late:
                    assert handler.ended == "cancelled", f"call {number} was left, and its handler {handler.ended}"
                continue
            [result] = call.results
            expected = ConnectionLost if is_lost and not isinstance(result, str) else str
            assert isinstance(result, expected), f"call {number} has ended with {result!r}"
            assert not isinstance(result, str) or result == f"result {number}", f"call {number} has got {result!r}"
        for number, question in enumerate(self.questions):
            assert question.ended, f"question {number} has not ended"

    def _check_wire(self) -> None:
        """Check that the server has written no reply to a request after its cancel."""
        if self.gate is None:
            return
        cancelled: dict[Any, int] = {}
        ends_itself = set[Any]()
        for number, line in enumerate(self.gate.passed_up):
            message = json.loads(line)
            if message.get("method") == "notifications/cancelled":
                cancelled[message["params"]["requestId"]] = number
            elif message.get("method") == "tools/call" and message["params"]["arguments"]["number"] in self.late:
                ends_itself.add(message["id"])
        if self.cushion:  # through a socket, a reply may be read after a cancel that was written later
            cancelled = {each: number for each, number in cancelled.items() if each not in ends_itself}
        for passed, line in self.gate.written:
            message = json.loads(line)
            if "method" not in message and message["id"] in cancelled:
                assert passed <= cancelled[message["id"]], f"request {message['id']} is answered after its cancel"


@asynccontextmanager
async def tables_checked() -> AsyncGenerator[None]:
    """After the block, check that the tables of all connections made inside it are empty."""
    make, connections = Connection.__init__, list[Connection]()

    def made(self: Connection, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        connections.append(self)

    Connection.__init__ = made
    try:
        yield
    finally:
        Connection.__init__ = make
    for each in connections:
        state: Any = each.state
        left = [*state.inbound, *state.outbound, *getattr(state, "_parked", {}).values()]
        assert not left, f"the tables of the {state.role} are not empty at the end: {left}"


async def replay(
    open_wire: OpenWire, trace: Sequence[Action], *, leaves: bool, cushion: float = 0.0, **options: Any
) -> None:
    """Replay ``trace``: see `Replay.run`. Raises `AssertionError` for a broken invariant, and `Unreplayable`."""
    running = Replay()
    running.cushion = cushion
    async with tables_checked():
        await running.run(open_wire, trace, options, leaves=leaves)
