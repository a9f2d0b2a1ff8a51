"""Tools of langchain, made by langchain-mcp-adapters within one session: see steps.py."""

import asyncio
import os
import sys
from typing import Any

from langchain_core.tools import ToolException
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools
from steps import take


async def main(target: list[str]) -> None:
    if target[0].startswith("http"):
        connection = {"transport": "streamable_http", "url": target[0]}
    else:
        connection = {"transport": "stdio", "command": target[0], "args": target[1:], "env": dict(os.environ)}
    async with MultiServerMCPClient({"shop": connection}).session("shop") as session:
        by_name = {tool.name: tool for tool in await load_mcp_tools(session)}

        async def call(name: str, arguments: dict[str, Any]) -> Any:
            try:
                return await by_name[name].ainvoke(arguments)
            except ToolException as error:
                return {"failed": str(error)}

        await take({name: tool.tool_call_schema for name, tool in by_name.items()}, call)


asyncio.run(main(sys.argv[1:]))
