"""ToolHeaders: the arguments of tools that headers mirror, as far as the tools were listed."""

from __future__ import annotations

import logging
from typing import Any, Final, cast

from ...jsonrpc.codec import decode, frame_result
from ...jsonrpc.messages import Response
from ...protocol.fields import JSONObject
from ...protocol.param_headers import ParamHeader, headers_for, param_headers
from ..given_headers import Headers
from .outgoing import Outgoing

logger = logging.getLogger("trio_mcp")

_MOST_TOOLS: Final = 10_000


class ToolHeaders:
    """The headers that tools ask for, by the tools' names: of the last 10,000 listed tools that ask for any."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[ParamHeader, ...]] = {}

    def of_call(self, call: Outgoing) -> Headers:
        """Return the headers that mirror arguments of ``call``. An argument that no header can carry has none: the
        server says what is wrong."""
        name, arguments = call.params.get("name"), call.params.get("arguments")
        table = self._known.get(name) if isinstance(name, str) else None
        if not table or not isinstance(arguments, dict):
            return []
        headers: Headers = []
        for header in table:
            try:
                mirrored = headers_for((header,), cast("JSONObject", arguments))
            except ValueError:
                continue
            headers += [(key.encode("ascii"), text.encode("ascii")) for key, text in mirrored]
        return headers

    def learn(self, line: bytes) -> bytes:
        """Learn from a result of ``tools/list``. Return the result without the tools whose annotations are invalid:
        such tools cannot be called over HTTP, and MUST be left out (2026-07-28 Streamable HTTP, Schema Extension)."""
        message = decode(line)
        if not isinstance(message, Response):
            return line
        result: Any = message.result
        try:
            good = [tool for tool in result["tools"] if self._learn(tool)]
        except (KeyError, TypeError):
            return line  # the caller is told what is wrong with it
        if len(good) == len(result["tools"]):
            return line
        return frame_result(message.id, {**result, "tools": good})

    def _learn(self, tool: JSONObject) -> bool:
        name, schema = tool["name"], tool["inputSchema"]
        self._known.pop(name, None)
        try:
            table = param_headers(schema)
        except ValueError as error:
            logger.warning("the tool %.100r is left out, since it cannot be called over HTTP: %s", name, error)
            return False
        if table:
            self._known[name] = table
            if len(self._known) > _MOST_TOOLS:
                del self._known[next(iter(self._known))]
        return True
