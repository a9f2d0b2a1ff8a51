"""target_typed: turn the typed name of a server into the data that opens the server."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from ..connecting.bad_target import BadTarget
from ..connecting.credentials import is_confidential
from ..connecting.stdio import Command
from ..connecting.targets import Address, Target
from ..transports.process import TextSink
from .host_files.configured import BadConfiguration, configured_target
from .signing_in import NoToken, SignIn

if TYPE_CHECKING:
    from ..auth.credentials import Bearer
    from ..auth.oauth_client.oauth import OAuth


class NoTarget(ValueError):
    """The text names no server. The message is one line for the user."""


def target_typed(
    typed: str | Sequence[str],
    config: Path | None = None,
    stderr: TextSink | None = None,
    sign_in: SignIn | None = None,
) -> Target:
    """Return the server that ``typed`` names: the words of a command, or one string.

    With ``config``, a string is a name in that file. Otherwise a string is a URL, a Python file (``FILE.py`` or
    ``FILE.py:NAME``), a name in a well-known file of a host, or a command as a shell splits it. Typed commands get our
    whole environment, as in a shell; configured ones get the variables of their entry. ``stderr`` gets a copy of a
    command's standard error. ``sign_in`` authorizes the requests to what is reached over HTTP or WebSocket; `None`:
    nobody does, and no token is looked at. Raises `NoTarget`.
    """
    target = _found(typed, config, stderr, None if sign_in is None else sign_in.oauth)
    try:
        bearer = None if sign_in is None else sign_in.bearer()
        return target if bearer is None else _with_token(target, bearer)
    except (NoToken, BadTarget) as error:
        raise NoTarget(str(error)) from None


def _with_token(target: Target, bearer: Bearer) -> Target:
    if not isinstance(target, Address) or not is_confidential(target.url):
        raise NoToken("a token is sent over https or wss alone, or to this machine over http or ws")
    return attrs.evolve(target, auth=bearer)


def _found(
    typed: str | Sequence[str], config: Path | None, stderr: TextSink | None, oauth: Callable[[], OAuth] | None
) -> Target:
    if not isinstance(typed, str):
        try:
            return Command(typed, inherit_env=True, stderr=stderr)
        except BadTarget as error:
            raise NoTarget(str(error)) from None
    if config is None and _is_address(typed):
        try:
            address = Address(typed)
            if oauth is None or not is_confidential(typed):
                return address
            return attrs.evolve(address, auth=oauth())
        except BadTarget as error:
            raise NoTarget(str(error)) from None
    if config is None and is_file(typed):
        return Command(command_of_file(typed), inherit_env=True, stderr=stderr)
    return _named(typed, config, stderr, oauth) or Command(_words(typed), inherit_env=True, stderr=stderr)


def _named(name: str, config: Path | None, stderr: TextSink | None, oauth: Callable[[], OAuth] | None) -> Target | None:
    try:
        target = configured_target(name, config, stderr)
        if oauth is None or not isinstance(target, Address):
            return target  # most servers are commands, and signing in takes a tenth of a second to import
        return configured_target(name, config, auth=oauth())
    except BadConfiguration as error:
        raise NoTarget(str(error)) from None


def _is_address(typed: str) -> bool:
    """Return whether ``typed`` is meant to be a URL."""
    return "://" in typed.split(" ", 1)[0] or typed.startswith("unix:")


def is_file(typed: str) -> bool:
    """Return whether ``typed`` is an existing Python file, or FILE:NAME with such a file."""
    file, colon, name = typed.rpartition(":")
    paths = [Path(typed)] + ([Path(file)] if colon and name.isidentifier() else [])
    return any(path.suffix == ".py" and path.is_file() for path in paths)


def command_of_file(typed: str) -> list[str]:
    """Return the command that serves a Python file on standard input and output, whatever the current directory."""
    file, name = (typed, "") if Path(typed).is_file() else typed.rsplit(":", 1)
    where = str(Path(file).absolute())
    # -P: what lies in the current directory is none of the server's business.
    return [sys.executable, "-P", "-m", "trio_mcp.cli", "run", f"{where}:{name}" if name else where]


def _words(typed: str) -> list[str]:
    try:
        words = shlex.split(typed)
    except ValueError as error:
        raise NoTarget(f"{typed!r} cannot be split into words: {error}") from None
    if not words:
        raise NoTarget("an empty string is no server")
    if shutil.which(words[0]) is None:
        raise NoTarget(
            f"{typed!r} is no URL, no Python file and no configured server, and there is no command {words[0]!r}"
        )
    return words
