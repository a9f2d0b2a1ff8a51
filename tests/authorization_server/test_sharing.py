"""Clients that share a storage, and an authorization server that takes back a whole grant when a token comes twice."""

from __future__ import annotations

import sys
from pathlib import Path

import trio
from examples.authorization.provider import authorization_server, press
from tests.authorization_server.protected import READ, protected
from tests.patience import PATIENCE

from trio_mcp import open_http
from trio_mcp.auth import FileTokenStorage, JWTVerifier, OAuth

CALLING = """\
import sys, trio
from pathlib import Path
from trio_mcp import open_http
from trio_mcp.auth import FileTokenStorage, OAuth

async def nobody(url):
    sys.exit("the user was asked")

async def call(client):
    while True:
        await client.call_tool("who")

async def main(url, folder):
    auth = OAuth(on_visit=nobody, storage=FileTokenStorage(Path(folder)))
    async with open_http(url, auth=auth) as client:
        print("open", flush=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, client)
            await trio.to_thread.run_sync(sys.stdin.read)
            nursery.cancel_scope.cancel()

trio.run(main, *sys.argv[1:])
"""


async def test_processes_that_share_a_token_storage_refresh_tokens_one_at_a_time(
    provider: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "tokens"
    with trio.fail_after(PATIENCE):
        async with (
            authorization_server(provider, scopes=[READ], lifetime=2) as server,
            protected(server.issuer, JWTVerifier(leeway=0)) as url,
        ):
            async with open_http(url, auth=OAuth(on_visit=press, storage=FileTokenStorage(folder))) as client:
                await client.call_tool("who")
            command = [sys.executable, "-c", CALLING, url, str(folder)]
            processes = [await trio.lowlevel.open_process(command, stdin=-1, stdout=-1) for _ in range(3)]
            try:
                for process in processes:
                    assert process.stdout is not None
                    assert (await process.stdout.receive_some()).startswith(b"open")
                await server.has_done("refresh_token", server.done["refresh_token"] + 3)
            finally:
                for process in processes:
                    assert process.stdin is not None
                    await process.stdin.aclose()
                statuses = [await process.wait() for process in processes]
    assert statuses == [0, 0, 0]
    assert server.refused == []
    assert server.done["authorization"] == 1
