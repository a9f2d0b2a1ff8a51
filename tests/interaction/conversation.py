"""What is said on a wire, by whatever means it travels: requests as each revision wants them, and what came."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

__all__ = ["ANSWERS", "LATEST_LEGACY", "LEGACY", "META_PREFIX", "MODERN", "REVISIONS", "Conversation", "is_same"]

LEGACY = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
LATEST_LEGACY = LEGACY[-1]
MODERN = "2026-07-28"
REVISIONS = (*LEGACY, MODERN)

META_PREFIX = "io.modelcontextprotocol/"

ANSWERS: dict[str, Any] = {
    "elicitation/create": {"action": "accept", "content": {"name": "Ada"}},
    "sampling/createMessage": {"role": "assistant", "content": {"type": "text", "text": "hi"}, "model": "m"},
    "roots/list": {"roots": [{"uri": "file:///a"}]},
}
"""What a client answers that has nothing else to say, by method."""


def is_same(one: Any, other: Any) -> bool:
    """Equal, and of the same JSON type: ``1``, ``"1"``, ``1.0`` and ``true`` all differ."""
    return type(one) is type(other) and one == other


class Conversation:
    """One connection, from the client's side: it makes requests and keeps all that ever came."""

    def __init__(self) -> None:
        self.revision: str | None = None
        """What requests are sent under; `None` until it is opened."""
        self.capabilities: dict[str, Any] = {}
        self.is_bridged = False
        """There is a proxy on the way. Requests carry their id in ``_meta``, too: their own ends there."""
        self.messages: list[dict[str, Any]] = []
        """All that ever came, in order; the members of a batch one by one."""
        self.batches: list[list[dict[str, Any]]] = []
        self._unclaimed: list[dict[str, Any]] = []
        self._forbidden: list[tuple[str, Callable[[dict[str, Any]], bool]]] = []
        self._last_id = 1000  # tests name small ids themselves

    @property
    def is_modern(self) -> bool:
        """Whether requests carry their revision."""
        return self.revision == MODERN

    # What is sent

    def fresh_id(self) -> int:
        """An id that was not used before."""
        self._last_id += 1
        return self._last_id

    def message(
        self, method: str, params: dict[str, Any] | None = None, *, meta: dict[str, Any] | None = None, id: Any = ...
    ) -> dict[str, Any]:
        """A request as the revision wants it, not sent yet."""
        request_id = self.fresh_id() if id is ... else id
        meta = {**self.meta(), **({"test/call": request_id} if self.is_bridged else {}), **(meta or {})}
        params = {**(params or {}), **({"_meta": meta} if meta else {})}
        return {"jsonrpc": "2.0", "id": request_id, "method": method, **({"params": params} if params else {})}

    def meta(self) -> dict[str, Any]:
        """``_meta`` that every modern request carries; nothing in legacy revisions."""
        if not self.is_modern:
            return {}
        return {
            META_PREFIX + "protocolVersion": MODERN,
            META_PREFIX + "clientInfo": {"name": "raw", "version": "1"},
            META_PREFIX + "clientCapabilities": self.capabilities,
        }

    def call_message(
        self,
        tool: str,
        arguments: dict[str, Any] | None = None,
        *,
        token: Any = ...,
        log_level: str | None = None,
        id: Any = ...,
    ) -> dict[str, Any]:
        """A tool call, not sent yet."""
        meta = {} if token is ... else {"progressToken": token}
        if log_level is not None and self.is_modern:
            meta[META_PREFIX + "logLevel"] = log_level
        return self.message("tools/call", {"name": tool, "arguments": arguments or {}}, meta=meta, id=id)

    def retry_message(
        self,
        first: dict[str, Any],
        asked: dict[str, Any],
        responses: dict[str, Any] | None = None,
        *,
        meta: dict[str, Any] | None = None,
        id: Any = ...,
    ) -> dict[str, Any]:
        """The next round of the request ``first``, which was ``asked``: the same parameters, the state exactly as it
        came, and ``responses`` by key; by default one to each question, from `ANSWERS`. Not sent yet."""
        if responses is None:
            responses = {key: ANSWERS[question["method"]] for key, question in asked.get("inputRequests", {}).items()}
        params = {key: value for key, value in first["params"].items() if key != "_meta"}
        params["inputResponses"] = responses
        params.pop("requestState", None)
        if "requestState" in asked:
            params["requestState"] = asked["requestState"]
        return self.message(first["method"], params, meta=meta, id=id)

    def opening(self, revision: str = LATEST_LEGACY) -> dict[str, Any]:
        """The parameters of ``initialize``."""
        return {
            "protocolVersion": revision,
            "capabilities": self.capabilities,
            "clientInfo": {"name": "raw", "version": "1"},
        }

    # What came, and what must not

    def keep(self, received: Any) -> None:
        """Check one message or batch, and remember it."""
        members = received if isinstance(received, list) else [received]
        assert members, "an empty batch"
        for member in members:
            assert isinstance(member, dict), received
            assert member.get("jsonrpc") == "2.0", received
            self.messages.append(member)
            for claim, breaks in self._forbidden:
                assert not breaks(member), f"{claim}: {str(member)[:500]}"
        self._unclaimed += members
        if isinstance(received, list):
            self.batches.append(received)

    @property
    def unclaimed(self) -> int:
        """How many messages nobody took yet."""
        return len(self._unclaimed)

    def claim(self, wanted: Callable[[dict[str, Any]], bool], start: int = 0) -> dict[str, Any] | None:
        """The oldest message that nobody took yet and that is ``wanted``, from the place ``start`` on."""
        for place, message in enumerate(islice(self._unclaimed, start, None), start):
            if wanted(message):
                return self._unclaimed.pop(place)
        return None

    def forget(self) -> None:
        """Keep nothing of what came so far."""
        self.messages.clear()
        self.batches.clear()
        self._unclaimed.clear()

    def replies(self, request_id: Any) -> list[dict[str, Any]]:
        """All replies to an id that ever came."""
        return [m for m in self.messages if "method" not in m and is_same(m.get("id"), request_id)]

    def notifications(self, method: str) -> list[dict[str, Any]]:
        """The parameters of all notifications of this method that ever came."""
        return [m.get("params", {}) for m in self.messages if m.get("method") == method and "id" not in m]

    def progress_of(self, token: Any) -> list[dict[str, Any]]:
        """All progress that ever came for a token."""
        return [p for p in self.notifications("notifications/progress") if is_same(p["progressToken"], token)]

    def logged(self) -> list[tuple[str, Any]]:
        """Level and data of all log messages that ever came."""
        return [(p["level"], p["data"]) for p in self.notifications("notifications/message")]

    def silent_about(self, request_id: Any, *, token: Any = ...) -> None:
        """From now until the end of the connection, nothing may come for this request. The order of messages
        is the proof: `finish` reads to the very end, so nothing that was ever written stays unseen."""
        self._forbidden.append((
            f"silence for id {request_id!r}",
            lambda message: "method" not in message and is_same(message.get("id"), request_id),
        ))  # fmt: skip
        if token is not ...:
            self._forbidden.append((
                f"silence for token {token!r}",
                lambda message: message.get("method") == "notifications/progress"
                and is_same(message["params"]["progressToken"], token),
            ))  # fmt: skip
