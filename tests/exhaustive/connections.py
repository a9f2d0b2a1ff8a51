"""The connection: a client and a server, each a real `ConnectionState`, and the wires between them.

What a client, a handler and the network may do is an event: a call, leaving a call, the turn of a request, a question,
its answer, giving a question up, parking, a retry over any connection, the end of a handler and of its cleanup, the
delivery of the next message of a wire, and the loss of a connection, with or without what is under way on it.

Some events of the product are the same step of the state, and are explored once: a deadline of a call is leaving it, a
deadline of a handler is its end with an error, and a progress notification never changes a table.

Calls are alike and are numbered as they are made, so that orders that differ only in which call is which are one. Calls
that have ended are not merged: their ids stay in the key, since an id could meet another one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Final

import attrs
from tests.exhaustive.explorer import Action, Fault
from tests.exhaustive.invariants import check_end, check_step
from tests.exhaustive.parties import Call, Handler, Link, Plan, Question, Sent, Subject
from tests.state.peers import client_of, meta_of, server_of

from trio_mcp.jsonrpc.messages import Batch, Message, Notification, Request, Response
from trio_mcp.state.events import BatchReceived, CancelReceived, Event, RequestReceived, ResultReceived
from trio_mcp.state.requests import PHASE_AFTER, InboundRequest, OutboundRequest, Phase, Step

__all__ = ["ConnectionWorld"]


class ConnectionWorld:
    """Clients, handlers and wires of one `Plan`."""

    def __init__(self, plan: Plan) -> None:
        self.plan: Final = plan
        self.links = [Link(client_of(plan.revision), server_of(plan.revision)) for _ in range(plan.links)]
        self.calls: dict[int, Call] = {}
        self.handlers: dict[int, Handler] = {}
        self.questions: dict[int, Question] = {}
        self.array: tuple[tuple[Response, Subject], ...] = ()
        """Replies that wait for the rest of their array."""
        self.parked = 0

    def fork(self) -> ConnectionWorld:
        world = object.__new__(ConnectionWorld)
        vars(world).update(vars(self))
        world.links = [link.fork() for link in self.links]
        world.calls, world.handlers, world.questions = self.calls.copy(), self.handlers.copy(), self.questions.copy()
        return world

    def key(self) -> Hashable:
        calls = tuple((each.link, each.request.id, each.state, each.round) for each in self.calls.values())
        handlers = tuple(
            (name, h.link, h.entry.id, h.round, h.phase, h.question, h.is_answered, h.is_cancelled)
            for name, h in sorted(self.handlers.items())
        )
        questions = tuple((q.link, q.request.id, q.is_open, q.work) for q in self.questions.values())
        array = tuple(subject for _, subject in self.array)
        return calls, handlers, questions, array, self.parked, *(link.key for link in self.links)

    def check_end(self) -> None:
        check_end(self)

    # What can happen

    def actions(self) -> Sequence[Action]:
        return [*self._of_client(), *self._of_handlers(), *self._of_network()]

    def _of_client(self) -> Iterator[Action]:
        plan = self.plan
        usable = [number for number, link in enumerate(self.links) if not link.client_knows]
        if len(self.calls) < plan.calls and usable:
            yield ("call all",) if plan.batched else ("call", usable[0])
        for name, call in self.calls.items():
            if call.state in ("open", "asked"):
                yield "leave", name
            if call.state == "asked":
                yield from (("retry", name, number) for number in usable)
        for name, question in self.questions.items():
            if question.work == "runs":
                yield "reply", name
            elif question.work == "cancelled":
                yield "stop answering", name

    def _of_handlers(self) -> Iterator[Action]:
        for name, handler in self.handlers.items():
            match handler.phase:
                case Phase.WAITING:
                    yield "start", name
                case Phase.RUNNING if handler.question is not None:
                    yield "give up", name
                case Phase.RUNNING:
                    yield "return", name
                    if len(self.questions) < self.plan.questions:
                        yield "ask", name
                    if self.parked < self.plan.rounds:
                        yield "park", name
                case Phase.PARKED:
                    yield "overdue", name
                case Phase.MUTED:
                    yield "end", name
                case Phase.OVER:
                    pass

    def _of_network(self) -> Iterator[Action]:
        for number, link in enumerate(self.links):
            if link.up:
                yield "up", number
            if link.down:
                yield "down", number
            if not link.is_broken and sum(each.is_broken for each in self.links) < self.plan.losses:
                yield "lose", number
            if link.is_broken:
                yield from ((f"tear {wire}", number) for wire in ("up", "down") if len(getattr(link, wire)) > 1)

    def do(self, action: Action) -> None:
        name, *of = action
        getattr(self, "_" + name.replace(" ", "_"))(*of)
        check_step(self)

    # The client

    def _request(self, number: int, subject: Subject) -> tuple[OutboundRequest, Request]:
        revision = self.plan.revision
        request = self.links[number].client.open_request("tools/call", revision)
        params = {"name": "x"} if revision.handshake else {"name": "x", "_meta": meta_of()}
        return request, Request(request.id, "tools/call", params)

    def _call(self, number: int) -> None:
        name = len(self.calls)
        request, message = self._request(number, subject := ("request", name, 0))
        self.calls[name] = Call(number, request)
        self._send_up(number, message, subject)

    def _call_all(self) -> None:
        messages, subjects = list[Request](), list[Subject]()
        for name in range(self.plan.calls):
            request, message = self._request(0, subject := ("request", name, 0))
            self.calls[name] = Call(0, request)
            messages.append(message)
            subjects.append(subject)
        self._send_up(0, Batch(tuple(messages)), *subjects)

    def _leave(self, name: int) -> None:
        call = self.calls[name]
        told = self.links[call.link].client.abandon(call.request)
        if told is not (call.state == "open"):
            raise Fault(f"call {name}, which is {call.state}, is left with {told=}")
        # Between two rounds, the client names the call by its last id.
        self._send_up(call.link, _cancel(call.request), ("cancel", name, call.round))
        self.calls[name] = attrs.evolve(call, state="left")

    def _retry(self, name: int, number: int) -> None:
        call = self.calls[name]
        request, message = self._request(number, subject := ("request", name, call.round + 1))
        self.calls[name] = Call(number, request, round=call.round + 1)
        self._send_up(number, message, subject)

    def _reply(self, name: int) -> None:
        question = self.questions[name]
        assert question.entry is not None
        if not self.links[question.link].client.finish(question.entry):
            raise Fault(f"the answer to question {name} is withheld")
        self._send_up(question.link, Response(question.entry.id, {}), ("result", name, 0))
        self.questions[name] = attrs.evolve(question, work="over")

    def _stop_answering(self, name: int) -> None:
        question = self.questions[name]
        assert question.entry is not None
        if self.links[question.link].client.finish(question.entry):
            raise Fault(f"question {name} is answered after its cancel")
        self.questions[name] = attrs.evolve(question, work="over")

    # Handlers

    def _advance(self, name: int, step: Step, **changes: Any) -> Handler:
        handler = self.handlers[name]
        after = PHASE_AFTER[handler.phase][step]
        if after is None:
            raise Fault(f"{step.name} is no step of request {name}, which is {handler.phase.name}")
        self.handlers[name] = changed = attrs.evolve(handler, phase=after, **changes)
        return changed

    def _start(self, name: int) -> None:
        self._advance(name, Step.START)

    def _return(self, name: int) -> None:
        self._advance(name, Step.MUTE)

    def _end(self, name: int) -> None:
        handler = self._advance(name, Step.END)
        answers = self.links[handler.link].server.finish(handler.entry)
        if answers and handler.is_cancelled:
            raise Fault(f"call {name} is answered after its cancel")
        if not (answers or handler.is_cancelled):
            raise Fault(f"the answer to call {name} is withheld")
        self.handlers[name] = attrs.evolve(handler, is_answered=True)
        if answers:
            self._answer(handler, ("result", name, handler.round))
        self._send_array()

    def _answer(self, handler: Handler, subject: Subject) -> None:
        response = Response(handler.entry.id, {})
        if self.plan.batched:
            self.array = (*self.array, (response, subject))
        else:
            self._send_down(handler.link, response, subject)

    def _send_array(self) -> None:
        """Send the replies to an array together, once all of its requests are over."""
        if self.array and all(each.phase is Phase.OVER for each in self.handlers.values()):
            responses, subjects = zip(*self.array, strict=True)
            self._send_down(0, Batch(responses), *subjects)
            self.array = ()

    def _ask(self, name: int) -> None:
        handler, question = self.handlers[name], len(self.questions)
        request = self.links[handler.link].server.open_request("sampling/createMessage", self.plan.revision)
        self.questions[question] = Question(handler.link, request)
        self.handlers[name] = attrs.evolve(handler, question=question)
        params = {"messages": [], "maxTokens": 1}
        message = Request(request.id, "sampling/createMessage", params)
        self._send_down(handler.link, message, ("question", question, 0))

    def _give_up(self, name: int) -> None:
        """Give up the open question of a handler."""
        handler = self.handlers[name]
        if handler.question is None:
            return
        question = self.questions[handler.question]
        if self.links[question.link].server.abandon(question.request):
            self._send_down(question.link, _cancel(question.request), ("question's cancel", handler.question, 0))
        self.questions[handler.question] = attrs.evolve(question, is_open=False)
        self.handlers[name] = attrs.evolve(handler, question=None)

    def _park(self, name: int) -> None:
        handler = self._advance(name, Step.PARK)
        self.parked += 1
        self.links[handler.link].server.park(handler.entry)
        self._send_down(handler.link, Response(handler.entry.id, {}), ("questions", name, handler.round))

    def _overdue(self, name: int) -> None:
        self._stop(name)

    def _stop(self, name: int) -> None:
        """Cancel a handler, for any reason."""
        handler = self.handlers[name]
        if not handler.is_answered and handler.phase is not Phase.OVER:
            self._give_up(name)
            self.links[handler.link].server.finish(handler.entry)
            self._advance(name, Step.MUTE, is_cancelled=True)

    # The network

    def _send_up(self, number: int, message: Message | Batch, *subjects: Subject) -> None:
        link = self.links[number]
        if not link.is_broken:
            link.up = (*link.up, Sent(message, subjects))

    def _send_down(self, number: int, message: Message | Batch, *subjects: Subject) -> None:
        link = self.links[number]
        if not link.is_broken:
            link.down = (*link.down, Sent(message, subjects))

    def _lose(self, number: int) -> None:
        link = self.links[number]
        link.is_broken, link.up, link.down = True, (*link.up, None), (*link.down, None)

    def _tear_up(self, number: int) -> None:
        self.links[number].up = (None,)

    def _tear_down(self, number: int) -> None:
        self.links[number].down = (None,)

    def _up(self, number: int) -> None:
        link = self.links[number]
        sent, *rest = link.up
        link.up = tuple(rest)
        if sent is None:
            self._server_lost(number)
            return
        for event, subject in _events(link.server.receive(sent.message), sent.subjects):
            self._server_received(number, event, *subject)

    def _down(self, number: int) -> None:
        link = self.links[number]
        sent, *rest = link.down
        link.down = tuple(rest)
        if sent is None:
            self._client_lost(number)
            return
        for event, subject in _events(link.client.receive(sent.message), sent.subjects):
            self._client_received(number, event, *subject)

    def _server_received(self, number: int, event: Event, kind: str, name: int, of_round: int) -> None:
        match event:
            case RequestReceived() if kind == "request" and of_round == 0:
                self.handlers[name] = Handler(number, event.request)
            case RequestReceived() if kind == "request":
                self._come_back(number, event.request, name, of_round)
            case CancelReceived() if kind == "cancel":
                if self.handlers[name].entry is not event.request or self.handlers[name].round != of_round:
                    raise Fault(f"the cancel of call {name} meets another request")
                self._stop(name)
            case ResultReceived() if kind == "result":
                question = self.questions[name]
                if event.request is not question.request or not question.is_open:
                    raise Fault(f"the answer to question {name} goes elsewhere, or comes twice")
                self.questions[name] = attrs.evolve(question, is_open=False)
                for asking, handler in self.handlers.items():
                    if handler.question == name:
                        self.handlers[asking] = attrs.evolve(handler, question=None)
            case _ if kind == "request":
                raise Fault(f"the request of call {name} has no effect: {type(event).__name__}")
            case _:
                pass  # late: the checks see what is in flight

    def _come_back(self, number: int, entry: InboundRequest, name: int, of_round: int) -> None:
        handler = self.handlers[name]
        if handler.phase is Phase.PARKED and handler.round + 1 == of_round:
            self.links[handler.link].server.finish(handler.entry)
            self._advance(name, Step.COME_BACK, link=number, entry=entry, round=of_round)
        else:  # the handler is gone: the retry is refused
            if not self.links[number].server.finish(entry):
                raise Fault(f"the retry of call {name} cannot be refused")
            self._send_down(number, Response(entry.id, {}), ("result", name, of_round))

    def _client_received(self, number: int, event: Event, kind: str, name: int, of_round: int) -> None:
        match event:
            case ResultReceived() if kind in ("result", "questions"):
                call = self.calls[name]
                if event.request is not call.request or call.state != "open" or call.round != of_round:
                    raise Fault(f"the result of call {name} goes elsewhere, or comes twice")
                self.calls[name] = attrs.evolve(call, state="asked" if kind == "questions" else "done")
            case RequestReceived() if kind == "question":
                self.questions[name] = attrs.evolve(self.questions[name], entry=event.request, work="runs")
            case CancelReceived() if kind == "question's cancel":
                if self.questions[name].entry is not event.request:
                    raise Fault(f"the cancel of question {name} meets another request")
                self.questions[name] = attrs.evolve(self.questions[name], work="cancelled")
            case _ if kind == "question":
                raise Fault(f"question {name} has no effect: {type(event).__name__}")
            case _:
                pass

    def _server_lost(self, number: int) -> None:
        lost = self.links[number].server.abandon_all()
        asked = [each for each in self.questions.values() if each.link == number and each.is_open]
        if {each.id for each in lost} != {each.request.id for each in asked}:
            raise Fault("the loss of the connection is not told to each question that waits, once")
        for name, question in self.questions.items():
            if question.link == number and question.is_open:
                self.questions[name] = attrs.evolve(question, is_open=False)
        for name, handler in tuple(self.handlers.items()):
            if handler.link == number:
                if handler.question is not None:
                    self.handlers[name] = attrs.evolve(handler, question=None)
                if handler.phase is not Phase.PARKED or self.plan.links == 1:
                    self._stop(name)

    def _client_lost(self, number: int) -> None:
        link = self.links[number]
        link.client_knows = True
        lost = link.client.abandon_all()
        for name, call in self.calls.items():
            if call.link == number and call.state == "open":
                if sum(each is call.request for each in lost) != 1:
                    raise Fault(f"the loss of the connection is not told to call {name}, once")
                self.calls[name] = attrs.evolve(call, state="lost")
        for name, question in self.questions.items():
            if question.link == number and question.entry is not None and question.work == "runs":
                link.client.finish(question.entry)
                self.questions[name] = attrs.evolve(question, work="cancelled")


def _cancel(request: OutboundRequest) -> Notification:
    return Notification("notifications/cancelled", {"requestId": request.id})


def _events(event: Event, subjects: Sequence[Subject]) -> Iterator[tuple[Event, Subject]]:
    return zip(event.events if isinstance(event, BatchReceived) else (event,), subjects, strict=True)
