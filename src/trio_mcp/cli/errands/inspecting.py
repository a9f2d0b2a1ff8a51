"""inspect: print the offers of a server, as tables or as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from functools import partial
from typing import Any, Final, Literal, cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...connecting.targets import Target
from ...protocol.converters import unstructure
from ...protocol.fields import JSONObject
from ...protocol.types.prompts import Prompt
from ...protocol.types.tools import Tool
from ..reporting import WITH_SERVER, say_error
from ..statuses import ENDED_WELL
from ..terminal.interrupts import run_until_interrupted
from ..terminal.printable import name_shown, on_one_line, printable
from ..terminal.schema_words import SchemaReader
from .offers import Offers, ask_for_offers

_PIPED_WIDTH: Final = 160
_LONGEST_URI: Final = 2000


def inspect_server(target: Target, *, as_json: bool, era: Literal["auto", "modern", "legacy"], timeout: float) -> int:
    """Print the offers of ``target`` on standard output, within ``timeout`` seconds; return the exit status."""

    async def ask() -> str:
        async with target.open(era=era) as client:
            offers = await ask_for_offers(client)
        return _json(offers) if as_json else _tables(offers)  # the time of this counts, too

    try:
        text = run_until_interrupted(ask, timeout)
    except WITH_SERVER as error:
        return say_error(error)
    print(text, end="")
    return ENDED_WELL


def _json(offers: Offers) -> str:
    # Escapes keep control characters from a terminal, and are the same JSON.
    return json.dumps(offers.as_json(), indent=2, ensure_ascii=sys.stdout.isatty()) + "\n"


def _tables(offers: Offers) -> str:
    is_terminal = sys.stdout.isatty()
    console = Console(highlight=False, force_terminal=is_terminal, width=None if is_terminal else _PIPED_WIDTH)
    with console.capture() as captured:
        _show(offers, console)
    return captured.get()


def _show(offers: Offers, console: Console) -> None:
    reader = SchemaReader()
    for label, words in _facts(offers):
        console.print(Text(f"{label:<13}", "bold") + Text(printable(words)), soft_wrap=True)
    tools, tool = ("tool", "arguments", "description"), partial(_tool, reader)
    if any(map(_task_support, offers.tools or ())):
        tools, tool = (*tools, "task"), partial(_tool_with_task, reader)
    tables: list[tuple[str, tuple[str, ...], list[tuple[str, ...]] | None]] = [
        ("tools", tools, _rows(offers.tools, tool)),
        ("resources", ("resource", "name", "type", "description"), _rows(offers.resources, _resource)),
        ("templates", ("template", "name", "type", "description"), _rows(offers.templates, _resource)),
        ("prompts", ("prompt", "arguments", "description"), _rows(offers.prompts, _prompt)),
    ]
    for kind, columns, rows in tables:
        if rows is None:
            continue
        console.print()
        if not rows:
            console.print(f"no {kind}")
            continue
        table = Table(*columns)
        for first, *rest in rows:
            table.add_row(Text(first, "cyan"), *map(Text, rest))
        console.print(table)


def _facts(offers: Offers) -> Iterable[tuple[str, str]]:
    if offers.info is not None:
        yield "server", f"{name_shown(offers.info.name)} {name_shown(offers.info.version)}"
        if offers.info.title:
            yield "title", name_shown(offers.info.title)
        if offers.info.website_url:
            yield "website", name_shown(offers.info.website_url)
    yield "revision", f"{offers.revision.name} ({offers.era})"
    yield "capabilities", ", ".join(map(name_shown, _capabilities(offers))) or "none"
    if offers.instructions:
        yield "instructions", offers.instructions


def _capabilities(offers: Offers) -> Iterable[str]:
    declared = cast("JSONObject", unstructure(offers.capabilities, offers.revision))
    for name, value in declared.items():
        parts = cast("JSONObject", value) if isinstance(value, dict) else {}
        details = [part for part, setting in parts.items() if setting not in (False, None)]
        yield f"{name} ({', '.join(details)})" if details else name


def _rows(items: list[Any] | None, row: Any) -> list[tuple[str, ...]] | None:
    return None if items is None else [row(item) for item in items]


def _tool(reader: SchemaReader, tool: Tool) -> tuple[str, ...]:
    properties = tool.input_schema.get("properties")
    required: Any = tool.input_schema.get("required")
    names = cast("list[Any]", required) if isinstance(required, list) else []
    needed = {name for name in names if isinstance(name, str)}
    arguments = [
        f"{name_shown(name)}{'' if name in needed else '?'}: {name_shown(reader.words(schema, tool.input_schema))}"
        for name, schema in (cast("JSONObject", properties) if isinstance(properties, dict) else {}).items()
    ]
    return name_shown(tool.name), "\n".join(arguments), on_one_line(tool.description or tool.title or "")


def _task_support(tool: Tool) -> str:
    """Return whether the tool can, or has to, be called as a task; empty for neither."""
    support = tool.execution.task_support if tool.execution is not None else None
    return support if support in ("optional", "required") else ""


def _tool_with_task(reader: SchemaReader, tool: Tool) -> tuple[str, ...]:
    return *_tool(reader, tool), _task_support(tool)


def _resource(resource: Any) -> tuple[str, ...]:
    where = getattr(resource, "uri", None) or resource.uri_template
    about = on_one_line(resource.description or resource.title or "")
    return name_shown(where, _LONGEST_URI), name_shown(resource.name), name_shown(resource.mime_type or ""), about


def _prompt(prompt: Prompt) -> tuple[str, ...]:
    arguments = [
        f"{name_shown(argument.name)}{'' if argument.required else '?'}" for argument in prompt.arguments or ()
    ]
    return name_shown(prompt.name), "\n".join(arguments), on_one_line(prompt.description or prompt.title or "")
