"""The client that the official suite drives: ``python client.py URL``. The suite says what each scenario wants.

The suite says in the environment which scenario is played, in which revision, and with which data.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from trio_mcp import Client, SkillChanged, open_http
from trio_mcp.types import (
    CreateMessageParams,
    CreateMessageResult,
    ElicitFormParams,
    ElicitResult,
    Root,
    TextContent,
    Tool,
)

REVISION = os.environ["MCP_CONFORMANCE_PROTOCOL_VERSION"]
CONTEXT: dict[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
MODERN = "2026-07-28"

EXAMPLES = {"string": "text", "integer": 5, "number": 5, "boolean": True, "array": [], "object": {}, "null": None}


def fill_in(form: ElicitFormParams) -> ElicitResult:
    """Accept each form: confirm what is to be confirmed, and leave the rest to its defaults."""
    confirms = "confirmed" in form.requested_schema.get("properties", {})
    return ElicitResult("accept", {"confirmed": True} if confirms else {})


def complete(params: CreateMessageParams) -> CreateMessageResult:
    return CreateMessageResult("assistant", TextContent("an answer"), "a model")


def example_arguments(tool: Tool) -> dict[str, Any]:
    properties = tool.input_schema.get("properties", {})
    return {name: EXAMPLES[properties[name]["type"]] for name in tool.input_schema.get("required", [])}


async def list_tools(client: Client) -> None:
    _ = [tool async for tool in client.list_tools()]


async def call_every_tool(client: Client) -> None:
    async for tool in client.list_tools():
        await client.call_tool(tool.name, example_arguments(tool))


async def call_read_and_get_everything(client: Client) -> None:
    await call_every_tool(client)
    async for resource in client.list_resources():
        await client.read_resource(resource.uri)
    async for prompt in client.list_prompts():
        await client.get_prompt(prompt.name)


async def call_as_told(client: Client) -> None:
    await list_tools(client)
    for call in CONTEXT["toolCalls"]:
        await client.call_tool(call["name"], call["arguments"])


async def echo_the_schema(client: Client) -> None:
    schemas = {tool.name: tool.input_schema async for tool in client.list_tools()}
    await client.call_tool("json_schema_echo", {"schema": schemas["json_schema_2020_12_tool"]})


async def call_beside_a_round(client: Client) -> None:
    """Call one tool while the rounds of others are under way."""
    async with trio.open_nursery() as nursery:
        for name in ("test_mrtr_echo_state", "test_mrtr_unrelated", "test_mrtr_no_state", "test_mrtr_no_result_type"):
            nursery.start_soon(client.call_tool, name)


async def list_skills(client: Client) -> None:
    _ = [skill async for skill in client.list_skills()]


async def load_every_skill(client: Client) -> None:
    """Load skills that a server has tampered with, and go on to their files where that was not seen."""
    async for skill in client.list_skills():
        try:
            loaded = await client.load_skill(skill)
        except SkillChanged as error:
            print(error)
        else:
            await loaded.read("references/FORMS.md")


SCENARIOS: dict[str, Callable[[Client], Awaitable[None]]] = {
    "initialize": list_tools,
    "request-metadata": list_tools,
    "json-schema-ref-no-deref": list_tools,
    "http-standard-headers": call_read_and_get_everything,
    "http-custom-headers": call_as_told,
    "json-schema-2020-12-preservation": echo_the_schema,
    "sep-2322-client-request-state": call_beside_a_round,
    "sep-2640-client-no-prefetch": list_skills,
    "sep-2640-client-verify-digest": load_every_skill,
    "sep-2640-client-verify-frontmatter": load_every_skill,
    "sep-2640-client-verify-size": load_every_skill,
}


async def main(url: str) -> None:
    scenario = os.environ["MCP_CONFORMANCE_SCENARIO"]
    play = SCENARIOS.get(scenario, call_every_tool)
    auth = None
    if scenario.startswith("auth/"):
        from authorization import auth_for  # late: the other scenarios start without

        auth = auth_for(scenario, CONTEXT)
    # The server says of which era it is; the revision is for the handshake of legacy servers.
    revision = {} if REVISION == MODERN else {"revision": REVISION}
    async with open_http(
        url, auth=auth, **revision, elicitation=fill_in, sampling=complete, roots=[Root("file:///home/user/project")]
    ) as client:
        await play(client)


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
