"""Public signatures use types that users can import."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.explained import RECEIVED, assigned
from tests.public import NAMESPACES, names

SOURCE = Path(__file__).parent.parent / "src"
PUBLIC = set().union(*(names(space) for space in NAMESPACES))
THINGS = {f"{space}.{name}": thing for space in NAMESPACES for name, thing in names(space).items()}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def file_of(module: str) -> Path:
    path = SOURCE.joinpath(*module.split("."))
    return package if (package := path / "__init__.py").is_file() else path.with_suffix(".py")


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(file_of(module).read_text())


@cache
def origins(module: str) -> dict[str, tuple[str, str]]:
    """The module and the name there of each name that ``module`` imports, for types alone too, or defines."""
    found: dict[str, tuple[str, str]] = {}
    package = module.split(".") if file_of(module).name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.ImportFrom):
            parts = [*package[: len(package) - node.level + 1], *([node.module] if node.module else [])]
            origin = ".".join(parts) if node.level else str(node.module)
            found |= {each.asname or each.name: (origin, each.name) for each in node.names}
    for statement in tree_of(module).body:
        match statement:
            case ast.ClassDef(name) | ast.AnnAssign(ast.Name(name)) | ast.Assign([ast.Name(name)]):
                found[name] = (module, name)
            case _:
                pass
    return found


def definition(module: str, name: str) -> ast.stmt | None:
    for statement in tree_of(module).body:
        match statement:
            case ast.ClassDef(found) | ast.AnnAssign(ast.Name(found)) | ast.Assign([ast.Name(found)]):
                if found == name:
                    return statement
            case _:
                pass
    return None


def unknown_in(module: str, annotation: ast.AST | None) -> Iterator[str]:
    """The names in an ``annotation`` of a module that no public module has. An alias stands for what it is made of."""
    for node in ast.walk(annotation) if annotation is not None else ():
        match node:
            case ast.Constant(str(text)) if text.isidentifier() or "[" in text or "|" in text:
                with suppress(SyntaxError):  # of the value of a Literal
                    yield from unknown_in(module, ast.parse(text, mode="eval"))
            case ast.Name(name):
                yield from unknown_name(*origins(module).get(name, ("", name)))
            case _:
                pass


def unknown_name(module: str, name: str) -> Iterator[str]:
    if module.partition(".")[0] != "trio_mcp" or name in PUBLIC or isinstance(definition(module, name), ast.Assign):
        return  # of another package, public, or the parameter of a type
    match definition(module, name):
        case ast.ClassDef():
            yield f"{module}.{name}"
        case ast.AnnAssign(value=value):
            yield from unknown_in(module, value)
        case _:
            pass


def annotations_of(function: Function) -> Iterator[ast.expr | None]:
    given = function.args
    for each in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg):
        if each is not None and not each.arg.startswith("_"):
            yield each.annotation
    yield function.returns


def signatures_of(thing: Any, *, made: bool) -> Iterator[tuple[str, ast.expr | None]]:
    """The modules and annotations of a function, or of the public members and fields of a class and its bases."""
    if inspect.isfunction(thing):
        function: Any = inspect.unwrap(thing)
        for node in ast.walk(tree_of(function.__module__)):
            if isinstance(node, Function) and node.name == function.__name__:
                yield from ((function.__module__, each) for each in annotations_of(node))
    seen: set[str] = set()
    for base in inspect.getmro(thing) if inspect.isclass(thing) else ():
        body = definition(base.__module__, base.__name__) if base.__module__.startswith("trio_mcp.") else None
        defined: set[str] = set()
        for member in body.body if isinstance(body, ast.ClassDef) else ():
            if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
                name, given = member.target.id, [member.annotation]
            elif isinstance(member, Function):
                name, given = member.name, list(annotations_of(member))
            else:
                continue
            if name not in seen and (name[0] != "_" or name == "__call__" or (made and name == "__init__")):
                yield from ((base.__module__, each) for each in given)
            defined.add(name)
        seen |= defined


@pytest.mark.parametrize("full", sorted(THINGS))
def test_public_signature_uses_only_importable_types(full: str) -> None:
    thing, name = THINGS[full], full.rpartition(".")[2]
    assert not isinstance(thing, ModuleType)
    if not (inspect.isclass(thing) or inspect.isfunction(thing)):
        found = set(unknown_name_of_alias(name))
    else:
        given = signatures_of(thing, made=name not in RECEIVED)
        found = {each for module, annotation in given for each in unknown_in(module, annotation)}
    assert found == set()


def unknown_name_of_alias(name: str) -> Iterator[str]:
    module, _ = assigned().get(name, ("", ""))
    match definition(module, name) if module else None:
        case ast.AnnAssign(value=value, annotation=annotation):
            yield from unknown_in(module, value if ast.unparse(annotation) == "TypeAlias" else None)
        case _:
            pass


def test_type_check_of_public_signatures_detects_a_class_outside_of_the_public_modules() -> None:
    assert list(unknown_in("trio_mcp.server.server", ast.parse("RunningTasks | Server", mode="eval"))) == [
        "trio_mcp.server.running_tasks.RunningTasks"
    ]
