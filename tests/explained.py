"""What the reference explains: each public name with its signature, its members and their defaults.

`tests/test_reference.py` writes the pages from it, and `tests/test_compatibility.py` the record of what is public.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, is_typeddict

import attrs
from tests.public import names

from trio_mcp.classes import Renamed

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "trio_mcp"
RECEIVED = {
    *(
        "CallerState",
        "CallerTasks",
        "Catalogue",
        "CatalogueEntry",
        "Changes",
        "Client",
        "ConnectedClient",
        "Gateway",
        "Group",
    ),
    *("GroupTask", "HTTPApp", "LoadedSkill", "Proxy", "RequestLog", "RunningTask", "StoredTasks", "TaskContext"),
    *("Watch", "WorkerLog", "WorkerState", "WorkerTask", "WorkerTasks"),
}
"""Classes whose instances users receive: how they are made isn't public."""


@attrs.frozen
class Parameter:
    """A parameter, or a field of a class."""

    name: str
    annotation: str
    default: str | None
    kind: str = ""
    """``*`` or ``**``, or the sign before which all is positional: ``/``, ``*``."""

    def __str__(self) -> str:
        annotated = f"{self.kind}{self.name}" + (f": {self.annotation}" if self.annotation else "")
        if self.default is None:
            return annotated
        return f"{annotated} = {self.default}" if self.annotation else f"{annotated}={self.default}"

    @property
    def recorded(self) -> str:
        return f"{self.kind}{self.name}" if self.default is None else f"{self.name}={self.default}"


@attrs.frozen
class Member:
    """A method, a property, a field, a key or a constant of a class."""

    name: str
    shown: str
    sentence: str
    parameters: tuple[Parameter, ...] | None = None
    """`None` for what isn't called."""
    annotation: str = ""
    """The type of what isn't called; otherwise the type that is returned, with its arrow."""
    default: str | None = None


@attrs.frozen
class Explained:
    """A public name."""

    name: str
    sentence: str
    parameters: tuple[Parameter, ...] | None
    returns: str = ""
    members: tuple[Member, ...] = ()
    has_fields: bool = False
    """True for a class that is made of fields, which its members describe."""


def first_sentence(text: str) -> str:
    """The first sentence of a docstring, on one line."""
    paragraph = " ".join(inspect.cleandoc(text).split("\n\n")[0].split())
    sentence = re.split(r"(?<=[^.][^.])\.(?: |$)", paragraph)[0]
    return re.sub(r"``([^`]*)``", r"`\1`", sentence).removesuffix(".")


@cache
def assigned() -> Mapping[str, tuple[str, str]]:
    """The modules, and the texts under them, of names that stand for no class or function."""
    found: dict[str, tuple[str, str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        body = ast.parse(path.read_text()).body
        for statement, text in zip(body, texts_under(body), strict=True):
            if text and isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                room = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
                found.setdefault(statement.target.id, (room, text))
    return found


def texts_under(body: list[ast.stmt]) -> list[str]:
    """The string that follows each statement; empty where none does."""

    def text(statement: ast.stmt) -> str:
        match statement:
            case ast.Expr(ast.Constant(str(found))):
                return found
            case _:
                return ""

    return [text(following) for following in [*body[1:], ast.Pass()]]


def shown_default(value: Any) -> str:
    """A default as text. What has no short text of its own is an ellipsis."""
    text = value.__name__ if inspect.isclass(value) or inspect.isfunction(value) else repr(value)
    return text if len(text) <= 60 and text[0] not in "_<" and "NOTHING" not in text else "…"


def parameters_of(function: Any) -> tuple[Parameter, ...]:
    found: list[Parameter] = []
    previous: inspect.Parameter | None = None
    for each in inspect.signature(function).parameters.values():
        if (
            each.name in ("self", "cls")
            or each.annotation == "Never"
            or (each.name.startswith("_") and each.default is not each.empty)
        ):
            continue
        if previous is not None and previous.kind is each.POSITIONAL_ONLY and each.kind is not each.POSITIONAL_ONLY:
            found.append(Parameter("", "", None, "/"))
        seen = previous is not None and previous.kind in (each.VAR_POSITIONAL, each.KEYWORD_ONLY)
        if each.kind is each.KEYWORD_ONLY and not seen:
            found.append(Parameter("", "", None, "*"))
        previous = each
        annotation = "" if each.annotation is each.empty else annotation_text(each.annotation)
        default = None if each.default is each.empty else shown_default(each.default)
        sign = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        found.append(Parameter(each.name, re.sub(r"^Unpack\[(.*)\]$", r"\1", annotation), default, sign))
    if previous is not None and previous.kind is previous.POSITIONAL_ONLY:
        found.append(Parameter("", "", None, "/"))
    return tuple(found)


def annotation_text(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__qualname__", None) or str(annotation)
    return text.replace("collections.abc.", "").replace("typing.", "").strip("'\"")


def signature_of(function: Any) -> str:
    return f"({', '.join(map(str, parameters_of(function)))}){returned_by(function)}"


def returned_by(function: Any) -> str:
    """The return annotation with its arrow; empty without annotation."""
    returned = inspect.signature(function).return_annotation
    return "" if returned is inspect.Signature.empty else f" -> {annotation_text(returned)}"


def ours(kind: type) -> Iterator[type]:
    """The classes of the package in the order in which a member is looked up; a dictionary's are its bases."""
    if not is_typeddict(kind):
        yield from (base for base in inspect.getmro(kind) if base.__module__.startswith("trio_mcp"))
        return
    yield kind
    for base in getattr(kind, "__orig_bases__", ()):
        if is_typeddict(base):
            yield from ours(base)


@cache
def classes_in(module: str) -> Mapping[str, list[ast.stmt]]:
    path = SOURCE.parent.joinpath(*module.split("."))
    package = path / "__init__.py"
    text = (package if package.is_file() else path.with_suffix(".py")).read_text()
    return {each.name: each.body for each in ast.parse(text).body if isinstance(each, ast.ClassDef)}


def body_of(kind: type) -> list[ast.stmt]:
    return classes_in(kind.__module__).get(kind.__name__, [])


ARGUMENT = re.compile(r"^(?: {2}){1,2}(\w+): (.*(?:\n {6}.*)*)", re.MULTILINE)
DOCUMENTS = re.compile(r"`(\w+)` documents (?:them|these)")


def arguments_of(kind: type) -> Mapping[str, str]:
    """The texts of ``Args:`` in the docstring of a class, by name, or of the fields of the class that it refers to."""
    text = inspect.cleandoc(kind.__doc__ or "")
    found = dict(ARGUMENT.findall(text.partition("\nArgs:\n")[2].partition("\n\n")[0]))
    if other := DOCUMENTS.search(text):
        fields = described_in(getattr(sys.modules[kind.__module__], other[1]))
        found |= {name: text for name, _, text in fields}
    return found


def described_in(kind: type) -> Iterator[tuple[str, str, str]]:
    """Name, annotation and text of each field of a class, and of each attribute that its ``__init__`` assigns."""
    body = body_of(kind)
    for statement, text in zip(body, texts_under(body), strict=True):
        match statement:
            case ast.AnnAssign(ast.Name(name), annotation):
                yield name, ast.unparse(annotation).strip("'"), text
            case ast.Assign([ast.Name(name)]):
                yield name, "", text
            case ast.FunctionDef("__init__"):
                yield from assigned_in(statement)
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name):
                yield name, "", ""
            case _:
                pass


def assigned_in(function: ast.FunctionDef) -> Iterator[tuple[str, str, str]]:
    """What `described_in` yields, of the attributes that an ``__init__`` assigns."""
    arguments = [*function.args.args, *function.args.kwonlyargs]
    hints = {each.arg: ast.unparse(each.annotation).strip("'") for each in arguments if each.annotation is not None}
    for statement, text in zip(function.body, texts_under(function.body), strict=True):
        match statement:
            case ast.AnnAssign(ast.Attribute(ast.Name("self"), name), annotation):
                yield name, ast.unparse(annotation).strip("'"), text
            case ast.Assign([ast.Tuple(targets)], ast.Tuple(values)):
                for target, value in zip(targets, values, strict=True):
                    if isinstance(target, ast.Attribute):
                        yield target.attr, hints.get(ast.unparse(value), ""), text
            case ast.Assign([*_, ast.Attribute(ast.Name("self"), name)], value):
                yield name, hints.get(ast.unparse(value), ""), text
            case _:
                pass


def members_of(kind: type) -> Iterator[Member]:
    """The public members of a class in the order of its source, those of its bases after its own."""
    fields: Mapping[str, Any] = {each.name: each for each in attrs.fields(kind)} if attrs.has(kind) else {}
    seen: set[str] = set()
    for base in ours(kind):
        described = {name: (annotation, text) for name, annotation, text in described_in(base)}
        arguments = arguments_of(base)
        others = () if is_typeddict(base) else [*vars(base), *getattr(base, "__annotations__", ())]
        for name in dict.fromkeys([*described, *others]):
            static = inspect.getattr_static(kind, name, None)
            if name in seen or name.startswith(("_", "test_")) or isinstance(static, Renamed):
                continue
            seen.add(name)
            annotation, text = described.get(name, ("", ""))
            yield member_of(kind, name, static, fields.get(name), annotation, text or arguments.get(name, ""))


def member_of(kind: type, name: str, static: Any, field: Any, annotation: str, text: str) -> Member:
    if is_typeddict(kind):
        needed = None if name in kind.__required_keys__ else "…"  # type: ignore[attr-defined]
        return value(name, text, annotation, needed)
    if field is not None:
        if field.default is attrs.NOTHING or not field.init:
            return value(name, text, annotation)
        is_made = isinstance(field.default, attrs.Factory)  # type: ignore[arg-type]
        return value(name, text, annotation, "…" if is_made else shown_default(field.default))
    function: Any = inspect.unwrap(getattr(static, "__func__", static))
    if inspect.isfunction(function):
        sentence = first_sentence(inspect.getdoc(getattr(kind, name)) or "")
        return Member(name, name + signature_of(function), sentence, parameters_of(function), returned_by(function))
    if isinstance(static, property) or inspect.ismethoddescriptor(static) or inspect.isdatadescriptor(static):
        getter = getattr(static, "fget", None)
        returned = "" if getter is None else annotation_text(inspect.signature(getter).return_annotation)
        return value(name, text or inspect.getdoc(static) or "", annotation or returned)
    if isinstance(static, Enum):
        return value(name, text, "", repr(static.value))
    return value(name, text, annotation)


def value(name: str, text: str, annotation: str, default: str | None = None) -> Member:
    """A member that isn't called."""
    shown = str(Parameter(name, annotation, default)) if annotation or default is None else f"{name} = {default}"
    return Member(name, shown, first_sentence(text), None, annotation, default)


def explain(name: str, thing: Any) -> Explained:
    if not (inspect.isclass(thing) or inspect.isroutine(thing)):
        return Explained(name, first_sentence(assigned().get(name, ("", ""))[1]), None)
    sentence = first_sentence(inspect.getdoc(thing) or "")
    if not inspect.isclass(thing):
        return Explained(name, sentence, parameters_of(thing), returned_by(thing))
    assert thing.__init__ is not None  # which is compiled when somebody first looks at it
    made: Any = inspect.getattr_static(thing, "__init__")
    own = any("__init__" in vars(base) for base in ours(thing)) and not issubclass(thing, Enum)
    is_made = name not in RECEIVED and own and callable(made) and not is_typeddict(thing)
    parameters = parameters_of(thing.__init__) if is_made else None
    return Explained(name, sentence, parameters, "", tuple(members_of(thing)), attrs.has(thing))


@cache
def explained(namespace: str) -> Mapping[str, Explained]:
    """The public names of a module, each with what is said of it."""
    return {name: explain(name, thing) for name, thing in names(namespace).items()}
