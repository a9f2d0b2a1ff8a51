"""What `help` shows of public things names every option."""

from __future__ import annotations

import inspect
import pydoc
import re
from collections.abc import Iterator
from typing import Any, is_typeddict

import attrs
import pytest
from tests.public import FACE, names

import trio_mcp
import trio_mcp.types
from trio_mcp import Server

NAMED = names(*FACE, "trio_mcp.aio", "trio_mcp.blocking")
FUNCTIONS = {name: thing for name, thing in NAMED.items() if inspect.isfunction(thing)} | {
    f"Server.{name}": getattr(Server, name)
    for name in ("tool", "resource", "prompt", "middleware", "mount", "searchable")
}
WITH_FIELDS = {name: thing for name, thing in NAMED.items() if is_typeddict(thing) or attrs.has(thing)}
LISTED_IN = {"ClientOptions": "ClientSettings"}
"""Where the keys of a class are described, for a class that repeats the fields of another."""
OF_TRIO = "task_status"
"""The keyword of whatever `trio.Nursery.start` can start."""


def shown_by_help(thing: Any) -> str:
    """What `help` shows, without the lines at the left."""
    return re.sub(r"^( \|  |    )", "", pydoc.plain(pydoc.render_doc(thing)), flags=re.MULTILINE)


def options(function: Any) -> Iterator[str]:
    """The names of keyword arguments, and of the classes that list further ones."""
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name != OF_TRIO:
            yield parameter.name
        if parameter.kind is parameter.VAR_KEYWORD and (of := re.search(r"Unpack\[(\w+)\]", str(parameter.annotation))):
            yield LISTED_IN.get(of[1], of[1])


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_help_of_a_function_lists_every_keyword_or_names_its_options_class(name: str) -> None:
    shown = shown_by_help(FUNCTIONS[name]).partition("\n\n")[2].partition("\n")[2]
    assert [option for option in options(FUNCTIONS[name]) if not re.search(rf"\b{option}\b", shown)] == []


@pytest.mark.parametrize("name", sorted(WITH_FIELDS))
def test_help_of_a_class_describes_every_field(name: str) -> None:
    """Under the field, or in the text of the class."""
    kind = WITH_FIELDS[name]
    fields = kind.__annotations__ if is_typeddict(kind) else [each.name for each in attrs.fields(kind) if each.init]
    shown = shown_by_help(kind)
    told = r"\n  {0}: " if name in LISTED_IN else r"\n  {0}: .*\n      \S|``{0}``|\n    {0}: \S"
    assert [each for each in fields if each[0] != "_" and not re.search(told.format(each), shown)] == []


def test_help_shows_a_field_with_type_default_and_description() -> None:
    shown = shown_by_help(trio_mcp.CacheHints)
    assert "\n  ttl_ms: int = 0\n      Milliseconds for which" in shown


def test_help_lists_inherited_fields_first() -> None:
    shown = shown_by_help(trio_mcp.types.ToolOptions)
    assert 0 < shown.index("\n  name: str | None\n") < shown.index("\n  lenient: bool\n")
