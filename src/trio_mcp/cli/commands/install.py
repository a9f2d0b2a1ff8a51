"""``trio-mcp install``: arguments, options and help."""

from __future__ import annotations

from pathlib import Path

import click

from ..host_files.hosts import HOSTS


def _variables(_: click.Context, __: click.Parameter, pairs: tuple[str, ...]) -> dict[str, str]:
    for pair in pairs:
        if pair.find("=") < 1:
            raise click.BadParameter(f"a variable is like KEY=VALUE, not {pair!r}")
    return dict(pair.split("=", 1) for pair in pairs)


@click.command()
@click.argument("file", metavar="FILE[:NAME]")
@click.option(
    "--client", "client", type=click.Choice(list(HOSTS)), required=True, help="The host that will start the server."
)
@click.option("--name", help="The name of the entry; the server's own unless given.")
@click.option(
    "--env", multiple=True, callback=_variables, metavar="KEY=VALUE", help="A variable for the server. Repeatable."
)
@click.option(
    "--path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The configuration file, if not the usual one of the host.",
)
@click.option("--replace", is_flag=True, help="Replace a different entry of the same name.")
@click.option("--dry-run", is_flag=True, help="Print the change, and write nothing.")
def install(
    file: str, client: str, name: str | None, env: dict[str, str], path: Path | None, replace: bool, dry_run: bool
) -> int:
    """Write a server of yours into the configuration file of a host.

    FILE is the Python file that makes the server, as for `trio-mcp run`. The server is started once, as by the host.

    \b
    claude-desktop  ~/Library/Application Support/Claude/claude_desktop_config.json,
                    on Linux ~/.config/Claude/claude_desktop_config.json
    claude-code     .mcp.json in the current directory
    cursor          ~/.cursor/mcp.json
    vscode          .vscode/mcp.json in the current directory
    windsurf        ~/.codeium/windsurf/mcp_config.json
    gemini-cli      ~/.gemini/settings.json

    The rest of the file is preserved, spaces and comments included, and a copy of the previous file is kept beside it.
    A file that is not JSON is left alone.

    Exit status: 0; 1 when the file was left unchanged; 2 for wrong usage; 3 to 5 when the server did not answer, as for
    `trio-mcp inspect`.
    """
    from ..installing import Installation, install_server
    from ..targets import command_of_file, is_file

    if not is_file(file):
        raise click.UsageError(f"there is no Python file {file!r}")
    host = HOSTS[client]
    return install_server(
        Installation(
            command=command_of_file(file),
            host=host,
            file=path or host.file,
            name=name,
            env=env,
            replace=replace,
            dry_run=dry_run,
        )
    )
