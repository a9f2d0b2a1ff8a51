"""``trio-mcp inspect``: arguments, options and help."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .shell_completion import TARGET
from .target_options import TargetCommand, connection_options, words_after_dashes

if TYPE_CHECKING:
    from ..signing_in import SignIn


@click.command(cls=TargetCommand)
@click.argument("target", type=TARGET)
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object, schemas included.")
@connection_options
def inspect(
    target: str,
    as_json: bool,
    config: Path | None,
    era: Any,
    timeout: float | None,
    stderr: bool,
    sign_in: SignIn,
) -> int:
    """Show what a server offers: its tools, resources and prompts.

    TARGET is a command ("python server.py", or the words of it after --), a URL (https://, http://, wss://, ws://,
    tcp://HOST:PORT, unix:///PATH), a Python file with a server for `trio-mcp run`, or a name from the configuration
    file of a host.

    \b
        trio-mcp inspect server.py
        trio-mcp inspect ws://127.0.0.1:8765/mcp --json
        trio-mcp inspect -- npx -y some-server --flag

    A server that is protected has you sign in with your browser; the tokens are kept until `trio-mcp logout`. The time
    that you take is not the server's. The member `oauth` of an entry in a configuration file says more about the way
    to sign in: clientId, clientSecret, scopes, callbackPort.

    Exit status: 0; 2 for a wrong TARGET, 3 when there is no connection, 4 when the server answers with an
    error, 5 when the time is over (30 seconds unless given), 6 when the server wants a token, and there is no good one.
    """
    from ..errands.inspecting import inspect_server
    from ..reporting import say
    from ..statuses import OUT_OF_TIME
    from ..targets import NoTarget, is_file, target_typed
    from ..terminal.printable import CopiedToStderr

    typed = words_after_dashes(target)
    try:
        where = target_typed(typed, config, CopiedToStderr() if stderr else None, sign_in)
    except NoTarget as error:
        raise click.UsageError(str(error)) from None
    status = inspect_server(where, as_json=as_json, era=era, timeout=timeout or 30)
    if status == OUT_OF_TIME and config is None and isinstance(typed, str) and is_file(typed):
        say('if the file serves, or waits, when it is imported, put that under: if __name__ == "__main__":')
    return status
