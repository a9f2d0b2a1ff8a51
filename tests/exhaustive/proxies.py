"""Three parties: a client, a proxy and a server, with confirmed cancels (``trio-mcp/cancelAcknowledged``).

The client and the proxy each make calls and request a confirmation if they leave a call. The proxy and the server each
answer calls and confirmations. All of them use the classes of the package: `ConnectionState`, `Outbound`,
`Confirmation`, `Exchange`, `RequestScope`, the cancels of `RequestRunner`, `Endings`, and `asking_behind` of the proxy.
`tests.exhaustive.proxy_parties` contains the code that replaces the tasks around these classes.

Events: a call, a caller that leaves, the wake-up of a caller's task, the start, end and cleanup of a handler, a thread
that a handler leaves behind, the delivery of a message, a confirmation, a wait whose time is over, the loss of either
connection, and the moment at which a party forgets how requests have ended.

Invariants:

- A request is answered once, and is never answered after its cancel, on both connections.
- A cancelled call has exactly one ending. ``stopped``: the server's handler has ended and nothing of it runs later.
  ``never_ran``: the handler has never run. ``finished``: the server or the proxy had made a reply before the cancel.
  ``unsent``: the server never gets the call. ``abandoned``: a thread of the handler still runs.
- Without a loss, a wait whose time is over or a thread, each ending is ``stopped``, ``finished`` or ``unsent``.
- ``lost``, ``silent``, ``overran``, ``relayed`` and ``unknown`` each have their cause.
- If a client leaves a call, the handlers of the proxy and the server are cancelled.
- The state tables and the tables of endings contain exactly what is in flight, and are empty at the end.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Final

from tests.exhaustive.explorer import Action, Fault
from tests.exhaustive.proxy_parties import LEFT, AnsweringEnd, CallingEnd, Cancelled, Hop, ProxyPlan, Waiting

from trio_mcp.client.confirming import CallEnding
from trio_mcp.client.requests import confirming
from trio_mcp.jsonrpc.errors import CodedError, PeerError
from trio_mcp.jsonrpc.messages import ErrorResponse, Notification, Request, Response
from trio_mcp.protocol.cancel_acknowledged import CANCEL
from trio_mcp.proxying.extensions import asking_behind
from trio_mcp.proxying.forwarding import UPSTREAM_ERRORS, upstream_error
from trio_mcp.runtime.requests.runner import _reply_line
from trio_mcp.state.events import CancelReceived, ErrorReceived, RequestReceived, ResultReceived
from trio_mcp.state.requests import Phase

__all__ = ["ProxyWorld"]

_BOUNDED: Final = ("calls", "leaves", "losses", "short_waits", "threads", "forgets")
"""The events that a plan bounds."""
_FAILED: Final = CodedError(-32603, "failed")


class ProxyWorld:
    """A client, a proxy and a server of one `ProxyPlan`. A copy is made by repeating the events, because the classes
    refer to each other."""

    def __init__(self, plan: ProxyPlan) -> None:
        self.plan: Final = plan
        self.trace: list[Action] = []
        self.hops: Final = Hop(plan.revision), Hop(plan.revision)
        """The connection from the client to the proxy, and from the proxy to the server."""
        self.callers: Final = CallingEnd(self.hops[0]), CallingEnd(self.hops[1])
        """The client, and the proxy towards the server."""
        self.answerers: Final = AnsweringEnd(self.hops[0]), AnsweringEnd(self.hops[1])
        """The proxy towards the client, and the server."""
        self.left = {name: getattr(plan, name) for name in _BOUNDED}
        self.outcomes: dict[int, CodedError | BaseException | None] = {}
        """How the proxy's forwarding of a call has ended, before the proxy makes its reply: `None` is a result."""
        self.threads: set[int] = set()
        """Calls with a thread that still runs."""
        self.causes: set[str] = set()
        """The kinds of exceptional events that have happened."""

    def fork(self) -> ProxyWorld:
        world = ProxyWorld(self.plan)
        for action in self.trace:
            world._happen(action)
        return world

    def key(self) -> Hashable:
        ends = tuple(each.key for each in (*self.hops, *self.callers, *self.answerers))
        outcomes = tuple((name, type(each).__name__) for name, each in self.outcomes.items())
        return ends, tuple(self.left.values()), outcomes, frozenset(self.threads), frozenset(self.causes)

    def do(self, action: Action) -> None:
        self._happen(action)
        self._check()

    def _happen(self, action: Action) -> None:
        self.trace.append(action)
        name, *of = action
        getattr(self, "_" + name.replace(" ", "_"))(*of)
        for call, waiting in self.callers[1].calls.items():
            is_cancelled = self.answerers[0].scopes[call].from_outside is not None
            if is_cancelled and waiting.state == "open" and waiting.call.end is None:
                waiting.state = "cancelled"

    # What can happen

    def actions(self) -> Sequence[Action]:
        return [*self._of_callers(), *self._of_proxy(), *self._of_server(), *self._of_waits(), *self._of_network()]

    def _of_callers(self) -> Iterator[Action]:
        if self.left["calls"] and self.callers[0].outbound.closed_error is None:
            yield ("call",)
        for name, waiting in self.callers[0].calls.items():
            if waiting.state == "open" and self.left["leaves"]:
                yield "leave", name
        for hop, caller in enumerate(self.callers):
            for name, waiting in caller.calls.items():
                if waiting.state == "cancelled":
                    yield "wake", hop, name
                    if waiting.call.end is None and caller.has_unwritten(name):
                        yield "wake unwritten", hop, name
                elif waiting.state == "asks" and self.left["short_waits"]:
                    yield "stop waiting", hop, name

    def _of_proxy(self) -> Iterator[Action]:
        proxy = self.answerers[0]
        for name, scope in proxy.scopes.items():
            waiting = self.callers[1].calls.get(name)
            if scope.phase is Phase.WAITING:
                yield "forward", name
            elif scope.phase is Phase.OVER:
                continue
            elif waiting is not None and waiting.state == "over" and name not in self.outcomes:
                yield "resume", name
            elif scope.phase is Phase.RUNNING and name in self.outcomes:
                yield "reply", name
            elif scope.phase is Phase.MUTED and (name in self.outcomes or name not in proxy.started):
                yield "end", 0, name

    def _of_server(self) -> Iterator[Action]:
        server = self.answerers[1]
        for name, scope in server.scopes.items():
            match scope.phase:
                case Phase.WAITING:
                    yield "start", name
                case Phase.RUNNING:
                    yield "return", name
                    if self.plan.errors:
                        yield "fail", name
                case Phase.MUTED:
                    yield "end", 1, name
                    is_cancelled = name in server.started and name not in server.lines
                    if is_cancelled and self.left["threads"]:
                        yield "leave a thread", name
                case _:
                    pass

    def _of_waits(self) -> Iterator[Action]:
        for hop, answerer in enumerate(self.answerers):
            for name, (scope, ending) in answerer.asks.items():
                if ending.result is not None or scope.from_outside is not None:
                    yield "confirm", hop, name
                elif self.left["short_waits"]:
                    yield "overrun", hop, name
            if self.left["forgets"] and answerer.endings._kept:
                yield "forget", hop

    def _of_network(self) -> Iterator[Action]:
        for number, hop in enumerate(self.hops):
            if hop.up:
                yield "up", number, 0
                if self.plan.overtakes and _overtakes(hop.up):
                    yield "up", number, 1
            if hop.down:
                yield "down", number
            if hop.is_broken:
                yield from ((f"tear {wire}", number) for wire in ("up", "down") if len(getattr(hop, wire)) > 1)
            elif self.left["losses"]:
                yield "lose", number

    # Callers

    def _call(self) -> None:
        name = len(self.callers[0].calls)
        self.left["calls"] -= 1
        self.callers[0].call(name)

    def _leave(self, name: int) -> None:
        self.left["leaves"] -= 1
        self.callers[0].calls[name].state = "cancelled"

    def _wake(self, hop: int, name: int) -> None:
        self.callers[hop].leave(name, is_written=True)
        self._judge(hop, name)

    def _wake_unwritten(self, hop: int, name: int) -> None:
        self.callers[hop].leave(name, is_written=False)
        self._judge(hop, name)

    def _stop_waiting(self, hop: int, name: int) -> None:
        self.left["short_waits"] -= 1
        self.causes.add("short wait")
        self.callers[hop].stop_waiting(name)
        self._judge(hop, name)

    # The proxy

    def _forward(self, name: int) -> None:
        self.answerers[0].start(name)
        try:
            self.callers[1].call(name)
        except UPSTREAM_ERRORS as error:
            self.outcomes[name] = self._forwarded(name, error, [])

    def _resume(self, name: int) -> None:
        waiting = self.callers[1].calls[name]
        end = waiting.call.end
        error = LEFT if waiting.found or end is None else end.error
        self.outcomes[name] = self._forwarded(name, error, waiting.found)

    def _forwarded(self, name: int, error: BaseException | None, found: list[CallEnding]) -> Any:
        """Leave the block of `asking_behind`, as `forward` does at the end of the upstream call."""
        scope = self.answerers[0].scopes[name]
        try:
            with asking_behind(scope):
                block = confirming.get()
                assert block is not None
                block.endings.extend(found)
                if error is not None:
                    raise error
        except UPSTREAM_ERRORS as failed:
            return upstream_error(failed)
        except Cancelled as left:
            return left
        return None

    def _reply(self, name: int) -> None:
        self._make_reply(0, name, self.outcomes[name])

    def _make_reply(self, hop: int, name: int, failure: BaseException | None) -> None:
        answerer = self.answerers[hop]
        scope = answerer.scopes[name]
        answerer.lines[name] = _reply_line(scope, {}, failure, cancelled_inside=False)
        scope.mute()
        if self.plan.has_room:
            self._end(hop, name)

    def _end(self, hop: int, name: int) -> None:
        answerer = self.answerers[hop]
        request = answerer.scopes[name].request
        if answerer.end(name):
            error = request.error
            reply = Response(request.id, {}) if error is None else ErrorResponse(request.id, error.code, error.message)
            self.hops[hop].send_down(reply)

    # The server

    def _start(self, name: int) -> None:
        self.answerers[1].start(name)

    def _return(self, name: int) -> None:
        self._make_reply(1, name, None)

    def _fail(self, name: int) -> None:
        self._make_reply(1, name, _FAILED)

    def _leave_a_thread(self, name: int) -> None:
        self.left["threads"] -= 1
        self.threads.add(name)
        self.causes.add("thread")
        self.answerers[1].scopes[name].thread_abandoned()

    # Confirmations

    def _confirm(self, hop: int, name: int) -> None:
        self._answer_ask(hop, name, waits=True)

    def _overrun(self, hop: int, name: int) -> None:
        self.left["short_waits"] -= 1
        self.causes.add("short wait")
        self._answer_ask(hop, name, waits=False)

    def _answer_ask(self, hop: int, name: int, *, waits: bool) -> None:
        answerer = self.answerers[hop]
        request = answerer.asks[name][0].request
        result = answerer.answer_ask(name, waits=waits)
        if result is not None:
            self.hops[hop].send_down(Response(request.id, result))

    def _forget(self, hop: int) -> None:
        self.left["forgets"] -= 1
        self.causes.add("forgotten")
        self.answerers[hop].endings._forget_old()

    # The network

    def _lose(self, number: int) -> None:
        self.left["losses"] -= 1
        self.causes.add(f"loss {number}")
        self.hops[number].lose()

    def _tear_up(self, number: int) -> None:
        self.hops[number].up = [None]

    def _tear_down(self, number: int) -> None:
        self.hops[number].down = [None]

    def _up(self, number: int, place: int) -> None:
        hop, answerer = self.hops[number], self.answerers[number]
        message = hop.up.pop(place)
        if message is None:
            answerer.lost()
            return
        event = hop.server.receive(message)
        match message, event:
            case Request(), RequestReceived() if message.method == CANCEL:
                name = hop.subjects[message.id][1]
                result = answerer.accept_ask(name, event.request)
                if result is not None:
                    hop.send_down(Response(message.id, result))
            case Request(), RequestReceived():
                answerer.accept(hop.subjects[message.id][1], event.request)
            case Notification(), CancelReceived():
                assert message.params is not None
                if event.request.id != message.params["requestId"]:
                    raise Fault("a cancel cancels another request")
                answerer.runner.cancel_received(event, answerer.exchange)
            case Request(), _:
                raise Fault(f"a request has no effect: {type(event).__name__}")
            case _:
                pass  # a late cancel

    def _down(self, number: int) -> None:
        hop, caller = self.hops[number], self.callers[number]
        message = hop.down.pop(0)
        if message is None:
            caller.lost()
            names: Sequence[int] = tuple(caller.calls)
        else:
            event = hop.client.receive(message)
            names = ()
            if isinstance(event, ResultReceived | ErrorReceived):
                kind, name = hop.subjects[event.request.id]
                waiting = caller.calls[name]
                call = waiting.call if kind == "call" else waiting.ask
                if call is None or call.request is not event.request or call.end is not None:
                    raise Fault(f"the reply to call {name} goes elsewhere, or arrives twice")
                if isinstance(event, ResultReceived):
                    caller.outbound.settle(event.request, event.result, None)
                else:
                    caller.outbound.settle(event.request, None, PeerError(event.error.code, event.error.message, None))
                names = (name,)
        for name in names:
            before = len(caller.calls[name].found)
            caller.settled(name)
            if len(caller.calls[name].found) != before:
                self._judge(number, name)

    # Invariants

    def _judge(self, hop: int, name: int) -> None:
        """Check how a call has ended according to a caller. Raises `Fault`."""
        waiting = self.callers[hop].calls[name]
        if waiting.state != "over":
            return
        if len(waiting.found) != 1:
            raise Fault(f"call {name} was left, and has {len(waiting.found)} endings")
        ending = waiting.found[0]
        if not self.causes and ending.state not in ("stopped", "finished", "unsent"):
            raise Fault(f"call {name} has the ending {ending.state} without a cause")
        causes = {
            "lost": {f"loss {hop}"},
            "silent": {"short wait"},
            "overran": {"short wait"},
            "relayed": {"short wait", "loss 1"},
            "unknown": {"forgotten"},
            "abandoned": {"thread"},
        }.get(ending.state)
        if causes is not None and not causes & self.causes:
            raise Fault(f"call {name} has the ending {ending.state}, and only {', '.join(self.causes)} happened")
        if ending.state == "abandoned" and name not in self.threads:
            raise Fault(f"no thread of call {name} runs")
        if ending.state == "finished":
            replies = [line for each in self.answerers[hop:] if (line := each.lines.get(name)) is not None]
            if not replies:
                raise Fault(f"call {name} is finished, but nobody has made a reply")
            kinds = {"error" if b'"error"' in reply else "result" for reply in replies}
            if ending.outcome not in kinds:
                raise Fault(f"call {name} ended with {ending.outcome}, and the reply is {', '.join(kinds)}")

    def _check(self) -> None:
        for caller, answerer in zip(self.callers, self.answerers, strict=True):
            hop = caller.hop
            calls = [each.call.request for each in caller.calls.values() if _is_open(each)]
            asks = [each.ask.request for each in caller.calls.values() if each.state == "asks" and each.ask is not None]
            _same("the requests of a caller", hop.client.outbound, [*calls, *asks])
            scopes = [*answerer.scopes.values(), *(scope for scope, _ in answerer.asks.values())]
            active = [each.request for each in scopes if each.phase is not Phase.OVER and each.from_outside is None]
            _same("the requests of a handler", hop.server.inbound, active)
            held = [each.request for each in scopes if each.phase is not Phase.OVER]
            _same("the requests of an exchange", tuple(answerer.exchange._held), held)
        for hop, caller in enumerate(self.callers):
            for name, waiting in caller.calls.items():
                self._check_ended(hop, name, waiting)
        if not any(hop.up or hop.down for hop in self.hops):
            self._check_calm()

    def _check_ended(self, hop: int, name: int, waiting: Waiting) -> None:
        """Check that what a caller knows about the end of a call stays true."""
        if waiting.state != "over" or not waiting.found:
            return
        ending = waiting.found[0]
        server = self.answerers[1]
        if ending.state == "stopped":
            if not server.is_over(name):
                raise Fault(f"call {name} has stopped, and its handler is {server.scopes[name].phase.name}")
            if name in self.threads:
                raise Fault(f"call {name} has stopped, and a thread of it runs")
            if hop == 0 and not self.answerers[0].is_over(name):
                raise Fault(f"call {name} has stopped, and the proxy still works on it")
            if server.lines.get(name) is not None:
                raise Fault(f"call {name} has stopped, and its handler had made a reply")
        if ending.never_ran and name in server.started:
            raise Fault(f"call {name} has never run, and its handler has run")
        if ending.state == "unsent" and name in self.answerers[hop].scopes:
            raise Fault(f"call {name} was not sent, and has arrived")

    def _check_calm(self) -> None:
        """Check a state in which no message is under way."""
        for hop, (caller, answerer) in enumerate(zip(self.callers, self.answerers, strict=True)):
            for name, waiting in caller.calls.items():
                scope = answerer.scopes.get(name)
                is_left = waiting.state in ("asks", "over") and bool(waiting.found or waiting.ask)
                if is_left and scope is not None and scope.phase < Phase.MUTED:
                    raise Fault(f"call {name} was left, and its handler has not been cancelled")
                if _is_open(waiting) and (scope is None or scope.phase is Phase.OVER or scope.from_outside is not None):
                    raise Fault(f"call {name} waits for ever")
                if waiting.state == "asks" and name not in answerer.asks:
                    raise Fault(f"the confirmation of call {name} on connection {hop} is waited for, for ever")

    def check_end(self) -> None:
        """Check a state in which nothing can happen any more. Raises `Fault`."""
        for caller, answerer in zip(self.callers, self.answerers, strict=True):
            if any(each.state != "over" for each in caller.calls.values()) or caller.outbound._calls:
                raise Fault("a call has not ended")
            if any(each.phase is not Phase.OVER for each in answerer.scopes.values()) or answerer.asks:
                raise Fault("a handler has not ended")
            endings = answerer.endings
            endings._forget_old()
            if len(endings) or endings._kept or endings._of_callers._of_callers:
                raise Fault("the table of endings is not empty at the end")


def _is_open(waiting: Waiting) -> bool:
    """Return true if the request of a call has no reply yet, and wasn't left."""
    return waiting.state in ("open", "cancelled") and waiting.call.end is None


def _overtakes(wire: Sequence[Any]) -> bool:
    """Return true if the second message is a request for a confirmation, and the first one is a cancel."""
    if len(wire) < 2:
        return False
    first, second = wire[:2]
    return isinstance(first, Notification) and isinstance(second, Request) and second.method == CANCEL


def _same(what: str, table: Sequence[object], expected: Sequence[object]) -> None:
    if {id(each) for each in table} != {id(each) for each in expected} or len(table) != len(expected):
        raise Fault(f"{what} are {len(table)} in the table, and {len(expected)} in flight")
