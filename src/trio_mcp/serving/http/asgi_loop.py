"""LoopRuns: an ASGI application under ASGI servers that run asyncio. The server itself runs in trio's thread.

There is one run for each event loop, as there is one for each process. Between the two threads, each request has at
most one event on its way to trio, and a head and one event on their way to the ASGI server.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Final, TypeAlias

from ...bridging.event_loop import AsyncBridgedContext, run_in_trio
from ...bridging.portal import TrioPortal
from ...concurrency.contexts import asynccontextmanager
from ...concurrency.loop_tasks import LoopTask
from ...runtime.transport import ConnectionLost
from .asgi_front import ASGIFront
from .asgi_requests import Message, Receive, Scope, Send

_RUNS_ALREADY: Final = (
    "http_app runs already in this event loop: its lifespan is entered once, by the outermost application, and before "
    "the first request"
)
_ENDED: Final = "http_app has ended: the lifespan of its framework is over, or its server has failed"


OpenFront: TypeAlias = Callable[[], AbstractAsyncContextManager[ASGIFront]]


class LoopRuns:
    """The runs of an application, by event loops. ``open_front`` starts one in trio's thread, and drains it."""

    def __init__(self, open_front: OpenFront) -> None:
        self._open_front = open_front
        self._runs: dict[asyncio.AbstractEventLoop, _LoopRun] = {}
        self._changing = threading.Lock()
        """Lock for changes of the runs, by the threads of several loops."""

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None]:
        """Run the application beside the event loop of this task while inside."""
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
        """Serve one request of an ASGI server that runs asyncio. The first request starts the application, if nobody
        has entered its lifespan; the end of the event loop ends it then."""
        loop = asyncio.get_running_loop()
        run = self._runs.get(loop) or self._add(loop)
        try:
            front = await run.front()
        except Exception:
            self._remove(run)  # the next request tries again
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
    """The run of an application beside ``loop``."""

    def __init__(self, loop: asyncio.AbstractEventLoop, open_front: OpenFront) -> None:
        self.loop = loop
        self._open_front = open_front
        self._front: ASGIFront | None = None
        self._opening: asyncio.Future[None] | None = None
        """The end of the start, for which requests wait; `None` before the start."""
        self.context = AsyncBridgedContext(self._manager, lambda front, _: front, TrioPortal.start)
        """The life of the run."""

    @asynccontextmanager
    async def _manager(self) -> AsyncGenerator[ASGIFront]:
        async with self._open_front() as front:
            self._front = front
            yield front
            if self.loop.is_closed():  # and nobody takes a response any more
                front.cut()

    @asynccontextmanager
    async def held(self) -> AsyncGenerator[None]:
        """Start the application, in the context of this task, and hold it while inside."""
        opening = self._opening = self.loop.create_future()
        try:
            async with self.context:
                opening.set_result(None)
                yield
        finally:
            if not opening.done():
                opening.set_result(None)

    async def front(self) -> ASGIFront:
        """Return the front of the run, which is started if need be. A cancel of one request does not end the start, for
        which others may wait. Raises `RuntimeError` if the lifespan that starts the run fails."""
        if self._front is None:
            if self._opening is None:
                # The run is not of the request that starts it, and sees nothing of the request's context.
                self._opening = self.loop.create_task(self._open(), context=Context())
            await asyncio.shield(self._opening)
        if self._front is None:
            raise RuntimeError(_ENDED)
        return self._front

    async def _open(self) -> None:
        await self.context.__aenter__()

    async def serve(self, front: ASGIFront, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request in trio's thread. A cancel of this task cancels the request."""
        events = _Events(self.loop, receive, send)
        try:
            await run_in_trio(self.context.start, lambda _: front.serve(scope, events.receive, events.send))
        except ConnectionLost:
            raise RuntimeError(_ENDED) from None
        finally:
            await events.end()


class _Events:
    """``receive`` and ``send`` of an ASGI server, for a task in trio's thread. They run in ``loop``, in tasks with the
    context of the request."""

    def __init__(self, loop: asyncio.AbstractEventLoop, receive: Receive, send: Send) -> None:
        self._loop = loop
        self._receive = receive
        self._send = send
        self._context = copy_context()
        self._receiving: LoopTask[Message] | None = None
        """The call of ``receive`` whose event nobody has taken yet: a cancelled wait loses no event."""
        self._sending: LoopTask[None] | None = None

    async def receive(self) -> Message:
        """Return the next event of the client; a disconnect also when the event loop is at its end."""
        try:
            if self._receiving is None:
                self._receiving = LoopTask(self._loop, self._receive, self._context)
        except RuntimeError:  # the event loop is closed
            return {"type": "http.disconnect"}
        await self._receiving.over.wait()
        received, self._receiving = self._receiving, None
        return {"type": "http.disconnect"} if received.was_cancelled else received.result()

    async def send(self, message: Message) -> None:
        """Send an event, and wait until the ASGI server has taken it: the head of a response together with what comes
        next. Raises `OSError` when the event loop is at its end."""
        try:
            sending = LoopTask[None](self._loop, partial(self._send_behind, self._sending, message), self._context)
        except RuntimeError:
            raise OSError("the event loop is closed") from None
        self._sending = sending
        if message["type"] == "http.response.start":
            return
        await sending.over.wait()
        self._sending = None
        if sending.was_cancelled:
            raise OSError("the event loop ends")
        sending.result()

    async def _send_behind(self, head: LoopTask[None] | None, message: Message) -> None:
        if head is not None and head.task is not None:
            await head.task
        await self._send(message)

    async def end(self) -> None:
        """Cancel the calls that nobody waits for any more, in the event loop, unless the loop is closed."""
        if self._loop.is_closed():
            return
        tasks: list[asyncio.Task[Any]] = [each.task for each in (self._receiving, self._sending) if each and each.task]
        for task in tasks:
            task.cancel("the response is over")
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)
