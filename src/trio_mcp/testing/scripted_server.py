"""ScriptedServer: a server that sends exactly the messages of a test, to test clients and hosts."""

from __future__ import annotations

from typing import Any, Final

from ..jsonrpc.errors import METHOD_NOT_FOUND
from ..jsonrpc.messages import RequestId
from ..protocol.fields import JSONObject
from ..protocol.meta import PROGRESS_TOKEN, SERVER_INFO
from ..protocol.revisions import LATEST_MODERN, REVISIONS
from .comparing import Pattern
from .scripted_peer import ScriptedPeer, UnexpectedMessage

_INFO: Final = {"name": "scripted-server", "version": "1"}


class ScriptedServer(ScriptedPeer):
    """The server's end of a connection."""

    async def accept(self, revision: str = LATEST_MODERN.name, capabilities: JSONObject | None = None) -> JSONObject:
        """Let the client open the connection as with a server of ``revision`` and no other.

        A legacy server refuses ``server/discover``, answers ``initialize`` and waits for ``notifications/initialized``;
        a modern server answers ``server/discover``. Returns the answered request. Raises `UnexpectedMessage` when the
        client sends anything else, and `MissingMessage`.
        """
        opening = "initialize" if REVISIONS[revision].handshake else "server/discover"
        pattern = {"jsonrpc": "2.0", "id": ..., "method": opening, ...: ...}
        while True:
            message = await self._receive(pattern)
            match message:
                case {"method": "initialize", "id": _} if opening == "initialize":
                    await self.answer(message, _initialized(revision, capabilities or {}))
                    await self.expect({"method": "notifications/initialized", ...: ...})
                    return message
                case {"method": "server/discover", "id": _} if opening == "server/discover":
                    await self.answer(message, _discovered(revision, capabilities or {}))
                    return message
                case {"method": "initialize" | "server/discover", "id": _}:
                    await self.refuse(message, METHOD_NOT_FOUND, "Method not found")
                case _:
                    raise UnexpectedMessage(pattern, message, [], self.transcript)

    async def expect_request(self, method: str, params: Pattern = ...) -> JSONObject:
        """Return the next message, which has to be this request. Without ``params``, the request need not have any."""
        more: dict[Any, Any] = {...: ...} if params is ... else {"params": params}
        return await self.expect({"id": ..., "method": method, **more})

    async def expect_call(self, tool: str, arguments: Pattern = ...) -> JSONObject:
        """Return the next message, which has to be a call of ``tool``, to be answered."""
        return await self.expect_request("tools/call", {"name": tool, "arguments": arguments, ...: ...})

    async def expect_cancel(self, request: JSONObject, reason: Pattern = ...) -> None:
        """Check that the next message is the cancel of ``request``, for ``reason`` if one is given."""
        more: dict[Any, Any] = {...: ...} if reason is ... else {"reason": reason}
        await self.expect({"method": "notifications/cancelled", "params": {"requestId": request["id"], **more}})

    async def answer_text(self, call: JSONObject, text: str) -> None:
        """Answer a call of a tool with a text."""
        await self.answer(call, {"content": [{"type": "text", "text": text}]})

    async def progress(self, request: JSONObject, progress: float, **more: Any) -> None:
        """Send progress of ``request``, whose sender asked for progress; ``more`` may be ``total`` and ``message``."""
        token = request["params"]["_meta"][PROGRESS_TOKEN]
        await self.notify("notifications/progress", {"progressToken": token, "progress": progress, **more})

    async def log(self, level: str, data: Any, **more: Any) -> None:
        """Send a log message; ``more`` may be ``logger``."""
        await self.notify("notifications/message", {"level": level, "data": data, **more})

    async def request(self, request_id: RequestId, method: str, params: JSONObject | None = None) -> None:
        """Send a request of the server's own (legacy revisions)."""
        message: JSONObject = {"id": request_id, "method": method}
        await self.send(message if params is None else {**message, "params": params})


def _initialized(revision: str, capabilities: JSONObject) -> JSONObject:
    return {"protocolVersion": revision, "capabilities": capabilities, "serverInfo": _INFO}


def _discovered(revision: str, capabilities: JSONObject) -> JSONObject:
    return {
        "resultType": "complete",
        "supportedVersions": [revision],
        "capabilities": capabilities,
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": {SERVER_INFO: _INFO},
    }
