"""``trio-mcp install``: adds the user's server to the configuration file of an MCP host."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import click

from ...connecting.stdio import Command
from ...protocol.fields import JSONObject
from .. import ENDED_WELL, NOT_WRITTEN
from ..file_edits import CannotChange, EditedFile, NotEditable, parse_object, shown_change, with_value
from ..printable import CommandError, name_shown, say
from ..reporting import WITH_SERVER, ServerOffers, say_error
from ..signals import run_until_interrupted
from ..targets import HOSTS, Host, command_of_file, is_file

_CHECK_TIMEOUT: Final = 30.0


def _variables(_: click.Context, __: click.Parameter, pairs: tuple[str, ...]) -> dict[str, str]:
    for pair in pairs:
        if pair.find("=") < 1:
            raise click.BadParameter(f"a variable must be like KEY=VALUE, not {pair!r}")
    return dict(pair.split("=", 1) for pair in pairs)


@click.command()
@click.argument("file", metavar="FILE[:NAME]")
@click.option(
    "--client", "client", type=click.Choice(list(HOSTS)), required=True, help="The MCP host that will start the server."
)
@click.option("--name", help="Name of the entry. Default: the server's own name.")
@click.option(
    "--env",
    multiple=True,
    callback=_variables,
    metavar="KEY=VALUE",
    help="Environment variable for the server. Repeatable.",
)
@click.option(
    "--path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Configuration file. Default: the host's usual file.",
)
@click.option("--replace", is_flag=True, help="Replace a different entry of the same name.")
@click.option("--dry-run", is_flag=True, help="Print the change without writing it.")
def install(
    file: str, client: str, name: str | None, env: dict[str, str], path: Path | None, replace: bool, dry_run: bool
) -> int:
    """Add your server to the configuration of an MCP host.

    FILE is the Python file that creates the server, as for `trio-mcp run`. The command starts the server once, as the
    host would.

    \b
    claude-desktop  ~/Library/Application Support/Claude/claude_desktop_config.json,
                    on Linux ~/.config/Claude/claude_desktop_config.json
    claude-code     .mcp.json in the current directory
    cursor          ~/.cursor/mcp.json
    vscode          .vscode/mcp.json in the current directory
    windsurf        ~/.codeium/windsurf/mcp_config.json
    gemini-cli      ~/.gemini/settings.json

    The rest of the file is preserved, including spaces and comments, and a copy of the previous file is kept beside it.
    A file that isn't JSON is left unchanged.

    Exit status: 0 success; 1 the file was left unchanged; 2 wrong usage; 3 to 5 the server didn't respond, as for
    `trio-mcp inspect`.
    """
    if not is_file(file):
        raise CommandError(f"there is no Python file {file!r}")
    host, command = HOSTS[client], command_of_file(file)
    place = path or host.file
    try:
        edited = EditedFile.read(place)
        old = edited.text
        old_entries = _entries(old, host.section) if old.strip() else {}
    except CannotChange as error:
        return _refused(str(error))
    except NotEditable as error:
        return _refused(f"{place} was left unchanged: {error}")
    try:
        offers = run_until_interrupted(lambda: _tried(command, env), _CHECK_TIMEOUT)
    except WITH_SERVER as error:
        say("the server did not respond when started as the host would start it:")
        return say_error(error)
    name = name or _name_of(offers)
    entry = host.entry(command, env)
    if (there := old_entries.get(name)) is not None and not replace and not _says(there, entry):
        return _refused(
            f"{edited.path} already has a different server {name!r}: choose another --name, or --replace that server"
        )
    _report(offers)
    return _write(edited, _with_entry(old, host.section, name, entry, there), name, host, dry_run=dry_run)


def _entries(text: str, section: str) -> JSONObject:
    entries = parse_object(text).get(section, {})
    if not isinstance(entries, dict):
        raise NotEditable(f"{section} in the file must be a JSON object")
    return cast("JSONObject", entries)


def _says(there: Any, entry: JSONObject) -> bool:
    """Return whether the server's entry in the host's file (``there``) already contains everything that the new
    ``entry`` contains."""
    return isinstance(there, Mapping) and entry.items() <= cast("Mapping[str, Any]", there).items()


def _with_entry(text: str, section: str, name: str, entry: JSONObject, there: Any) -> str:
    if not text.strip():
        text = "{}\n"
    if not isinstance(there, dict):
        return with_value(text, (section, name), entry)
    for key, value in entry.items():  # keep any other keys of the entry, which only the host understands
        text = with_value(text, (section, name, key), value)
    return text


async def _tried(command: list[str], env: dict[str, str]) -> ServerOffers:
    """Start the server as hosts do, with few environment variables and in another directory. Returns its tools,
    resources and prompts."""
    async with Command(command, env=env, cwd="/").open() as client:
        offers = ServerOffers(client)
        await offers.collect()
        return offers


def _name_of(offers: ServerOffers) -> str:
    info = offers.client.server_info
    return name_shown(info.name, 64) if info is not None and info.name else "server"


def _report(offers: ServerOffers) -> None:
    tools = len(offers.items("tools") or ())
    say(f"the server answered, with {tools} tool{'' if tools == 1 else 's'}")
    for kind, problem in offers.problems.items():
        say(f"{kind}: {problem}")


def _write(file: EditedFile, text: str, name: str, host: Host, *, dry_run: bool) -> int:
    if text == file.text:
        say(f"{file.path} has it already, as {name!r}")
    elif dry_run:
        print(shown_change(file.text, text, str(file.path)), end="")
    else:
        try:
            backup = file.write(text)
        except CannotChange as error:
            return _refused(str(error))
        say(f"{name!r} is in {file.path} now" + (f"; the file before is {backup.name} beside it" if backup else ""))
        say(f"{host.title} sees it when it is started again")
    return ENDED_WELL


def _refused(reason: str) -> int:
    say(reason)
    return NOT_WRITTEN
