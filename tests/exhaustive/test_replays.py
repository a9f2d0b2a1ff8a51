"""The shortest trace of each planted defect of a connection, replayed by a real client and a real server over each
wire."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, Final

import pytest
import trio
from tests.exhaustive.channels import CHANNELS, OpenChannel
from tests.exhaustive.defects import DEFECTS, Defect, changed
from tests.exhaustive.explorer import Action
from tests.exhaustive.parts import PARTS
from tests.exhaustive.replays import Gate, OpenWire, replay
from tests.interaction.by_http import open_by_http

from trio_mcp import Client, Server, open_client
from trio_mcp.concurrency.nurseries import open_service_nursery
from trio_mcp.runtime.limits import DEFAULT_LIMITS
from trio_mcp.runtime.transport import Transport

MOST: Final = DEFAULT_LIMITS.max_message_bytes


@asynccontextmanager
async def gated(channel: Transport, options: dict[str, Any]) -> AsyncGenerator[tuple[Client, Gate]]:
    """Open a client at the end ``channel``, behind a gate."""
    gate = Gate(channel)
    async with open_service_nursery("the replay is over") as nursery:
        nursery.start_soon(gate.pump)
        async with open_client(gate, **options) as client:
            yield client, gate


def over(open_channel: OpenChannel) -> OpenWire:
    @asynccontextmanager
    async def wire(server: Server, options: dict[str, Any]) -> AsyncGenerator[tuple[Client, Gate]]:
        async with open_channel(server) as channel, gated(channel, options) as opened:
            yield opened

    return wire


@asynccontextmanager
async def http(server: Server, options: dict[str, Any]) -> AsyncGenerator[tuple[Client, None]]:
    async with open_by_http(server, **options) as client:
        yield client, None


WIRES: Final[dict[str, OpenWire]] = {
    **{name: over(open_channel) for name, open_channel in CHANNELS.items()},
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
def test_real_connection_keeps_its_invariants_if_explored_events_are_replayed(
    defect: Defect, wire: str, era: str
) -> None:
    if wire == "http" and any(action[0] == "lose" for action in trace_of(defect)):
        pytest.skip("HTTP has no connection to lose")
    run(defect, wire, era)


@pytest.mark.parametrize("defect", OF_CONNECTIONS, ids=[each.words for each in OF_CONNECTIONS])
def test_events_found_by_exploration_reveal_a_patched_in_defect_on_a_real_connection(
    defect: Defect, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace_of(defect)
    for owner, name, old, new in defect.patches:
        monkeypatch.setattr(owner, name, changed(owner, name, old, new))
    wire = "http" if defect.part == "exchanges" else "memory"
    if defect.words in UNSEEN:
        run(defect, wire, eras_of(defect)[0])
        return
    with pytest.raises((AssertionError, trio.TooSlowError, BaseExceptionGroup)):
        run(defect, wire, eras_of(defect)[0], seconds=3.0)
