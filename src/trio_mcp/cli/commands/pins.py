"""``trio-mcp pins`` shows which tools of a gateway are new or changed, and approves them."""

from __future__ import annotations

import difflib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
import trio

from ...hosting.config_files import ConfigError
from ...hosting.descriptions import HeldTool, MemberDescription
from ...hosting.group import open_group
from ...hosting.pins import ToolPins, pinned_fields
from .. import ENDED_WELL, NO_CONNECTION, NOT_WRITTEN
from ..members import loaded_pins, members_in
from ..printable import CommandError, log_to_stderr, name_shown, printable, say
from ..signals import run_until_interrupted
from ..targets import SignIn
from .options import sign_in_options

_TOKEN: Final = re.compile(r"\s+|\w+|[^\w\s]")
_MOST_COMPARED: Final = 500
"""Words of two texts that are compared one by one: more take too long, and are shown as one change."""


@click.group()
def pins() -> None:
    """Show and approve the changed tools of a gateway.

    FILE is the file that `trio-mcp gateway --pins FILE` reads.

    \b
        trio-mcp pins show pins.json --config mcp.json
        trio-mcp pins approve pins.json --config mcp.json files__search
    """


def _compared(command: Callable[..., int]) -> Callable[..., int]:
    for option in (
        sign_in_options,
        click.option(
            "--config",
            required=True,
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="The file whose mcpServers are started and compared with the pins.",
        ),
        click.argument("file", type=click.Path(dir_okay=False, path_type=Path)),
    ):
        command = option(command)
    return command


@pins.command()
@_compared
def show(file: Path, config: Path, sign_in: SignIn) -> int:
    """Show the tools that are new or changed, with the words that have changed.

    [-Words-] were approved and are gone, {+words+} are new. The servers in the file are started to see what they say.

    Exit status: 0 when all tools are approved; 1 when some are not; 2 for wrong usage, or a file that cannot be read; 3
    when a server could not be asked.
    """
    held, is_whole = _held(file, config, sign_in)
    _print(held)
    return NO_CONNECTION if not is_whole else NOT_WRITTEN if held else ENDED_WELL


@pins.command()
@_compared
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--yes", is_flag=True, help="Approve without a question.")
def approve(file: Path, config: Path, sign_in: SignIn, names: tuple[str, ...], yes: bool) -> int:
    """Show tools as `trio-mcp pins show` does, and write to FILE that they are approved, in these very words.

    NAME is the name of a tool in the gateway, or of a server; without names, all tools are meant. A running gateway
    offers the tools within a second.

    Exit status: 0; 1 when the file was left unchanged; 2 for wrong usage, or a file that cannot be read or written; 3
    without names, when a server could not be asked.
    """
    if not (yes or sys.stdin.isatty()):
        raise click.UsageError("without a terminal to ask on, approve needs --yes")
    held, is_whole = _held(file, config, sign_in)
    known = {name for each in held for name in (each.name, each.member)}
    for name in names:
        if name not in known:
            raise CommandError(f"no tool that is held, and no server with one, is named {name_shown(name)!r}")
    chosen = [each for each in held if not names or each.name in names or each.member in names]
    _print(chosen)
    if chosen:
        words = "this tool" if len(chosen) == 1 else f"these {len(chosen)} tools"
        if not (yes or click.confirm(f"Approve {words}?", err=True)):
            say(f"{file} was left unchanged")
            return NOT_WRITTEN
        try:
            trio.run(ToolPins(file).approve, chosen)
        except ConfigError as error:
            raise CommandError(str(error)) from None
        say(f"approved {words} in {file}")
    return ENDED_WELL if is_whole or (names and chosen) else NO_CONNECTION


def _held(file: Path, config: Path, sign_in: SignIn) -> tuple[list[HeldTool], bool]:
    """Return the tools that are held, and whether each server was asked."""
    members = members_in(config, sign_in)
    pin = loaded_pins(file)
    log_to_stderr("error")
    return run_until_interrupted(lambda: _ask(members, pin))


async def _ask(members: Mapping[str, MemberDescription], pin: ToolPins) -> tuple[list[HeldTool], bool]:
    async with open_group(members, pin=pin) as group:
        await group.settled()
        is_whole = True
        for status in group.statuses.values():
            problem = status.error or status.problems.get("tools")
            if problem:
                is_whole = False
                say(f"the tools of {name_shown(status.name)} could not be compared: {problem}")
        return list(group.catalogue.held.values()), is_whole


def _print(held: Sequence[HeldTool]) -> None:
    for each in held:
        print(f"{name_shown(each.name)}: {each.reason}")
        for name, words in _fields(each):
            # Indented line by line: no description can imitate the line of another tool.
            print(f"  {name}: " + "\n    ".join(printable(words).splitlines()))
    if not held:
        say("all tools are approved")


def _fields(held: HeldTool) -> Iterator[tuple[str, str]]:
    """Yield the fields of a tool that were not approved in these words, each with the change."""
    new, old = pinned_fields(held.item), held.approved or {}
    for name in {**old, **new}:
        if name not in old:
            yield name, _text(new[name])
        elif old[name] != new.get(name):
            yield name, changed_words(_text(old[name]), _text(new.get(name, "")))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)


def changed_words(old: str, new: str) -> str:
    """Return ``new`` with its new words as ``{+words+}``, and those that are gone as ``[-words-]``."""
    before, after = _TOKEN.findall(old), _TOKEN.findall(new)
    start = next((at for at, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), None)
    start = min(len(before), len(after)) if start is None else start
    end = 0
    while end < min(len(before), len(after)) - start and before[-1 - end] == after[-1 - end]:
        end += 1
    gone, come = before[start : len(before) - end], after[start : len(after) - end]
    changes = [("replace", 0, len(gone), 0, len(come))]
    if max(len(gone), len(come)) <= _MOST_COMPARED:
        changes = difflib.SequenceMatcher(None, gone, come, autojunk=False).get_opcodes()
    parts = after[:start]
    for kind, a, b, c, d in changes:
        if kind == "equal":
            parts += come[c:d]
            continue
        parts += [f"[-{''.join(gone[a:b])}-]"] * (a < b) + [f"{{+{''.join(come[c:d])}+}}"] * (c < d)
    return "".join([*parts, *after[len(after) - end :]])
