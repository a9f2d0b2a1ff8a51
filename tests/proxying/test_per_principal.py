"""Nothing that one caller of a proxy has got is kept for another."""

from __future__ import annotations

import itertools

import trio
from tests.patience import PATIENCE
from tests.serving.http.protection import Tokens, protected
from tests.serving.http.raw import served

from trio_mcp import Address, CacheHints, Server, open_http, proxy
from trio_mcp.auth import Bearer


async def test_proxy_never_shares_cached_results_between_principals() -> None:
    server, reads = Server("behind", cache=CacheHints(3_600_000, "private")), itertools.count(1)

    @server.resource("file:mine")
    async def mine() -> str:
        return f"read {next(reads)}"

    tokens = Tokens()
    for name in ("ann", "bob"):
        tokens.issue(name, name)
    tokens.may_answer.set()
    got: list[str] = []
    async with served(server) as inner:
        way = proxy(Address(f"http://127.0.0.1:{inner.port}/mcp").open)
        async with served(way, auth=protected(tokens)) as outer:
            for name in ("ann", "bob", "ann"):
                url = f"http://127.0.0.1:{outer.port}/mcp"
                with trio.fail_after(PATIENCE):
                    async with open_http(url, auth=Bearer(name), era="modern") as client:
                        got.append((await client.read_resource("file:mine")).contents[0].text)  # type: ignore[union-attr]
    assert got == ["read 1", "read 2", "read 3"]
