"""The shortest traces of planted defects that a hostile peer or an array finds, replayed with a scripted side over each
wire."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

import pytest
import trio
from tests.exhaustive.channels import CHANNELS, PAIRS
from tests.exhaustive.defects import DEFECTS, Defect, changed
from tests.exhaustive.hostile_replays import HostileClientReplay, HostileServerReplay
from tests.exhaustive.replays import tables_checked
from tests.exhaustive.test_replays import trace_of

from trio_mcp import open_client
from trio_mcp.testing import ScriptedClient, ScriptedServer

REVISIONS: Final = {
    "hostile-client": "2025-11-25",
    "hostile-client-modern": "2026-07-28",
    "hostile-client-arrays": "2025-03-26",
    "hostile-server": "2025-11-25",
    "hostile-server-modern": "2026-07-28",
    "batches": "2025-03-26",
}
REPLAYED: Final = [each for each in DEFECTS if each.part in REVISIONS]
UNSEEN: Final = (
    # The runtime frees the id of a request when it cancels the handler, whatever the state did.
    "a cancelled request stays",
    # An unreadable answer that is for no call ends the only call that waits.
    "an unreadable answer is ignored",
    # A client whose connection is lost sends no cancel, whatever the state returns.
    "a call that has ended is cancelled",
    # The runtime answers a ping at once, so its id is free before the next call.
    "a call takes the id of a request of the peer",
)
"""Defects that a replay of their trace doesn't show."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Log nothing of what hostile peers send."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def cushion_of(wire: str) -> float:
    return 0.0 if wire == "memory" else 0.01


async def to_server(defect: Defect, wire: str) -> None:
    replay = HostileClientReplay(cushion_of(wire))
    async with CHANNELS[wire](replay.server) as channel:
        client = ScriptedClient(channel)
        await client.open(REVISIONS[defect.part], {"elicitation": {"form": {}}})
        try:
            await replay.run(client, trace_of(defect), defect.size)
        finally:
            replay.end_cleanups()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
                await client.aclose()


async def to_client(defect: Defect, wire: str) -> None:
    revision = REVISIONS[defect.part]
    async with PAIRS[wire]() as (ours, theirs), trio.open_nursery() as nursery:
        server, accepted = ScriptedServer(theirs), trio.Event()

        async def accept() -> None:
            await server.accept(revision, {"tools": {}})
            accepted.set()

        is_modern = defect.part.endswith("modern")
        nursery.start_soon(accept)
        async with open_client(ours, era="modern" if is_modern else "legacy") as client:
            await accepted.wait()
            await HostileServerReplay(cushion_of(wire)).run(client, server, trace_of(defect), is_modern=is_modern)
            nursery.start_soon(server.read_to_end)


def run(defect: Defect, wire: str, *, seconds: float = 30.0) -> None:
    trace_of(defect)

    async def main() -> None:
        with trio.fail_after(seconds):
            async with tables_checked():
                await (to_client if defect.part.startswith("hostile-server") else to_server)(defect, wire)

    trio.run(main)


@pytest.mark.parametrize("wire", CHANNELS)
@pytest.mark.parametrize("defect", REPLAYED, ids=[each.words for each in REPLAYED])
def test_real_connection_keeps_its_invariants_if_its_peer_sends_hostile_messages_found_by_exploration(
    defect: Defect, wire: str
) -> None:
    run(defect, wire)


@pytest.mark.parametrize("defect", REPLAYED, ids=[each.words for each in REPLAYED])
def test_hostile_messages_found_by_exploration_reveal_a_patched_in_defect_on_a_real_connection(
    defect: Defect, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace_of(defect)
    for owner, name, old, new in defect.patches:
        monkeypatch.setattr(owner, name, changed(owner, name, old, new))
    if defect.words in UNSEEN:
        run(defect, "memory")
        return
    with pytest.raises((AssertionError, trio.TooSlowError, BaseExceptionGroup)):
        run(defect, "memory", seconds=3.0)
