"""http_app beside asyncio, with many streams at once."""

from __future__ import annotations

from typing import Any

import trio
from tests.serving.http.beside_asyncio import OPEN, behind_uvicorn, happened, waiting_server
from tests.serving.http.raw import modern
from trio.testing import wait_all_tasks_blocked

from trio_mcp import CancelCause, RequestContext, http_app

STREAMS = 200


async def test_200_concurrent_streams_through_uvicorn_do_not_mix_and_end_at_disconnect() -> None:
    server, journal = waiting_server()
    causes: list[CancelCause] = []

    @server.tool
    async def talk(name: str, ctx: RequestContext) -> str:
        try:
            for number in range(20):
                ctx.progress(number)
                await ctx.log.info(f"{name} {number}")
            await trio.sleep_forever()
        finally:
            assert ctx.cancellation is not None
            causes.append(ctx.cancellation.cause)
            if len(causes) == STREAMS:
                journal.ended.set()
        return name

    heard: dict[str, list[str]] = {}
    app = http_app(server, **OPEN)
    async with behind_uvicorn(app) as endpoint:

        async def listen(name: str, *, task_status: trio.TaskStatus[Any]) -> None:
            connection = await endpoint.connect()
            headers, body = modern(
                "tools/call", {"name": "talk", "arguments": {"name": name}, "_meta": {"progressToken": name}}
            )
            try:
                await connection.send("POST", {**headers}, body)
                head = await connection.head()
                assert head.headers["content-type"] == "text/event-stream", (head, await connection.more())
                texts = heard[name] = []
                while len(texts) < 20:
                    event = (await connection.event()).data
                    if event["method"] == "notifications/message":
                        texts.append(event["params"]["data"])
                task_status.started()
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
                    await connection.aclose()

        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as starting:
                for number in range(STREAMS):
                    starting.start_soon(nursery.start, listen, str(number))
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel(reason="all leave")
        await happened(journal.ended)
    assert heard == {str(number): [f"{number} {each}" for each in range(20)] for number in range(STREAMS)}
    assert causes == [CancelCause.DISCONNECT] * STREAMS
    assert server.statistics().in_flight == 0
