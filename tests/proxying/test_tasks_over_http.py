"""Tasks through a proxy whose clients come over HTTP, with tokens and without."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import trio
from tests.patience import PATIENCE
from tests.serving.http.protection import Tokens, protected
from tests.serving.http.raw import served

from trio_mcp import Address, Client, RequestContext, Server, TaskSettings, open_http, proxy
from trio_mcp.auth import Bearer
from trio_mcp.jsonrpc.errors import PeerError
from trio_mcp.types import ElicitFormParams, LogParams

FORM = {"type": "object", "properties": {"name": {"type": "string"}}}


def roaster() -> tuple[Server, trio.Event]:
    server, done = Server("roaster", tasks=TaskSettings(poll_interval=0.02)), trio.Event()

    @server.tool(task="required")
    async def roast(ctx: RequestContext) -> str:
        assert ctx.task is not None
        await ctx.task.start()
        await done.wait()
        whom = (await ctx.elicit("whom?", FORM)).content
        await ctx.log.info(f"for {whom}")
        return f"roasted for {whom}"

    return server, done


@asynccontextmanager
async def way_to(server: Server, back: Any = "auto", **options: Any) -> AsyncGenerator[str]:
    """Serve ``server``, and a proxy before it that speaks ``back`` with it; give the URL of the proxy."""
    async with served(server) as inner:
        address = Address(f"http://127.0.0.1:{inner.port}/mcp")

        def open_behind(**wanted: Any) -> AbstractAsyncContextManager[Client]:
            return address.open(**(wanted if back == "auto" else {**wanted, "era": back}))

        async with served(proxy(open_behind), **options) as outer:
            yield f"http://127.0.0.1:{outer.port}/mcp"


def called(name: str) -> Any:
    async def answer(_: ElicitFormParams) -> dict[str, Any]:
        return {"name": name}

    return answer


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_each_principal_can_access_only_its_own_tasks_over_http(era: Any) -> None:
    server, done = roaster()
    tokens = Tokens()
    for name in ("ann", "bob"):
        tokens.issue(name, name)
    tokens.may_answer.set()

    def client_of(url: str, name: str) -> Any:
        return open_http(url, auth=Bearer(name), era=era, elicitation=called(name))

    with trio.fail_after(PATIENCE):
        async with way_to(server, auth=protected(tokens)) as url:
            async with client_of(url, "ann") as ann, client_of(url, "bob") as bob:
                task = await ann.start_task("roast")
                assert task.id is not None
                theirs: Client = bob
                for step in (theirs.resume_task(task.id).get, theirs.resume_task(task.id).cancel):
                    with pytest.raises(PeerError, match="unknown task") as caught:
                        await step()
                    assert caught.value.code == -32602
                done.set()
                assert (await bob.call_tool("roast")).text == "roasted for {'name': 'bob'}"
            async with client_of(url, "ann") as later:
                assert (await later.resume_task(task.id).result()).text == "roasted for {'name': 'ann'}"


@pytest.mark.parametrize("back", ["legacy", "modern"])
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_anonymous_http_clients_run_tasks_concurrently_and_each_gets_its_own_elicitations(
    era: Any, back: Any
) -> None:
    server, done = roaster()
    got: dict[str, str] = {}
    logs: dict[str, list[Any]] = {"ann": [], "bob": [], "cid": []}

    async def call(url: str, name: str) -> None:
        def on_log(message: LogParams) -> None:
            logs[name].append(message.data)

        async with open_http(url, era=era, elicitation=called(name), on_log=on_log) as client:
            await client.set_log_level("info")
            got[name] = (await client.call_tool("roast")).text

    done.set()
    with trio.fail_after(PATIENCE):
        async with way_to(server, back) as url, trio.open_nursery() as nursery:
            for name in logs:
                nursery.start_soon(call, url, name)
    assert got == {name: f"roasted for {{'name': '{name}'}}" for name in logs}
    if back == "legacy":  # in the other form, tasks have no logs
        assert logs == {name: [f"for {{'name': '{name}'}}"] for name in logs}
