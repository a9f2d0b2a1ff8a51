"""``trio-mcp gateway``: combines the servers of a configuration file into one server."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import trio

from ...client.options import ClientOptions
from ...concurrency.nurseries import open_service_nursery
from ...hosting.descriptions import problems_in
from ...hosting.group import Group, open_group
from ...protocol.cancel_acknowledged import CancelAcknowledged
from ...protocol.types.resources import ReadResourceParams
from ...proxying import gateway as gateways
from ...proxying.gateway import Gateway
from ...proxying.tenants import ALL_QUESTIONS
from ...server.middleware import Next, ServerRequest
from ...serving.process import serve_stdio
from .. import ENDED_WELL
from ..addresses import Addresses, log_level_option, serving_on
from ..group import SectionedCommand, choice, repeatable
from ..members import loaded_pins, members_in
from ..printable import log_to_stderr, name_shown, say
from ..serving_options import serving_options, supervised
from ..targets import SignIn
from .options import sign_in_options

if TYPE_CHECKING:
    from ...hosting.pins import PinPolicy

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
