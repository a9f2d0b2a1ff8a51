"""Forwards a gateway's requests to the members of its group, over the connections of the group.

`MemberUpstream` is a member, shared by its callers. A `GatewayCaller` is a client of the gateway while it has calls in
flight. `Forwarder` finds the member for a request, and replaces names in the result with catalogue names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from typing import Any, Final, cast

import trio

from ..classes import frozen
from ..client.client import Client
from ..concurrency.contexts import contextmanager
from ..hosting.catalogue import catalogue_uri
from ..hosting.descriptions import MemberUnavailable
from ..hosting.group import Group
from ..jsonrpc.errors import INTERNAL_ERROR, CodedError, NotSerializable
from ..protocol.errors import UPSTREAM_LOST
from ..protocol.fields import JSONObject, as_object
from ..protocol.revisions import Revision
from ..protocol.types.lifecycle import ClientCapabilities
from ..runtime.calls import OnProgress
from ..runtime.requests.scope import RequestScope
from ..server.context.input_required import Forwarded
from ..state.events import NotificationReceived
from .downstream import COMPLETE, LOG, Downstream, ForwardedCall
from .extensions import NONE_SHARED
from .forwarding import forward
from .upstream import Upstream

_CANNOT_ASK: Final = "server-initiated requests"
"""Error messages of mcp 2.3 and fastmcp 4.2 for a handler that sends a request to its client, which isn't possible in
2026-07-28."""
_CALL_AGAIN: Final = "The gateway is reconnecting to this server in a legacy revision, in which it can ask. Call again."


class GatewayCaller(Downstream):
    """Represents one client of a gateway in the connection to a member server. It forwards messages of that server to
    the client.

    The client gets the member's logs and requests only within its calls in flight. The gateway itself notifies the
    client of changes.
    """

    def __init__(self, scope: RequestScope) -> None:
        exchange = scope.exchange
        super().__init__(
            scope.runner.limits,
            exchange.state,
            exchange.peer.principal,
            NONE_SHARED,
            exchange.has_headers and not scope.request.revision.handshake,
        )
        self.level_is_set = True
        self._party = exchange.party

    @property
    def _latest(self) -> ForwardedCall:
        for call in reversed(self.calls.values()):
            if call.may_ask and not call.is_cancelled:
                return call
        raise CodedError(
            INTERNAL_ERROR, "Internal error: the gateway found no client to which it can forward this request"
        )

    @property
    def revision(self) -> Revision:
        """The protocol revision of the client's latest call."""
        return self._latest.revision

    @property
    def capabilities(self) -> ClientCapabilities:
        """The capabilities that the client declared for its latest call."""
        return self._latest.capabilities

    @property
    def party(self) -> object:
        """The identity of the client for limits and statistics: see `Exchange.party`."""
        return self._party

    async def ask(self, method: str, params: JSONObject, on_progress: OnProgress | None, key: str | None) -> Any:
        """Send the client a request of the member server, although it isn't known for which call the server has sent
        the request.

        The request is sent within the client's latest call. Returns the client's response: see `ForwardedCall.ask`.
        """
        return await self._latest.ask(method, params, on_progress, key)

    def put(self, event: NotificationReceived, *, named: bool) -> None:
        """Send a notification of the member server to the client, within the client's calls that are running.

        This is a log message, or the notification that a URL elicitation is complete.

        Other notifications of the member are ignored.
        """
        if event.method.name == LOG:
            self.log_in_calls(event)
        elif event.method.name == COMPLETE and self.urls.complete(event.params):
            for call in tuple(self.calls.values())[-1:]:
                if event.method.name in call.revision._methods:
                    # the notification contains a lone surrogate, which JSON can't represent
                    with suppress(NotSerializable):
                        call.scope.put(call.scope.notification(event.method.name, event.params))

    def close(self, reason: str) -> None:
        """Do nothing. When a member server is lost, calls to it fail, but the client stays connected to the gateway."""

    async def caught_up(self) -> None:
        """Return at once, since a gateway's client has no queue of notifications."""


class MemberUpstream(Upstream):
    """One member server of the gateway's group. The gateway forwards calls of its clients to this server.

    Members' tasks aren't forwarded to clients: the gateway waits for the end of these tasks, since it has tasks of its
    own.
    """

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._callers: dict[object, GatewayCaller] = {}
        self._calls: Counter[GatewayCaller] = Counter()
        self.cannot_ask = False
        """True once the member has failed to send a request (sampling, elicitation, roots) to the client, because the
        member speaks a modern revision."""

    def cannot_ask_if(self, error: str) -> bool:
        """Return whether ``error`` means that the member server can send requests to its client only in a legacy
        protocol revision.

        Such requests are sampling, elicitation and roots requests.

        If so, set `cannot_ask`.
        """
        is_refusal = not self.revision.handshake and _CANNOT_ASK in error
        self.cannot_ask = self.cannot_ask or is_refusal
        return is_refusal

    @property
    def is_idle(self) -> bool:
        """True if no call to the member server is running."""
        return not self._calls

    def passes_tasks(self, revision: Revision) -> bool:
        """Return false, because clients of a gateway never see the tasks of a member server."""
        return False

    @contextmanager
    def caller_of(self, scope: RequestScope) -> Generator[GatewayCaller]:
        """Yield the `GatewayCaller` of the request in ``scope``.

        While the ``with`` block runs, the caller has a call in flight at the member server.
        """
        party = scope.exchange.party
        caller = self._callers.get(party)
        if caller is None:
            caller = self._callers[party] = GatewayCaller(scope)
            self.attach(caller)
        self._calls[caller] += 1
        try:
            yield caller
        finally:
            self._calls[caller] -= 1
            if not self._calls[caller]:
                del self._callers[party], self._calls[caller]
                self.detach(caller)


@frozen
class Forwarder:
    """Forwards requests to the member servers of ``group``.

    If a member isn't connected, a request waits up to ``patience`` seconds for the connection.
    """

    group: Group
    patience: float

    async def client(self, member: str) -> Client:
        """Wait until a member server is connected, and return its client.

        Raises `CodedError` (-31001) if the member isn't connected in time.
        """
        with trio.move_on_after(self.patience):
            try:
                return await self.group.client(member)
            except MemberUnavailable as error:
                raise member_lost(member, f"is unavailable: it {error.reason}") from None
        status = self.group.statuses.get(member)
        state = "gone" if status is None else status.state
        raise member_lost(member, f"is {state}; try again later")

    async def forward(self, scope: RequestScope, member: str, named: JSONObject) -> Forwarded:
        """Forward a client's request, which ``scope`` represents, to the member server called ``member``, and return
        the result.

        ``named`` are parameters that replace the request's own. Raises `CodedError` if the member fails or can't be
        called.
        """
        client = await self.client(member)
        upstream = MemberUpstream.shared_through(client)
        request = scope.request
        request.unpack()  # decode the parameters: if the request runs as an MCP task, they are stored as JSON text
        try:
            with upstream.caller_of(scope) as caller:
                if request.revision.handshake:
                    await upstream.admit_level(caller.log_level)
                result = await forward(scope, caller, upstream, named)
        except trio.TooSlowError:
            raise member_lost(member, "did not answer in time") from None
        except CodedError as error:
            if error.code == UPSTREAM_LOST and client.lost is not None:
                raise member_lost(member, "is gone") from None
            if upstream.cannot_ask_if(error.message):
                raise CodedError(error.code, f"{error.message} {_CALL_AGAIN}", error.data) from None
            raise
        else:
            if result.get("isError") and upstream.cannot_ask_if(str(result.get("content"))):
                result = {**result, "content": [*result["content"], {"type": "text", "text": _CALL_AGAIN}]}
        finally:
            if upstream.cannot_ask and upstream.is_idle:
                self.group._reconnect_as_legacy(member)
        return Forwarded(in_catalogue(member, request.method.name, result))


def member_lost(member: str, words: str) -> CodedError:
    """Return the error for a request that ``member`` has not answered. ``words`` say why."""
    return CodedError(UPSTREAM_LOST, f"{member!r}, a server behind this gateway, {words}")


def in_catalogue(member: str, method: str, result: JSONObject) -> JSONObject:
    """Return ``result``, a result of the member server ``member``, with the gateway's URIs in place of that server's
    URIs."""
    block, contents = partial(_block, member), partial(with_uri, member)
    match method:
        case "tools/call":
            return _with(result, "content", partial(each_changed, block))
        case "prompts/get":
            return _with(result, "messages", partial(each_changed, lambda said: _with(said, "content", block)))
        case "resources/read":
            return _with(result, "contents", partial(each_changed, contents))
        case _:
            return result


def _with(part: Any, name: str, change: Callable[[Any], Any]) -> Any:
    """Return a copy of the object ``part`` in which the value of ``name`` is replaced with the result of ``change``.

    A value that isn't an object is returned unchanged.
    """
    plain: JSONObject = as_object(part)
    return {**plain, name: change(plain[name])} if name in plain else cast("object", part)


def each_changed(change: Callable[[Any], Any], parts: Any) -> Any:
    return list(map(change, cast("list[Any]", parts))) if isinstance(parts, list) else parts


def _block(member: str, block: Any) -> Any:
    plain: JSONObject = as_object(block)
    match plain.get("type"):
        case "resource":
            return _with(plain, "resource", partial(with_uri, member))
        case "resource_link":
            return with_uri(member, plain)
        case _:
            return cast("object", block)


def with_uri(member: str, part: Any) -> Any:
    return _with(part, "uri", lambda uri: catalogue_uri(member, uri) if isinstance(uri, str) else uri)
