"""Lines that come when the stream of their request is over: they go where nothing is about a request."""

from __future__ import annotations

from tests.serving.http.raw import message, served

from trio_mcp import RequestContext, Server

server = Server("late")


@server.tool
async def ask(ctx: RequestContext) -> str:
    """Ask for a sample."""
    return str(await ctx.sample("Say something.", max_tokens=1))


async def test_sampling_request_of_a_cancelled_call_is_cancelled_on_the_get_stream() -> None:
    async with served(server) as endpoint:
        session = await endpoint.initialize(sampling={})
        listening, calling = await endpoint.connect(), await endpoint.connect()
        await listening.send("GET", session)
        assert (await listening.head()).status == 200
        assert (await listening.event()).data is None  # primes
        await calling.send("POST", session, message("tools/call", {"name": "ask", "arguments": {}}, 7))
        assert (await calling.head()).status == 200
        assert (await calling.event()).data is None
        asked = (await calling.event()).data
        assert asked["method"] == "sampling/createMessage"
        cancel = message("notifications/cancelled", {"requestId": 7, "reason": "enough"})
        assert (await endpoint.ask("POST", session, cancel)).status == 202
        taken_back = (await listening.event()).data
        assert taken_back["method"] == "notifications/cancelled"
        assert taken_back["params"] == {"requestId": asked["id"], "reason": "enough"}
        assert await calling.more() == b""  # the stream of the call ended without a message
        await calling.aclose()
        await listening.aclose()
