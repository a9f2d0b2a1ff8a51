"""``trio-mcp pack``: writes a ``server.json`` for registries and an MCP bundle for hosts."""

from __future__ import annotations

import hashlib
import os
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Literal, cast

import click

from ...classes import frozen
from ...protocol.fields import as_object
from ...protocol.types.lifecycle import Icon, Implementation
from ...protocol.types.server_cards import check_name, check_text, check_version, domain_in, name_in
from ...server.server import Server
from ...transports.http_client.origins import split_url
from .. import ENDED_WELL, NOT_WRITTEN
from ..bundles import ENTRY, MANIFEST, entry_file, files_of, written, zipped
from ..group import repeatable
from ..loading import load_server
from ..printable import CommandError, say
from ..targets import is_file

_SERVER_SCHEMA: Final = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
_MANIFEST_VERSION: Final = "0.4"
"""The first manifest version that supports uv."""
_PROJECT: Final = "pyproject.toml"
_IMAGES: Final = ("image/png", "image/jpeg", "image/jpg", "image/svg+xml", "image/webp")
_LONGEST_IMAGE_URL: Final = 255
_MOST_LEFT_OUT: Final = 200
"""Maximum number of left-out files and folders that are listed one by one."""


def _checked(check: Callable[[str], None]) -> Any:
    def callback(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
        try:
            if value is not None:
                check(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
        return value

    return callback


def _check_https(url: str) -> None:
    if not split_url(url)[0].secure:
        raise ValueError("a public URL must begin with https://")


def _check_download(url: str) -> None:
    _check_https(url)
    if "mcp" not in url:  # a rule of the MCP Registry (package types, section MCPB)
        raise ValueError('the URL of a bundle must contain "mcp", as in .mcpb')


@click.command()
@click.argument("file", metavar="FILE[:NAME]")
@click.option(
    "--name",
    required=True,
    callback=_checked(check_name),
    metavar="DOMAIN/NAME",
    help="Global name of the server, like com.example/weather: your domain reversed, a slash, and a name.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("dist"),
    show_default=True,
    help="Folder to write to, which is created if necessary.",
)
@click.option(
    "--folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder to pack. Default: the folder of FILE.",
)
@repeatable("--exclude", "exclude", "PATTERN", "Leave out matching files, like 'tests' or '*.db'.")
@repeatable(
    "--include",
    "include",
    "PATH",
    "Pack this file even if it looks like a secret. The path is relative to the folder.",
)
@click.option("--author", metavar="NAME", help="Author of the bundle. Default: the domain in --name.")
@click.option(
    "--runtime",
    type=click.Choice(["uv", "python"]),
    default="uv",
    show_default=True,
    help="uv: hosts install the dependencies in pyproject.toml. python: you have installed all packages into the "
    "folder lib with pip --target, which works only on machines like yours.",
)
@repeatable(
    "--dependency",
    "dependencies",
    "REQUIREMENT",
    "A package that the server needs besides trio-mcp, if the folder has no pyproject.toml.",
)
@click.option(
    "--download",
    callback=_checked(_check_download),
    metavar="URL",
    help="URL of the bundle for server.json, at a GitHub or GitLab release.",
)
@click.option(
    "--url", callback=_checked(_check_https), metavar="URL", help="URL at which you serve the server, for server.json."
)
def pack(**typed: Any) -> int:
    """Write a server.json and an MCP bundle of your server.

    FILE is the Python file that creates the server, as for `trio-mcp run`. It is imported but not served. Version,
    title, description and icons are those of the Server.

    \b
        trio-mcp pack weather.py --name com.example/weather
        trio-mcp pack src/weather.py:server --folder . --name com.example/weather -o build

    The bundle contains the folder, without hidden files, caches, environments and files that match --exclude. Hosts
    start it with uv, as `trio-mcp run` would. The same files always make the same bundle, byte for byte. Links that
    leave the folder are refused, and so are files whose name or content looks like a secret. Left-out files are listed.

    Exit status: 0 success; 1 FILE raised an exception, or nothing could be written; 2 wrong usage, or a server that
    can't be packed as it is.
    """
    return _Packing(**typed).run()


@frozen(kw_only=True)
class _Packing:
    """The command ``trio-mcp pack`` with the arguments and options that the user has typed."""

    file: str
    name: str
    output: Path
    folder: Path | None
    exclude: tuple[str, ...]
    include: tuple[str, ...]
    author: str | None
    runtime: Literal["uv", "python"]
    dependencies: tuple[str, ...]
    download: str | None
    url: str | None

    def run(self) -> int:
        """Pack the server, and return the exit status."""
        if not is_file(self.file):
            raise CommandError(f"there is no Python file {self.file!r}")
        path, variable = (self.file, "") if Path(self.file).is_file() else self.file.rsplit(":", 1)
        server = load_server(self.file)
        if server is None:
            raise CommandError(
                f'{path} serves when it is imported; move that code below the line: if __name__ == "__main__":'
            )
        _check_info(server.info)
        root = Path(os.path.realpath(self.folder or Path(path).parent))
        found = files_of(root, self.output, self.exclude, self.include)
        inside = _inside(Path(path), root)
        if inside not in found.files:
            raise CommandError(f"{path} would not be in the bundle: it is hidden, excluded, or not in {root}")
        made = {ENTRY: entry_file(inside, variable).encode(), **self._project(found.files)}
        made[MANIFEST] = written(self._manifest(server))
        place = self.output / f"{name_in(self.name)}.mcpb"
        try:
            bundle = zipped(found.files, made)
            self.output.mkdir(parents=True, exist_ok=True)
            place.write_bytes(bundle)
            (self.output / "server.json").write_bytes(written(self._server_json(server.info, bundle)))
        except OSError as error:
            say(str(error))
            return NOT_WRITTEN
        self._report(found.left_out, f"{place} has {len(found.files) + len(made)} files and {len(bundle)} bytes")
        return ENDED_WELL

    def _server_json(self, info: Implementation, bundle: bytes) -> dict[str, Any]:
        """Return the contents of ``server.json``, the server's description for registries (schema 2025-12-11)."""
        package = {
            "registryType": "mcpb",
            "identifier": self.download,
            "version": info.version,
            "fileSha256": hashlib.sha256(bundle).hexdigest(),
            "transport": {"type": "stdio"},
        }
        return _without_empty({
            "$schema": _SERVER_SCHEMA,
            "name": self.name,
            "title": info.title,
            "description": info.description,
            "version": info.version,
            "websiteUrl": info.website_url,
            "icons": [_icon(icon) for icon in info.icons or () if _is_accepted(icon)],
            "packages": [package] if self.download is not None else [],
            "remotes": [{"type": "streamable-http", "url": self.url}] if self.url is not None else [],
        })  # fmt: skip

    def _manifest(self, server: Server) -> dict[str, Any]:
        """Return the contents of the MCP bundle's manifest (mcpb, MANIFEST.md, version 0.4)."""
        info, here = server.info, f"${{__dirname}}/{ENTRY}"
        if self.runtime == "uv":
            command: dict[str, Any] = {"command": "uv", "args": ["run", "--directory", "${__dirname}", ENTRY]}
            platforms, python = ["darwin", "linux"], ">=3.11"
        else:
            command = {"command": "python3", "args": [here], "env": {"PYTHONPATH": "${__dirname}/lib"}}
            major, minor = sys.version_info[:2]  # the packages in lib are compiled for this Python version
            platforms, python = [sys.platform], f">={major}.{minor},<{major}.{minor + 1}"
        tools = [each.listed for each in server._tools.listed if each.visible is None]
        return _without_empty({
            "manifest_version": _MANIFEST_VERSION,
            "name": name_in(self.name),
            "display_name": info.title,
            "version": info.version,
            "description": info.description,
            "author": {"name": self.author or domain_in(self.name)},
            "homepage": info.website_url,
            "server": {"type": self.runtime, "entry_point": ENTRY, "mcp_config": command},
            "tools": [_without_empty({"name": tool.name, "description": tool.description}) for tool in tools],
            "prompts_generated": True if server._prompts.registry.is_used else None,
            "compatibility": {"platforms": platforms, "runtimes": {"python": python}},
        })  # fmt: skip

    def _project(self, files: Mapping[str, Path]) -> dict[str, bytes]:
        """Return a dict with a generated ``pyproject.toml``, which lists the bundle's dependencies. The dict is empty
        if hosts need no such file, or if the user's folder contains one."""
        if self.runtime == "python":
            _check_library(files, self.dependencies)
        elif (project := files.get(_PROJECT)) is not None:
            _check_project(project, self.dependencies)
        else:
            return {_PROJECT: _project(self.dependencies)}
        return {}

    def _report(self, left_out: Sequence[str], bundle: str) -> None:
        for each in left_out[:_MOST_LEFT_OUT]:
            say(f"{each} is not in the bundle")
        if len(left_out) > _MOST_LEFT_OUT:
            say(f"{len(left_out) - _MOST_LEFT_OUT} more are not in the bundle")
        if self.download is None and self.url is None:
            say("server.json has no URL: set the URL of the bundle with --download, or that of the server with --url")
        say(f"{bundle}; {self.output / 'server.json'} was written")


def _check_info(info: Implementation) -> None:
    """Check that registries and MCP hosts accept the server's texts. Raises `CommandError` for invalid values."""
    try:
        check_version(info.version)
        check_text("description", info.description or "")
        if info.title is not None:
            check_text("title", info.title)
    except ValueError as error:
        raise CommandError(f"{error}; write Server(..., version=..., description=..., title=...)") from None


def _inside(file: Path, root: Path) -> str:
    # Resolve only the path of the folder, because the file itself may be a symbolic link.
    where = Path(os.path.realpath(file.parent)) / file.name
    return where.relative_to(root).as_posix() if where.is_relative_to(root) else str(where)


def _check_library(files: Mapping[str, Path], dependencies: Sequence[str]) -> None:
    if dependencies:
        raise click.UsageError(
            "--dependency needs --runtime uv: otherwise install packages into the folder lib with pip --target"
        )
    if "lib/trio_mcp/__init__.py" not in files:
        raise CommandError(
            "the folder has no lib with trio-mcp: first run pip install --target lib 'trio-mcp[cli]' there"
        )


def _check_project(project: Path, dependencies: Sequence[str]) -> None:
    if dependencies:
        raise click.UsageError(f"--dependency can't be used if the folder has a {_PROJECT}: add the dependency there")
    with CommandError.instead_of(OSError, ValueError, prefix=f"{project} cannot be read: "):
        data: Any = tomllib.loads(project.read_text())
    table = data.get("project")
    named: Any = as_object(table).get("dependencies")
    words = [each for each in cast("list[Any]", named) if isinstance(each, str)] if isinstance(named, list) else []
    if not any(word.replace("_", "-").lower().startswith("trio-mcp") for word in words):
        raise CommandError(f"{project} must have trio-mcp[cli] among its dependencies: hosts install nothing else")


def _project(dependencies: Sequence[str]) -> bytes:
    needed = [f"trio-mcp[cli]>={version('trio-mcp')}", *dependencies]
    listed = "".join(f"  {_toml(each)},\n" for each in needed)
    return (
        f'[project]\nname = "bundled-server"\nversion = "0"\nrequires-python = ">=3.11"\ndependencies = [\n{listed}]\n'
    ).encode()


def _toml(text: str) -> str:
    if not text.isprintable():
        raise click.UsageError(f"{text!r} is not a valid package name")
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _is_accepted(icon: Icon) -> bool:
    """Return whether registries accept ``icon`` in a server.json."""
    fits = icon.src.startswith("https://") and len(icon.src) <= _LONGEST_IMAGE_URL
    return fits and (icon.mime_type is None or icon.mime_type in _IMAGES)


def _icon(icon: Icon) -> dict[str, Any]:
    return _without_empty({"src": icon.src, "mimeType": icon.mime_type, "sizes": icon.sizes, "theme": icon.theme})


def _without_empty(members: dict[str, Any]) -> dict[str, Any]:
    """Return ``members`` without those that have an empty value."""
    return {name: value for name, value in members.items() if value not in (None, [], "")}
