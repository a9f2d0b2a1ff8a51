"""TaskSupports: which tools of a server of 2025-11-25 are called as tasks, as the server lists them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal, TypeAlias, cast

import trio

from ...jsonrpc.errors import PeerError
from ...protocol.fields import JSONObject

__all__ = ["TaskSupport", "TaskSupports"]

TaskSupport: TypeAlias = Literal["forbidden", "optional", "required"]

_AS_TASKS: Final = ("optional", "required")
_MOST: Final = 10_000
"""Number of tools that are remembered."""


class TaskSupports:
    """Knows ``execution.taskSupport`` of tools (2025-11-25 tasks, Tool-Level Negotiation).

    The tools are listed once, by ``request``, when a tool is called that nobody has listed; and again after `forget`. A
    tool that is not listed, and each tool of a server that lists none, is ``forbidden`` as a task.
    """

    def __init__(self, request: Callable[[JSONObject], Awaitable[Any]], max_pages: int) -> None:
        self._request = request
        self._max_pages = max_pages
        self._known: dict[str, TaskSupport] = {}
        self._is_whole = False
        self._listing = trio.Lock()
        self.listings = 0
        """Number of listings so far, from which a caller can tell whether another one may say more."""

    def forget(self) -> None:
        """Forget all tools, which may have changed."""
        self._known, self._is_whole = {}, False

    def take(self, page: object) -> None:
        """Take a page of ``tools/list``, whoever has asked for the page."""
        for tool in _objects(_member(page, "tools")):
            name, support = tool.get("name"), _member(tool.get("execution"), "taskSupport")
            if isinstance(name, str) and len(self._known) < _MOST:
                self._known[name] = support if support in _AS_TASKS else "forbidden"

    async def of(self, name: str) -> TaskSupport:
        """Return the support of a tool. Raises as ``request``, but for a refusal of the server."""
        if name not in self._known and not self._is_whole:
            async with self._listing:
                if name not in self._known and not self._is_whole:
                    await self._list()
        return self._known.get(name, "forbidden")

    async def _list(self) -> None:
        self.listings += 1
        cursor: object = None
        self._is_whole = True  # unless `forget` is called meanwhile
        try:
            for _ in range(self._max_pages):
                page = await self._request({} if cursor is None else {"cursor": cursor})
                self.take(page)
                cursor = _member(page, "nextCursor")
                if not isinstance(cursor, str):
                    return
        except PeerError:
            return  # a server that refuses to list its tools says of none that it is a task
        except BaseException:
            self._is_whole = False
            raise


def _member(value: object, name: str) -> Any:
    return cast("JSONObject", value).get(name) if isinstance(value, dict) else None


def _objects(value: object) -> list[JSONObject]:
    return [each for each in cast("list[Any]", value) if isinstance(each, dict)] if isinstance(value, list) else []
