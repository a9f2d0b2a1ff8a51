"""``python -m benchmarks.structure`` prints how large the package is, and how many functions a message passes.

Each figure is better when it is smaller. ``--check`` fails when one is larger than the last one that was recorded, in
``structure.json`` beside this file, and ``--record`` records them all. ``--names`` also prints what was counted: the
functions that are too long, for example, and the functions of each path.

Code lines hold more than a blank, a comment or a docstring. The functions and files of a path are those of trio-mcp
that one passage enters or resumes in this process, after all that is done once was done.
"""

from __future__ import annotations

import ast
import json
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

__all__ = ["Figures", "main", "measure", "worse"]

_FILE = Path(__file__).with_suffix(".json")
_PACKAGE = Path(trio_mcp.__file__).parent
_FLEET = "fleet"
"""The package of what several processes of one server share."""
_VAGUE = {"take", "end", "tell", "told", "keep", "note", "begin"}
"""Names that trio has no function of: they do not say what happens to what."""
_LONG_FUNCTION = 45
_MANY_PARAMETERS = 9
_PASSAGES = 60
"""Passages of which the shortest one counts: trio runs ready tasks in either order, and some orders are rare."""
_FOR_USERS = {"Fetcher", "StorageCounters"}
"""Protocols with one implementation in the package, which users may give another: ``JWTVerifier(fetcher=...)``."""


class _Source:
    """One file of the package."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = path.read_text()
        self.nodes = _nodes_in(ast.parse(self.text))
        self.assigned = [
            node for node in self.nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        ]
        self.lines = self.text.count("\n")
        self.code = self._code_lines()
        self.imports = len(self.code & set(self._import_lines()))

    def _code_lines(self) -> set[int]:
        prose = {
            line
            for node in self.nodes
            for body in [getattr(node, "body", None)]
            if isinstance(body, list)
            for each in body
            if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) and isinstance(each.value.value, str)
            for line in range(each.lineno, (each.end_lineno or each.lineno) + 1)
        }
        numbered = enumerate(self.text.split("\n"), 1)
        return {n for n, line in numbered if line.strip() and not line.lstrip().startswith("#") and n not in prose}

    def _import_lines(self) -> Iterator[int]:
        for node in self.nodes:
            match node:
                case ast.Import() | ast.ImportFrom() | ast.Assign(targets=[ast.Name("__all__")]):
                    yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)
                case ast.If(test=ast.Name("TYPE_CHECKING")):
                    yield node.lineno
                case _:
                    pass

    @property
    def name(self) -> str:
        """Return the path from the folder of the package on."""
        return self.path.relative_to(_PACKAGE.parent).as_posix()

    @property
    def package(self) -> str:
        """Return the folder of the package that has the file, or nothing for a file in none."""
        folders = self.path.relative_to(_PACKAGE.parent).parts[1:-1]
        return folders[0] if folders else ""

    def imported(self) -> Iterator[str]:
        """Yield the names of the modules that are imported at run time, from the package on."""
        module = self.path.relative_to(_PACKAGE).with_suffix("").parts if self.package else ()
        for_types = {
            each
            for node in self.nodes
            if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
            for statement in node.body
            for each in _nodes_in(statement)
        }
        for node in self.nodes:
            if isinstance(node, ast.ImportFrom) and node.level and node not in for_types:
                yield ".".join([*module[: len(module) - node.level], node.module or ""]).strip(".")

    def classes(self) -> Iterator[ast.ClassDef]:
        return (node for node in self.nodes if isinstance(node, ast.ClassDef))

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        return (node for node in self.nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def _nodes_in(node: ast.AST) -> list[ast.AST]:
    """Return ``node`` and what is in it, as `ast.walk`, in half of the time: without what says load or store."""
    found = [node]
    for each in found:
        for name in each._fields:
            value = getattr(each, name, None)
            if isinstance(value, list):
                found += [item for item in value if isinstance(item, ast.AST)]  # pyright: ignore[reportUnknownVariableType]
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                found.append(value)
    return found


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


def _is_in(node: ast.expr, outer: ast.ClassDef) -> bool:
    return outer.lineno <= node.lineno <= (outer.end_lineno or outer.lineno)


def _is_protocol(node: ast.ClassDef) -> bool:
    return any("Protocol" in ast.unparse(base).partition("[")[0].split(".") for base in node.bases)


def _lonely_protocols(sources: Iterable[_Source]) -> list[str]:
    """Names of protocols whose members one class of the package has, or none but by its own attributes."""
    classes = [node for source in sources for node in source.classes()]
    own = {node.name: node for node in classes}
    assigned = {
        id(node): {attribute.attr for attribute in source.assigned if _is_in(attribute, node)}
        for source in sources
        for node in source.classes()
    }

    def members(node: ast.ClassDef, seen: frozenset[str] = frozenset()) -> set[str]:
        found = _members(node) | assigned[id(node)]
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


def _packages_of_fleet(sources: Iterable[_Source]) -> list[str]:
    """Names of the packages beside the modules that start a server, in which a module imports the fleet."""
    found = set[str]()
    for source in sources:
        package = source.package
        if package and any(_FLEET in name.split(".")[:2] for name in source.imported()):
            found.add(package)
    return sorted(found - {"cli", "testing"} | {_FLEET})


class Figures:
    """What is counted: numbers by name, and behind some of them what was found."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.found: dict[str, list[str]] = {}

    def add(self, name: str, number: int | list[str]) -> None:
        """Add a number, or the length of a list."""
        if isinstance(number, list):
            self.found[name] = number
            number = len(number)
        self.numbers[name] = number

    def show(self, *, names: bool) -> None:
        """Print a line for each number, and what was found."""
        for name, number in self.numbers.items():
            print(f"{number:>7,}  {name}")
            for each in self.found.get(name, ()) if names else ():
                print(f"             {each}")


def _add_size(figures: Figures) -> None:
    sources = _sources()
    classes = Counter(node.name for source in sources for node in source.classes())
    functions = [(source, each) for source in sources for each in source.functions()]
    face = (_PACKAGE / "__init__.py").read_text(encoding="utf-8")
    figures.add("code lines", sum(len(each.code) for each in sources))
    figures.add("of these, imports and __all__", sum(each.imports for each in sources))
    figures.add("files", len(sources))
    figures.add("packages that import the fleet, or are it", _packages_of_fleet(sources))
    figures.add("files of the fleet", sum(each.package == _FLEET for each in sources))
    figures.add("public names at the top level", len(trio_mcp.__all__))
    figures.add("lines of __init__.py", face.count("\n"))
    figures.add(
        f"functions named {', '.join(sorted(_VAGUE))}",
        [f"{source.name}:{each.name}" for source, each in functions if each.name.strip("_") in _VAGUE],
    )
    figures.add("class names that exist twice", sorted(name for name, count in classes.items() if count > 1))
    figures.add(
        f"functions over {_LONG_FUNCTION} code lines",
        [
            f"{source.name}:{each.name}"
            for source, each in functions
            if len(source.code & set(range(each.lineno, (each.end_lineno or 0) + 1))) > _LONG_FUNCTION
        ],
    )
    figures.add(
        f"functions with more than {_MANY_PARAMETERS} parameters",
        [f"{source.name}:{each.name}" for source, each in functions if _parameters(each) > _MANY_PARAMETERS],
    )
    figures.add("protocols with one implementation at most", _lonely_protocols(sources))
    figures.add("files in server/ itself", len(list((_PACKAGE / "server").glob("*.py"))))


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


async def _count(figures: Figures, name: str, run: Callable[[int], Awaitable[None]]) -> None:
    await run(3)
    passages: list[set[tuple[str, int, str]]] = []
    for _ in range(_PASSAGES):
        with _passing() as passed:
            await run(1)
        passages.append(passed)
    passed = min(passages, key=len)
    functions = [f"{Path(file).relative_to(_PACKAGE)}:{line} {function}" for file, line, function in sorted(passed)]
    figures.add(f"functions of {name}", functions)
    figures.add(f"files of {name}", len({file for file, _, _ in passed}))


async def _add_paths(figures: Figures) -> None:
    for name, path in SERVER_PATHS.items():
        async with served() as stream:
            await _count(figures, name, partial(path, stream))
    async with served() as stream:
        waiting = await start_waiting(stream, 3 + _PASSAGES)

        async def cancel(count: int) -> None:
            for _ in range(count):
                stream.give(driver_messages.cancel(waiting.pop()))
                await trio.testing.wait_all_tasks_blocked()

        await _count(figures, "a cancel alone, with its unwinding", cancel)
    async with served_over_http() as (modern, legacy):
        for name, path in HTTP_PATHS.items():
            await _count(figures, f"POST, modern: {name}", partial(path, modern))
            await _count(figures, f"POST, session: {name}", partial(path, legacy))
    for name, path in CLIENT_PATHS.items():
        rows: list[str] = []
        async with used(rows) as (stream, client):
            await _count(figures, name, partial(path, stream, client, rows))
    async with open_lines("extension") as lines:

        async def run_task(count: int) -> None:
            for _ in range(count):
                task_id = await lines.start("echo_later")
                get = partial(task_messages.request, "extension", method="tasks/get", params={"taskId": task_id})
                await lines.ask(get)

        await _count(figures, "a task, from its call to its kept result, and one look", run_task)
        ended = await lines.start("echo_later")
        get = partial(task_messages.request, "extension", method="tasks/get", params={"taskId": ended})

        async def look(count: int) -> None:
            await lines.ask(get, count)

        await _count(figures, "tasks/get", look)


def measure() -> Figures:
    """Return the figures of the package as it is."""
    figures = Figures()
    _add_size(figures)
    trio.run(_add_paths, figures, clock=MockClock())
    return figures


def worse(numbers: dict[str, int], recorded: dict[str, int]) -> list[str]:
    """Return a line for each number that is larger than the recorded one, and for each that one of both lacks."""
    return [
        f"{name}: {numbers.get(name, 'not counted any more')}, recorded {recorded.get(name, 'nothing')}"
        for name in {**recorded, **numbers}
        if name not in numbers or name not in recorded or numbers[name] > recorded[name]
    ]


def main(arguments: list[str]) -> int:
    """See the module."""
    figures = measure()
    if "--record" in arguments:
        _FILE.write_text(json.dumps(figures.numbers, indent=1) + "\n", encoding="utf-8")
    if "--check" not in arguments:
        figures.show(names="--names" in arguments)
        return 0
    found = worse(figures.numbers, json.loads(_FILE.read_text(encoding="utf-8")))
    if found:
        print("worse than recorded:", *found, sep="\n  ")
        print("Make it smaller, or say why in the commit, and record: python -m benchmarks.structure --record")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
