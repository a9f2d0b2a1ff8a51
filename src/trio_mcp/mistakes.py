"""Names and habits from other SDKs and from asyncio, each with the code to write instead, for error messages.

Imported only when a mistake is made.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from dis import opname
from importlib import import_module
from typing import Any, Final, NoReturn, cast

_SERVE: Final = 'run(server), or run(server, "http", port=8000)'
_MEMORY: Final = "async with open_memory(server) as client, and client."

PACKAGE_NAMES: Final = {
    **dict.fromkeys(("FastMCP", "MCPServer"), "Server"),
    "Context": "RequestContext",
    "Depends": "Provide, as in Annotated[Database, Provide(connect)]",
    "Middleware": "a function under @server.middleware",
    "ClientSession": "Client, which open_stdio, open_http and open_memory return",
    "StdioServerParameters": "Command, or open_stdio([program, *arguments])",
    "stdio_client": "open_stdio",
    **dict.fromkeys(("sse_client", "streamablehttp_client", "streamable_http_client"), "open_http"),
    "stdio_server": "serve_stdio",
    "McpError": "PeerError to catch it, CodedError to raise it",
    "ErrorData": "CodedError(code, message, data)",
    "ToolResult": "CallToolResult",
    "ResourceError": "ResourceNotFound, or CodedError",
    "UserMessage": 'PromptMessage("user", TextContent(text))',
    "AssistantMessage": 'PromptMessage("assistant", TextContent(text))',
    "Message": "PromptMessage",
    "create_proxy": "proxy",
    "BearerAuthProvider": "Protected and JWTVerifier",
    "JWTVerifierProvider": "JWTVerifier",
}

SERVER_OPTIONS: Final = {
    **dict.fromkeys(("host", "port"), "serve_http(server, host=..., port=...)"),
    **dict.fromkeys(("streamable_http_path", "mount_path", "sse_path", "path"), "serve_http(server, path=...)"),
    "stateless_http": "serve_http(server, stateless=True)",
    "json_response": "nothing: an answer is JSON unless other messages precede it",
    "transport": _SERVE,
    **dict.fromkeys(
        ("auth", "token_verifier", "auth_server_provider"),
        "serve_http(server, auth=Protected(...)), explained in docs/security",
    ),
    "transport_security": "serve_http(server, allowed_hosts=[...], allowed_origins=[...])",
    "log_level": "logging.basicConfig(level=...), Python's own",
    "debug": "expose_errors=True",
    "mask_error_details": "nothing: errors are masked unless expose_errors=True",
    "dependencies": "a requirements file, or the project's own pyproject.toml",
    "tools": "@server.tool above each function",
    "middleware": "@server.middleware",
    "event_store": "nothing: streams are replayed automatically",
    "request_timeout": "@server.tool(timeout=...)",
    **dict.fromkeys(
        ("on_duplicate_tools", "warn_on_duplicate_tools", "on_duplicate"), "nothing: a duplicate name is an error"
    ),
    **dict.fromkeys(("include_tags", "exclude_tags"), "server.disable(tag)"),
}

SERVER_NAMES: Final = {
    "run": _SERVE + ", which is a function, or trio-mcp run FILE",
    "run_async": "await serve_stdio(server), or await serve_http(server, port=8000)",
    "run_stdio_async": "await serve_stdio(server)",
    **dict.fromkeys(
        ("run_http_async", "run_sse_async", "run_streamable_http_async"), "await serve_http(server, port=8000)"
    ),
    **dict.fromkeys(("streamable_http_app", "sse_app"), "http_app(server)"),
    "http_app": "http_app(server), which is a function",
    "custom_route": "serve_http(server, routes={path: handler})",
    "session_manager": "http_app(server), which has its own",
    "settings": "the keywords of Server and of serve_http",
    **dict.fromkeys(("get_context", "request_context"), "a parameter of the handler, ctx: RequestContext"),
    "add_tool": "server.tool(function)",
    "add_resource": "server.resource(uri)(function)",
    "add_prompt": "server.prompt(function)",
    "add_middleware": "server.middleware(function)",
    "import_server": 'server.mount(other, prefix="name")',
    "as_proxy": "proxy(target), which is a function",
    "from_openapi": "from_openapi(document, http=..., operations=...), which is a function",
    "from_fastapi": "from_openapi(app.openapi(), http=..., operations=...), which is a function",
    "create_initialization_options": "nothing: serve_stdio(server) creates them",
    "get_capabilities": "server.capabilities",
    "set_logging_level": "nothing: the log level of each client is applied automatically",
    "name": "server.info.name",
    "version": "server.info.version",
    "get_tools": _MEMORY + "list_tools()",
    "list_tools": "@server.tool above each function; in a test: " + _MEMORY + "list_tools()",
    "call_tool": "@server.tool above each function; in a test: " + _MEMORY + "call_tool(name, arguments)",
    "list_resources": "@server.resource(uri) above each function",
    "read_resource": "@server.resource(uri) above each function; in a test: " + _MEMORY + "read_resource(uri)",
    "list_prompts": "@server.prompt above each function",
    "get_prompt": "@server.prompt above each function; in a test: " + _MEMORY + "get_prompt(name)",
}

CONTEXT_NAMES: Final = {
    **{level: f'ctx.log.{level}("text")' for level in ("debug", "info", "warning", "error")},
    "logger": "ctx.log",
    "send_log_message": 'ctx.log.info("text")',
    "report_progress": "ctx.progress(done, total)",
    "session": "the methods of ctx itself, which belong to this request",
    "request_context": "ctx itself; what the server's lifespan yielded is ctx.lifespan",
    "lifespan_context": "ctx.lifespan",
    "client_id": "ctx.auth, whose principal is the caller",
    "access_token": "ctx.auth",
    "get_http_request": "ctx.headers",
    "request": "ctx.headers and ctx.meta",
    "get_state": "ctx.state.get(key)",
    "set_state": "ctx.state.set(key, value)",
    "read_resource": "the function of the resource, called directly",
    **dict.fromkeys(("fastmcp", "server"), "the server that the file defines"),
    "is_background_task": "ctx.task is not None",
    "cancel_token": "trio's cancel scopes: a cancel of the request is trio.Cancelled at the next await",
}

OPTIONS: Final = {
    "structured_output": "nothing for False, and a return annotation or output_schema for True",
    "exclude_args": "Annotated[Database, Provide(connect)] for values that the model must not pass",
    "dependencies": "Annotated[Database, Provide(connect)]",
    "enabled": "tags=[...], and server.disable(tag)",
    "auth": "scopes=[...]",
    "serializer": "Server(encoders={Class: function})",
    "run_in_thread": "a plain def, which runs in a thread",
    "mimeType": "mime_type",
    "inputSchema": "input_schema",
    "outputSchema": "output_schema",
    "output_type": "a return annotation",
    **dict.fromkeys(
        ("readOnlyHint", "read_only", "read_only_hint"), "annotations=ToolAnnotations(read_only_hint=True)"
    ),
    **dict.fromkeys(("destructiveHint", "destructive"), "annotations=ToolAnnotations(destructive_hint=True)"),
}


def raise_no_attribute(owner: object, name: str, names: Mapping[str, str]) -> NoReturn:
    """Raise the `AttributeError` for a missing attribute of ``owner``.

    If ``names`` contains the attribute, the message contains the code to write instead. If a property itself raised an
    `AttributeError`, raise that error again.
    """
    if hasattr(type(owner), name):
        object.__getattribute__(owner, name)
    words = f"{type(owner).__name__!r} object has no attribute {name!r}"
    if (instead := names.get(name)) is not None:
        words += f"; write {instead}"
    raise AttributeError(words, name=name, obj=owner)


def namespace_of(name: str) -> str | None:
    """Return the name of the public module from which ``name`` can be imported.

    Return `None` if no module has the name.
    """
    modules = (import_module(f"trio_mcp{space}") for space in ("", ".types", ".auth", ".stores", ".hosting"))
    return next((module.__name__ for module in modules if name in module.__all__), None)


def import_for(name: str) -> str:
    """Return the import statement that imports ``name``, which may be a name that another SDK uses."""
    instead = PACKAGE_NAMES.get(name, name)
    return f"from {namespace_of(_first_name(instead)) or 'trio_mcp'} import {instead}"


def _first_name(words: str) -> str:
    return re.split(r"\W", words, maxsplit=1)[0]


def raise_no_name(name: str) -> None:
    """Raise an error, because this package doesn't have the name ``name``.

    If another SDK or another module of this package has the name, the message contains the code to write instead.
    Called by the package's ``__getattr__``.

    In ``from trio_mcp import NAME`` the error is `ImportError`, since Python replaces the message of an
    `AttributeError`. Anywhere else, for example in ``hasattr``, it is `AttributeError`.
    """
    if (instead := PACKAGE_NAMES.get(name)) is not None:
        space = namespace_of(_first_name(instead))
        words = f"trio_mcp has no {name}; write {instead}" + (f" ({space})" if space not in (None, "trio_mcp") else "")
    elif (space := namespace_of(name)) is not None:
        words = f"trio_mcp has no {name}; write from {space} import {name}"
    else:
        return
    caller = sys._getframe(2)  # pyright: ignore[reportPrivateUsage] - that of `__getattr__`
    raise ImportError(words) if caller.f_code.co_name == "_handle_fromlist" else AttributeError(words)


_SERVE_OPTIONS: Final = {
    **dict.fromkeys(("hosts", "host_names"), "allowed_hosts=[...]"),
    **dict.fromkeys(("origins", "cors_origins"), "allowed_origins=[...]"),
    "transport_security": "allowed_hosts=[...], allowed_origins=[...]",
    **dict.fromkeys(("stateless_http", "stateless_mode"), "stateless=True"),
    **dict.fromkeys(("streamable_http_path", "mount_path", "sse_path"), "path=..."),
    **{name: SERVER_OPTIONS[name] for name in ("json_response", "event_store", "middleware", "log_level")},
    **dict.fromkeys(("ssl_certfile", "ssl_keyfile"), "ssl_context=..."),
    "uds": "unix=...",
    "custom_routes": "routes={path: handler}",
}
_OF_LISTENERS: Final = ("ssl_certfile", "ssl_keyfile", "uds", "custom_routes")
_OPEN_OPTIONS: Final = {
    **dict.fromkeys(("timeout", "read_timeout_seconds", "request_timeout", "sse_read_timeout"), "call_timeout=..."),
    **dict.fromkeys(("init_timeout", "open_timeout"), "connect_timeout=..."),
    **dict.fromkeys(("sampling_callback", "sampling_handler"), "sampling=..."),
    **dict.fromkeys(("elicitation_callback", "elicitation_handler"), "elicitation=..."),
    **dict.fromkeys(("list_roots_callback", "roots_handler"), "roots=..."),
    **dict.fromkeys(("logging_callback", "log_handler"), "on_log=..."),
    "message_handler": "on_notification=..., or on_list_changed=...",
    "progress_handler": "client.call_tool(name, arguments, on_progress=...)",
    "client_info": "info=...",
}


_CLOSE: Final = 0.65
"""Minimum similarity of a misspelled option to a known option for a suggestion. 1 means equal."""


def options_of(function: str) -> Mapping[str, str]:
    """Return the options that other MCP SDKs have for the function ``function``, with advice for each: what to write
    with this package instead."""
    if function.startswith("serve_"):
        return _SERVE_OPTIONS
    if function == "http_app":  # `http_app` doesn't listen itself, so omit the options of listening sockets
        return {name: words for name, words in _SERVE_OPTIONS.items() if name not in _OF_LISTENERS}
    return _OPEN_OPTIONS if "open" in function else {}


def raise_no_option(function: str, name: str, names: Mapping[str, str], known: Iterable[str]) -> NoReturn:
    """Raise `TypeError`, because ``function`` doesn't have the option ``name``.

    The message lists the ``known`` options of ``function``.
    """
    options = list(known)
    if name in names:
        instead = f"; write {names[name]}."
    else:
        close = get_close_matches(name, options, 1, _CLOSE)
        instead = f"; did you mean {close[0]}=?" if close else "."
    raise TypeError(f"{function} has no option {name!r}{instead} Its options: {', '.join(options)}")


_LIBRARIES: Final = {
    "aiohttp": "httpx2.AsyncClient, which runs on trio",
    "aiofiles": "trio.open_file, or trio.Path",
    "aiosqlite": "sqlite3 in a handler that is a plain def, which runs in a thread",
    "asyncpg": "psycopg in a handler that is a plain def, which runs in a thread",
    "databases": "its driver in a handler that is a plain def, which runs in a thread",
    "motor": "pymongo in a handler that is a plain def, which runs in a thread",
    "redis": "redis.Redis in a handler that is a plain def, which runs in a thread",
    "sqlalchemy": "a Session in a handler that is a plain def, which runs in a thread",
    "websockets": "trio-websocket, or websockets.trio",
}
_ASYNCIO: Final = {
    "sleep": "trio.sleep",
    **dict.fromkeys(("create_task", "ensure_future"), "ctx.nursery.start_soon, or trio.open_nursery()"),
    **dict.fromkeys(("gather", "wait"), "trio.open_nursery()"),
    **dict.fromkeys(("wait_for", "timeout"), "with trio.fail_after(seconds)"),
    **dict.fromkeys(("to_thread", "run_in_executor"), "trio.to_thread.run_sync"),
    **dict.fromkeys(("create_subprocess_exec", "create_subprocess_shell"), "run_process_tree of trio_mcp"),
    "open_connection": "trio.open_tcp_stream",
    "start_server": "trio.serve_tcp",
}
_OF_ASYNCIO: Final = ("no running event loop", "no current event loop", "should be used inside a task", "inside a task")
_FROM_TRIO: Final = "unrecognized yield message"


def explain(failure: BaseException) -> None:
    """If a known mistake in a handler caused the exception ``failure``, add a note to the exception that says how to
    correct the handler."""
    pending = [failure]
    while pending:
        error = pending.pop()
        if isinstance(error, BaseExceptionGroup):
            pending += cast("BaseExceptionGroup[BaseException]", error).exceptions
        elif (words := _advice_for(error, str(error))) is not None:
            error.add_note(words)


def _advice_for(error: BaseException, said: str) -> str | None:
    if isinstance(error, RuntimeError | TypeError) and (
        _FROM_TRIO in said or any(text in said for text in _OF_ASYNCIO)
    ):
        return _asyncio_advice(error)
    if isinstance(error, TypeError) and _comes_of_await(error):
        return (
            "This cannot be awaited: call ctx.progress, and functions of trio that do not wait, without await; "
            "a function of your own that you await must be an async def."
        )
    if isinstance(error, TypeError) and "unexpected keyword argument" in said and "elicit()" in said:
        return "The form is the second argument: await ctx.elicit(message, Form)"
    if isinstance(error, TypeError) and "coroutine has no JSON form" in said:
        return "An async function was called and not awaited: return await function(...)"
    return None


def _comes_of_await(error: TypeError) -> bool:
    """Return whether an error was raised because a program awaited an object that isn't awaitable.

    This function checks the bytecode instruction that failed, because the error texts differ between interpreters.
    """
    trace = error.__traceback__
    if trace is None:
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    return opname[trace.tb_frame.f_code.co_code[trace.tb_lasti]] == "GET_AWAITABLE"


def _asyncio_advice(error: BaseException) -> str:
    """Return advice for a handler that has called an asyncio function or library.

    The advice says what to write instead.
    """
    used, instead = "asyncio", "a library that runs on trio or anyio"
    trace = error.__traceback__
    while trace is not None:
        name: Any = trace.tb_frame.f_globals.get("__name__", "")
        package = str(name).partition(".")[0]
        function = trace.tb_frame.f_code.co_name
        if package in _LIBRARIES:
            used, instead = package, _LIBRARIES[package]
            break
        if package == "asyncio" and function in _ASYNCIO:
            used, instead = f"asyncio.{function}", _ASYNCIO[function]
            break
        trace = trace.tb_next
    return (
        f"Handlers run on trio, where {used} cannot run: write {instead}. For a library that needs asyncio, run the "
        "handler there: @server.tool(asyncio=True)"
    )
