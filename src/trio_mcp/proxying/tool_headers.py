"""ToolHeaders: the headers that mirror arguments of the tools of the server behind, as far as the tools were listed."""

from __future__ import annotations

import logging
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

import trio

from ..protocol.param_headers import ParamHeader, param_headers

logger = logging.getLogger("trio_mcp")

_MOST_TOOLS: Final = 10_000


class ToolHeaders:
    """The headers that tools ask for, by the tools' names: of the last 10,000 listed tools, until they change."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[ParamHeader, ...]] = {}
        self._changes = 0
        self._all_listed = False
        self._listing = trio.Lock()

    def has(self, tool: str) -> bool:
        """Return whether a listing would tell nothing new of ``tool``."""
        return self._all_listed or tool in self._known

    def of(self, tool: object) -> tuple[ParamHeader, ...]:
        """Return the headers of ``tool``; none for a tool that was not listed, or that has no name."""
        return self._known.get(tool, ()) if isinstance(tool, str) else ()

    def to_list(self) -> AbstractAsyncContextManager[object]:
        """Return the turn to list all tools, which one caller at a time has."""
        return self._listing

    def listing(self) -> int:
        """Return a mark of the moment when a listing begins, for `learn` and `listed`."""
        return self._changes

    def learn(self, result: Any, listing: int) -> None:
        """Learn from a result of ``tools/list``, unless the tools have changed since ``listing``."""
        if listing != self._changes:
            return
        try:
            for tool in result["tools"]:
                self._learn(tool["name"], tool["inputSchema"])
        except (KeyError, TypeError):
            return  # who asked is told what is wrong with it

    def _learn(self, name: str, schema: dict[str, Any]) -> None:
        self._known.pop(name, None)
        try:
            table = param_headers(schema)
        except ValueError as error:
            # 2026-07-28 streamable HTTP, Schema Extension: clients leave the tool out, so no good call of it comes.
            logger.warning("the headers of the tool %.100r are not checked: %s", name, error)
            table = ()
        self._known[name] = table
        if len(self._known) > _MOST_TOOLS:
            del self._known[next(iter(self._known))]

    def listed(self, listing: int) -> None:
        """Note that all tools were listed, unless the tools have changed since ``listing``."""
        self._all_listed = listing == self._changes

    def forget(self) -> None:
        """Forget all tools, because the tools have changed."""
        self._known.clear()
        self._changes += 1
        self._all_listed = False
