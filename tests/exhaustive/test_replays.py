"""The shortest trace of each planted defect of a connection, replayed by a real client and a real server over each
wire."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from functools import cache, partial
from typing import Any, Final

import pytest
import trio
from tests.exhaustive.defects import DEFECTS, Defect, changed
from tests.exhaustive.explorer import Action
from tests.exhaustive.parts import PARTS
from tests.exhaustive.replays import Gate, OpenWire, replay
from tests.interaction.by_http import open_by_http

from trio_mcp import Client, Server, open_client, serve_tcp, serve_websocket
from trio_mcp.concurrency.nurseries import open_service_nursery
from trio_mcp.runtime.limits import DEFAULT_LIMITS
from trio_mcp.runtime.transport import Transport
from trio_mcp.testing import memory_transport_pair, open_server
from trio_mcp.transports.lines import LineTransport
from trio_mcp.transports.websocket.transport import WebSocketTransport

MOST: Final = DEFAULT_LIMITS.max_message_bytes


@asynccontextmanager
async def gated(channel: Transport, options: dict[str, Any]) -> AsyncGenerator[tuple[Client, Gate]]:
    """Open a client at the end ``channel``, behind a gate."""
    gate = Gate(channel)
    async with open_service_nursery("the replay is over") as nursery:
        nursery.start_soon(gate.pump)
        async with open_client(gate, **options) as client:
            yield client, gate


@asynccontextmanager
async def memory(server: Server, options: dict[str, Any]) -> AsyncGenerator[tuple[Client, Gate]]:
    ours, theirs = memory_transport_pair()
    async with open_server(server, theirs), gated(ours, options) as opened:
        yield opened


def _ends() -> tuple[LineTransport, LineTransport]:
    (read_ours, write_theirs), (read_theirs, write_ours) = os.pipe(), os.pipe()
    ours = trio.StapledStream(trio.lowlevel.FdStream(write_ours), trio.lowlevel.FdStream(read_ours))
    theirs = trio.StapledStream(trio.lowlevel.FdStream(write_theirs), trio.lowlevel.FdStream(read_theirs))
    return LineTransport(ours, MOST), LineTransport(theirs, MOST)


@asynccontextmanager
async def pipes(server: Server, options: dict[str, Any]) -> AsyncGenerator[tuple[Client, Gate]]:
    """Lines over two pipes, as over the standard streams of a process."""
    ours, theirs = _ends()
    async with open_server(server, theirs), gated(ours, options) as opened:
        yield opened


@asynccontextmanager
async def tcp(server: Server, options: dict[str, Any]) -> AsyncGenerator[tuple[Client, Gate]]:
    async with open_service_nursery("the replay is over") as nursery:
        [listener] = await nursery.start(partial(serve_tcp, server, "127.0.0.1", 0, handle_signals=False))
        stream = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
        async with gated(LineTransport(stream, MOST), options) as opened:
            yield opened


@asynccontextmanager
async def websocket(server: Server, options: dict[str, Any]) -> AsyncGenerator[tuple[Client, Gate]]:
    async with open_service_nursery("the replay is over") as nursery:
        [listener] = await nursery.start(partial(serve_websocket, server, "127.0.0.1", 0, handle_signals=False))
        port = listener.socket.getsockname()[1]
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        transport = WebSocketTransport(stream, MOST, ping_interval=60, ping_timeout=60, close_code=1000)
        await nursery.start(transport.connect, f"127.0.0.1:{port}", "/mcp", [])
        async with gated(transport, options) as opened:
            yield opened


@asynccontextmanager
async def http(server: Server, options: dict[str, Any]) -> AsyncGenerator[tuple[Client, None]]:
    async with open_by_http(server, **options) as client:
        yield client, None


WIRES: Final[dict[str, OpenWire]] = {
    "memory": memory,
    "pipes": pipes,
    "tcp": tcp,
    "websocket": websocket,
    "http": http,
}

REPLAYED: Final = ("calls", "questions", "loss", "rounds", "exchanges")
"""The parts whose events a real client and a real server can cause."""
NOT_REPLAYED: Final = ("a cancel names a request of another exchange",)
"""The trace of this defect needs a client that names a request of another client."""
OF_CONNECTIONS: Final = [each for each in DEFECTS if each.part in REPLAYED and each.words not in NOT_REPLAYED]
UNSEEN: Final = (
    # The runtime makes no reply for a request that was cancelled, whatever the state returns.
    "a cancelled request is answered",
    "a closed exchange is answered",
    "a question is answered after its cancel",
    # The retry of a parked request removes what was left. Only a client that uses an id again would notice.
    "a parked request stays in flight",
    "a parked request stays open",
)
"""Defects that a replay of their trace doesn't show."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Log nothing of a lost connection."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@cache
def trace_of(defect: Defect) -> tuple[Action, ...]:
    """Return the shortest trace that finds ``defect``, in the events of a connection."""
    with pytest.MonkeyPatch.context() as patch:
        for owner, name, old, new in defect.patches:
            patch.setattr(owner, name, changed(owner, name, old, new))
        fault = PARTS[defect.part].explore(defect.size).fault
    assert fault is not None
    if defect.part != "exchanges":
        return fault.trace
    names = {"request": "call", "close": "leave"}
    return tuple((names.get(name, name), *of) for name, *of in fault.trace)


def eras_of(defect: Defect) -> tuple[str, ...]:
    """Return the eras in which the trace can happen."""
    return {"questions": ("legacy",), "rounds": ("modern",), "exchanges": ("modern",)}.get(
        defect.part, ("legacy", "modern")
    )


def run(defect: Defect, wire: str, era: str, *, seconds: float = 30.0) -> None:
    """Replay the trace of ``defect``, once for each way in which the remaining calls end."""
    trace, cushion = trace_of(defect), 0.0 if wire == "memory" else 0.01

    async def main(leaves: bool) -> None:
        with trio.fail_after(seconds):
            await replay(WIRES[wire], trace, leaves=leaves, cushion=cushion, era=era)

    trio.run(main, False)
    # Over modern HTTP, a client without a principal can't cancel a handler between two requests. That handler waits
    # until `Limits.retry_timeout`.
    if wire != "http" or all(action[0] != "park" for action in trace):
        trio.run(main, True)


RUNS: Final = [
    pytest.param(defect, wire, era, id=f"{defect.words}-{wire}-{era}")
    for defect in OF_CONNECTIONS
    for wire in WIRES
    for era in eras_of(defect)
    if wire == "http" or defect.part != "exchanges"
]


@pytest.mark.parametrize(("defect", "wire", "era"), RUNS)
def test_replayed_trace_keeps_the_invariants(defect: Defect, wire: str, era: str) -> None:
    if wire == "http" and any(action[0] == "lose" for action in trace_of(defect)):
        pytest.skip("HTTP has no connection to lose")
    run(defect, wire, era)


@pytest.mark.parametrize("defect", OF_CONNECTIONS, ids=[each.words for each in OF_CONNECTIONS])
def test_replay_shows_the_planted_defect(defect: Defect, monkeypatch: pytest.MonkeyPatch) -> None:
    trace_of(defect)
    for owner, name, old, new in defect.patches:
        monkeypatch.setattr(owner, name, changed(owner, name, old, new))
    wire = "http" if defect.part == "exchanges" else "memory"
    if defect.words in UNSEEN:
        run(defect, wire, eras_of(defect)[0])
        return
    with pytest.raises((AssertionError, trio.TooSlowError, BaseExceptionGroup)):
        run(defect, wire, eras_of(defect)[0], seconds=3.0)
