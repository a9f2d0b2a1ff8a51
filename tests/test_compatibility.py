"""What was public in the last release is there, and is called as it was: see `docs/compatibility.md`.

``python -m tests.test_compatibility`` writes down what is public now, for a release, or where something is to go.
"""

from __future__ import annotations

import inspect
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, is_typeddict

import attrs
import click
import pytest
from tests.public import FACE, NAMESPACES, names

from trio_mcp.classes import Renamed
from trio_mcp.cli.group import trio_mcp as command_line
from trio_mcp.types import REVISIONS

ROOT = Path(__file__).parent.parent
FILE = ROOT / "tests" / "public_api.json"
NAMED = names(*FACE)
RECEIVED = {
    *("Catalogue", "CatalogueEntry", "Changes", "Client", "ConnectedClient", "Group", "GroupTask", "RequestLog"),
    *("RunningTask", "TaskContext", "Watch", "WorkerTask"),
}
"""Classes whose instances users receive: how they are made isn't public."""
PAGE = (ROOT / "docs" / "compatibility.md").read_text()


def public() -> dict[str, list[str]]:
    """What each public thing takes and has, by the name of the thing. A parameter that may be left out ends with
    ``=``, a member begins with a dot."""
    found: dict[str, list[str]] = {}
    for module in NAMESPACES:
        for name, thing in names(module).items():
            found[f"{module}.{name}"] = [*(() if name in RECEIVED else parameters(thing)), *members(thing)]
            if inspect.isclass(thing):
                for member in members(thing):
                    function = inspect.getattr_static(thing, member[1:], None)
                    function = getattr(function, "__func__", function)
                    if inspect.isfunction(function):
                        found[f"{module}.{name}{member}"] = list(parameters(function))
    for name, command in command_line.commands.items():
        known = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
        found[f"trio-mcp {name}"] = sorted(option for each in known for option in (*each.opts, *each.secondary_opts))
    return dict(sorted(found.items()))


def parameters(thing: Any) -> Iterator[str]:
    function = thing.__init__ if inspect.isclass(thing) else thing
    if not inspect.isfunction(function) or not function.__module__.startswith("trio_mcp"):
        return  # a value, or a class that is made as Python's own are
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            yield from options(function, str(parameter.annotation))
        elif parameter.name not in ("self", "cls") and not parameter.name.startswith("_"):
            may_be_left_out = parameter.default is not parameter.empty or parameter.kind is parameter.VAR_POSITIONAL
            yield parameter.name + "=" * may_be_left_out


def options(function: Any, annotation: str) -> Iterator[str]:
    """The options of ``**options: Unpack[Options]``."""
    for name in re.findall(r"Unpack\[(\w+)\]", annotation):
        kind = getattr(inspect.getmodule(function), name, None) or NAMED[name]
        yield from sorted(kind.__required_keys__)
        yield from (f"{option}=" for option in sorted(kind.__optional_keys__))


def members(thing: Any) -> Iterator[str]:
    if not inspect.isclass(thing):
        return
    names = {name for base in thing.__mro__ if base.__module__.startswith("trio_mcp") for name in vars(base)}
    names |= {field.name for field in attrs.fields(thing)} if attrs.has(thing) else set()
    names |= thing.__required_keys__ | thing.__optional_keys__ if is_typeddict(thing) else set()
    is_there = (name for name in sorted(names) if not isinstance(inspect.getattr_static(thing, name, None), Renamed))
    yield from (f".{name}" for name in is_there if not name.startswith("_"))


def broken(before: dict[str, list[str]], now: dict[str, list[str]]) -> Iterator[str]:
    """What programs that were written for ``before`` cannot do any more."""
    for name, parts in before.items():
        if name not in now:
            yield f"{name} is gone"
            continue
        has = set(now[name])
        for part in parts:
            if part not in has and f"{part}=" not in has:
                yield f"{name}: {part} is gone, or must be given now"
        known = {part.removesuffix("=") for part in parts}
        for part in has:
            if part[0].isalpha() and not part.endswith("=") and part not in known:
                yield f"{name}: {part} must be given now"


def test_what_was_public_in_the_last_release_is_there_and_is_called_as_it_was() -> None:
    found = list(broken(json.loads(FILE.read_text()), public()))
    assert found == [], "where this is meant, say so in the changelog, and run python -m tests.test_compatibility"


def test_what_is_public_is_what_the_reference_explains() -> None:
    sections = (ROOT / "docs" / "reference.md").read_text().split("\n## ")[1:]
    explained = {
        f"{section if section.startswith('trio_mcp.') else 'trio_mcp'}.{name}"
        for section, _, rows in (each.partition("\n") for each in sections)
        for name in re.findall(r"^\| `(\w+)` \|", rows, flags=re.MULTILINE)
    }
    recorded = json.loads(FILE.read_text())
    assert explained == {f"{space}.{name}" for space in FACE for name in names(space)}
    assert explained <= recorded.keys()


@pytest.mark.parametrize(
    ("now", "told"),
    [
        ({}, ["f is gone"]),
        ({"f": ["a", "b=", ".m"], "g": []}, []),
        ({"f": ["a=", "b=", ".m", "c="]}, []),
        ({"f": ["a", ".m"]}, ["f: b= is gone, or must be given now"]),
        ({"f": ["a", "b", ".m"]}, ["f: b= is gone, or must be given now"]),
        ({"f": ["a", "b=", ".m", "c"]}, ["f: c must be given now"]),
        ({"f": ["a", "b="]}, ["f: .m is gone, or must be given now"]),
    ],
)
def test_a_change_that_breaks_programs_is_noticed(now: dict[str, list[str]], told: list[str]) -> None:
    assert list(broken({"f": ["a", "b=", ".m"]}, now)) == told


def rows_of(heading: str) -> list[list[str]]:
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    table = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def test_the_table_of_revisions_is_the_truth() -> None:
    for name, era, asks, batches, log_level, structured in rows_of("Revisions"):
        revision = REVISIONS[name]
        assert revision.handshake == (era == "legacy")
        assert revision.server_requests == (asks == "requests")
        assert revision.batches == (batches == "yes")
        assert revision.log_level == log_level
        assert revision.structured_content == structured
    assert [row[0] for row in rows_of("Revisions")] == list(REVISIONS)


def test_the_versions_of_python_are_those_of_the_metadata() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = [each.rpartition(" ")[2] for each in project["classifiers"] if re.search(r":: 3\.\d+$", each)]
    assert versions == [f"3.{minor}" for minor in range(11, 11 + len(versions))]
    assert f"Python {versions[0]} to {versions[-1]}, on POSIX systems" in PAGE
    assert project["requires-python"] == f">={versions[0]}"


if __name__ == "__main__":
    things = [f"{json.dumps(name)}: {json.dumps(parts)}" for name, parts in public().items()]
    FILE.write_text("{\n" + ",\n".join(things) + "\n}\n")
