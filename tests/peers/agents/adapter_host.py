"""An agent of a framework calls a server of ours over `trio_mcp.aio`, with the tools of an adapter of
`docs/clients/agent-frameworks.md`: python adapter_host.py FOLDER MODULE COMMAND...

Each function below runs a whole agent of its framework, with a model that calls one tool and then is done, and returns
what the model was given. See steps.py.
"""

import asyncio
import json
import os
import sys
from importlib import import_module
from typing import Any

from steps import ORDER, take, tell

from trio_mcp import Command, aio
from trio_mcp.hosting import MemberDescription


async def openai_tools(tools: list[Any], name: str, arguments: dict[str, Any]) -> Any:
    from agents import Agent, Model, ModelResponse, Runner, Usage
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

    call = ResponseFunctionToolCall(arguments=json.dumps(arguments), call_id="1", name=name, type="function_call")
    text = ResponseOutputText(annotations=[], text="done", type="output_text")
    done = ResponseOutputMessage(id="2", content=[text], role="assistant", status="completed", type="message")
    outputs = iter([call, done])

    class Scripted(Model):
        async def get_response(self, *args: Any, **options: Any) -> ModelResponse:
            return ModelResponse([next(outputs)], Usage(), None)

        def stream_response(self, *args: Any, **options: Any) -> Any:
            raise NotImplementedError

    result = await Runner.run(Agent("waiter", model=Scripted(), tools=tools), "go")
    (given,) = [item.output for item in result.new_items if item.type == "tool_call_output_item"]
    return given


async def pydantic_ai_tools(tools: list[Any], name: str, arguments: dict[str, Any]) -> Any:
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, UserPromptPart
    from pydantic_ai.models.function import FunctionModel

    given: list[Any] = []

    def model(messages: list[Any], _: Any) -> ModelResponse:
        given.extend(part.content for part in messages[-1].parts if not isinstance(part, UserPromptPart))
        return ModelResponse([TextPart("done") if given else ToolCallPart(name, arguments)])

    await Agent(FunctionModel(model), tools=tools).run("go")
    return given[0]


async def langchain_tools(tools: list[Any], name: str, arguments: dict[str, Any]) -> Any:
    from langchain.agents import create_agent
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage

    class Scripted(GenericFakeChatModel):
        def bind_tools(self, *_: Any, **__: Any) -> Any:
            return self

    call = AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": "1"}])
    agent = create_agent(Scripted(messages=iter([call, AIMessage("done")])), tools)
    result = await agent.ainvoke({"messages": [("user", "go")]})
    (given,) = [message.content for message in result["messages"] if message.type == "tool"]
    return given


async def main(name: str, command: list[str]) -> None:
    adapter, run = import_module(name), globals()[name]
    env = dict(os.environ)
    async with aio.open_stdio(command, env=env) as client:
        tools = {tool.name: tool for tool in await adapter.tools_of(client)}
        schemas = {tool.name: tool.input_schema async for tool in client.list_tools()}
        assert tools.keys() == schemas.keys()
        await take(schemas, lambda tool, arguments: run([tools[tool]], tool, arguments))
    async with aio.open_group({"shop": MemberDescription(Command(command, env=env))}) as group:
        await group.settled()
        entries = [entry for entry in group.catalogue.tools.values() if entry.for_model]
        of_group = [adapter.tool_of(group, entry.renamed) for entry in entries]
        tell("group", await run([tool for tool in of_group if tool.name == "shop__order"], "shop__order", ORDER))


sys.path.insert(0, sys.argv[1])
asyncio.run(main(sys.argv[2], sys.argv[3:]))
