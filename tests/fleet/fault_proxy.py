"""A proxy between a link and Redis that cuts, holds or swallows bytes at a place that the test names, or changes bytes.

async with open_proxy(server.port) as proxy, open_link(proxy.url) as link:
    proxy.fail("cut", after=2)  # of the answers that come from now on, two bytes are passed on
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final, Literal

import attrs
import trio
from trio import SocketListener, SocketStream

__all__ = ["Fault", "FaultProxy", "open_proxy"]

Kind = Literal["cut", "hold", "swallow"]
Way = Literal["answers", "requests"]


@attrs.define
class Fault:
    """What happens once, to the first connection on which it can."""

    kind: Kind
    """``cut``: both sides see the end of the connection. ``hold``: bytes wait for `FaultProxy.let_go`. ``swallow``: no
    byte comes through any more, and the connection stays."""
    after: int
    """Bytes that still pass, of all connections together."""
    way: Way = "answers"
    only: int | None = None
    """Number of the connection to which the fault happens, from 0; `None`: to the first that it can."""
    victim: int | None = None
    """Number of the connection that the fault has happened to."""
    happened: trio.Event = attrs.field(factory=trio.Event)


class FaultProxy:
    """A proxy, made by `open_proxy`. Without a fault, all bytes pass."""

    def __init__(self, listener: SocketListener, target: int) -> None:
        self.port: Final[int] = listener.socket.getsockname()[1]
        self.connections = 0
        """Number of connections so far."""
        self._target = target
        self._streams: set[SocketStream] = set()
        self._fault = Fault("cut", after=-1)
        self._let_go = trio.Event()
        self._moving = trio.Event()
        self._moving.set()
        self.pace = 0.0
        """Seconds that each 64 KiB take on each connection, in each direction."""
        self.refuses = False
        """True while new connections are cut at once."""
        self.corrupt: Callable[[bytes], bytes] | None = None
        """Function that makes other bytes of answers; `None`: answers pass as they are."""

    @property
    def url(self) -> str:
        """URL of the Redis behind the proxy."""
        return f"redis://127.0.0.1:{self.port}"

    def fail(
        self,
        kind: Literal["cut", "hold", "swallow"],
        *,
        after: int,
        way: Way = "answers",
        for_connection: int | None = None,
    ) -> Fault:
        """Have a fault happen once, after so many more bytes."""
        self._let_go.set()
        self._let_go = trio.Event()
        self._fault = Fault(kind, after, way, for_connection)
        return self._fault

    def let_go(self) -> None:
        """Pass on what is held."""
        self._let_go.set()

    def freeze(self) -> None:
        """Pass on nothing, of old connections and of new ones, until `thaw`."""
        self._moving = trio.Event()

    def thaw(self) -> None:
        """Pass on what has come, and what comes."""
        self._moving.set()

    def cut_all(self) -> None:
        """Cut all connections; new ones are taken."""
        for stream in self._streams:
            stream.socket.close()

    async def _serve(self, client: SocketStream) -> None:
        if self.refuses:
            await trio.aclose_forcefully(client)
            return
        number = self.connections
        self.connections += 1
        try:
            server = await trio.open_tcp_stream("127.0.0.1", self._target)
        except OSError:
            await trio.aclose_forcefully(client)
            return
        self._streams |= {client, server}
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._pass_on, client, server, "requests", number, nursery.cancel_scope)
                nursery.start_soon(self._pass_on, server, client, "answers", number, nursery.cancel_scope)
        finally:
            self._streams -= {client, server}
            client.socket.close()
            server.socket.close()

    async def _pass_on(
        self, source: SocketStream, target: SocketStream, way: Way, number: int, scope: trio.CancelScope
    ) -> None:
        try:
            while data := await source.receive_some():
                await self._moving.wait()
                if self.pace:
                    await trio.sleep(self.pace * len(data) / 2**16)
                if way == "answers" and self.corrupt is not None:
                    data = self.corrupt(data)
                fault = self._fault
                counts = fault.way == way and fault.victim is None and fault.only in (None, number)
                if counts and 0 <= fault.after <= len(data):
                    fault.victim = number
                    await target.send_all(data[: fault.after])
                    data = data[fault.after :]
                    fault.happened.set()
                    if fault.kind == "cut":
                        break
                    if fault.kind == "hold":
                        await self._let_go.wait()
                elif counts:
                    fault.after -= len(data)
                if not (fault.kind == "swallow" and fault.victim == number and fault.way == way):
                    await target.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the end of the connection, for the other side, too
        scope.cancel(reason="one side has ended the connection")


@asynccontextmanager
async def open_proxy(target: int) -> AsyncGenerator[FaultProxy]:
    """Open a proxy to a port of this machine, which is closed at the end of the block."""
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        proxy = FaultProxy(listener, target)
        nursery.start_soon(trio.serve_listeners, proxy._serve, [listener])
        yield proxy
        nursery.cancel_scope.cancel(reason="the test is over")
