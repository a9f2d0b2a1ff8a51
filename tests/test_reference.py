"""`docs/reference.md` names what is public, and a page of `docs/reference` for each section has the members.

``python -m tests.test_reference`` writes the pages.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import attrs
from tests.explained import Explained, Member, Parameter, assigned, explained
from tests.public import NAMESPACES, names

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference.md"
FOLDER = ROOT / "docs" / "reference"
HEAD = """# Every public name

Each line is a name that you can import; `help(name)` has the whole text. The link leads to its members: methods with
their signatures, fields with their types and defaults. `from trio_mcp import …` gives what a first server or client
needs, in the sections up to [errors](#errors). The other sections are named after the module from which you import.
To learn how to use these names, begin with [tools](servers/tools.md), [clients](clients/client.md) and
[HTTP](deployment/http.md).
"""
GROUPS = (
    ("Servers and their handlers", ("server", "openapi", "transports", "middleware", "protocol")),
    ("Clients", ("client", "skills")),
    ("Transports", ("connecting", "serving")),
    ("Requests and their limits", ("runtime", "concurrency", "recording")),
    ("Several servers or processes", ("proxying", "fleet", "tasks")),
)
"""The sections of the names that ``trio_mcp`` itself has, and the packages of each."""
ERRORS = "Errors"
SECTIONS = (*(title for title, _ in GROUPS), ERRORS, *NAMESPACES[1:])
FIRST = (
    *("Server", "RequestContext", "WorkerContext", "Image", "Audio", "File", "Provide", "Header", "ToolError"),
    *("Client", "open_client", "run", "serve_stdio", "serve_http", "open_stdio", "open_http", "http_app", "Command"),
    *("Limits", "Progress", "Cancellation", "proxy", "gateway", "TaskSettings", "MCPError", "PeerError"),
    *("ToolOptions", "ResourceOptions", "PromptOptions", "ClientOptions", "CallToolResult", "Tool", "TextContent"),
    *("OAuth", "Bearer", "Protected", "JWTVerifier", "Auth", "Principal", "TaskStore", "open_group", "Group"),
    *("RecordingContext", "ScriptedClient", "ScriptedServer", "OpenTelemetry", "PrometheusPage"),
)
"""What comes first in its section; other names follow by the alphabet."""


def section_of(space: str, name: str, thing: object) -> str:
    if space != "trio_mcp":
        return space
    if inspect.isclass(thing) and issubclass(thing, BaseException):
        return ERRORS
    is_made = inspect.isclass(thing) or inspect.isroutine(thing)
    room = (thing.__module__ if is_made else assigned()[name][0]).split(".")[1]
    return next(title for title, rooms in GROUPS if room in rooms)


@cache
def sections() -> Mapping[str, list[Explained]]:
    """The public names of each section, the most important ones first."""
    found: dict[str, list[Explained]] = {title: [] for title in SECTIONS}
    for space in NAMESPACES:
        for name, thing in names(space).items():
            found[section_of(space, name, thing)].append(explained(space)[name])
    order = {name: place for place, name in enumerate(FIRST)}
    return {
        title: sorted(told, key=lambda each: (order.get(each.name, len(order)), each.name.lower()))
        for title, told in found.items()
    }


def file_of(section: str) -> str:
    return section.lower().removeprefix("trio_mcp.").replace(" ", "-") + ".md"


def index() -> str:
    """The text of the page with all names."""
    parts = [HEAD]
    for section, told in sections().items():
        rows = "".join(
            f"| [`{each.name}`](reference/{file_of(section)}#{each.name.lower()}) | {in_cell(each.sentence)} |\n"
            for each in told
        )
        parts.append(f"## {section}\n\n| name | what it is |\n|---|---|\n{rows}")
    return "\n".join(parts)


def in_cell(sentence: str) -> str:
    return sentence.replace("|", "\\|")


def page(section: str) -> str:
    """The text of the page of a section: each name with its signature and its members."""
    module = section if section.startswith("trio_mcp.") else "trio_mcp"
    index = "For the names of all modules, see [API reference](../reference.md)."
    parts = [f"# {section}\n\n`from {module} import …`. {index}\n"]
    for told in sections()[section]:
        parts.append(f"## {told.name}\n")
        if told.parameters is not None:
            parts.append(code(signature_of(told)))
        parts.append(f"{told.sentence}.\n")
        values = [each for each in told.members if each.parameters is None]
        if values:
            parts.append(table(values))
        for each in told.members:
            if each.parameters is not None:
                parts += code(broken(each.name, each.parameters, each.annotation)), f"{each.sentence}.\n"
    return "\n".join(parts)


def code(text: str) -> str:
    return f"```python\n{text}\n```\n"


def table(values: list[Member]) -> str:
    """A table of the fields, properties, keys or constants of a class, with the columns that they fill."""
    columns: dict[str, list[str]] = {"name": [f"`{each.name}`" for each in values]}
    if any(each.annotation for each in values):
        columns["type"] = [f"`{each.annotation}`" if each.annotation else "" for each in values]
    if any(each.default is not None for each in values):
        columns["default"] = ["" if each.default is None else f"`{each.default}`" for each in values]
    if any(each.sentence for each in values):
        columns["meaning"] = [each.sentence for each in values]
    if not values[0].annotation and values[0].default is not None:  # constants have values in place of defaults
        columns = {"value" if title == "default" else title: cells for title, cells in columns.items()}
    rows = [tuple(columns), ("---",) * len(columns), *zip(*columns.values(), strict=True)]
    return "".join(f"| {' | '.join(map(in_cell, row))} |\n" for row in rows)


def signature_of(told: Explained) -> str:
    parameters = told.parameters or ()
    if told.has_fields:  # which are listed with their types
        parameters = tuple(attrs.evolve(each, annotation="") for each in parameters)
    return broken(told.name, parameters, told.returns)


def broken(name: str, parameters: tuple[Parameter, ...], returns: str) -> str:
    """A signature on one line, or with a line for each parameter if it's longer than 76 characters."""
    one = f"{name}({', '.join(map(str, parameters))}){returns}"
    return one if len(one) <= 76 else f"{name}({''.join(f'{chr(10)}    {each},' for each in parameters)}\n){returns}"


def pages() -> Iterator[tuple[Path, str]]:
    yield PAGE, index()
    for section in SECTIONS:
        yield FOLDER / file_of(section), page(section)


def test_generated_reference_pages_are_up_to_date() -> None:
    expected = dict(pages())
    assert {path for path in FOLDER.iterdir() if path not in expected} == set()
    assert {path.name for path, text in expected.items() if not path.exists() or path.read_text() != text} == set()


def test_every_field_of_a_public_class_has_a_meaning_on_the_reference_pages() -> None:
    fields = {
        f"{section}: {told.name}.{each.name}": each.sentence
        for section, explained_names in sections().items()
        for told in explained_names
        for each in told.members
        if each.parameters is None
    }
    assert len(fields) > 1000
    assert [name for name, sentence in fields.items() if not sentence] == []


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for path, text in pages():
        path.write_text(text)
