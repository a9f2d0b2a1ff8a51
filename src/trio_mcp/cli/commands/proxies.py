"""``trio-mcp bridge``: exposes a server over another transport. ``trio-mcp gateway``: combines the servers of a
configuration file into one server. ``trio-mcp pins``: shows which tools of a gateway's servers are new or changed, and
approves them."""

from __future__ import annotations

import difflib
import itertools
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast
from urllib.parse import unquote, urlsplit

import attrs
import click
import trio

from ...auth.credentials import AuthorizationError
from ...client.client import Client
from ...client.options import ClientOptions
from ...concurrency.contexts import asynccontextmanager
from ...concurrency.nurseries import open_service_nursery
from ...connecting.stdio import Command
from ...connecting.targets import Address, Target
from ...diagnostics.log import ThreadedSink
from ...hosting.config_files import ConfigError, read_config
from ...hosting.descriptions import HeldTool, MemberDescription, RestartPolicy, problems_in
from ...hosting.group import Group, open_group
from ...protocol.cancel_acknowledged import CancelAcknowledged
from ...protocol.types.offers import ReadResourceParams
from ...proxying import gateway as gateways
from ...proxying.gateway import Gateway
from ...proxying.proxy import proxy
from ...proxying.tenants import ALL_QUESTIONS
from ...runtime.transport import ConnectionLost
from ...server.middleware import Next, ServerRequest
from ...serving.process import serve_stdio
from .. import ENDED_WELL, NO_CONNECTION, NOT_AUTHORIZED, NOT_WRITTEN
from ..addresses import Addresses, address_options, log_level_option, serving_on
from ..group import SectionedCommand, choice, in_section, repeatable
from ..printable import CommandError, CopiedToStderr, log_to_stderr, name_shown, printable, say
from ..serving_options import serving_options, supervised
from ..signals import run_until_interrupted
from ..targets import SignIn, target_typed, with_extras
from .options import (
    CONNECTION,
    ERAS,
    TARGET,
    TargetCommand,
    config_option_of_starters,
    revision_option,
    sign_in_options,
    words_after_dashes,
)

if TYPE_CHECKING:
    from ...hosting.pins import PinPolicy, ToolPins


@click.command(cls=TargetCommand)
@click.argument("target", type=TARGET)
@config_option_of_starters
@sign_in_options
@address_options
@in_section(
    CONNECTION,
    choice("--era", ERAS, "auto", "Era of the protocol to use. With auto, that of each client, if TARGET supports it."),
)
@revision_option
@log_level_option
def bridge(
    target: str,
    config: Path | None,
    addresses: Addresses,
    era: Literal["auto", "modern", "legacy"],
    revision: str | None,
    log_level: str,
    sign_in: SignIn,
) -> int:
    """Expose a server over another transport or protocol revision.

    TARGET is a command ("python server.py", or its words after --), a URL (https://, http://, wss://, ws://,
    tcp://HOST:PORT, unix:///PATH, http+unix://SOCKET/PATH), a Python file with a server for `trio-mcp run`, or a name
    from the configuration file of a host.

    With --http, --websocket, --tcp or --unix, each client gets its own connection to TARGET. If TARGET is a command,
    each client gets its own process. Modern clients over HTTP share one connection. Without these options, the only
    client is the program that started this command, on standard input and output. So a host that can only start
    commands can use a server with a URL.

    \b
        trio-mcp bridge --http 8000 -- npx -y some-server
        trio-mcp bridge https://mcp.example.com/mcp

    If TARGET is protected, requests of every client are sent with your authorization, so check who can reach the
    bridge. Tokens of clients are never passed on. If a host starts the bridge, it opens your browser only with
    --sign-in. You can sign in beforehand by running `trio-mcp inspect TARGET` in a terminal.

    Requests, cancellations, progress, logs, changes and questions pass in both directions. Clients of either era can
    use servers of the other era. The standard error of a command is copied to this one's.

    Exit status: 0 success; 2 wrong usage. With one client on standard input and output also: 3 TARGET couldn't be
    reached, or disconnected; 6 TARGET requires a token that wasn't available or was refused.
    """
    where = target_typed(words_after_dashes(target), config, ThreadedSink(CopiedToStderr().write), sign_in)
    where = with_extras(where, (), (), revision)
    serve = serving_on(addresses)
    log_to_stderr(log_level)
    status = ENDED_WELL

    @asynccontextmanager
    async def opened(**options: Any) -> AsyncGenerator[Client]:
        """Connect to the target, once for each client of the bridge."""
        nonlocal status
        if era != "auto":
            options["era"] = era
        try:
            async with where.open(**options) as client:
                yield client
        except ConnectionLost:
            status = NO_CONNECTION
            raise
        except AuthorizationError:
            status = NOT_AUTHORIZED
            raise

    trio.run(serve or serve_stdio, proxy(opened, name=_name_of(where)))
    return status if serve is None else ENDED_WELL


def _name_of(target: Target) -> str:
    """Return a name for ``target``, to be used in the bridge's messages on standard error."""
    if isinstance(target, Command):
        return os.path.basename(cast("str", target.words[0]))
    return unquote(urlsplit(target.url).netloc) or target.url if isinstance(target, Address) else "server"


_MOST_WAIT: Final = 10.0
"""The maximum number of seconds for which the first list requests wait for members that are starting. Members that take
longer are announced as changes."""
_WITH_LISTS: Final = (
    *("tools/list", "prompts/list", "resources/list", "resources/templates/list"),
    *("tools/call", "prompts/get", "resources/read"),
)


@click.command(cls=SectionedCommand, context_settings={"auto_envvar_prefix": "TRIO_MCP"})
@click.option(
    "--config",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The file whose mcpServers are served. The command of an entry gets a few harmless environment variables "
    "(PATH, HOME, ...) and those of the entry.",
)
@sign_in_options
@serving_options
@click.option(
    "--searchable", is_flag=True, help="List two tools instead of all: one that finds tools, and one that calls them."
)
@repeatable("--pinned", "pinned", "NAME", "A tool that is listed even with --searchable.")
@click.option(
    "--max-name-length",
    type=click.IntRange(32, 128),
    metavar="LENGTH",
    help="Shorten names of tools and prompts to LENGTH characters of [a-zA-Z0-9_-]. Most model providers accept 64.",
)
@click.option(
    "--pins",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Offer only tools that were approved with `trio-mcp pins approve FILE`, and hold new and changed tools.",
)
@choice(
    "--pin-policy",
    ("hold", "warn", "refuse"),
    "hold",
    "What to do with a tool that isn't in --pins: don't offer it (hold), offer no tool of its server (refuse), or "
    "offer it and log a warning (warn).",
)
@log_level_option
def gateway(
    config: Path,
    addresses: Addresses,
    searchable: bool,
    pinned: tuple[str, ...],
    max_name_length: int | None,
    pins: Path | None,
    pin_policy: PinPolicy,
    log_level: str,
    sign_in: SignIn,
) -> int:
    """Combine the servers of a configuration file into one server.

    Tools and prompts are named SERVER__NAME, and resources member://SERVER/URI. Use --max-name-length 64 if your model
    provider rejects long names. The gateway connects to each server once, and restarts servers that have failed. In the
    meantime the others keep working: the lists still contain what the failed server offered last, and its calls fail
    until it is back.

    \b
        trio-mcp gateway --config mcp.json --http 8000

    Without an address, the only client is the program that started this command, on standard input and output. Requests
    of every client are sent to a server with the authorization of its entry, or with your sign-in, so check who can
    reach the gateway. Tokens of clients are never passed on. In an entry, ${NAME} is replaced with the environment
    variable NAME. The standard error of servers is copied to this command's.

    The gateway listens at once. The first lists wait for servers that are starting, for at most ten seconds. With
    --workers, each process has its own connections to the servers. Each option can also be set by an environment
    variable: --http by TRIO_MCP_HTTP.

    Exit status: 0 success; 2 wrong usage, or a file that can't be read.
    """
    if pinned and not searchable:
        raise click.UsageError("--pinned needs --searchable")
    members = members_in(config, sign_in)
    pin = None if pins is None else loaded_pins(pins, pin_policy)
    if (status := supervised(addresses)) is not None:
        return status
    serve = serving_on(addresses) or serve_stdio
    log_to_stderr(log_level)
    options: ClientOptions = {"forwards": ALL_QUESTIONS, "extensions": [CancelAcknowledged()]}

    async def serve_members() -> None:
        async with (
            open_group(members, max_name_length=max_name_length, pin=pin, **options) as group,
            open_service_nursery("the gateway has ended") as services,
        ):
            server = gateways.gateway(group, name=config.stem)
            if searchable:
                server.searchable(pinned=pinned)
            server.middleware(*_WITH_LISTS)(partial(_with_all_members, server, trio.current_time() + _MOST_WAIT))
            services.start_soon(_report, group, config)
            await serve(server)

    trio.run(serve_members)
    return ENDED_WELL


async def _report(group: Group, config: Path) -> None:
    """Print which servers aren't ready in time, which servers' lists are incomplete, and how to approve new tools."""
    with trio.move_on_after(_MOST_WAIT):
        await group.settled()
    for status in group.statuses.values():
        if status.error is not None:
            words = "\n".join([str(status.error), *getattr(status.error, "__notes__", ())])
            say(f"{name_shown(status.name)} is {status.state}: {words}")
        for problem in problems_in(status):
            say(f"{name_shown(status.name)} is {status.state}, but its lists are incomplete: {problem}")
    if group.pins is not None and (count := len(group.catalogue.held)):
        words = shlex.join(("trio-mcp", "pins", "approve", str(group.pins.path), "--config", str(config)))
        say(f"{count} tool{'' if count == 1 else 's'} held until approved: {words}")


async def _with_all_members(server: Gateway, deadline: float, request: ServerRequest, next: Next) -> Any:
    """Middleware that lets requests wait while servers of the gateway are starting, but not after ``deadline``.

    It affects list requests, and requests with a name that no server has listed yet.
    """
    params = request.params
    name = params.uri if isinstance(params, ReadResourceParams) else getattr(params, "name", None)
    with trio.move_on_at(deadline):
        await server._wait_listed(name)
    return await next(request)


_RESTART: Final = RestartPolicy(attempts=float("inf"))


def loaded_pins(path: Path, policy: PinPolicy = "hold") -> ToolPins:
    """Return the approved tools (pins) that the file ``path`` contains. Raises `CommandError` if the file can't be read
    or is invalid."""
    from ...hosting.pins import ToolPins  # imported late, because only --pins needs this module

    pins = ToolPins(path, policy)
    with CommandError.instead_of(ConfigError):
        pins.load()
    return pins


def members_in(path: Path, sign_in: SignIn) -> dict[str, MemberDescription]:
    """Return the servers in a configuration file, as members of a server group. Raises `CommandError` if the file is
    invalid or has no usable server.

    What their processes write to standard error is copied to this process's standard error.
    """
    if sign_in.bearer_env is not None:
        raise click.UsageError("--bearer-env works for a single server only; add headers to the server's entry instead")
    with CommandError.instead_of(ConfigError):
        config = read_config(path, restart=_RESTART, variables=os.environ)
        if any(isinstance(each.target, Address) for each in config.members.values()):
            config = read_config(path, restart=_RESTART, variables=os.environ, auth=sign_in.oauth())
    for name, problem in config.problems.items():
        left_out = "" if name in config.members else " is left out"
        say(f"{name_shown(name) or repr(name)} in {path}{left_out}: {problem}")
    members = {name: _with_stderr(each) for name, each in config.members.items() if not each.disabled}
    if not members:
        raise CommandError(f"{path} has no usable server")
    return members


def _with_stderr(member: MemberDescription) -> MemberDescription:
    target = member.target
    if not isinstance(target, Command):
        return member
    return attrs.evolve(member, target=attrs.evolve(target, stderr=ThreadedSink(CopiedToStderr().write)))


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


_config: Final = click.option(
    "--config",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The file whose mcpServers are started and compared with the pins.",
)
_file: Final = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))


@pins.command()
@_file
@_config
@sign_in_options
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
@_file
@_config
@sign_in_options
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--yes", is_flag=True, help="Approve without asking.")
def approve(file: Path, config: Path, sign_in: SignIn, names: tuple[str, ...], yes: bool) -> int:
    """Show new and changed tools, and approve their exact texts in FILE.

    The tools are shown as by `trio-mcp pins show`. NAME is the name of a tool in the gateway, or of a server. Without
    names, all tools are approved. A running gateway offers them within a second.

    Exit status: 0 success; 1 the file was left unchanged; 2 wrong usage, or a file that can't be read or written; 3 a
    server didn't respond, and no names were given.
    """
    from ...hosting.pins import ToolPins

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
    from ...hosting.pins import pinned_fields

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
