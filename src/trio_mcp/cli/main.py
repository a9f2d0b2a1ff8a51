"""main: runs ``trio-mcp``. The docstring of `main` lists every exit status."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import NoReturn

from . import INTERRUPTED, USAGE


def main() -> NoReturn:
    """Run the ``trio-mcp`` command that `sys.argv` specifies, and exit with its status.

    The exit status is 0 for success, 1 for failure, 2 for wrong usage or if ``trio-mcp[cli]`` isn't installed, and 130
    after Ctrl-C. `trio_mcp.cli` lists more for commands that use a server. If standard error is closed, messages are
    dropped.
    """
    _open_standard_streams()
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison] - it was closed at startup
        sys.stderr = open(os.devnull, "w", errors="backslashreplace")  # noqa: SIM115 - open until the process ends
    if any(find_spec(name) is None for name in ("click", "rich")):
        print("trio-mcp: the command line needs an extra: pip install 'trio-mcp[cli]'", file=sys.stderr)
        sys.exit(USAGE)

    import click

    from .group import trio_mcp

    try:
        sys.exit(trio_mcp.main(prog_name="trio-mcp", standalone_mode=False))
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)


def _open_standard_streams() -> None:
    """Open the null device for each standard stream that is closed.

    Otherwise a socket could get the stream's descriptor, and become, for example, the standard error of child
    processes.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


if __name__ == "__main__":
    main()
