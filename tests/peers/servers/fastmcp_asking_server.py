"""A server written with ``fastmcp`` that asks a modern client."""

from functools import partial

from fastmcp import Context, FastMCP
from journal import note
from mcp_types import (
    CreateMessageRequest,
    CreateMessageRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    InputRequiredResult,
    ListRootsRequest,
    SamplingMessage,
    TextContent,
)
from pydantic import BaseModel
from serving import serve

server = FastMCP("asking")


class Shirt(BaseModel):
    colour: str
    size: int = 40


@server.tool
async def all_at_once(ctx: Context) -> str | InputRequiredResult:
    answers = ctx.input_responses
    if answers is None:
        form = ElicitRequestFormParams(message="Which shirt?", requested_schema=Shirt.model_json_schema())
        words = [SamplingMessage(role="user", content=TextContent(type="text", text="A slogan?"))]
        questions = {
            "shirt": ElicitRequest(params=form),
            "slogan": CreateMessageRequest(params=CreateMessageRequestParams(messages=words, max_tokens=10)),
            "places": ListRootsRequest(),
        }
        return InputRequiredResult(input_requests=questions, request_state="asked")
    note("all_at_once ran")
    assert ctx.request_state == "asked"
    shirt = Shirt(**answers["shirt"].content)
    return f"{shirt.colour} {shirt.size}, {answers['slogan'].content.text}, {answers['places'].roots[0].uri}"


serve(partial(server.run, show_banner=False), server.http_app)
