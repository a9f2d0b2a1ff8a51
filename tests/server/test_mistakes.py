"""Mistakes of authors who come from fastmcp, python-sdk and asyncio: each is an error at its line that says what to
write. A line that ends with ``# !`` is the line of the mistake; a mistake inside of a tool ``do`` is seen in its call.
"""

from __future__ import annotations

import asyncio
import functools
import linecache
import traceback
from types import ModuleType
from typing import Any

import pytest
import trio
from tests.public import FACE
from tests.public import names as public_names

from trio_mcp import Server, open_memory

ROWS: dict[str, tuple[str, str]] = {
    # What is imported.
    "FastMCP": ("from trio_mcp import FastMCP  # !", "write Server"),
    "Context": ("from trio_mcp import Context  # !", "write RequestContext"),
    "ClientSession": ("from trio_mcp import ClientSession  # !", "write Client, which open_stdio, open_http"),
    "StdioServerParameters": ("from trio_mcp import StdioServerParameters  # !", "write Command, or open_stdio"),
    "stdio_client": ("from trio_mcp import stdio_client  # !", "write open_stdio"),
    "streamablehttp_client": ("from trio_mcp import streamablehttp_client  # !", "write open_http"),
    "stdio_server": ("from trio_mcp import stdio_server  # !", "write serve_stdio"),
    "Depends": ("from trio_mcp import Depends  # !", "write Provide, as in Annotated"),
    "McpError": ("from trio_mcp import McpError  # !", "write PeerError"),
    "UserMessage": ("from trio_mcp import UserMessage  # !", 'write PromptMessage("user"'),
    # The server, and how it is run.
    "instructions by position": ("Server('s', 'You are a helpful server.')  # !", "write instructions="),
    "no name": ("Server()  # !", "missing 1 required positional argument: 'name'"),
    "host": ("Server('s', host='0.0.0.0')  # !", "no option 'host'; write serve_http(server, host=..., port=...)"),
    "stateless": ("Server('s', stateless_http=True)  # !", "write serve_http(server, stateless=True)"),
    "json": ("Server('s', json_response=True)  # !", "write nothing: an answer is JSON unless"),
    "auth": ("Server('s', auth=object())  # !", "write serve_http(server, auth=Protected(...))"),
    "debug": ("Server('s', debug=True)  # !", "write expose_errors=True"),
    "log level": ("Server('s', log_level='DEBUG')  # !", "write logging.basicConfig"),
    "tools": ("Server('s', tools=[print])  # !", "write @server.tool above each function"),
    "middleware": ("Server('s', middleware=[])  # !", "write @server.middleware"),
    "unknown option": ("Server('s', colour='red')  # !", "no option 'colour'. Its options: name, version, title"),
    "lifespan": (
        "async def lifespan(server):\n    yield {}\nServer('s', lifespan=lifespan)  # !",
        "the lifespan lifespan is a generator function: put @asynccontextmanager above",
    ),
    "lifespan called": (
        "@asynccontextmanager\nasync def lifespan(server):\n    yield {}\nServer('s', lifespan=lifespan(None))  # !",
        "right:  Server('name', lifespan=lifespan)",
    ),
    "run": ("server.run()  # !", 'write run(server), or run(server, "http", port=8000), which is a function'),
    "run http": ("server.run(transport='streamable-http')  # !", "write run(server), or run(server"),
    "asyncio.run": ("asyncio.run(serve_stdio(server))  # !", "right:  trio.run(serve_stdio, server)"),
    "trio.run called": ("trio.run(serve_stdio(server))  # !", "trio.run(serve_stdio, ...)"),
    "http app": ("server.streamable_http_app()  # !", "write http_app(server)"),
    "custom route": ("@server.custom_route('/health')  # !\nasync def health(): ...", "serve_http(server, routes="),
    "settings": ("server.settings.port = 9000  # !", "write the keywords of Server and of serve_http"),
    "get_context": ("server.get_context()  # !", "write a parameter of the handler, ctx: RequestContext"),
    "add_tool": ("server.add_tool(print)  # !", "write server.tool(function)"),
    "import_server": ("server.import_server(Server('o'))  # !", "write server.mount(other, prefix="),
    "mount": ("server.mount(Server('other'))  # !", "keyword-only argument: 'prefix'"),
    "low level": ("@server.list_tools()  # !\nasync def tools(): ...", "write @server.tool above each function"),
    "low level call": (
        "@server.call_tool()  # !\nasync def call(name, arguments): ...",
        "@server.tool above each function",
    ),
    "name": ("server.name  # !", "write server.info.name"),
    # Tools, resources and prompts.
    "name by position": ("@server.tool('add')  # !\ndef add(a: int) -> int: ...", "write @server.tool(name='add')"),
    "lambda": ("server.tool(lambda text: text)  # !", "'<lambda>' is not a valid tool name"),
    "partial": ("server.tool(functools.partial(print, 1))  # !", "write a function that calls it"),
    "class": ("@server.tool  # !\nclass Git:\n    pass", "right:  server.tool(Git().method)"),
    "callable": ("class Git:\n    def __call__(self): ...\nserver.tool(Git())  # !", "must not be an instance of Git"),
    "method": (
        "class Git:\n    @server.tool  # !\n    async def log(self) -> str: ...",
        "right:  server.tool(thing.log)",
    ),
    "generator": ("@server.tool  # !\nasync def rows():\n    yield 1", "a request has only one answer: return a list"),
    "star": ("@server.tool  # !\ndef add(*numbers: int): ...", "right:  def add(numbers: list[int])"),
    "two stars": ("@server.tool  # !\ndef add(**options: int): ...", "right:  def add(options: dict[str, int])"),
    "positional": ("@server.tool  # !\ndef add(a: int, /): ...", "wrong:  def add(a, /)\n    right:  def add(a)"),
    "None": ("@server.tool  # !\ndef add(a: int = None): ...", "right:  a: int | None = None"),
    "Depends as a default": (
        "class Depends:\n    pass\n@server.tool  # !\ndef add(a: int = Depends()): ...",
        "right:  a: Annotated[Database, Provide(connect)]",
    ),
    "Field": (
        "class FieldInfo:\n    pass\n@server.tool  # !\ndef add(a: int = FieldInfo()): ...",
        "right:  a: Annotated[int, msgspec.Meta(ge=1",
    ),
    "a class without a JSON form": (
        "class Frame: ...\n@server.tool  # !\ndef show(frame: Frame): ...",
        "Frame has no JSON form. Write a class of attrs, a dataclass or a TypedDict",
    ),
    "a result without a JSON form": (
        "class Frame: ...\n@server.tool  # !\ndef show() -> Frame: ...",
        "Server(..., encoders={Frame: function})",
    ),
    "Context of fastmcp": ("@server.tool  # !\ndef show(c: other.Context): ...", "from trio_mcp import RequestContext"),
    "TextContent of mcp": (
        "@server.tool  # !\ndef show() -> list[other.TextContent]: ...",
        "TextContent of mcp cannot be used here; from trio_mcp.types import TextContent",
    ),
    "a name that is unknown": (
        "@server.tool  # !\ndef show(a: 'Nope'): ...",
        "Define the type at the top of its module",
    ),
    "twice": ("def f(): ...\nserver.tool(f)\nserver.tool(f)  # !", "there is already a tool named 'f'"),
    "a title as the name": ("@server.tool(name='Add up')  # !\ndef f(): ...", "the name for people is title="),
    "hints": (
        "@server.tool(annotations={'readOnlyHint': True})  # !\ndef f(): ...",
        "ToolAnnotations(read_only_hint=True)",
    ),
    "hint": (
        "@server.tool(readOnlyHint=True)  # !\ndef f(): ...",
        "write annotations=ToolAnnotations(read_only_hint=True)",
    ),
    "timeout": ("@server.tool(timeout='5s')  # !\ndef f(): ...", "takes seconds, a number"),
    "no time": ("@server.tool(timeout=0)  # !\ndef f(): ...", "greater than 0"),
    "schema": (
        "class Model: ...\n@server.tool(input_schema=Model)  # !\ndef f(arguments): ...",
        "Model.model_json_schema()",
    ),
    "scopes": ("@server.tool(scopes='read')  # !\ndef f(): ...", "right:  scopes=['read']"),
    "requires": ("@server.tool(requires='sampling')  # !\ndef f(): ...", "takes a list"),
    "task": ("@server.tool(task=True)  # !\ndef f(): ...", 'task must be "optional", "required" or False'),
    "serializer": ("@server.tool(serializer=str)  # !\ndef f(): ...", "write Server(encoders="),
    "no URI": ("@server.resource  # !\ndef f(): ...", 'right:  @server.resource("note://{name}")'),
    "no scheme": (
        "@server.resource('config')  # !\ndef f(): ...",
        "'config' is not a URI: it must begin with a scheme",
    ),
    "template": (
        "@server.resource('x://{a}')  # !\ndef f(b: str): ...",
        "must have the parameters that the template names: a",
    ),
    "no template": (
        "@server.resource('x://y')  # !\ndef f(b: str): ...",
        "its URI must be a template, for example x://y/{b}",
    ),
    "mimeType": ("@server.resource('x://y', mimeType='text/html')  # !\ndef f(): ...", "write mime_type"),
    "completion": ("@server.completion(argument='a')  # !\ndef f(value): ...", "exactly one of prompt= and resource="),
    # Inside of a handler.
    "ctx.info": ("async def do(ctx):\n    await ctx.info('text')  # !", 'write ctx.log.info("text")'),
    "ctx.report_progress": (
        "async def do(ctx):\n    await ctx.report_progress(1, 2)  # !",
        "write ctx.progress(done, total)",
    ),
    "awaited progress": (
        "async def do(ctx):\n    await ctx.progress(1, 2)  # !",
        "call ctx.progress, and functions of trio",
    ),
    "ctx.session": ("async def do(ctx):\n    ctx.session.create_message()  # !", "write the methods of ctx itself"),
    "ctx.request_context": ("async def do(ctx):\n    ctx.request_context.lifespan_context  # !", "is ctx.lifespan"),
    "ctx.log called": (
        "async def do(ctx):\n    await ctx.log('info', 'text')  # !",
        "right:  await ctx.log.info(text)",
    ),
    "ctx.get_state": (
        "async def do(ctx):\n    ctx.get_state('user')  # !",
        "write ctx.state.get(key)",
    ),
    "ctx.elicit": (
        "async def do(ctx):\n    await ctx.elicit('Sure?', response_type=str)  # !",
        "await ctx.elicit(message, Form)",
    ),
    "ctx.task": ("async def do(ctx):\n    ctx.task.id  # !", "ctx.task is None in this call, which is not a task"),
    "ctx in a thread": ("def do(ctx):\n    ctx.warning('text')  # !", 'write ctx.log.warning("text")'),
    "asyncio.sleep": ("async def do():\n    await asyncio.sleep(1)  # !", "asyncio.sleep cannot run: write trio.sleep"),
    "asyncio.sleep(0)": ("async def do():\n    await asyncio.sleep(0)  # !", "write trio.sleep"),
    "asyncio.create_task": (
        "async def do():\n    work = asyncio.sleep(1)\n    try:\n        asyncio.create_task(work)  # !\n"
        "    finally:\n        work.close()",
        "asyncio.create_task cannot run: write ctx.nursery.start_soon",
    ),
    "asyncio.wait_for": (
        "async def do():\n    await asyncio.wait_for(asyncio.Event().wait(), 1)  # !",
        "write with trio.fail_after(seconds)",
    ),
    "asyncio.to_thread": ("async def do():\n    await asyncio.to_thread(print)  # !", "write trio.to_thread.run_sync"),
    "asyncio's processes": (
        "async def do():\n    await asyncio.create_subprocess_exec('true')  # !",
        "write run_process_tree",
    ),
    "a library for asyncio": (
        "async def do():\n    await aiohttp.get()  # !",
        "aiohttp cannot run: write httpx2.AsyncClient",
    ),
    "no await": ("async def do():\n    return trio.sleep(1)", "return await function(...)"),
    "a result of any class": ("async def do():\n    return object()", "encoders={object: function}"),
    # The client.
    "await open_stdio": (
        "async def main():\n    await open_stdio(['server'])  # !",
        "async with open_stdio(...) as client:",
    ),
    "a command as text": (
        "async def main():\n    async with open_stdio('python server.py'):  # !\n        pass",
        "a command must be a list",
    ),
    "no scheme of HTTP": (
        "async def main():\n    async with open_http('localhost:8000'):  # !\n        pass",
        "an HTTP URL must be like http://",
    ),
    "no server": (
        "async def main():\n    async with open_memory('server.py'):  # !\n        pass",
        "server must be a Server",
    ),
    "await list_tools": (
        "async def main():\n    async with open_memory(server) as client:\n        await client.list_tools()  # !",
        "[tool async for tool in client.list_tools()]",
    ),
    "list of list_tools": (
        "async def main():\n    async with open_memory(server) as client:\n        list(client.list_tools())  # !",
        "with async for: [tool async for tool in client.list_tools()]",
    ),
    "initialize": (
        "async def main():\n    async with open_memory(server) as client:\n        await client.initialize()  # !",
        "has no attribute 'initialize'; write nothing: async with",
    ),
    "session": (
        "async def main():\n    async with open_memory(server) as client:\n        client.session.call_tool('a')  # !",
        "write the client itself",
    ),
    "is_connected": (
        "async def main():\n    async with open_memory(server) as client:\n        client.is_connected()  # !",
        "write client.lost",
    ),
    "isError": (
        "CallToolResult([]).isError  # !",
        "'CallToolResult' object has no attribute 'isError'; write is_error",
    ),
    "structuredContent": ("CallToolResult([]).structuredContent  # !", "write structured_content"),
    "data": ("CallToolResult([]).data  # !", "write structured_content"),
    "inputSchema": ("Tool('a', {}).inputSchema  # !", "write input_schema"),
}


def library() -> ModuleType:
    """A library for asyncio, as its own module."""
    module = ModuleType("aiohttp")
    exec("import asyncio\nasync def get():\n    asyncio.get_running_loop()", vars(module))
    return module


def other() -> Any:
    """Classes of other SDKs."""
    module = ModuleType("other")
    for name, package in (("Context", "fastmcp.server.context"), ("TextContent", "mcp.types")):
        setattr(module, name, type(name, (), {"__module__": package}))
    return module


def written(name: str) -> tuple[str, dict[str, Any]]:
    """The file of a row, as its traceback shows it, and what its code finds."""
    from contextlib import asynccontextmanager

    code, file = ROWS[name][0], f"<{name}>"
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    found = public_names(*FACE)
    modules = {"trio": trio, "asyncio": asyncio, "functools": functools, "aiohttp": library(), "other": other()}
    return file, {**found, **modules, "asynccontextmanager": asynccontextmanager, "server": Server("author's")}


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", ROWS)
def test_each_usage_mistake_raises_at_the_faulty_line_and_shows_the_correct_code(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    code, words = ROWS[name]
    file, names = written(name)
    told = ""
    try:
        exec(compile(code, file, "exec", dont_inherit=True), names)
        if "main" in names:
            trio.run(names["main"])
        elif "do" in names:
            trio.run(call, names["server"], names["do"])
            told = caplog.text
    except Exception as error:
        told = "".join(traceback.format_exception(error))
    assert words in told
    if "# !" in code:
        line = next(number for number, line in enumerate(code.splitlines(), 1) if line.endswith("# !"))
        assert f'File "{file}", line {line}' in told


async def call(server: Server, do: Any) -> None:
    server.tool(do)
    async with open_memory(server) as client:
        result = await client.call_tool("do")
    assert result.is_error
    assert result.text == "internal error in tool do", "the caller is told nothing of it"


def test_table_of_tested_usage_mistakes_contains_at_least_60_mistakes() -> None:
    assert len(ROWS) >= 60


@pytest.mark.commands
def test_module_with_error_messages_for_usage_mistakes_is_imported_only_after_a_mistake() -> None:
    import subprocess
    import sys

    code = "import sys; from trio_mcp import Server\nServer('s').tool(print and (lambda: 1).__class__) if 0 else 0\n"
    code += "@Server('s').tool(name='a')\nasync def f(x: int | None = None) -> str: ...\n"
    code += "sys.exit('trio_mcp.mistakes' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
