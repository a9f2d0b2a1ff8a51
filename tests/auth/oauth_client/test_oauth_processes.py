"""Processes that share a store of tokens: each refresh token is used once."""

from __future__ import annotations

import sys
from pathlib import Path

import trio
from tests.auth.oauth_client.protected_world import protected
from tests.connecting.http.scripted import Answer, Got, modern, text
from tests.patience import PATIENCE

from trio_mcp import open_http
from trio_mcp.auth import FileTokenStorage, OAuth

PROCESS = """
import sys
import trio
from trio_mcp import open_http
from trio_mcp.auth import FileTokenStorage, OAuth
from trio_mcp.types import Implementation

async def on_visit(url):
    raise SystemExit("the user is asked")

async def main(url, folder, name):
    auth = OAuth(storage=FileTokenStorage(folder), on_visit=on_visit)
    async with open_http(url, auth=auth, info=Implementation(name, '1')) as client:
        for _ in range(10):
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(client.call_tool, "any")

trio.run(main, *sys.argv[1:])
"""


async def test_processes_that_share_a_token_storage_use_each_refresh_token_only_once(tmp_path: Path) -> None:
    served, refused = 0, set[bytes]()

    async def then(got: Got, answer: Answer) -> None:
        nonlocal served
        served += 1
        # The token is good for some calls, and for all that were refused before: as for hours, in short.
        if served >= 20 and not refused:
            served = 0
            world.expire()
        await answer.json(text(got))

    async def let_in(got: Got, answer: Answer) -> None:
        refused.discard(got.body)
        await modern(then)(got, answer)

    async with protected(let_in) as world:
        world.on_refused = lambda got: refused.add(got.body)
        async with open_http(world.url, auth=OAuth(storage=FileTokenStorage(tmp_path), on_visit=world.visit)):
            pass

        async def work(name: str) -> None:
            command = [sys.executable, "-c", PROCESS, world.url, str(tmp_path), name]
            await trio.run_process(command)

        with trio.fail_after(2 * PATIENCE):
            async with trio.open_nursery() as workers:
                for name in ("one", "two", "three"):
                    workers.start_soon(work, name)
    assert world.calls.count("tools/call") == 3 * 10 * 5
    assert len(world.authorizations) == 1
    used = [form["refresh_token"] for form in world.refreshes]
    assert len(used) == len(set(used)) > 1
