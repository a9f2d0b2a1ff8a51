"""ScriptedClient: a client that sends exactly the messages of a test, to test servers."""

from __future__ import annotations

from typing import Any, Final

from ..jsonrpc.messages import RequestId
from ..protocol.fields import JSONObject
from ..protocol.meta import CLIENT_CAPABILITIES, CLIENT_INFO, PROTOCOL_VERSION
from ..protocol.revisions import LATEST_MODERN, REVISIONS, Revision
from ..runtime.channel import MessageChannel
from .comparing import Pattern
from .scripted_peer import ScriptedPeer, UnexpectedMessage

_INFO: Final = {"name": "scripted-client", "version": "1"}


class ScriptedClient(ScriptedPeer):
    """The client's end of a connection. The client's requests have the ids 1, 2, 3 ..., unless an id is given."""

    def __init__(self, channel: MessageChannel, *, patience: float = 10.0) -> None:
        super().__init__(channel, patience=patience)
        self.revision: Revision | None = None
        """The revision of the client's requests; `None` until `open`."""
        self.capabilities: JSONObject = {}
        self._last_id = 0

    async def open(
        self, revision: str = LATEST_MODERN.name, capabilities: JSONObject | None = None
    ) -> JSONObject | None:
        """Speak ``revision`` from now on, and declare ``capabilities``.

        A legacy revision begins with the handshake, whose result is returned. A modern revision sends nothing: each
        request carries revision and capabilities.
        """
        self.revision = REVISIONS[revision]
        self.capabilities = capabilities or {}
        if not self.revision.handshake:
            return None
        params = {"protocolVersion": revision, "capabilities": self.capabilities, "clientInfo": _INFO}
        result = await self.expect_result(await self.request("initialize", params))
        await self.notify("notifications/initialized")
        return result

    def request_message(
        self,
        method: str,
        params: JSONObject | None = None,
        *,
        id: RequestId | None = None,
        meta: JSONObject | None = None,
    ) -> JSONObject:
        """Return a request in the form of the revision, with ``meta`` added to its ``_meta``. The request is not
        sent."""
        self._last_id += 1
        meta = {**self._required_meta(), **(meta or {})}
        params = {**(params or {}), **({"_meta": meta} if meta else {})}
        message: JSONObject = {"jsonrpc": "2.0", "id": self._last_id if id is None else id, "method": method}
        return {**message, "params": params} if params else message

    def _required_meta(self) -> JSONObject:
        # 2026-07-28 basic, Per-request protocol fields.
        if self.revision is None or self.revision.handshake:
            return {}
        return {
            PROTOCOL_VERSION: self.revision.name,
            CLIENT_INFO: _INFO,
            CLIENT_CAPABILITIES: self.capabilities,
        }

    async def request(
        self,
        method: str,
        params: JSONObject | None = None,
        *,
        id: RequestId | None = None,
        meta: JSONObject | None = None,
    ) -> RequestId:
        """Send a request, and return its id without waiting for the reply."""
        message = self.request_message(method, params, id=id, meta=meta)
        await self.send(message)
        return message["id"]

    async def call_tool(
        self,
        name: str,
        arguments: JSONObject | None = None,
        *,
        id: RequestId | None = None,
        meta: JSONObject | None = None,
    ) -> RequestId:
        """Send a call of a tool, and return its id. ``meta={"progressToken": 7}`` asks for progress."""
        return await self.request("tools/call", {"name": name, "arguments": arguments or {}}, id=id, meta=meta)

    async def expect_result(self, request_id: RequestId, result: Pattern = ...) -> Any:
        """Return the result in the next message, which has to be the reply to this request."""
        return (await self.expect({"id": request_id, "result": result}))["result"]

    async def expect_text(self, request_id: RequestId, text: str) -> None:
        """Check that the next message is the result of a tool that succeeds with ``text`` and no other content."""
        pattern = {"id": request_id, "result": {"content": [{"type": "text", "text": text}], ...: ...}}
        message = await self.expect(pattern)
        if message["result"].get("isError"):
            raise UnexpectedMessage(pattern, message, ["$.result.isError: the tool failed"], self.transcript)

    async def expect_error(self, request_id: RequestId | None, code: Pattern = ..., message: Pattern = ...) -> Any:
        """Return the error, ``data`` included, in the next message, which has to be an error under this id (`None` for
        null)."""
        error = {"code": code, "message": message, ...: ...}
        return (await self.expect({"id": request_id, "error": error}))["error"]
