"""``trio-mcp pins``: shows which tools of a gateway's servers are new or changed, and approves them."""

from __future__ import annotations

import difflib
import itertools
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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

_PIECE: Final = re.compile(r"[^\n.,]*+(?:[\n.,]\s*+|\Z)")
_WORD: Final = re.compile(r"\s+|\w+|[^\w\s]")
_MOST_COMPARED: Final = 500
"""Maximum number of pieces of two texts that are compared. Longer texts would take too long, and are shown as one
change."""
_NARROWEST: Final = 20
"""Width of a terminal in columns."""


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
    """Show new and changed tools, with the differences in their texts.

    Lines with - were approved and are gone, and those with + are new. The command starts the servers in the file to
    read their tools.

    Exit status: 0 all tools are approved; 1 some are not; 2 wrong usage, or a file that can't be read; 3 a server
    didn't respond.
    """
    held, is_whole = _held(file, config, sign_in)
    _print(held)
    return NO_CONNECTION if not is_whole else NOT_WRITTEN if held else ENDED_WELL


@pins.command()
@_compared
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--yes", is_flag=True, help="Approve without asking.")
def approve(file: Path, config: Path, sign_in: SignIn, names: tuple[str, ...], yes: bool) -> int:
    """Show new and changed tools, and approve their exact texts in FILE.

    The tools are shown as by `trio-mcp pins show`. NAME is the name of a tool in the gateway, or of a server. Without
    names, all tools are approved. A running gateway offers them within a second.

    Exit status: 0 success; 1 the file was left unchanged; 2 wrong usage, or a file that can't be read or written; 3 a
    server didn't respond, and no names were given.
    """
    if not (yes or sys.stdin.isatty()):
        raise click.UsageError("approve needs --yes if it can't ask you on a terminal")
    held, is_whole = _held(file, config, sign_in)
    known = {name for each in held for name in (each.name, each.member)}
    for name in names:
        if name not in known:
            raise CommandError(f"{name_shown(name)!r} must be a new or changed tool, or a server that has such a tool")
    chosen = [each for each in held if not names or each.name in names or each.member in names]
    _print(chosen)
    if chosen:
        words = "this tool" if len(chosen) == 1 else f"these {len(chosen)} tools"
        if not (yes or click.confirm(f"Approve {words}?", err=True)):
            say(f"{file} was left unchanged")
            return NOT_WRITTEN
        with CommandError.instead_of(ConfigError):
            trio.run(ToolPins(file).approve, chosen)
        say(f"approved {words} in {file}")
    return ENDED_WELL if is_whole or (names and chosen) else NO_CONNECTION


def _held(file: Path, config: Path, sign_in: SignIn) -> tuple[list[HeldTool], bool]:
    """Connect to the gateway's servers. Returns their tools that aren't approved, and whether every server has
    responded."""
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
        for name, parts in _fields(each):
            print(f"  {name_shown(name)}:")
            for mark, part in parts:
                for line in _lines(part):
                    print(f"    {mark} {line}".rstrip())
    if not held:
        say("all tools are approved")


def _lines(text: str) -> Iterator[str]:
    """Split ``text`` into lines that a terminal doesn't wrap.

    The caller prints a mark before each line, so that a server's text can't imitate a mark, a field or another tool.
    """
    room = max(shutil.get_terminal_size().columns, _NARROWEST) - len("    + ")
    for line in printable(text).replace("\t", "\\t").splitlines():
        start = width = 0
        for at, character in enumerate(line):
            columns = 1 if character.isascii() else 2
            if width + columns > room:
                yield line[start:at]
                start, width = at, 0
            width += columns
        yield line[start:]


def _fields(held: HeldTool) -> Iterator[tuple[str, Iterable[tuple[str, str]]]]:
    """Yield the fields of a tool whose current text isn't approved. Each field comes with its differences from the
    approved text (`changed_parts`)."""
    new, old = pinned_fields(held.item), held.approved or {}
    for name in {**old, **new}:
        if old.get(name) != new.get(name):
            yield name, changed_parts(_text(old.get(name, "")), _text(new.get(name, "")))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)


def changed_parts(old: str, new: str) -> Iterator[tuple[str, str]]:
    """Compare two texts, and yield their parts. Each part has a mark: ``-`` if only ``old`` has the part, ``+`` if only
    ``new`` has it, and a blank if both have it."""
    before, after = _PIECE.findall(old), _PIECE.findall(new)
    start, end = _equal_ends(before, after)
    gone, come = before[start : len(before) - end], after[start : len(after) - end]
    changes = [("replace", 0, len(gone), 0, len(come))]
    if max(len(gone), len(come)) <= _MOST_COMPARED:
        changes = difflib.SequenceMatcher(None, gone, come, autojunk=False).get_opcodes()
    parts = [(" ", after[:start])]
    for kind, a, b, c, d in changes:
        if kind == "equal":
            parts.append((" ", come[c:d]))
            continue
        minus, plus = _WORD.findall("".join(gone[a:b])), _WORD.findall("".join(come[c:d]))
        first, last = _equal_ends(minus, plus)
        parts += [(" ", plus[:first]), ("-", minus[first : len(minus) - last])]
        parts += [("+", plus[first : len(plus) - last]), (" ", plus[len(plus) - last :])]
    parts.append((" ", after[len(after) - end :]))
    for mark, group in itertools.groupby(parts, key=lambda part: part[0]):
        if words := "".join(word for _, part in group for word in part):
            yield mark, words


def _equal_ends(before: Sequence[str], after: Sequence[str]) -> tuple[int, int]:
    """Return how many items are equal at the start of both sequences, and how many of the remaining items are equal at
    the end."""
    shorter = min(len(before), len(after))
    start = next((at for at in range(shorter) if before[at] != after[at]), shorter)
    end = 0
    while end < shorter - start and before[-1 - end] == after[-1 - end]:
        end += 1
    return start, end
