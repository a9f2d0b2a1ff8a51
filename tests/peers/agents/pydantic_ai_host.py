"""An agent of pydantic-ai, whose model is a function: python pydantic_ai_host.py COMMAND... | URL"""

import asyncio
import os
import sys
from typing import Any

from pydantic_ai import Agent, BinaryContent
from pydantic_ai.mcp import MCPToolset, StdioTransport
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from steps import take


async def main(target: list[str]) -> None:
    transport = (
        target[0] if target[0].startswith("http") else StdioTransport(target[0], target[1:], env=dict(os.environ))
    )
    schemas: dict[str, Any] = {}

    async with MCPToolset(transport) as toolset:

        async def call(name: str, arguments: dict[str, Any]) -> Any:
            """Have the model call one tool, and return what the model is given."""
            given: list[Any] = []

            def model(messages: list[Any], info: AgentInfo) -> ModelResponse:
                schemas.update({tool.name: tool.parameters_json_schema for tool in info.function_tools})
                parts = [part for part in messages[-1].parts if not isinstance(part, UserPromptPart)]
                if name == "" or parts:
                    given.extend(parts)
                    return ModelResponse([TextPart("done")])
                return ModelResponse([ToolCallPart(name, arguments)])

            result = await Agent(FunctionModel(model), toolsets=[toolset]).run("go")
            for part in given:
                if isinstance(part, ToolReturnPart):
                    content = part.content
                    return content.media_type if isinstance(content, BinaryContent) else content
            return result.output

        await call("", {})
        await take(schemas, call)


asyncio.run(main(sys.argv[1:]))
