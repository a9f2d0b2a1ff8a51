"""``trio-mcp inspect``: lists the tools, resources, prompts and skills of a server, as tables or JSON.

If TARGET is only a host, its catalog is read. The user is asked before a connection to another host is made, and is
shown where the card and the live server differ.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, cast
from urllib.parse import urlsplit

import attrs
import click
import trio
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...auth.credentials import Bearer
from ...auth.fetching import FetchFailed, UrlRules
from ...client.client import Client
from ...client.requests import meta_in
from ...connecting.cards import DiscoveryFailed, FoundServer, discover, read_card
from ...connecting.credentials import is_confidential
from ...connecting.targets import Address, Target
from ...protocol.converters import structure_result, unstructure
from ...protocol.fields import JSONObject, as_object
from ...protocol.revisions import LEGACY_REVISIONS
from ...protocol.types.lifecycle import DiscoverResult
from ...protocol.types.offers import Prompt, Resource, ResourceTemplate
from ...protocol.types.server_cards import ServerCard, name_in
from ...protocol.types.skills import Skill
from ...protocol.types.tools import Tool
from ...transports.http_client.origins import Origin, split_url
from .. import ENDED_WELL, OUT_OF_TIME
from ..arguments import SchemaReader
from ..printable import CommandError, CopiedToStderr, name_shown, on_one_line, printable, say
from ..reporting import WITH_SERVER, ServerOffers, say_error
from ..signals import run_until_interrupted
from ..targets import NoTarget, is_file
from ..terminal import Terminal
from .options import TARGET, ConnectionOptions, TargetCommand, connection_options, words_after_dashes


@click.command(cls=TargetCommand)
@click.argument("target", type=TARGET)
@click.option("--json", "as_json", is_flag=True, help="Print everything, including schemas, as one JSON object.")
@click.option("--web", is_flag=True, help="Serve the web inspector until Ctrl-C.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, show_default="any free one", help="Port of the web inspector."
)
@connection_options
def inspect(
    target: str,
    as_json: bool,
    web: bool,
    port: int,
    connection: ConnectionOptions,
) -> int:
    """Show the tools, resources, prompts and skills of a server.

    TARGET is a command ("python server.py", or its words after --), a URL (https://, http://, wss://, ws://,
    tcp://HOST:PORT, unix:///PATH, http+unix://SOCKET/PATH), a Python file with a server for `trio-mcp run`, or a name
    from the configuration file of a host.

    \b
        trio-mcp inspect server.py
        trio-mcp inspect ws://127.0.0.1:8765/mcp --json
        trio-mcp inspect -- npx -y some-server --flag

    If TARGET is a URL without a path, like https://example.com, the command looks for the server in the catalog of that
    host. You are asked before it connects to another host, and are shown where card and server differ.

    With --web, the command prints an address on this machine. Open it in your browser to use the web inspector: it
    calls tools with forms, shows progress, logs, results and all messages, shows the server's questions, and cancels
    calls. The address contains a secret: anyone who knows it can use the server as you.

    If the server requires a token, you sign in with your browser. Tokens are kept until `trio-mcp logout`. The time
    that you take doesn't count against --timeout. An entry of a configuration file can have a member `oauth` with
    settings for signing in: clientId, clientSecret, scopes, callbackPort.

    If a list fails, the others are shown, together with the problem.

    Exit status: 0 success; 2 wrong TARGET; 3 no connection; 4 the server responded with an error; 5 timeout (30 seconds
    by default); 6 the server requires a token that wasn't available or was refused.
    """
    if web and as_json:
        raise click.UsageError("--web and --json cannot be combined")
    typed = words_after_dashes(target)
    where = connection.target(typed, CopiedToStderr() if connection.stderr else None)
    config, era, timeout, card = connection.config, connection.era, connection.timeout or 30, None
    if config is None and isinstance(where, Address) and is_host_alone(where.url):
        try:
            where, card = find_endpoint(where, timeout)
        except WITH_SERVER as error:
            return say_error(error)
    if web:
        return inspect_in_browser(where, era=era, timeout=timeout, port=port)
    status = inspect_server(where, as_json=as_json, era=era, timeout=timeout, card=card)
    if status == OUT_OF_TIME and config is None and isinstance(typed, str) and is_file(typed):
        say(
            'if the file serves or waits when it is imported, move that code below the line: if __name__ == "__main__":'
        )
    return status


_PIPED_WIDTH: Final = 160
_LONGEST_URI: Final = 2000
_LONGEST_DESCRIPTION: Final = 60


def inspect_server(target: Target, *, as_json: bool, era: Any, timeout: float, card: ServerCard | None = None) -> int:
    """Print the tools, resources, prompts and skills of ``target`` on standard output, and return the exit status.

    Takes at most ``timeout`` seconds. Differences from the server card ``card`` are printed on standard error.
    """
    offers: ServerOffers | None = None
    text, differing = "", list[str]()
    printed = _json if as_json else _tables

    async def ask() -> None:
        nonlocal offers, text
        async with target.open(era=era) as client:
            if card is not None:
                differing.extend(await differences(card, client))
            offers = ServerOffers(client)
            await offers.collect()
            text = printed(offers)  # format the text here, so that the time limit includes it

    status = ENDED_WELL
    try:
        run_until_interrupted(ask, timeout)
    except WITH_SERVER as error:
        if not text:
            status = say_error(error)
            text = printed(offers) if offers is not None and isinstance(error, trio.TooSlowError) else ""
    for line in differing if text else ():
        say(line)
    print(text, end="")
    return status


def inspect_in_browser(target: Target, *, era: Any, timeout: float, port: int) -> int:
    """Serve the web inspector for ``target`` on loopback until Ctrl-C. Prints the inspector's URL, and returns the exit
    status.

    Connecting may take at most ``timeout`` seconds, and so may reading each list. Raises `CommandError` if ``port``
    can't be used.
    """
    from ...inspecting.application import inspect_in_page  # imported late, because only --web needs this module

    def told(address: str) -> None:
        print(address, flush=True)
        say("open this address in your browser; Ctrl-C ends")

    try:
        run_until_interrupted(partial(inspect_in_page, target, told, era=era, timeout=timeout, port=port))
    except WITH_SERVER as error:
        return say_error(error)
    except OSError as error:
        raise CommandError(f"cannot serve the web inspector on port {port}: {error}") from None
    except KeyboardInterrupt:
        say("the web inspector is closed")
    return ENDED_WELL


def _json(offers: ServerOffers) -> str:
    # JSON escapes control characters, so they can't affect the terminal.
    return json.dumps(offers.as_json(), indent=2, ensure_ascii=sys.stdout.isatty()) + "\n"


def _tables(offers: ServerOffers) -> str:
    is_terminal = sys.stdout.isatty()
    console = Console(highlight=False, force_terminal=is_terminal, width=None if is_terminal else _PIPED_WIDTH)
    with console.capture() as captured:
        _show(offers, console)
    return captured.get()


def _show(offers: ServerOffers, console: Console) -> None:
    reader = SchemaReader()
    for label, words in _facts(offers):
        console.print(Text(f"{label:<13}", "bold") + Text(printable(words)), soft_wrap=True)
    has_tasks = any(map(_task_support, offers.items("tools") or ()))
    tools = ("tool", "arguments", "description", "task")[: 3 + has_tasks]
    tables: list[tuple[str, str, tuple[str, ...], Callable[[Any], tuple[str, ...]]]] = [
        ("tools", "tools", tools, lambda tool: _tool(reader, tool)[: len(tools)]),
        ("resources", "resources", ("resource", "name", "type", "description"), _resource),
        ("templates", "resourceTemplates", ("template", "name", "type", "description"), _resource),
        ("prompts", "prompts", ("prompt", "arguments", "description"), _prompt),
        ("skills", "skills", ("skill", "name", "files", "description"), _skill),
    ]
    for kind, member, columns, row in tables:
        if (items := offers.items(member)) is None:
            continue
        table = Table(*columns)
        for first, *rest in map(row, items):
            table.add_row(Text(first, "cyan"), *map(Text, rest))
        console.print()
        console.print(table if items else f"no {kind}")


def _facts(offers: ServerOffers) -> Iterable[tuple[str, str]]:
    info = offers.client.server_info
    if info is not None:
        yield "server", f"{name_shown(info.name)} {name_shown(info.version)}"
        if info.title:
            yield "title", name_shown(info.title)
        if info.website_url:
            yield "website", name_shown(info.website_url)
    yield "revision", f"{offers.client.revision.name} ({offers.era})"
    yield "capabilities", ", ".join(map(name_shown, _capabilities(offers.client))) or "none"
    for kind, problem in offers.problems.items():
        yield "problem", f"{kind}: {name_shown(problem, _LONGEST_URI)}"
    if offers.client.instructions:
        yield "instructions", offers.client.instructions


def _capabilities(client: Client) -> Iterable[str]:
    declared = cast("JSONObject", unstructure(client.server_capabilities, client.revision))
    for name, value in declared.items():
        parts = as_object(value)
        details = [part for part, setting in parts.items() if setting not in (False, None)]
        yield f"{name} ({', '.join(details)})" if details else name


def _tool(reader: SchemaReader, tool: Tool) -> tuple[str, ...]:
    properties = tool.input_schema.get("properties")
    required: Any = tool.input_schema.get("required")
    names = cast("list[Any]", required) if isinstance(required, list) else []
    needed = {name for name in names if isinstance(name, str)}
    arguments = [
        f"{name_shown(name)}{'' if name in needed else '?'}: {name_shown(reader.words(schema, tool.input_schema))}"
        + _described(schema)
        for name, schema in as_object(properties).items()
    ]
    about = on_one_line(tool.description or tool.title or "")
    return name_shown(tool.name), "\n".join(arguments), about, _task_support(tool)


def _described(schema: Any) -> str:
    """Return the description of a tool's argument on one line, to show after the argument's type. Returns an empty
    string if there is no description."""
    text = as_object(schema).get("description")
    return f" - {on_one_line(text, _LONGEST_DESCRIPTION)}" if isinstance(text, str) and text.strip() else ""


def _task_support(tool: Tool) -> str:
    """Return ``optional`` or ``required`` if the tool can or must be called as a task; otherwise an empty string."""
    support = tool.execution.task_support if tool.execution is not None else None
    return support if support in ("optional", "required") else ""


def _resource(resource: Resource | ResourceTemplate) -> tuple[str, ...]:
    where = resource.uri if isinstance(resource, Resource) else resource.uri_template
    about = on_one_line(resource.description or resource.title or "")
    return name_shown(where, _LONGEST_URI), name_shown(resource.name), name_shown(resource.mime_type or ""), about


def _prompt(prompt: Prompt) -> tuple[str, ...]:
    arguments = [
        f"{name_shown(argument.name)}{'' if argument.required else '?'}" for argument in prompt.arguments or ()
    ]
    return name_shown(prompt.name), "\n".join(arguments), on_one_line(prompt.description or prompt.title or "")


def _skill(skill: Skill) -> tuple[str, ...]:
    files = str(len(skill.resources)) if isinstance(skill.resources, list) else "dynamic"  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
    return name_shown(skill.uri, _LONGEST_URI), name_shown(skill.name), files, on_one_line(skill.description)


_LONGEST_URL = 2000
_LEGACY = frozenset(row.name for row in LEGACY_REVISIONS)


def is_host_alone(url: str) -> bool:
    """Return whether ``url`` is an HTTP URL without a path and query."""
    parts = urlsplit(url)
    return parts.scheme in ("http", "https") and parts.path in ("", "/") and not parts.query


def find_endpoint(typed: Address, timeout: float) -> tuple[Address, ServerCard | None]:
    """Look for a server catalog at the host that the user has typed. Returns the address of a server in the catalog,
    with its server card.

    If there is no catalog, or the catalog is empty, returns ``typed`` itself and `None`.

    At a terminal, the user chooses among several servers, and must agree before any other host is contacted. Without a
    terminal, no other host is contacted. The user's headers and tokens are sent only to the typed origin. Each response
    may take ``timeout`` seconds. Raises `NoTarget`, `DiscoveryFailed` for a card, and `trio.TooSlowError`.
    """
    origin = split_url(typed.url)[0]
    try:
        servers = run_until_interrupted(partial(discover, str(origin)), timeout)
    except DiscoveryFailed as error:
        say(f"no catalog ({error}); connecting to the URL itself")
        return typed, None
    if not servers:
        say(f"the catalog of {origin} lists no server; connecting to the URL itself")
        return typed, None
    visit = _DiscoveryDialog(origin)
    server = visit.chosen(servers)
    if server.url is not None:
        visit.agree(server.url, "the card of the server is")
    card = run_until_interrupted(partial(read_card, server), timeout)
    visit.say(f"{name_shown(card.name)} {name_shown(card.version)}: {on_one_line(card.description)}")
    if card.endpoint is None:
        raise NoTarget(f"the server card of {card.name} has no Streamable HTTP URL")
    url = card.endpoint.url
    visit.agree(url, "the server is")
    visit.say(f"  at {name_shown(url, _LONGEST_URL)}")
    if split_url(url)[0] == origin:
        return attrs.evolve(typed, url=url), card
    if typed.headers or isinstance(typed.auth, Bearer):
        raise NoTarget(
            f"your headers and your token may be sent only to {origin}, but the server is at {url}: pass this URL"
        )
    return attrs.evolve(typed, url=url, auth=typed.auth if is_confidential(url) else None), card


class _DiscoveryDialog:
    """The dialog with the user about a server catalog: the user chooses a server, and permits connections to hosts
    other than the typed one."""

    def __init__(self, typed: Origin) -> None:
        self._agreed = {typed}
        self._rules = UrlRules.for_server(str(typed))
        self._terminal = Terminal(None)
        self.say = self._terminal.say

    def chosen(self, servers: Sequence[FoundServer]) -> FoundServer:
        """Show the servers in the catalog, and return the one that the user chooses. Raises `NoTarget` if no valid
        choice was made."""
        for number, server in enumerate(servers, start=1):
            where = server.url or "(its card is in the catalog)"
            self.say(f"  {number}) {name_shown(server.identifier)}  {name_shown(where, _LONGEST_URL)}")
        if len(servers) == 1:
            return servers[0]
        typed = self._asked(f"which one? 1 to {len(servers)}") if self._terminal.can_ask else None
        if typed is not None and typed.isdecimal() and 0 < int(typed) <= len(servers):
            return servers[int(typed) - 1]
        raise NoTarget(f"the catalog lists {len(servers)} servers: use the URL of one of them as the target")

    def agree(self, url: str, what: str) -> None:
        """Ask the user for permission to contact the host of ``url``, unless the user has typed this host or permitted
        it before. Raises `NoTarget` if the user refuses."""
        with NoTarget.instead_of(FetchFailed, prefix="the catalog lists no usable URL: "):
            origin = self._rules.check(url)
        if origin in self._agreed:
            return
        if not self._terminal.can_ask:
            raise NoTarget(f"{what} on another host, at {origin}: to connect to it, use {url} as the target")
        if self._asked(f"{what} on another host: connect to {origin}? yes or no [no]") not in ("y", "yes"):
            raise NoTarget(f"not connecting to {origin}, because you did not agree")
        self._agreed.add(origin)

    def _asked(self, prompt: str) -> str | None:
        async def ask() -> str | None:
            async with self._terminal.asking():
                return await self._terminal.read(prompt)

        return run_until_interrupted(ask)


async def differences(card: ServerCard, client: Client) -> list[str]:
    """Return descriptions of how the server card ``card`` differs from the running server (docs/discovery.md,
    Consistency with Runtime Behavior).

    If the server is modern, first requests its protocol revisions. Raises the same errors as a call.
    """
    live = await _live_versions(client)
    found: list[str] = []
    info = client.server_info
    if info is not None and info.name not in (card.name, name_in(card.name)):
        found.append(_said("the name", card.name, info.name))
    if info is not None and info.version != card.version:
        found.append(_said("version", card.version, info.version))
    told = card.endpoint.supported_protocol_versions if card.endpoint is not None else None
    if told is None:
        return found
    # Ignore those protocol revisions on the server card that the server can't report on this connection.
    # Without a handshake, a server reports all its protocol revisions that have no handshake.
    # After a handshake, it reports only the revision that the handshake has chosen.
    claimed = {name for name in told if name not in _LEGACY} if not client.revision.handshake else live & set(told)
    if claimed != live:
        found.append(_said("revisions", ", ".join(sorted(claimed)) or "none of these", ", ".join(sorted(live))))
    return found


def _said(what: str, card: str, live: str) -> str:
    return f"the card says {what} {name_shown(card)}, but the live server says {name_shown(live)}: trust the server"


async def _live_versions(client: Client) -> set[str]:
    revision = client.revision
    if revision.handshake:
        return {revision.name}
    result = await client._connection.request("server/discover", {"_meta": meta_in(client, revision)}, revision)
    return set(structure_result("server/discover", result, DiscoverResult).supported_versions)
