"""``python -m benchmarks.structure`` prints how large the package is, and how many functions a message passes.

Code lines hold more than a blank, a comment or a docstring. The functions and files of a path are those of trio-mcp
that one passage enters or resumes in this process, after all that is done once was done.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import trio
import trio.testing
from trio.testing import MockClock

import trio_mcp

from .budget.paths import CLIENT_PATHS, HTTP_PATHS, SERVER_PATHS, served, served_over_http, start_waiting, used
from .driver import messages as driver_messages
from .tasks import messages as task_messages
from .tasks.lines import open_lines

_PACKAGE = Path(trio_mcp.__file__).parent
_LONG_FUNCTION = 45
_MANY_PARAMETERS = 9
_FOR_USERS = {"Fetcher"}
"""Protocols with one implementation in the package, which users may give another: ``JWTVerifier(fetcher=...)``."""


class _Source:
    """One file of the package."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = path.read_text()
        self.tree = ast.parse(self.text)
        self.lines = self.text.count("\n")
        self.code = self._code_lines()
        self.imports = len(self.code & set(self._import_lines()))

    def _code_lines(self) -> set[int]:
        prose = {
            line
            for node in ast.walk(self.tree)
            for body in [getattr(node, "body", None)]
            if isinstance(body, list)
            for each in body
            if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) and isinstance(each.value.value, str)
            for line in range(each.lineno, (each.end_lineno or each.lineno) + 1)
        }
        numbered = enumerate(self.text.split("\n"), 1)
        return {n for n, line in numbered if line.strip() and not line.lstrip().startswith("#") and n not in prose}

    def _import_lines(self) -> Iterator[int]:
        for node in ast.walk(self.tree):
            match node:
                case ast.Import() | ast.ImportFrom() | ast.Assign(targets=[ast.Name("__all__")]):
                    yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)
                case ast.If(test=ast.Name("TYPE_CHECKING")):
                    yield node.lineno
                case _:
                    pass

    def classes(self) -> Iterator[ast.ClassDef]:
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef))

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def _sources() -> list[_Source]:
    return [_Source(path) for path in [*sorted(_PACKAGE.rglob("*.py")), _PACKAGE.parent / "pytest_trio_mcp.py"]]


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    arguments = function.args
    named = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len(named) - (named[:1] in (["self"], ["cls"]))


def _members(node: ast.ClassDef) -> set[str]:
    found = {each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    found |= {
        each.target.id for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    return found


def _is_protocol(node: ast.ClassDef) -> bool:
    return any("Protocol" in ast.unparse(base).partition("[")[0].split(".") for base in node.bases)


def _lonely_protocols(sources: Iterable[_Source]) -> list[str]:
    """Names of protocols whose members one class of the package has, or none but by its own attributes."""
    classes = [node for source in sources for node in source.classes()]
    own = {node.name: node for node in classes}

    def members(node: ast.ClassDef, seen: frozenset[str] = frozenset()) -> set[str]:
        found = _members(node)
        found |= {
            target.attr
            for each in ast.walk(node)
            if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)
            for target in [each]
        }
        for base in node.bases:
            name = ast.unparse(base).partition("[")[0].rpartition(".")[2]
            if name in own and name not in seen:
                found |= members(own[name], seen | {name})
        return found

    full = {id(node): members(node) for node in classes}
    functions = {name for source in sources for name in (f.name for f in source.functions())}
    lonely = []
    for node in classes:
        if not _is_protocol(node) or node.name in _FOR_USERS:
            continue
        wanted = {each for each in _members(node) if each != "__call__"}
        if not wanted:  # a callback: what has its parameters is a function
            continue
        fitting = [each for each in classes if not _is_protocol(each) and wanted <= full[id(each)]]
        if len(fitting) <= 1 and functions:
            lonely.append(f"{node.name} ({', '.join(each.name for each in fitting) or 'none here'})")
    return sorted(lonely)


def _size() -> None:
    sources = _sources()
    code, imports = sum(len(each.code) for each in sources), sum(each.imports for each in sources)
    names = Counter(node.name for source in sources for node in source.classes())
    twice = sorted(name for name, count in names.items() if count > 1)
    longest = sorted(sources, key=lambda each: -each.lines)[:5]
    functions = [(source, each) for source in sources for each in source.functions()]
    long = [
        f"{source.path.relative_to(_PACKAGE.parent)}:{each.name}"
        for source, each in functions
        if len(source.code & set(range(each.lineno, (each.end_lineno or 0) + 1))) > _LONG_FUNCTION
    ]
    many = [f"{source.path.name}:{each.name}" for source, each in functions if _parameters(each) > _MANY_PARAMETERS]
    lonely = _lonely_protocols(sources)
    print(f"files: {len(sources)}; lines: {sum(each.lines for each in sources):,}; code lines: {code:,}")
    print(f"imports and __all__: {imports:,} lines, {imports / code:.1%} of the code")
    print("longest files:", ", ".join(f"{each.path.relative_to(_PACKAGE.parent)} {each.lines}" for each in longest))
    print(f"functions over {_LONG_FUNCTION} code lines: {len(long)}", *long, sep="\n  ")
    print(f"functions with more than {_MANY_PARAMETERS} parameters: {len(many)}", *many, sep="\n  ")
    print(f"protocols with one implementation at most: {len(lonely)}", *lonely, sep="\n  ")
    print(f"class names that exist twice: {len(twice)}", *twice, sep="\n  ")


# What a message passes


@contextmanager
def _passing() -> Iterator[set[tuple[str, int, str]]]:
    """Collect the functions of the package that this thread enters or resumes inside."""
    passed: set[tuple[str, int, str]] = set()
    package = str(_PACKAGE)

    def entered(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(package) and not code.co_name.startswith("<"):
            passed.add((code.co_filename, code.co_firstlineno, code.co_name))

    before = sys.getprofile()
    sys.setprofile(entered)
    try:
        yield passed
    finally:
        sys.setprofile(before)


async def _show(name: str, run: Callable[[int], Awaitable[None]], *, by_name: bool) -> None:
    await run(3)
    with _passing() as passed:
        await run(1)
    print(f"{name}: {len(passed)} functions in {len({file for file, _, _ in passed})} files")
    if by_name:
        for file, line, function in sorted(passed):
            print(f"    {Path(file).relative_to(_PACKAGE)}:{line} {function}")


async def _paths(*, by_name: bool) -> None:
    for name, path in SERVER_PATHS.items():
        async with served() as stream:
            await _show(name, partial(path, stream), by_name=by_name)
    async with served() as stream:
        waiting = await start_waiting(stream, 4)

        async def cancel(count: int) -> None:
            for _ in range(count):
                stream.give(driver_messages.cancel(waiting.pop()))
                await trio.testing.wait_all_tasks_blocked()

        await _show("a cancel alone, with its unwinding", cancel, by_name=by_name)
    async with served_over_http() as (modern, legacy):
        for name, path in HTTP_PATHS.items():
            await _show(f"POST, modern: {name}", partial(path, modern), by_name=by_name)
            await _show(f"POST, session: {name}", partial(path, legacy), by_name=by_name)
    for name, path in CLIENT_PATHS.items():
        rows: list[str] = []
        async with used(rows) as (stream, client):
            await _show(name, partial(path, stream, client, rows), by_name=by_name)
    async with open_lines("extension") as lines:

        async def run_task(count: int) -> None:
            for _ in range(count):
                task_id = await lines.start("echo_later")
                get = partial(task_messages.request, "extension", method="tasks/get", params={"taskId": task_id})
                await lines.ask(get)

        await _show("a task, from its call to its kept result, and one look", run_task, by_name=by_name)
        ended = await lines.start("echo_later")
        get = partial(task_messages.request, "extension", method="tasks/get", params={"taskId": ended})

        async def look(count: int) -> None:
            await lines.ask(get, count)

        await _show("tasks/get", look, by_name=by_name)


def main(arguments: list[str]) -> None:
    """See the module. ``--names`` also prints the functions of each path."""
    _size()
    trio.run(partial(_paths, by_name="--names" in arguments), clock=MockClock())


if __name__ == "__main__":
    main(sys.argv[1:])
