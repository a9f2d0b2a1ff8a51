"""configured_target: find servers by their names in configuration files."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from ...connecting.stdio import Command
from ...connecting.targets import Target
from ...hosting.config_files import Config, ConfigError, read_config
from ...transports.process import TextSink
from .hosts import well_known_files

if TYPE_CHECKING:
    from ...auth.oauth_client.oauth import OAuth


class BadConfiguration(ValueError):
    """The files do not say which server is meant. The message is one line for the user."""


def configured_target(
    name: str, file: Path | None, stderr: TextSink | None = None, auth: OAuth | None = None
) -> Target | None:
    """Return the server of this name in ``file``, or in the well-known files of hosts; `None` when no file has the
    name.

    ``${NAME}`` in an entry stands for the variable of our environment. ``auth`` is that of `read_config`. Raises
    `BadConfiguration`, also when well-known files disagree.
    """
    found: dict[Path, Target] = {}
    for path, config in _configs(file, auth).items():
        if name in config.problems:
            raise BadConfiguration(f"{name!r} in {path}: {config.problems[name]}")
        if name in config.members:
            found[path] = config.members[name].target
        elif file is not None:
            raise BadConfiguration(f"{path} has no server {name!r}; it has {', '.join(config.members) or 'none'}")
    if any(target != other for target, other in pairwise(found.values())):
        raise BadConfiguration(f"{name!r} is another server in {' and '.join(map(str, found))}; choose with --config")
    for target in found.values():
        return attrs.evolve(target, stderr=stderr) if isinstance(target, Command) else target
    return None


def configured_names(file: Path | None) -> list[str]:
    """Return the names of all servers in ``file`` or the well-known files. Raises `BadConfiguration`."""
    return sorted({name for config in _configs(file).values() for name in config.members})


def _configs(file: Path | None, auth: OAuth | None = None) -> dict[Path, Config]:
    configs: dict[Path, Config] = {}
    for path in [file] if file is not None else well_known_files():
        try:
            configs[path] = read_config(path, variables=os.environ, auth=auth)
        except ConfigError as error:
            if file is not None:
                raise BadConfiguration(str(error)) from None
            # A host's file that the user did not name; it may hold other settings.
    return configs
