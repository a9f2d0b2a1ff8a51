"""Tools of an agent of openai-agents, in strict mode, called as its runner calls them: see steps.py."""

import asyncio
import json
import os
import sys
from typing import Any

from agents import Agent, RunContextWrapper
from agents.mcp import MCPServerStdio, MCPServerStreamableHttp
from agents.mcp.util import MCPUtil
from agents.tool_context import ToolContext
from steps import take


async def main(target: list[str]) -> None:
    if target[0].startswith("http"):
        server = MCPServerStreamableHttp({"url": target[0]}, client_session_timeout_seconds=60)
    else:
        params = {"command": target[0], "args": target[1:], "env": dict(os.environ)}
        server = MCPServerStdio(params, client_session_timeout_seconds=60)
    async with server:
        agent = Agent("waiter", mcp_servers=[server])
        tools = await MCPUtil.get_all_function_tools([server], True, RunContextWrapper(None), agent)
        by_name = {tool.name: tool for tool in tools}

        async def call(name: str, arguments: dict[str, Any]) -> Any:
            text = json.dumps(arguments)
            context = ToolContext(None, tool_name=name, tool_call_id="1", tool_arguments=text)
            return await by_name[name].on_invoke_tool(context, text)

        await take({name: tool.params_json_schema for name, tool in by_name.items()}, call)


asyncio.run(main(sys.argv[1:]))
