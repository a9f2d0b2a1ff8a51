"""Names of other SDKs: what authors who come from them look for, and what to write here instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NoReturn

SERVER_NAMES: Final = {
    "run": "trio.run(serve_stdio, server), or trio-mcp run FILE",
    "run_async": "await serve_stdio(server), or await serve_http(server, port=8000)",
    "run_stdio_async": "await serve_stdio(server)",
    "run_http_async": "await serve_http(server, port=8000)",
    "run_streamable_http_async": "await serve_http(server, port=8000)",
    "streamable_http_app": "http_app(server)",
    "http_app": "http_app(server), which is a function",
    "add_tool": "server.tool(function)",
    "add_resource": "server.resource(uri)(function)",
    "add_prompt": "server.prompt(function)",
    "list_tools": "async with open_memory(server) as client, and client.list_tools()",
    "call_tool": "async with open_memory(server) as client, and client.call_tool(name, arguments)",
}

CONTEXT_NAMES: Final = {
    **{level: f'ctx.log.{level}("text")' for level in ("debug", "info", "warning", "error")},
    "report_progress": "ctx.progress(done, total)",
    "session": "the methods of ctx itself, which belong to this request",
    "request_context": "ctx itself; what the server's lifespan yielded is ctx.lifespan",
    "client_id": "ctx.auth, whose principal is the caller",
    "fastmcp": "the server that the file defines",
}

_OPTIONS: Final = {
    "tags": 'meta={"tags": [...]}',
    "structured_output": "a return annotation, or output_schema",
    "exclude_args": "Server(lifespan=...) and ctx.lifespan for what the model must not give",
}


def look_up(owner: object, name: str, names: Mapping[str, str]) -> NoReturn:
    """Raise the `AttributeError` for what ``owner`` does not have, with what to write where ``names`` knows it. A
    property that failed by an `AttributeError` of its own raises that again."""
    if hasattr(type(owner), name):
        object.__getattribute__(owner, name)
    words = f"{type(owner).__name__!r} object has no attribute {name!r}"
    if (instead := names.get(name)) is not None:
        words += f"; write {instead}"
    raise AttributeError(words, name=name, obj=owner)


class ContextNames:
    """A context, which tells authors who come from other SDKs what to write instead of what the context lacks."""

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers know what there is

        def __getattr__(self, name: str) -> NoReturn:
            look_up(self, name, CONTEXT_NAMES)


def unknown_option(decorator: str, name: str, known: Iterable[str]) -> TypeError:
    """Return the error for a keyword that ``decorator`` does not take, with those that it does."""
    instead = f"; write {_OPTIONS[name]}" if name in _OPTIONS else ""
    return TypeError(f"{decorator} has no option {name!r}{instead}. Its options: {', '.join(sorted(known))}")
