"""Exchanges over HTTP without a session: clients with equal ids share one real `StatelessState`, where a client leaves
a request by closing its exchange.

Invariants:

- No message of another exchange touches a request: a cancel names nothing, and an answer is refused.
- A request whose exchange was closed is never answered, and each other one is answered once.
- A parked handler goes on with a retry over any exchange, or is cancelled by its deadline.
- The table holds exactly what is in flight.

Exchanges are alike and are numbered as they begin.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final

import attrs
from tests.exhaustive.explorer import Action, Fault
from tests.exhaustive.tables import twin_of
from tests.state.peers import cancel, modern

from trio_mcp.jsonrpc.messages import Response
from trio_mcp.state.events import Ignored, Refused, RequestReceived
from trio_mcp.state.requests import PHASE_AFTER, InboundRequest, Phase, Step
from trio_mcp.state.stateless import StatelessState

__all__ = ["ExchangeWorld"]

ID: Final = 1
"""The id that all clients choose."""


@attrs.frozen
class Handler:
    """A handler, and the request that it works on now."""

    entry: InboundRequest
    phase: Phase = Phase.WAITING
    is_closed: bool = False
    """The client has closed the exchange, or the handler was overdue."""


class ExchangeWorld:
    """A server of up to ``exchanges`` exchanges, with ``strays`` messages that name requests of others."""

    def __init__(self, exchanges: int, strays: int = 1) -> None:
        self.left, self.strays = exchanges, strays
        self.state = StatelessState()
        self.handlers: tuple[Handler, ...] = ()

    def fork(self) -> ExchangeWorld:
        world = object.__new__(ExchangeWorld)
        vars(world).update(vars(self))
        world.state = twin_of(self.state)
        return world

    def key(self) -> Hashable:
        """Handlers are alike, since nothing but the object tells their requests apart: their order is left out."""
        handlers = sorted((each.phase, each.is_closed) for each in self.handlers if each.phase is not Phase.OVER)
        return self.left, self.strays, tuple(handlers)

    def actions(self) -> Sequence[Action]:
        actions: list[Action] = [("request", -1)] if self.left else []
        if self.strays:
            actions += [("cancel of another", -1), ("answer of another", -1)]
        for number, handler in enumerate(self.handlers):
            match handler.phase:
                case Phase.WAITING:
                    actions += [("start", number), ("close", number)]
                case Phase.RUNNING:
                    actions += [("return", number), ("park", number), ("close", number)]
                case Phase.PARKED:
                    actions.append(("close", number))  # its deadline
                    if self.left:
                        actions.append(("retry", number))
                case Phase.MUTED:
                    actions.append(("end", number))
                    if not handler.is_closed:
                        actions.append(("close", number))
                case Phase.OVER:
                    pass
        return actions

    def do(self, action: Action) -> None:
        name, number = action
        getattr(self, "_" + name.replace(" ", "_"))(number)
        active = [h.entry for h in self.handlers if not (h.is_closed or h.phase in (Phase.PARKED, Phase.OVER))]
        if {id(each) for each in self.state.inbound} != {id(each) for each in active}:
            raise Fault("the table of requests does not hold exactly what is in flight")

    def _receive(self) -> InboundRequest:
        self.left -= 1
        event = self.state.receive(modern(ID, "tools/call", name="x"))
        if not isinstance(event, RequestReceived):
            raise Fault(f"a request has the effect {type(event).__name__}")
        return event.request

    def _change(self, number: int, step: Step, entry: InboundRequest | None = None, *, closes: bool = False) -> Handler:
        handler = self.handlers[number]
        after = PHASE_AFTER[handler.phase][step]
        if after is None:
            raise Fault(f"{step.name} is no step of a request that is {handler.phase.name}")
        changed = Handler(entry or handler.entry, after, handler.is_closed or closes)
        self.handlers = (*self.handlers[:number], changed, *self.handlers[number + 1 :])
        return changed

    def _request(self, _: int) -> None:
        self.handlers = (*self.handlers, Handler(self._receive()))

    def _start(self, number: int) -> None:
        self._change(number, Step.START)

    def _return(self, number: int) -> None:
        self._change(number, Step.MUTE)

    def _park(self, number: int) -> None:
        self.state.park(self._change(number, Step.PARK).entry)

    def _retry(self, number: int) -> None:
        self.state.finish(self.handlers[number].entry)
        self._change(number, Step.COME_BACK, self._receive())

    def _close(self, number: int) -> None:
        self.state.finish(self.handlers[number].entry)
        self._change(number, Step.MUTE, closes=True)

    def _end(self, number: int) -> None:
        handler = self._change(number, Step.END)
        if self.state.finish(handler.entry) is handler.is_closed:
            raise Fault("a request is answered after its end, or its answer is withheld")

    def _cancel_of_another(self, _: int) -> None:
        self.strays -= 1
        if not isinstance(self.state.receive(cancel(ID)), Ignored):
            raise Fault("a cancel names a request of another exchange")

    def _answer_of_another(self, _: int) -> None:
        self.strays -= 1
        if not isinstance(self.state.receive(Response(ID, {})), Refused):
            raise Fault("an answer names a question of another exchange")

    def check_end(self) -> None:
        if self.state.inbound:
            raise Fault("the table is not empty at the end")
