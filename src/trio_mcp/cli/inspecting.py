"""inspect: what a server offers, as tables or as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any, Final, Literal, cast

import trio
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..connecting.targets import Target
from ..spec.converters import unstructure
from ..spec.fields import JSONObject
from ..spec.prompts import Prompt
from ..spec.tools import Tool
from .endings import WITH_SERVER, say_error
from .offers import Offers, ask_for_offers
from .statuses import ENDED_WELL
from .terminal.interrupts import run_until_interrupted
from .terminal.plain import on_one_line, printable
from .terminal.schema_words import type_words

__all__ = ["inspect_server"]

_PIPED_WIDTH: Final = 160


def inspect_server(target: Target, *, as_json: bool, era: Literal["auto", "modern", "legacy"], timeout: float) -> int:
    """Show on standard output what ``target`` offers, within ``timeout`` seconds; return the exit status."""

    async def ask() -> Offers:
        with trio.fail_after(timeout):
            async with target.open(era=era) as client:
                return await ask_for_offers(client)

    try:
        offers = run_until_interrupted(ask)
    except WITH_SERVER as error:
        return say_error(error)
    if as_json:
        # Escapes keep control characters from a terminal, and are the same JSON.
        print(json.dumps(offers.as_json(), indent=2, ensure_ascii=sys.stdout.isatty()))
    else:
        is_terminal = sys.stdout.isatty()
        console = Console(highlight=False, force_terminal=is_terminal, width=None if is_terminal else _PIPED_WIDTH)
        _show(offers, console)
    return ENDED_WELL


def _show(offers: Offers, console: Console) -> None:
    for label, words in _facts(offers):
        console.print(Text(f"{label:<13}", "bold") + Text(printable(words)), soft_wrap=True)
    tables: list[tuple[str, tuple[str, ...], list[tuple[str, ...]] | None]] = [
        ("tools", ("tool", "arguments", "description"), _rows(offers.tools, _tool)),
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
            table.add_row(Text(printable(first), "cyan"), *(Text(printable(cell)) for cell in rest))
        console.print(table)


def _facts(offers: Offers) -> Iterable[tuple[str, str]]:
    if offers.info is not None:
        yield "server", on_one_line(f"{offers.info.name} {offers.info.version}")
        if offers.info.title:
            yield "title", on_one_line(offers.info.title)
        if offers.info.website_url:
            yield "website", on_one_line(offers.info.website_url)
    yield "revision", f"{offers.revision.name} ({offers.era})"
    yield "capabilities", ", ".join(map(on_one_line, _capabilities(offers))) or "none"
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


def _tool(tool: Tool) -> tuple[str, ...]:
    properties = tool.input_schema.get("properties")
    required: Any = tool.input_schema.get("required")
    needed = cast("list[Any]", required) if isinstance(required, list) else []
    arguments = [
        f"{name}{'' if name in needed else '?'}: {on_one_line(type_words(schema, tool.input_schema))}"
        for name, schema in (cast("JSONObject", properties) if isinstance(properties, dict) else {}).items()
    ]
    return tool.name, "\n".join(arguments), on_one_line(tool.description or tool.title or "")


def _resource(resource: Any) -> tuple[str, ...]:
    where = getattr(resource, "uri", None) or resource.uri_template
    return where, resource.name, resource.mime_type or "", on_one_line(resource.description or resource.title or "")


def _prompt(prompt: Prompt) -> tuple[str, ...]:
    arguments = [f"{argument.name}{'' if argument.required else '?'}" for argument in prompt.arguments or ()]
    return prompt.name, "\n".join(arguments), on_one_line(prompt.description or prompt.title or "")
