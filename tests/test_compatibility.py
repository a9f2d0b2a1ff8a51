"""What was public in the last release is there, and is called as it was: see `docs/compatibility.md`.

``python -m tests.test_compatibility`` writes down what is public now, for a release, or where something is to go.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import is_typeddict

import click
import pytest
from tests.explained import Parameter, explained
from tests.public import NAMESPACES, names
from tests.test_reference import sections

from trio_mcp.cli.group import trio_mcp as command_line
from trio_mcp.types import REVISIONS

ROOT = Path(__file__).parent.parent
FILE = ROOT / "tests" / "public_api.json"
PAGE = (ROOT / "docs" / "compatibility.md").read_text()
REVISIONS_PAGE = (ROOT / "docs" / "guarantees" / "protocol-revisions.md").read_text()


def public() -> dict[str, list[str]]:
    """What each public thing takes and has, by the name of the thing: parameters with their defaults, and members,
    which begin with a dot. The options of ``**options: Options`` are among the parameters."""
    found: dict[str, list[str]] = {}
    for space in NAMESPACES:
        for name, told in explained(space).items():
            members = sorted(f".{each.name}" for each in told.members)
            found[f"{space}.{name}"] = [*recorded(told.parameters or ()), *members]
            for each in told.members:
                if each.parameters is not None:
                    found[f"{space}.{name}.{each.name}"] = list(recorded(each.parameters))
    for name, command in command_line.commands.items():
        known = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
        found[f"trio-mcp {name}"] = sorted(option for each in known for option in (*each.opts, *each.secondary_opts))
    return dict(sorted(found.items()))


def recorded(parameters: Iterable[Parameter]) -> Iterator[str]:
    for each in parameters:
        if each.kind == "**":
            yield from options(each.annotation)
        elif each.kind == "*":
            yield f"{each.name}=" if each.name else "*"
        else:
            yield each.recorded


def options(annotation: str) -> Iterator[str]:
    """The keys of a dictionary of options."""
    kind = names(*NAMESPACES).get(annotation)
    if is_typeddict(kind):
        yield from sorted(kind.__required_keys__)
        yield from (f"{option}=" for option in sorted(kind.__optional_keys__))


def broken(before: dict[str, list[str]], now: dict[str, list[str]]) -> Iterator[str]:
    """What programs that were written for ``before`` cannot do any more, and defaults that have changed."""
    for name, parts in before.items():
        if name not in now:
            yield f"{name} is gone"
            continue
        has = {part.partition("=")[0]: part for part in now[name]}
        for part in parts:
            key, _, default = part.partition("=")
            found = has.get(key)
            if found is None or ("=" in part and "=" not in found):
                yield f"{name}: {part} is gone, or must be given now"
            elif "=" in part and default != found.partition("=")[2]:
                yield f"{name}: the default of {key} was {default or 'nothing'}"
        known = {part.partition("=")[0] for part in parts}
        for key, part in has.items():
            if key[0].isalpha() and "=" not in part and key not in known:
                yield f"{name}: {part} must be given now"


def test_public_api_of_the_last_release_is_still_compatible() -> None:
    found = list(broken(json.loads(FILE.read_text()), public()))
    assert found == [], "where this is meant, say so in the changelog, and run python -m tests.test_compatibility"


def test_recorded_public_api_is_up_to_date() -> None:
    assert public() == json.loads(FILE.read_text()), "run python -m tests.test_compatibility"


def test_recorded_public_api_contains_all_names_on_the_reference_pages() -> None:
    explained_names = {
        f"{section if section.startswith('trio_mcp.') else 'trio_mcp'}.{told.name}"
        for section, listed in sections().items()
        for told in listed
    }
    assert explained_names == {f"{space}.{name}" for space in NAMESPACES for name in names(space)}
    assert explained_names <= json.loads(FILE.read_text()).keys()


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
        ({"f": ["a", "b=1", ".m"]}, ["f: the default of b was nothing"]),
    ],
)
def test_compatibility_check_reports_an_incompatible_api_change(now: dict[str, list[str]], told: list[str]) -> None:
    assert list(broken({"f": ["a", "b=", ".m"]}, now)) == told


def rows_of(heading: str) -> list[list[str]]:
    section = REVISIONS_PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    table = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def test_documented_table_of_protocol_revisions_matches_the_code() -> None:
    for name, era, asks, batches, log_level, structured in rows_of("Revisions"):
        revision = REVISIONS[name]
        assert revision.handshake == (era == "legacy")
        assert revision.server_requests == (asks == "requests")
        assert revision.batches == (batches == "yes")
        assert revision.log_level == log_level
        assert revision.structured_content == structured
    assert [row[0] for row in rows_of("Revisions")] == list(REVISIONS)


def test_documented_python_versions_match_the_package_metadata() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = [each.rpartition(" ")[2] for each in project["classifiers"] if re.search(r":: 3\.\d+$", each)]
    assert versions == [f"3.{minor}" for minor in range(11, 11 + len(versions))]
    assert f"Python {versions[0]} to {versions[-1]}, on POSIX systems" in PAGE
    assert project["requires-python"] == f">={versions[0]}"


if __name__ == "__main__":
    things = [f"{json.dumps(name)}: {json.dumps(parts)}" for name, parts in public().items()]
    FILE.write_text("{\n" + ",\n".join(things) + "\n}\n")
