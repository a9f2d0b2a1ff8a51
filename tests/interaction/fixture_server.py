"""The fixture server of the scenarios, written with the public API alone. Run as a script it serves stdio, or
what its first argument names: ``websocket`` or ``tcp``, on a free port of this machine, which it prints.

Every tool writes what happens to it into a journal, as JSON lines ``{call, tool, event, t}``: ``call`` is the
request's id as the client knows it, ``event`` is ``start``, ``cancelled``, ``finally``, ``end`` or what the tool's
docstring says. The journal is the file named in the environment, and nothing is written without one.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Literal

import msgspec
import trio

import trio_mcp
from trio_mcp import ConnectionLost, Limits, MCPError, RequestContext, Server, ToolError, WorkerContext, serve_stdio
from trio_mcp.types import PromptMessage, TextContent

JOURNAL_VARIABLE = "TRIO_MCP_TEST_JOURNAL"
LIMITS_VARIABLE = "TRIO_MCP_TEST_LIMITS"
"""A JSON object of `Limits` that differ from the fixture's."""

SECRET = "hunter2"  # what no reply may ever contain

_journal_fd = (
    os.open(os.environ[JOURNAL_VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    if JOURNAL_VARIABLE in os.environ
    else None
)


def note(call: Any, tool: str, event: str, **more: Any) -> None:
    """Write one line, in one write, so that lines of several threads never mix."""
    if _journal_fd is not None:
        line = json.dumps({"call": call, "tool": tool, "event": event, "t": time.monotonic(), **more})
        os.write(_journal_fd, line.encode() + b"\n")


def call_of(ctx: RequestContext | WorkerContext) -> Any:
    """The id of the request as its client knows it: behind a proxy it has another one here."""
    return ctx.meta.get("test/call", ctx.request_id)


@contextmanager
def journal(ctx: RequestContext | WorkerContext, tool: str) -> Iterator[None]:
    """``start``, then ``end``, or ``cancelled`` with its cause and reason, and ``finally`` in any case."""
    call = call_of(ctx)
    note(call, tool, "start")
    try:
        yield
    except BaseException as error:
        if isinstance(error, trio.Cancelled) or (
            isinstance(error, BaseExceptionGroup) and error.split(trio.Cancelled)[1] is None
        ):
            why = ctx.cancellation
            note(call, tool, "cancelled", cause=why and why.cause, reason=why and why.reason)
        raise
    else:
        note(call, tool, "end")
    finally:
        note(call, tool, "finally")


@asynccontextmanager
async def lifespan(_: Server) -> AsyncIterator[trio.Nursery]:
    """Yields a nursery for tasks that outlive their request."""
    note(None, "lifespan", "start")
    try:
        async with trio.open_nursery() as nursery:
            yield nursery
            nursery.cancel_scope.cancel()
    finally:
        note(None, "lifespan", "end")


server = Server(
    "fixture",
    "1.0.0",
    lifespan=lifespan,
    limits=Limits(**{"drain_timeout": 1.0, "cleanup_grace": 1.0, **json.loads(os.environ.get(LIMITS_VARIABLE, "{}"))}),
)


@server.tool
async def echo(text: str) -> str:
    """The text, unchanged."""
    return text


@server.tool
async def sleep(ms: float, ctx: RequestContext) -> str:
    """Sleep, and say so."""
    with journal(ctx, "sleep"):
        await trio.sleep(ms / 1000)
    return f"slept {ms:g}"


async def made(file: str) -> None:
    """Wait until there is such a file. A test can make one when nothing more can be said over the wire."""
    while not os.path.exists(file):  # noqa: ASYNC110, ASYNC240 - files cannot be waited for, only looked at
        await trio.sleep(0.005)


@server.tool
async def hold(file: str, ctx: RequestContext) -> str:
    """Go on until there is such a file."""
    with journal(ctx, "hold"):
        await made(file)
    return "let go"


@server.tool
async def stubborn(ms: float, ctx: RequestContext, then: Literal["return", "raise"] = "return") -> str:
    """Swallow the cancel, then return or raise."""
    try:
        with journal(ctx, "stubborn"):
            await trio.sleep(ms / 1000)
    except trio.Cancelled:
        if then == "raise":
            raise ValueError(f"not now, {SECRET}") from None
        return "I was not cancelled"
    return "nobody cancelled me"


@server.tool
async def cleanup(ctx: RequestContext, ms: float = 0, until: str | None = None, child: bool = False) -> str:
    """Wait for ever; clean up for ``ms``, or until there is a file ``until``, in a shielded scope. ``child``: own a
    process (event ``child``)."""
    process = None
    with journal(ctx, "cleanup"):
        if child:
            process = await trio.lowlevel.open_process(["sleep", "1000"], stdout=subprocess.DEVNULL)
            note(call_of(ctx), "cleanup", "child", pid=process.pid)
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                note(call_of(ctx), "cleanup", "cleaning")
                if until is None:
                    await trio.sleep(ms / 1000)
                else:
                    await made(until)
                if process is not None:
                    process.kill()
                    await process.wait()
    return "never"


@server.tool
def thread_sleep(ms: float, ctx: WorkerContext) -> str:
    """Wait in a thread until the time is over or the cancelled flag is set (event ``flag``)."""
    with journal(ctx, "thread_sleep"):
        if ctx.cancelled.wait(ms / 1000):
            note(call_of(ctx), "thread_sleep", "flag", thread=threading.get_ident())
    return f"slept {ms:g}"


@server.tool
def print_much(ctx: WorkerContext) -> str:
    """Print in a thread more than a pipe takes."""
    with journal(ctx, "print_much"):
        for _ in range(1000):
            print("x" * 1000)
    return "printed"


@server.tool
async def progress(
    values: list[int | float | str], ctx: RequestContext, step_ms: float = 0, total: float | None = None
) -> str:
    """Report each value; strings such as ``"NaN"`` are read as numbers."""
    sent = 0
    with journal(ctx, "progress"):
        for value in values:
            number = float(value) if isinstance(value, str) else value
            sent += ctx.progress(number, total, message=f"at {value}")
            await trio.sleep(step_ms / 1000)
    return f"sent {sent}"


@server.tool
async def late_progress(ms: float, then: Literal["return", "raise", "wait"], ctx: RequestContext) -> str:
    """End in some way, and report progress ``ms`` later from a task that lives on (event ``late``)."""
    background: trio.Nursery = ctx.lifespan

    async def report() -> None:
        await over.wait()
        await trio.sleep(ms / 1000)
        note(call_of(ctx), "late_progress", "late", sent=ctx.progress(99))
        await ctx.log.emergency("late")
        note(call_of(ctx), "late_progress", "later")

    over = trio.Event()
    background.start_soon(report)
    ctx.progress(1)
    try:
        with journal(ctx, "late_progress"):
            if then == "wait":
                await trio.sleep_forever()
            if then == "raise":
                raise ToolError("as you wish")
    finally:
        over.set()
    return "over"


@server.tool
async def ask(kind: Literal["sampling", "elicitation", "url", "roots"], ctx: RequestContext, n: int = 1) -> list[str]:
    """Ask the client ``n`` times at once. One text for each: the answer, or the error's type, code and text.
    Errors are journaled as ``raised``."""

    async def one(place: int) -> None:
        try:
            match kind:
                case "sampling":
                    answer = await ctx.sample(f"question {place}", max_tokens=10)
                    answers[place] = f"{answer.role}: {answer.content}"
                case "elicitation":
                    answers[place] = repr(await ctx.elicit(f"question {place}", Form))
                case "url":
                    answers[place] = repr(await ctx.elicit_url("go", "https://example.org/", f"e{place}"))
                case "roots":
                    answers[place] = " ".join(root.uri for root in await ctx.list_roots())
        except MCPError as error:
            note(call_of(ctx), "ask", "raised", error=type(error).__name__, place=place)
            code = "" if isinstance(error, ConnectionLost) else getattr(error, "code", "")
            answers[place] = f"{type(error).__name__} {code}: {error}"

    answers = [""] * n
    with journal(ctx, "ask"):
        async with trio.open_nursery() as nursery:
            for place in range(n):
                nursery.start_soon(one, place)
    return answers


class Form(msgspec.Struct):
    """What `ask` asks for."""

    name: str
    age: int = 0


class Odd(BaseException):
    """No `Exception`."""


@server.tool
async def fail(
    kind: Literal["value_error", "group", "exit", "stop_iteration", "recursion", "expired", "tool_error", "base"],
) -> str:
    """Fail in some way; ``expired``: a time limit inside is over, which is no failure."""
    match kind:
        case "value_error":
            raise ValueError(f"the password is {SECRET}")
        case "group":
            raise ExceptionGroup(f"two of {SECRET}", [ValueError(SECRET), KeyError(SECRET)])
        case "exit":
            sys.exit(f"bye {SECRET}")
        case "stop_iteration":
            raise StopIteration(SECRET)
        case "recursion":
            return await fail("recursion")
        case "expired":
            with trio.move_on_after(0.01):
                await trio.sleep_forever()
            return "survived"
        case "tool_error":
            raise ToolError("the disk is full")
        case "base":
            raise Odd(SECRET)


@server.tool
async def big(count: int) -> str:
    """A text of ``count`` bytes."""
    return "x" * count


@server.tool
async def flood(kind: Literal["progress", "log"], n: int, ctx: RequestContext) -> str:
    """``n`` progress values or log messages, as fast as they go."""
    with journal(ctx, "flood"):
        for number in range(1, n + 1):
            if kind == "progress":
                ctx.progress(number, n)
                if number % 100 == 0:
                    await trio.lowlevel.checkpoint()
            else:
                await ctx.log.info({"number": number, "padding": "x" * 200})
    return f"sent {n}"


@server.tool
async def spawn(ctx: RequestContext) -> int:
    """Start a grandchild that outlives the call; its process id."""
    process = await trio.lowlevel.open_process(["sleep", "1000"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    note(call_of(ctx), "spawn", "child", pid=process.pid)
    return process.pid


@server.tool
async def dirty() -> str:
    """Write to standard output in every way there is; what a child could read of standard input."""
    print("printed", flush=True)
    os.write(1, b"written\n")
    sys.stdout.buffer.write(b"buffered")  # flushed at exit
    await trio.run_process(["sh", "-c", "echo from a child; echo and once more >&1"])
    child = await trio.run_process(["cat"], stdin=None, capture_stdout=True)
    return f"read {child.stdout!r} and {sys.stdin.read()!r}"


class Foreign:
    """What nothing can serialise."""


@server.tool
async def weird(
    kind: Literal["surrogate", "nan", "infinity", "separators", "object", "control"],
    ctx: RequestContext,
    through: Literal["result", "log", "progress"] = "result",
) -> Any:
    """Send a value that is hard to put on the wire; an error of the log is journaled as ``raised``."""
    value: Any = {
        "surrogate": "\ud800",
        "nan": {"value": float("nan")},
        "infinity": {"value": float("inf")},
        "separators": "\u2028\u2029\x85\x0b\x0c end",
        "object": Foreign(),
        "control": "\x00\x01\r\n\t",
    }[kind]
    if through == "log":
        try:
            await ctx.log.error(value)
        except MCPError as error:
            note(call_of(ctx), "weird", "raised", error=type(error).__name__)
        return "logged"
    if through == "progress":
        ctx.progress(1, message=value if isinstance(value, str) else "no text")
        return "reported"
    return value


@server.tool
async def log_all(ctx: RequestContext) -> str:
    """One message of every level, least severe first, then one with a logger's name."""
    for level in ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"):
        await getattr(ctx.log, level)(level)
    await ctx.log.emergency({"with": "a name"}, logger="fixture")
    return "logged"


@server.tool
async def chatter(n: int, ctx: RequestContext) -> str:
    """Alternate progress and log messages, then wait for the cancel."""
    with journal(ctx, "chatter"):
        for number in range(1, n + 1):
            ctx.progress(number)
            await ctx.log.emergency(number)
        note(call_of(ctx), "chatter", "said")
        await trio.sleep_forever()
    return "never"


_began: list[int] = []
_together = trio.Event()


async def tell(n: int, step: int, ctx: RequestContext) -> None:
    """Progress and logs that name ``n``."""
    ctx.progress(step, message=str(n))
    for level in ("debug", "warning", "emergency"):
        await ctx.log.log(level, {"n": n, "step": step, "level": level})


def account_of(n: int, ctx: RequestContext) -> dict[str, Any]:
    """All that the request says of itself."""
    return {
        "n": n,
        "id": call_of(ctx),
        "revision": ctx.revision.name,
        "supports": [name for name in ("elicitation", "roots", "sampling") if ctx.client_supports(name)],
        "token": ctx.meta.get("progressToken"),
        "trace": ctx.trace and ctx.trace.trace_id,
    }


@server.tool
async def account(n: int, together: int, ctx: RequestContext) -> dict[str, Any]:
    """Tell the client things named ``n``, wait until ``together`` calls have begun, tell it more and all of itself."""
    await tell(n, 1, ctx)
    _began.append(n)
    if len(_began) == together:
        _together.set()
    await _together.wait()
    await tell(n, 2, ctx)
    return account_of(n, ctx)


@server.tool
async def confer(n: int, ctx: RequestContext) -> dict[str, Any]:
    """Ask the client for what belongs to ``n``, then tell it things named ``n`` and all of itself."""
    note(n, "confer", "asks")
    answer = await ctx.sample(f"{n}", max_tokens=1)
    await tell(n, 2, ctx)
    return {**account_of(n, ctx), "answer": answer.model}


@server.tool
async def publish(
    changes: list[str], ctx: RequestContext, n: int = 1, then: Literal["return", "end"] = "return"
) -> str:
    """``n`` times over, one change of each: ``tools`` and ``prompts`` are lists, all else is the URI of a resource.
    ``end``: and then the signal that ends this process, before anything else of it runs."""
    with journal(ctx, "publish"):
        for number in range(n):
            for change in changes:
                if change == "tools":
                    server.tool(name=f"made-{number}")(text)
                    server.remove_tool(f"made-{number}")
                elif change == "prompts":
                    server.prompt(name=f"made-{number}")(text)
                    server.remove_prompt(f"made-{number}")
                else:
                    server.resource_updated(change)
            if then == "return":
                await trio.lowlevel.checkpoint()
        if then == "end":
            os.kill(os.getpid(), signal.SIGTERM)
    return "published"


@server.tool
async def tasks() -> int:
    """How many tasks this process has."""
    return trio.lowlevel.current_statistics().tasks_living


@server.resource("fixture://text")
async def text() -> str:
    """A resource."""
    return "text"


@server.resource("fixture://note/{name}")
async def paper(name: str) -> str:
    """Many resources."""
    return name


@server.prompt
async def greet(name: str) -> list[PromptMessage]:
    """A prompt."""
    return [PromptMessage("user", TextContent(f"Say hello to {name}."))]


async def serve(transport: str) -> None:
    """Serve over ``transport`` until the end of input or a signal."""
    if transport == "stdio":
        await serve_stdio(server)
        return
    gc.freeze()  # as serve_stdio does: the interpreter's own end takes a tenth of a second less
    if transport == "http+unix":
        with tempfile.TemporaryDirectory(prefix="mcp-", dir="/tmp") as folder:
            path = f"{folder}/mcp.sock"
            async with trio.open_nursery() as nursery:
                await nursery.start(partial(trio_mcp.serve_http, server, unix=path))
                print(path, flush=True)
        return
    listen = getattr(trio_mcp, f"serve_{transport}")  # imported now: a server over stdio starts without
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(listen, server, port=0))
        print(listener.socket.getsockname()[1], flush=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    # Started from a shell's background, SIGINT would be ignored; Python's own default is what users have.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    trio.run(serve, *(sys.argv[1:] or ["stdio"]))
