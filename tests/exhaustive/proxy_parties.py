"""The parties of `tests.exhaustive.proxies`: the two connections, and both ends of each connection.

`CallingEnd` and `AnsweringEnd` consist of the classes of the package, used unchanged. Their own methods replace only
the tasks and coroutines around these classes: `Outbound.request`, `Outbound.request_ahead`, `Confirmation.follow` and
`RequestRunner._answer`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextvars import copy_context
from types import SimpleNamespace
from typing import Any, Final, cast

import attrs
import trio
from tests.exhaustive.explorer import Fault
from tests.exhaustive.held_store import at_once
from tests.exhaustive.tables import key_of, twin_of
from tests.state.peers import client_of, meta_of, server_of

from trio_mcp.client.confirming import CallEnding, Confirmation, ConfirmScope
from trio_mcp.concurrency.fair_share import Caller
from trio_mcp.jsonrpc.messages import Message, Notification, Request
from trio_mcp.protocol.cancel_acknowledged import CANCEL, NAME, CancelAcknowledged, CancelResult
from trio_mcp.protocol.converters import unstructure
from trio_mcp.protocol.extensions import vocabulary_of
from trio_mcp.protocol.meta import CLIENT_CAPABILITIES
from trio_mcp.protocol.revisions import LATEST_LEGACY, LATEST_MODERN, Revision
from trio_mcp.proxying.extensions import cancel_abandoned
from trio_mcp.runtime.calls import Call
from trio_mcp.runtime.cancellation import CancelCause
from trio_mcp.runtime.exchange import Exchange
from trio_mcp.runtime.limits import Limits
from trio_mcp.runtime.outbound import Outbound, on_leaving
from trio_mcp.runtime.replies import Replies
from trio_mcp.runtime.requests.endings import Ending, Endings
from trio_mcp.runtime.requests.host import LATER
from trio_mcp.runtime.requests.runner import RequestRunner
from trio_mcp.runtime.requests.scope import RequestScope
from trio_mcp.runtime.transport import ConnectionLost
from trio_mcp.state.connection import ConnectionState
from trio_mcp.state.requests import InboundRequest, Phase, Step

__all__ = ["LEFT", "LOST", "AnsweringEnd", "CallingEnd", "Cancelled", "Hop", "ProxyPlan", "Waiting"]

_EXTENSION: Final = CancelAcknowledged()
_DECLARED: Final[dict[str, Any]] = {"extensions": {NAME: {}}}
_LIMITS: Final = Limits()
object.__setattr__(_LIMITS, "ending_timeout", 0.0)  # so that a party can forget endings at any time
_FROZEN_TOKEN: Final = "token-of-the-call-"


class Cancelled(BaseException):
    """Stands for `trio.Cancelled`, which only trio can create."""


LEFT: Final = Cancelled("the caller has left")
LOST: Final = ConnectionLost("the connection is lost")


@attrs.frozen
class ProxyPlan:
    """How much may happen in a world."""

    revision: Revision
    calls: int = 1
    leaves: int = 1
    """How many calls the client may leave."""
    errors: bool = True
    """The server may answer a call with an error, and not only with a result."""
    losses: int = 0
    short_waits: int = 0
    """Waits for a confirmation that end before the confirmation arrives, at any of the parties."""
    threads: int = 0
    """Handlers that leave a running thread behind."""
    forgets: int = 0
    """How often a party forgets how requests have ended."""
    has_room: bool = False
    """The outboxes always have room, so a handler's reply is sent in the step in which it is made."""
    overtakes: bool = False
    """A ``trio-mcp/cancel`` may arrive before the cancel that was sent before it, as over HTTP."""


def _states() -> dict[Revision, tuple[ConnectionState, ConnectionState]]:
    vocabulary = vocabulary_of([_EXTENSION])
    made: dict[Revision, tuple[ConnectionState, ConnectionState]] = {}
    for revision in (LATEST_LEGACY, LATEST_MODERN):
        client, server = client_of(revision), server_of(revision, **_DECLARED)
        client.learn(vocabulary)
        server.learn(vocabulary)
        made[revision] = client, server
    return made


_STATES: Final = _states()


class Hop:
    """One connection: both states, and the messages under way. `None` is the end of the stream."""

    def __init__(self, revision: Revision) -> None:
        self.revision: Final = revision
        self.client, self.server = map(twin_of, _STATES[revision])
        self.up: list[Message | None] = []
        self.down: list[Message | None] = []
        self.is_broken = False
        self.subjects: dict[Any, tuple[str, int]] = {}
        """What each request of the client is about, by its id: a call or a confirmation, and the number of the call."""

    @property
    def key(self) -> Hashable:
        wires = [tuple(map(_key_of_message, wire)) for wire in (self.up, self.down)]
        return *wires, self.is_broken, key_of(self.client), key_of(self.server)

    def send_up(self, message: Message) -> None:
        if not self.is_broken:
            self.up.append(message)

    def send_down(self, message: Message) -> None:
        if not self.is_broken:
            self.down.append(message)

    def lose(self) -> None:
        self.is_broken = True
        self.up.append(None)
        self.down.append(None)

    def params(self, **members: Any) -> dict[str, Any]:
        """Return the parameters of a request of the client."""
        meta: dict[str, Any] = members.pop("_meta", None) or {}
        if not self.revision.handshake:
            meta = {**meta_of(**{CLIENT_CAPABILITIES: _DECLARED}), **meta}
        return {**members, "_meta": meta} if meta else members


def _key_of_message(message: Message | None) -> Hashable:
    match message:
        case None:
            return None
        case Request():
            return message.method, message.id
        case Notification():
            return message.method, message.params and message.params["requestId"]
        case _:
            return type(message).__name__, message.id, str(getattr(message, "result", ""))


class Waiting:
    """A call of the client or of the proxy, from its start until its caller continues."""

    def __init__(self, call: Call, confirmation: Confirmation, found: list[CallEnding]) -> None:
        self.call = call
        self.confirmation = confirmation
        self.found = found
        """How the call ended. Gets one item if the call is cancelled."""
        self.state = "open"
        """``open``; ``cancelled`` before the caller's task runs again; ``asks`` for a confirmation; ``over``."""
        self.ask: Call | None = None

    @property
    def key(self) -> Hashable:
        end, ask = self.call.end, self.ask
        found = tuple((each.state, each.never_ran, each.outcome, each.behind) for each in self.found)
        kind = end and (type(end.error).__name__, str(end.result))
        return self.call.request.id, self.state, kind, found, ask and ask.request.id


class CallingEnd:
    """The end of ``hop`` that makes calls: a client, or a proxy towards its upstream server."""

    def __init__(self, hop: Hop) -> None:
        self.hop: Final = hop
        stub = SimpleNamespace(received=0, running=0, handled=0)
        self.outbound = Outbound(hop.client, cast("Any", self), cast("Any", stub), _LIMITS, None)
        self.calls: dict[int, Waiting] = {}
        self._asked: Callable[[], Any] = dict
        cast("Any", self.outbound).request_ahead = self._request_ahead
        self._is_written = True

    @property
    def key(self) -> Hashable:
        waiting = tuple((name, each.key) for name, each in self.calls.items())
        return waiting, self.outbound.closed_error is not None, len(self.outbound._calls)

    # The part of `Outbox` that `Outbound` uses

    def withdraw(self, owner: Call) -> bool:
        """Remove the request of the call ``owner`` if it isn't written yet."""
        if self._is_written:
            return False
        self.hop.up = [each for each in self.hop.up if getattr(each, "id", None) != owner.request.id]
        return True

    def put_cancel(self, request_id: Any, reason: str | None) -> None:
        """Send a cancel."""
        self.hop.send_up(Notification("notifications/cancelled", {"requestId": request_id}))

    # What `Outbound.request`, `Outbound.request_ahead` and `Confirmation.follow` do

    def call(self, name: int) -> None:
        """Send the call ``name``. Raises `ConnectionLost` if the connection is known to be lost."""
        outbound, hop = self.outbound, self.hop
        if outbound.closed_error is not None:
            raise LOST
        requests = SimpleNamespace(
            server_capabilities=SimpleNamespace(extensions={NAME: {}}),
            settings=SimpleNamespace(extensions=[_EXTENSION]),
            revision=hop.revision,
            _meta={},
            _outbound=outbound,
        )
        confirming = ConfirmScope(within=6.0)
        confirmation = confirming.track(cast("Any", requests), "tools/call", {"name": "x"})
        assert confirmation is not None
        confirmation._token = f"{_FROZEN_TOKEN}{name}"
        params = hop.params(name="x", _meta=confirmation.meta(None))
        call = self._open("tools/call", "call", name)
        hop.send_up(Request(call.request.id, "tools/call", params))
        self.calls[name] = Waiting(call, confirmation, confirming.endings)

    def _open(self, method: str, kind: str, name: int) -> Call:
        request = self.hop.client.open_request(method, self.hop.revision)
        self.hop.subjects[request.id] = kind, name
        call = self.outbound._calls[request.id] = Call(request, None, None)
        return call

    def has_unwritten(self, name: int) -> bool:
        """Return true if the request of the call ``name`` may still wait in the outbox."""
        number = self.calls[name].call.request.id
        return any(isinstance(each, Request) and each.id == number for each in self.hop.up)

    def leave(self, name: int, *, is_written: bool) -> None:
        """Leave the call ``name`` in its own task, and request a confirmation if the server was notified."""
        waiting, self._is_written = self.calls[name], is_written
        noted = on_leaving.set(waiting.confirmation._on_left)
        try:
            self.outbound._abandon(waiting.call, cast("Any", self), LEFT)
        finally:
            on_leaving.reset(noted)
            self._is_written = True
        del self.outbound._calls[waiting.call.request.id]
        if waiting.confirmation._server_notified:
            if self.outbound.closed_error is not None:
                raise Fault("a cancel is sent over a connection that is lost")
            waiting.state, waiting.ask = "asks", self._open(CANCEL, "ask", name)
            params = self.hop.params(cancelToken=waiting.confirmation._token)
            self.hop.send_up(Request(waiting.ask.request.id, CANCEL, params))
        else:
            self._confirm(waiting, dict)

    def stop_waiting(self, name: int) -> None:
        """End the wait for the confirmation of the call ``name``, because its time is over."""
        waiting = self.calls[name]
        assert waiting.ask is not None
        self.outbound._abandon(waiting.ask, cast("Any", self), LEFT)
        waiting.confirmation._scope.within = 0
        self._confirmed(waiting, dict)

    def settled(self, name: int) -> None:
        """Let the caller of ``name`` continue, after the reply or the loss of the connection."""
        waiting = self.calls[name]
        if waiting.state == "open" and waiting.call.end is not None:
            del self.outbound._calls[waiting.call.request.id]
            waiting.state = "over"
        elif waiting.state == "asks" and waiting.ask is not None and (end := waiting.ask.end) is not None:

            def answer() -> Any:
                if end.error is not None:
                    raise end.error
                return end.result

            self._confirmed(waiting, answer)

    def _confirmed(self, waiting: Waiting, answer: Callable[[], Any]) -> None:
        assert waiting.ask is not None
        del self.outbound._calls[waiting.ask.request.id]
        self._confirm(waiting, answer)

    def _confirm(self, waiting: Waiting, answer: Callable[[], Any]) -> None:
        self._asked = answer
        copy_context().run(at_once, waiting.confirmation._confirm(LEFT))
        waiting.state = "over"

    async def _request_ahead(self, method: str, params: Any, revision: Revision) -> Any:
        """Return the answer that has arrived already."""
        return self._asked()

    def lost(self) -> None:
        """Read the end of the stream."""
        self.outbound.fail_all(LOST)
        for name in self.calls:
            self.settled(name)


class Runner:
    """Cancels requests, with the methods of `RequestRunner` that do so."""

    cancel, cancel_received = RequestRunner.cancel, RequestRunner.cancel_received

    def __init__(self, endings: Endings) -> None:
        self.endings = endings
        self.limits = _LIMITS
        self.alarms = _ALARMS
        self.load = SimpleNamespace(cancelled=0)
        self.admission = SimpleNamespace(clean_up=_nothing, drop_waiting=_nothing)
        self.host = SimpleNamespace(parking=SimpleNamespace(named=_nothing))
        self.replies = _REPLIES

    def _overran(self, scope: RequestScope) -> None:
        raise AssertionError("no alarm rings here")


def _nothing(*_: object) -> None:
    """Do nothing, and return nothing that counts as true."""


_ALARMS: Final = SimpleNamespace(set=lambda *_: SimpleNamespace(stop=_nothing))  # pyright: ignore[reportUnknownLambdaType]
_REPLIES: Final = Replies({})
_RUNNING: Final = cast("trio.lowlevel.Task", object())
_TICKET: Final[Any] = SimpleNamespace(caller=Caller(alone=True), runs=True)


class AnsweringEnd:
    """The end of ``hop`` that answers: a proxy towards its client, or a server."""

    def __init__(self, hop: Hop) -> None:
        self.hop: Final = hop
        self.endings = Endings(cast("Any", _ALARMS), _LIMITS, _EXTENSION.max_wait)
        self.runner: Any = Runner(self.endings)
        outbox = SimpleNamespace(withdraw=_nothing)
        self.exchange = Exchange(hop.server, cast("Any", outbox), cast("Any", SimpleNamespace(principal=None)))
        self.scopes: dict[int, RequestScope] = {}
        """The requests of calls."""
        self.started: set[int] = set()
        """Calls whose handler has run."""
        self.lines: dict[int, bytes | None] = {}
        """The replies that handlers have made; `None` for the handlers of cancelled requests."""
        self.asks: dict[int, tuple[RequestScope, Ending]] = {}
        """Requests for a confirmation that wait, by the number of the call."""

    @property
    def key(self) -> Hashable:
        scopes = tuple(
            (name, each.phase, each.from_outside and each.from_outside.cause, each.request.error is None)
            for name, each in self.scopes.items()
        )
        endings = tuple(
            (
                key,
                each.scope is None,
                str(each.result),
                each.is_abandoned,
                str(each._behind),
                each in self.endings._kept,
            )
            for key, each in self.endings._all.items()
        )
        asks = tuple((name, scope.from_outside is None, str(end.result)) for name, (scope, end) in self.asks.items())
        return scopes, frozenset(self.started), tuple(self.lines.items()), endings, asks

    def _scope(self, request: InboundRequest) -> RequestScope:
        scope = RequestScope(self.runner, self.exchange, request, _TICKET)
        self.exchange.hold(request, scope)
        return scope

    def accept(self, name: int, request: InboundRequest) -> None:
        """Accept the request of the call ``name``."""
        self.scopes[name] = self._scope(request)

    def accept_ask(self, name: int, request: InboundRequest) -> Any:
        """Accept a request for the confirmation of the call ``name``. Return the answer, or `None` if it waits."""
        decision: Any = cancel_abandoned(request, self.exchange, self.endings)
        if decision is not LATER:
            self.hop.server.finish(request)
            return decision.result
        ending = self.endings._all[None, f"{_FROZEN_TOKEN}{name}"]
        self.asks[name] = self._scope(request), ending
        return None

    # What `RequestRunner._answer` does

    def start(self, name: int) -> None:
        """Start the handler of the call ``name``."""
        scope = self.scopes[name]
        scope.advance(Step.START)
        scope.handler_task = _RUNNING
        self.started.add(name)

    def end(self, name: int) -> bool:
        """End the handler of the call ``name`` and its cleanup. Return true if the reply must be sent."""
        scope, line = self.scopes[name], self.lines.get(name)
        assert scope.ending is not None
        scope.ending.end(scope, has_reply=line is not None)
        was_cancelled = scope.from_outside is not None
        scope.detach()
        return self._finish(scope, was_cancelled=was_cancelled) and line is not None

    def _finish(self, scope: RequestScope, *, was_cancelled: bool) -> bool:
        answers = self.hop.server.finish(scope.request)
        self.exchange.release(scope.request)
        if answers and was_cancelled:
            raise Fault("a request is answered after its cancel")
        if not (answers or was_cancelled):
            raise Fault("the answer to a request is withheld")
        return answers

    def answer_ask(self, name: int, *, waits: bool = True) -> Any:
        """End the wait of a request for a confirmation. Return the answer, or `None` for a cancelled request. Without
        ``waits``, its time is over."""
        scope, ending = self.asks.pop(name)
        cancelled = scope.from_outside is not None
        if not cancelled:
            scope.advance(Step.START)
        scope.detach()
        if not self._finish(scope, was_cancelled=cancelled):
            return None
        return unstructure(at_once(ending.over(1)) if waits else CancelResult("overran"), self.hop.revision)

    def lost(self) -> None:
        """Read the end of the stream."""
        self.exchange.cancel_all(CancelCause.DISCONNECT, None)

    def is_over(self, name: int) -> bool:
        """Return true if the handler of the call ``name`` has ended, or can't begin."""
        scope = self.scopes.get(name)
        return scope is None or scope.phase is Phase.OVER or (scope.phase is Phase.MUTED and name not in self.started)
