"""LoopRuns: runs an ASGI application under asyncio. The MCP server itself runs in trio's thread.

There is one run per event loop, as there is one per process. For each request, at most one event is on its way to
trio's thread, and a head and one event are on their way back.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from contextvars import Context, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ...bridging.calls import TrioPortal
from ...bridging.event_loop import AsyncBridgedContext, run_in_trio
from ...concurrency.asyncio_thread import LoopTask
from ...concurrency.contexts import asynccontextmanager
from ...runtime.transport import ConnectionLost
from .asgi_requests import Message, Receive, Scope, Send

if TYPE_CHECKING:
    from .asgi import ASGIFront

_RUNS_ALREADY: Final = (
    "http_app is already running in this event loop: enter its lifespan once, in the outermost application, before the "
    "first request"
)
_ENDED: Final = "http_app has ended: the lifespan of its framework has exited, or its server has failed"


OpenFront: TypeAlias = "Callable[[], AbstractAsyncContextManager[ASGIFront]]"


class LoopRuns:
    """Runs an MCP server once for each asyncio event loop in which its ASGI application is used.

    ``open_front`` starts the MCP server in trio's thread, and shuts it down.
    """

    def __init__(self, open_front: OpenFront) -> None:
        self._open_front = open_front
        self._runs: dict[asyncio.AbstractEventLoop, _LoopRun] = {}
        self._changing = threading.Lock()
        """Lock that guards changes of the runs, because several event loop threads may make changes."""

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None]:
        """Run the MCP server while inside the ``async with`` block. It serves the ASGI requests that arrive in the
        current event loop."""
        loop = asyncio.get_running_loop()
        if loop in self._runs:
            raise RuntimeError(_RUNS_ALREADY)
        run = self._add(loop)
        try:
            async with run.held():
                yield
        finally:
            self._remove(run)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request from an asyncio ASGI server.

        If the lifespan wasn't entered, the first request starts the MCP server, which then ends with the event loop.
        """
        loop = asyncio.get_running_loop()
        run = self._runs.get(loop) or self._add(loop)
        try:
            front = await run.front()
        except Exception:
            self._remove(run)  # remove the failed run, so that the next request tries to start the server again
            raise
        await run.serve(front, scope, receive, send)

    def _add(self, loop: asyncio.AbstractEventLoop) -> _LoopRun:
        run = _LoopRun(loop, self._open_front)
        with self._changing:
            for each in [each for each in self._runs if each.is_closed()]:
                del self._runs[each]
            self._runs[loop] = run
        return run

    def _remove(self, run: _LoopRun) -> None:
        with self._changing:
            if self._runs.get(run.loop) is run:
                del self._runs[run.loop]


class _LoopRun:
    """A running MCP server that serves the requests of one asyncio event loop, ``loop``."""

    def __init__(self, loop: asyncio.AbstractEventLoop, open_front: OpenFront) -> None:
        self.loop = loop
        self._open_front = open_front
        self._front: ASGIFront | None = None
        self._opening: asyncio.Future[None] | None = None
        """Future that is done when the run has started or failed to start. `None` before the start. Requests wait for
        this future."""
        self.context = AsyncBridgedContext(self._manager, lambda front, _: front, TrioPortal.start)
        """The context manager that starts and ends this run of the application."""

    @asynccontextmanager
    async def _manager(self) -> AsyncGenerator[ASGIFront]:
        async with self._open_front() as front:
            self._front = front
            yield front
            if self.loop.is_closed():  # a closed event loop can't send the remaining responses, so end them
                front.cut()

    @asynccontextmanager
    async def held(self) -> AsyncGenerator[None]:
        """Run the MCP server while inside the ``async with`` block.

        The server starts in the context of the current task.
        """
        opening = self._opening = self.loop.create_future()
        try:
            async with self.context:
                opening.set_result(None)
                yield
        finally:
            if not opening.done():
                opening.set_result(None)

    async def front(self) -> ASGIFront:
        """Start the MCP server if it isn't running, and return the `ASGIFront` that serves requests.

        If the request is cancelled, the start continues, because other requests may wait for it. Raises `RuntimeError`
        if the server can't start.
        """
        if self._front is None:
            if self._opening is None:
                # Use an empty context: the server outlives the request that starts it.
                self._opening = self.loop.create_task(self._open(), context=Context())
            await asyncio.shield(self._opening)
        if self._front is None:
            raise RuntimeError(_ENDED)
        return self._front

    async def _open(self) -> None:
        await self.context.__aenter__()

    async def serve(self, front: ASGIFront, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request in trio's thread. If the current asyncio task is cancelled, the request is cancelled as
        well."""
        events = _Events(self.loop, receive, send)
        try:
            await run_in_trio(self.context.start, lambda _: front.serve(scope, events.receive, events.send))
        except ConnectionLost:
            raise RuntimeError(_ENDED) from None
        finally:
            await events.end()


class _Events:
    """Lets a task in trio's thread call the functions ``receive`` and ``send`` of an ASGI server.

    Both functions run in ``loop``, in tasks with the context of the request.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, receive: Receive, send: Send) -> None:
        self._loop = loop
        self._receive = receive
        self._send = send
        self._context = copy_context()
        self._receiving: LoopTask[Message] | None = None
        """The pending call of ``receive``. If the task that waits for this call is cancelled, the call continues, so
        that no event is lost."""
        self._sending: LoopTask[None] | None = None

    async def receive(self) -> Message:
        """Return the next ASGI event from the client. If the event loop has ended, return a disconnect event."""
        try:
            if self._receiving is None:
                self._receiving = LoopTask(self._loop, self._receive, self._context)
        except RuntimeError:  # `LoopTask` raises this if the event loop is closed
            return {"type": "http.disconnect"}
        await self._receiving.over.wait()
        received, self._receiving = self._receiving, None
        return {"type": "http.disconnect"} if received.was_cancelled else received.result()

    async def send(self, message: Message) -> None:
        """Send an ASGI event, and wait until the ASGI server has accepted it.

        The head of a response is sent without waiting, together with the next event. Raises `OSError` if the event loop
        has ended.
        """
        try:
            sending = LoopTask[None](self._loop, partial(self._send_behind, self._sending, message), self._context)
        except RuntimeError:
            raise OSError("the asyncio event loop is closed") from None
        self._sending = sending
        if message["type"] == "http.response.start":
            return
        await sending.over.wait()
        self._sending = None
        if sending.was_cancelled:
            raise OSError("the asyncio event loop has ended")
        sending.result()

    async def _send_behind(self, head: LoopTask[None] | None, message: Message) -> None:
        if head is not None and head.task is not None:
            await head.task
        await self._send(message)

    async def end(self) -> None:
        """Cancel pending calls of ``receive`` and ``send`` in the event loop. Do nothing if the loop is closed."""
        if self._loop.is_closed():
            return
        tasks: list[asyncio.Task[Any]] = [each.task for each in (self._receiving, self._sending) if each and each.task]
        for task in tasks:
            task.cancel("the response is over")
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)
