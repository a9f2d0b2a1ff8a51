"""What a server asks its client, and what travels beside the question."""

from __future__ import annotations

from typing import Any

import pytest

from trio_mcp import ProtocolViolation, RequestContext, Server, open_memory
from trio_mcp.testing import open_scripted_client
from trio_mcp.types import (
    CreateMessageParams,
    CreateMessageResult,
    ElicitFormParams,
    ElicitResult,
    ElicitURLParams,
    TextContent,
)

RELATED = {"io.modelcontextprotocol/related-task": {"taskId": "t-1"}}


async def test_client_receives_the_meta_given_for_an_elicitation_or_sampling_request() -> None:
    server, seen = Server("s"), list[Any]()

    @server.tool
    async def ask(ctx: RequestContext) -> None:
        await ctx.sample("hi", max_tokens=1, meta=RELATED)
        await ctx.elicit("name?", {"type": "object", "properties": {}}, meta=RELATED)
        await ctx.elicit_url("pay", "https://example.com/pay", "e-1", meta=RELATED)

    def sampling(params: CreateMessageParams) -> CreateMessageResult:
        seen.append(params.meta)
        return CreateMessageResult("assistant", TextContent("hello"), "model")

    def elicitation(params: ElicitFormParams) -> ElicitResult:
        seen.append(params.meta)
        return ElicitResult("accept", {})

    def elicitation_url(params: ElicitURLParams) -> ElicitResult:
        seen.append(params.meta)
        return ElicitResult("accept")

    async with open_memory(
        server, era="legacy", sampling=sampling, elicitation=elicitation, elicitation_url=elicitation_url
    ) as client:
        await client.call_tool("ask")
    assert seen == [RELATED, RELATED, RELATED]


async def test_server_treats_null_in_an_accepted_elicitation_as_an_absent_field() -> None:
    server, answers = Server("s"), list[Any]()
    form = {"type": "object", "properties": {"size": {"type": "integer"}, "name": {"type": "string"}}}

    @server.tool
    async def ask(ctx: RequestContext) -> None:
        answers.append((await ctx.elicit("size?", form)).content)

    async with open_scripted_client(server, "2025-11-25", capabilities={"elicitation": {}}) as client:
        for content in ({"size": 3, "name": None, "other": None}, {"size": None}, None):
            call = await client.call_tool("ask")
            question = await client.expect({"method": "elicitation/create", ...: ...})
            await client.answer(question, {"action": "accept", "content": content})
            await client.expect_result(call)
    assert answers == [{"size": 3}, {}, None]


@pytest.mark.parametrize("content", [{"size": "large"}, {"size": None}, {}])
async def test_accepted_elicitation_that_violates_its_schema_raises_protocol_violation(content: Any) -> None:
    server, faults = Server("s"), list[str]()
    form = {"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]}

    @server.tool
    async def ask(ctx: RequestContext) -> None:
        with pytest.raises(ProtocolViolation) as caught:
            await ctx.elicit("size?", form)
        faults.append(str(caught.value))

    async with open_scripted_client(server, "2025-11-25", capabilities={"elicitation": {}}) as client:
        call = await client.call_tool("ask")
        question = await client.expect({"method": "elicitation/create", ...: ...})
        await client.answer(question, {"action": "accept", "content": content})
        await client.expect_result(call)
        await client.expect_result(await client.request("ping"))
    assert "does not fit" in faults[0]
