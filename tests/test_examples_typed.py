"""A strict type checker finds nothing wrong with the examples of any page."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.pages import ROOT, USER_PAGES, examples_in

SOURCE = ROOT / "src" / "trio_mcp"
EXAMPLES = {name: code for page in USER_PAGES for name, code in examples_in(page.read_text()).items()}
BEFORE_DOCSTRINGS = """# pyright: basic, reportUndefinedVariable=false, reportReturnType=false
# pyright: reportOptionalMemberAccess=false, reportWildcardImportFromLibrary=false
# {place}
import os, sys, trio
from contextlib import asynccontextmanager
from typing import Annotated, Any
from trio_mcp import *
from trio_mcp.auth import *
from trio_mcp.hosting import *
from trio_mcp.stores import *
from trio_mcp.testing import *
from trio_mcp.types import *
from starlette.applications import Starlette
from starlette.routing import Mount, Route
server: Server
client: Client
async def example(ctx: RequestContext):
"""
"""What stands before an example of a docstring. Names that an example doesn't define aren't checked."""
LIMIT = 150
"""Seconds after which the type checker hangs; no measure of speed."""


def examples_in_docstrings() -> Iterator[tuple[str, str]]:
    """Each indented block of a docstring that calls or assigns something, with the place of the docstring."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                for block in re.findall(r"(?:^|\n\n)((?:    .*\n?|\n)+)", ast.get_docstring(node) or ""):
                    if re.search("[(=]", block):
                        name = getattr(node, "name", "module")
                        yield f"{path.relative_to(SOURCE)}, {name}", block.rstrip()


def docstring_files() -> dict[str, str]:
    files: dict[str, str] = {}
    for place, block in examples_in_docstrings():
        end = "\n        ..." if block.endswith(":") else ""
        files[f"example_{len(files)}.py"] = BEFORE_DOCSTRINGS.format(place=place) + block + end + "\n"
    return files


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where mypy keeps what it knows of this package and of others, for all tests of this module."""
    return tmp_path_factory.mktemp("mypy")


@pytest.fixture(scope="module")
def checked_by_pyright(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What pyright reports for the examples of all pages, and for each of the files below. One run checks all of them,
    since most of its time is the start."""
    pytest.importorskip("pyright", reason="needs the type checker: pip install -e '.[dev]'")
    project = tmp_path_factory.mktemp("pyright")
    folders = {"pages": {file: f"# {file}\n{code}" for file, code in EXAMPLES.items()}}
    folders["docstrings"] = docstring_files()
    folders |= {name: {"handler.py": code} for name, code in OWN.items()}
    for name, files in folders.items():
        (project / name).mkdir()
        for file, code in files.items():
            (project / name / file).write_text(code)
    roots = [{"root": name, "extraPaths": [name]} for name in folders]
    settings = {"typeCheckingMode": "strict", "executionEnvironments": roots}
    (project / "pyrightconfig.json").write_text(json.dumps(settings))
    checked = subprocess.run(
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--project", str(project), "--outputjson"],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    report = json.loads(checked.stdout)
    assert report["summary"]["filesAnalyzed"] == sum(map(len, folders.values()))
    found: dict[str, list[str]] = {name: [] for name in folders}
    for fault in report["generalDiagnostics"]:
        folder, _, file = Path(fault["file"]).relative_to(project).as_posix().partition("/")
        found[folder].append(f"{file}:{fault['range']['start']['line'] + 1}: {fault['message']}")
    return found


def test_pyright_strict_accepts_the_documented_examples(
    checked_by_pyright: dict[str, list[str]],
) -> None:
    found = [
        f"{page}/{fault}"
        for page, faults in checked_by_pyright.items()
        if page not in {*OWN, "docstrings"}
        for fault in faults
    ]
    assert not found, "\n".join(found)


def test_pyright_accepts_the_calls_in_docstring_examples(
    checked_by_pyright: dict[str, list[str]],
) -> None:
    assert len(docstring_files()) > 40
    assert checked_by_pyright["docstrings"] == []


def test_mypy_strict_accepts_the_documented_and_packaged_examples(tmp_path: Path, cache: Path) -> None:
    pytest.importorskip("mypy", reason="needs the type checker: pip install -e '.[dev]'")
    for name, code in EXAMPLES.items():
        (tmp_path / name).write_text(code)
    runs: list[tuple[Path, list[str]]] = [(ROOT, ["examples"]), (tmp_path, sorted(EXAMPLES))]
    for folder, names in runs:
        mypy = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(cache), *names]
        checked = subprocess.run(mypy, cwd=folder, capture_output=True, text=True, timeout=LIMIT, check=False)
        assert checked.returncode == 0, f"{folder.name}: {checked.stdout}{checked.stderr}"


WITH_THREADS = """
from typing import assert_type

from trio_mcp import WorkerContext
from trio_mcp.types import CreateMessageResult, ElicitAnswer, Root, TaskState


def handler(ctx: WorkerContext) -> None:
    assert_type(ctx.request_id, int | str)
    assert_type(ctx.progress(1, message="half"), bool)
    assert_type(ctx.log.info("text"), None)
    assert_type(ctx.elicit("Name?", {}, task_ttl=1.0), ElicitAnswer)
    assert_type(ctx.sample("Hello", max_tokens=1, temperature=0.5), CreateMessageResult)
    assert_type(ctx.send_request("roots/list", None, dict[str, int]), dict[str, int])
    assert_type(ctx.list_roots(), list[Root])
    if ctx.task is not None and ctx.caller_tasks is not None:
        assert_type(ctx.task.ttl, float | None)
        assert_type(ctx.task.checkpoint(1), None)
        assert_type(ctx.caller_tasks.get_task(ctx.task.id), TaskState)
    ctx.elicit()
"""


def test_type_checker_reports_an_attribute_that_worker_context_lacks(checked_by_pyright: dict[str, list[str]]) -> None:
    (fault,) = checked_by_pyright["threads"]
    place, _, message = fault.partition(": ")
    assert "message" in message
    assert place == f"handler.py:{WITH_THREADS.count(chr(10))}"


WITH_LIFESPAN = """
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any, assert_type

from pydantic import BaseModel, Field
from trio_mcp import File, Image, RequestContext, Server, WorkerContext


class Database:
    def rows(self) -> int:
        return 3


class Frame:
    pass


class Guest(BaseModel):
    name: str


def encoded(frame: Frame) -> list[dict[str, Any]]:
    return []


@asynccontextmanager
async def connect(server: Server) -> AsyncGenerator[Database, None]:
    yield Database()


server = Server("typed", lifespan=connect, encoders={Frame: encoded})


@server.tool
async def count(ctx: RequestContext[Database], least: Annotated[int, Field(ge=1)] = 1) -> int:
    assert_type(ctx.lifespan, Database)
    answer = await ctx.elicit("Who?", Guest)
    assert_type(answer.as_(Guest), Guest | None)
    return ctx.lifespan.rows()


@server.tool
def count_in_a_thread(ctx: WorkerContext[Database]) -> list[str | Image | File]:
    assert_type(ctx.lifespan, Database)
    return [str(ctx.lifespan.rows()), Image("chart.png"), File(b"", name="a.csv")]


@server.tool
async def as_ever(ctx: RequestContext) -> None:
    assert_type(ctx.lifespan, Any)
    await also(ctx)


async def also(ctx: RequestContext[Database]) -> None:
    ctx.lifespan.columns()
"""


EACH_DECORATOR = """
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from enum import Enum
from typing import Annotated, Any, assert_type

from trio_mcp import (
    Client,
    InputRequired,
    Next,
    Provide,
    RequestContext,
    Server,
    ServerRequest,
    WorkerContext,
    aio,
    blocking,
    gateway,
    open_memory,
    rate_limit,
)
from trio_mcp.hosting import MemberDescription, open_group
from trio_mcp.types import CallToolResult, ElicitAnswer, GetPromptResult, InputRequest, ReadResourceResult

server, other = Server("all"), Server("other")


class Colour(Enum):
    RED = "red"


async def user(ctx: RequestContext) -> str:
    return "guest"


@asynccontextmanager
async def connection() -> AsyncGenerator[dict[str, int]]:
    yield {}


@server.tool
async def plain(number: int) -> int:
    return number


@server.tool(tags=["slow"], task="optional", on_restart="again", timeout=3.0, visible=lambda auth: auth is not None)
async def with_options(
    ctx: RequestContext, who: Annotated[str, Provide(user)], rows: Annotated[dict[str, int], Provide(connection)]
) -> list[str]:
    answer = await ctx.elicit("Which?", Colour)
    assert_type(answer, ElicitAnswer)
    return [who, *rows]


@server.tool
def in_a_thread(ctx: WorkerContext, text: str) -> str | InputRequired:
    ctx.progress(1)
    return InputRequired({"roots": InputRequest("roots/list")}) if text else "nothing"


@server.resource("note://{name}", mime_type="text/plain")
async def note(name: str) -> str | ReadResourceResult:
    return name


@server.prompt
def greet(name: str) -> str:
    return f"Greet {name}."


@server.prompt(title="Greeting", scopes=["greet"])
async def greet_well(name: str) -> GetPromptResult:
    return GetPromptResult([])


@server.completion(prompt="greet", argument="name")
async def names(value: str) -> list[str]:
    return [value]


@server.middleware
async def always(request: ServerRequest, next: Next) -> Any:
    return await next(request)


@server.middleware("tools/call")
async def calls(request: ServerRequest, next: Next) -> Any:
    return await next(request)


server.middleware("tools/call")(rate_limit(3, period=1.0))
server.mount(other, prefix="other")
server.searchable(pinned=["plain"])
assert_type(plain, "Callable[[int], Any]")  # fails here: a decorator leaves the function as it is


async def host(client: Client) -> None:
    result = await client.call_tool("plain", {"number": 1})
    assert_type(result, CallToolResult)
    assert_type(result.as_(int), int)
    assert_type(result.as_(dict[str, list[int]]), dict[str, list[int]])
    async with open_group({}) as group, open_memory(gateway(group)) as at_the_gateway:
        assert_type(at_the_gateway, Client)
        assert_type((await group.call_tool("a__b")).text, str)


async def asyncio_host() -> None:
    async with aio.open_memory(server) as client, aio.open_group() as group:
        assert_type((await client.call_tool("plain")).as_(int), int)
        assert_type(client.resume_task("1"), aio.RunningTask)
        group.add("files", MemberDescription("https://example.com/mcp"))


def script() -> None:
    with blocking.open_memory(server) as client, blocking.open_group() as group:
        assert_type(client.call_tool("plain").as_(int), int)
        assert_type(group.resume_task("1"), blocking.GroupTask)
        group.add("files", MemberDescription("https://example.com/mcp"))
"""


OWN = {"threads": WITH_THREADS, "decorators": EACH_DECORATOR, "lifespan": WITH_LIFESPAN}
"""Files of users, by the names of their folders, in each of which a type checker finds what it should."""

CHECKERS = pytest.mark.parametrize("checker", ["checked_by_pyright", "checked_by_mypy"])


@pytest.fixture(scope="module")
def checked_by_mypy(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> dict[str, list[str]]:
    """What mypy says of each file of a user, by the name of its folder."""
    pytest.importorskip("mypy", reason="needs the type checker: pip install -e '.[dev]'")
    project = tmp_path_factory.mktemp("mypy of users")
    names = [name for name in OWN if name != "threads"]
    for name in names:
        (project / f"{name}.py").write_text(OWN[name])
    mypy = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(cache), *(f"{name}.py" for name in names)]
    checked = subprocess.run(mypy, cwd=project, capture_output=True, text=True, timeout=LIMIT, check=False)
    faults = [line for line in checked.stdout.splitlines() if " error:" in line]
    return {name: [line for line in faults if line.startswith(f"{name}.py:")] for name in names}


@CHECKERS
def test_type_checkers_infer_the_types_of_decorated_functions_and_calls(
    request: pytest.FixtureRequest, checker: str
) -> None:
    faults: list[str] = request.getfixturevalue(checker)["decorators"]
    line = 1 + EACH_DECORATOR[: EACH_DECORATOR.index("assert_type(plain")].count("\n")
    assert faults
    assert all(f".py:{line}:" in fault for fault in faults), "\n".join(faults)


@CHECKERS
def test_type_checkers_infer_the_type_yielded_by_the_lifespan(request: pytest.FixtureRequest, checker: str) -> None:
    faults: list[str] = request.getfixturevalue(checker)["lifespan"]
    place = f":{WITH_LIFESPAN.count(chr(10))}:"
    assert faults
    assert all("columns" in line and place in line for line in faults), "\n".join(faults)
