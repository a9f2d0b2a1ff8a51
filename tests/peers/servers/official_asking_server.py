"""A server written with the official ``mcp`` package that asks its client, in the ways it has for both eras."""

from typing import Annotated

from journal import note
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.prompts.base import UserMessage
from mcp.server.mcpserver.resolve import Elicit, ListRoots, Resolve, Sample
from mcp_types import (
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestFormParams,
    InputRequiredResult,
    ListRootsRequest,
    ListRootsResult,
    SamplingMessage,
    TextContent,
)
from pydantic import BaseModel
from serving import serve

server = MCPServer("asking")


class Shirt(BaseModel):
    colour: str
    size: int = 40


def say(text: str) -> list[SamplingMessage]:
    return [SamplingMessage(role="user", content=TextContent(type="text", text=text))]


def shirt() -> Elicit[Shirt]:
    return Elicit("Which shirt?", Shirt)


def label(chosen: Annotated[Shirt, Resolve(shirt)]) -> Sample:
    return Sample(say(f"Name a {chosen.colour} shirt."), max_tokens=10)


def places(named: Annotated[CreateMessageResult, Resolve(label)]) -> ListRoots:
    return ListRoots()


def slogan() -> Sample:
    return Sample(say("A slogan?"), max_tokens=10)


def anywhere() -> ListRoots:
    return ListRoots()


@server.tool()
async def one_after_another(
    chosen: Annotated[Shirt, Resolve(shirt)],
    named: Annotated[CreateMessageResult, Resolve(label)],
    kept: Annotated[ListRootsResult, Resolve(places)],
) -> str:
    note("one_after_another ran")
    return f"{chosen.colour} {chosen.size}, {named.content.text}, {kept.roots[0].uri}"


@server.tool()
async def all_at_once(
    chosen: Annotated[Shirt, Resolve(shirt)],
    named: Annotated[CreateMessageResult, Resolve(slogan)],
    kept: Annotated[ListRootsResult, Resolve(anywhere)],
) -> str:
    note("all_at_once ran")
    return f"{chosen.colour} {chosen.size}, {named.content.text}, {kept.roots[0].uri}"


@server.tool()
async def rude(ctx: Context) -> str | InputRequiredResult:
    question = CreateMessageRequest(params=CreateMessageRequestParams(messages=say("rude"), max_tokens=10))
    return InputRequiredResult(input_requests={"q": question})


@server.tool()
async def count_to(last: int, ctx: Context) -> str | InputRequiredResult:
    """Asks for nothing but to be called again."""
    reached = int(ctx.request_state or "0") + 1
    return "there" if reached > last else InputRequiredResult(request_state=str(reached))


@server.prompt()
async def greet(ctx: Context) -> UserMessage | InputRequiredResult:
    if ctx.input_responses is None:
        form = Shirt.model_json_schema()
        question = ElicitRequest(params=ElicitRequestFormParams(message="For whom?", requested_schema=form))
        return InputRequiredResult(input_requests={"who": question}, request_state="greeting")
    return UserMessage(f"{ctx.request_state} to {ctx.input_responses['who'].content}")


@server.resource("places://{which}")
async def listed(which: str, ctx: Context) -> str | InputRequiredResult:
    if ctx.input_responses is None:
        return InputRequiredResult(input_requests={"roots": ListRootsRequest()})
    return str(ctx.input_responses["roots"].roots[int(which)].uri)


serve(server.run, server.streamable_http_app)
