"""Completion, in the shell, of servers and of the names they offer. No server is started for a completion."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from ...client.client import Client
    from ...connecting.targets import Address

_PATIENCE: Final = 2.0
# Letters of names (2025-11-25 tools, Tool Names) and further ones of URIs. Others could not be typed unquoted, and a
# shell might obey them.
_TYPEABLE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./:@%+,-]*")


class _Target(click.ParamType):  # pyright: ignore[reportMissingTypeArgument] - click 8.1 knows none
    """A server: the names in configuration files, or else any file that the shell offers."""

    name = "target"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Offer names and files: see `click.ParamType.shell_complete`."""
        from ..host_files.configured import BadConfiguration, configured_names

        try:
            names = configured_names(cast("Path | None", ctx.params.get("config")))
        except BadConfiguration:
            names = []
        fitting = [CompletionItem(name) for name in names if name.startswith(incomplete)]
        return fitting or [CompletionItem(incomplete, type="file")]


class _Offered(click.ParamType):  # pyright: ignore[reportMissingTypeArgument] - click 8.1 knows none
    """A name offered by TARGET. A TARGET that listens is asked; for any other TARGET nothing is offered."""

    def __init__(self, name: str, names: Callable[[Client], AsyncIterator[str]]) -> None:
        self.name = name
        self._names = names

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Offer names: see `click.ParamType.shell_complete`."""
        from ...connecting.targets import Address
        from ..targets import NoTarget, target_typed

        try:
            target = target_typed(cast("str", ctx.params.get("target") or ""), ctx.params.get("config"))
        except NoTarget:
            return []
        if not isinstance(target, Address):
            return []
        names = [name for name in self._asked(target) if _TYPEABLE.fullmatch(name)]
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]

    def _asked(self, address: Address) -> list[str]:
        import trio

        from ..reporting import WITH_SERVER

        async def ask() -> list[str]:
            with trio.fail_after(_PATIENCE):
                async with address.open() as client:
                    return [name async for name in self._names(client)]

        try:
            return trio.run(ask)
        except WITH_SERVER:
            return []  # the shell has no place for an error message


async def _tools(client: Client) -> AsyncIterator[str]:
    async for tool in client.list_tools():
        yield tool.name


async def _prompts(client: Client) -> AsyncIterator[str]:
    async for prompt in client.list_prompts():
        yield prompt.name


async def _uris(client: Client) -> AsyncIterator[str]:
    async for resource in client.list_resources():
        yield resource.uri


TARGET: Final = _Target()
TOOL: Final = _Offered("tool", _tools)
URI: Final = _Offered("uri", _uris)
PROMPT: Final = _Offered("prompt", _prompts)
REFERENCE: Final = _Offered("name", _prompts)
"""Prompts only: templates have braces, which cannot be typed unquoted."""
