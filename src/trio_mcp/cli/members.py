"""Reads a configuration file of servers, and a file of approved (pinned) tools, for ``trio-mcp gateway`` and
``pins``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import click

from ..connecting.stdio import Command
from ..connecting.targets import Address
from ..diagnostics.log import ThreadedSink
from ..hosting.config_files import ConfigError, read_config
from ..hosting.descriptions import MemberDescription, RestartPolicy
from .printable import CommandError, CopiedToStderr, name_shown, say
from .targets import SignIn

if TYPE_CHECKING:
    from ..hosting.pins import PinPolicy, ToolPins

_RESTART: Final = RestartPolicy(attempts=float("inf"))


def loaded_pins(path: Path, policy: PinPolicy = "hold") -> ToolPins:
    """Return the approved tools (pins) that the file ``path`` contains. Raises `CommandError` if the file can't be read
    or is invalid."""
    from ..hosting.pins import ToolPins  # imported late, because only --pins needs this module

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
