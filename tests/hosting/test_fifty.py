"""Fifty servers on stdio at once: started, called, ten of them killed at random, and all gone at last."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from tests.hosting.processes import SERVES, SOON, children, member
from tests.interaction.client.raw import RawServer
from tests.interaction.harness import resident_bytes
from tests.patience import PATIENCE

from trio_mcp.hosting import Group, MemberDescription, MemberStatus, open_group

pytestmark = pytest.mark.skipif(os.name != "posix", reason="/proc")

PER_MEMBER = 256 * 1024
"""Bytes of ours that one may take; docs/clients/groups.md states less than a third of it."""

OURS = """
import os, trio
from trio_mcp import Server, serve_stdio
server = Server("ours")
@server.tool
async def echo() -> str:
    return str(os.getpid())
trio.run(serve_stdio, server)
"""


def fifty(tmp_path: Path) -> dict[str, MemberDescription]:
    (tmp_path / "ours.py").write_text(OURS)
    ours = MemberDescription([sys.executable, tmp_path / "ours.py"], restart=SOON)
    others = {f"raw{number}": member(RawServer(tmp_path, SERVES, f"{number}"), restart=SOON) for number in range(46)}
    return others | {f"ours{number}": ours for number in range(4)}


async def pids_by_name(group: Group) -> dict[str, int]:
    """Call all of them at once."""
    pids: dict[str, int] = {}

    async def call(name: str) -> None:
        pids[name] = int((await group.call_tool(f"{name}__echo")).text)

    async with trio.open_nursery() as nursery:
        for name in group.statuses:
            nursery.start_soon(call, name)
    return pids


async def restarts_of(statuses: AsyncIterator[MemberStatus], names: set[str]) -> None:
    """Take news until it was told of all of these that they were, or are, started anew."""
    async for status in statuses:
        if status.restarts:
            names.discard(status.name)
        if not names:
            return


async def test_group_of_fifty_servers_recovers_after_ten_servers_are_killed(tmp_path: Path) -> None:
    before, resident = children(), resident_bytes(os.getpid())
    with trio.fail_after(PATIENCE):
        async with open_group(fifty(tmp_path)) as group:
            first = await pids_by_name(group)
            assert resident_bytes(os.getpid()) - resident < 50 * PER_MEMBER
            assert len(set(first.values())) == 50
            assert children() - before == set(first.values())

            statuses = group.watch()
            killed = random.sample(sorted(first), 10)
            for name in killed:
                os.kill(first[name], signal.SIGKILL)
            await restarts_of(statuses, set(killed))
            second = await pids_by_name(group)
            assert {name for name in first if first[name] != second[name]} == set(killed)
            assert children() - before == set(second.values())
    assert not children() - before
