"""`Rounds` holds the input requests that one request's handler makes, for clients that only get them in a result.

2026-07-28 mrtr: the server answers with an ``InputRequiredResult``, and the client sends the request again with the
answers, as often as needed. `Retry` and `Seal` connect the retry with the parked handler.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import trio

from ...classes import frozen
from ...jsonrpc.codec import encode_value
from ...protocol.errors import CapabilityMissing, NoBackChannel
from ...protocol.fields import JSONObject
from ...protocol.types.input_required import ASKABLE, InputRequest, capability_for
from ..outbox import REQUEST_MARKS
from .questions import AnswerLog, Question

if TYPE_CHECKING:
    from ...state.requests import InboundRequest
    from ..peer import PrincipalId
    from .scope import RequestScope

_NOTHING: Final[Mapping[str, JSONObject]] = MappingProxyType({})

_TICKS: Final = 2
"""Number of scheduler ticks before input requests are sent, so that the input requests of tasks that were started
together are sent together."""


Send: TypeAlias = "Callable[[Sequence[Question]], None]"
"""Function that answers the client's request with the given input requests."""


class Rounds:
    """Sends the input requests (elicitation, sampling, roots) of one request's handler to its client, and collects the
    answers.

    Input requests that several tasks make at the same moment are passed to ``send`` together. ``known`` are the
    client's earlier answers, for a handler that runs again from the start. ``log`` has the input requests of a run
    before a restart.
    """

    __slots__ = (
        *("_announced", "_asked", "_given_up", "_log", "_open", "_over", "_responses", "_resumed", "_scope", "_send"),
        "known",
    )

    def __init__(
        self,
        scope: RequestScope,
        send: Send,
        known: Mapping[str, JSONObject] | None = None,
        log: AnswerLog | None = None,
    ) -> None:
        self._scope = scope
        self._send = send
        self.known = known or _NOTHING
        self._log = log
        self._asked: dict[str, int] = {}
        """Number of input requests that had the same content. The dict key is the first part of their keys."""
        self._open: dict[str, Question] = {}
        self._announced = False
        self._over = False
        self._resumed: trio.Event | None = None
        """Event that is set when the client retries with answers. `None` while the request isn't parked."""
        self._responses = _NOTHING
        self._given_up: Callable[[str], None] | None = None
        """Callback for each sent input request that was abandoned, because no task waits for its answer any more."""

    async def ask(self, method: str, params: JSONObject | None, key: str | None = None) -> JSONObject:
        """Send an input request to the client, wait for the answer, and return the answer as plain data.

        The client sees the input request under the name ``key``, unless an open input request already has that name. By
        default, the name is derived from the content.

        Leaving the wait for any reason abandons the input request, and a later answer is ignored. Raises
        `CapabilityMissing` if the client didn't declare the necessary capabilities on the request that would carry the
        input request. Raises `NoBackChannel` if the request is over, and `NotSerializable`.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._over:
            raise _no_back_channel()
        request = InputRequest(method, params)  # pyright: ignore[reportArgumentType]
        question = Question(self._key(request) if key is None or key in self._open else key, request)
        del request, params  # free the memory of the request's parameters while the task waits
        if key is None and keeps_answers(self._scope):
            self.log.note(question, [each for each in self._open.values() if each.is_open])
        elif (answer := self.known.get(question.key)) is not None:
            return answer
        self._open[question.key] = question
        try:
            self._announce()
            await question.asker.sleep()
        except BaseException:
            self._give_up(question)
            raise
        finally:
            del self._open[question.key]
        if question.failure is not None:
            raise question.failure
        assert question.answer is not None
        return question.answer

    def _key(self, request: InputRequest) -> str:
        """Return a key for the input request ``request``, derived from its content.

        If the handler runs again, the name stays the same, even if the handler's tasks make their input requests in
        another order. A number distinguishes input requests with the same content.
        """
        kind = request.method.partition("/")[0]
        digest = hashlib.sha256(encode_value([request.method, request.params])).hexdigest()[:16]
        name = f"{kind}-{digest}"
        self._asked[name] = self._asked.get(name, 0) + 1
        run = f"{self._log.run}." if self._log is not None and self._log.run else ""
        return f"{name}-{run}{self._asked[name]}"

    def _give_up(self, question: Question) -> None:
        """Mark the input request ``question`` as abandoned: its task no longer waits, even if the client's answer has
        already arrived."""
        if self._over:
            return  # the next run of the stopped handler makes the same input request again
        if self._log is not None:
            self._log.give_up(question)
        if self._given_up is not None and question.sent:
            self._given_up(question.key)
        question.sent = True  # don't send the abandoned input request later

    def _announce(self) -> None:
        nursery = self._scope.nursery
        assert nursery is not None, "who asks has a nursery until `close`"
        if not self._announced:
            self._announced = True
            nursery.start_soon(self._send_soon)

    async def _send_soon(self) -> None:
        for _ in range(_TICKS):
            await trio.lowlevel.checkpoint()
        await self._scope.outbox.room(REQUEST_MARKS)
        self._announced = False
        if not self._scope.sends:
            return  # the client's request was answered, so send other input requests after its retry
        questions = [question for question in self._unsent() if self._may_be_asked(question)]
        if self._log is not None:
            questions = self._recall(self._log, questions)
        for question in questions:
            question.sent = True
        if questions:
            self._send(questions)

    def _recall(self, log: AnswerLog, asked: list[Question]) -> list[Question]:
        """Pass stored answers from before a restart to the input requests in ``asked``. Return the input requests
        without a stored answer."""
        self.deliver(self.known)
        if not log.has_more:
            return [question for question in asked if question.is_open]
        nursery = self._scope.nursery
        assert nursery is not None, "who asks has a nursery"
        waiting = [each for each in self._open.values() if each.is_open]
        found = log.recall(asked, waiting, nursery.parent_task)
        for question, before in found.items():
            del self._open[question.key]
            question.key = before.key
            self._open[question.key] = question
            if before.answer is not None:
                self.deliver({question.key: before.answer})
        if len(found) < len(asked):
            # Delete the old records, because this run of the handler differs from the earlier run.
            log.forget_earlier_run()
        return [question for question in asked if question.is_open]

    def _unsent(self) -> list[Question]:
        return [question for question in self._open.values() if not question.sent and question.is_open]

    def _may_be_asked(self, question: Question) -> bool:
        request = self._scope.request
        # In MCP 2026-07-28 (mrtr page), servers MUST NOT use capabilities that the client's request didn't declare.
        if missing := request.missing(capability_for(question.request)):
            question.fail(CapabilityMissing(missing, request.revision))
        return not missing

    def redirect(self, send: Send, given_up: Callable[[str], None]) -> None:
        """Send input requests by calling ``send`` from now on. This includes input requests that haven't been sent yet.

        ``given_up`` is called with the key of a sent input request if the handler no longer waits for its answer.
        """
        self._send = send
        self._given_up = given_up

    @property
    def log(self) -> AnswerLog:
        """The log of the handler's input requests, in this run and in an earlier run."""
        if self._log is None:
            self._log = AnswerLog()
        return self._log

    def forget(self) -> None:
        """Delete the records of all input requests that this handler has made so far.

        If the handler runs again after a restart, stored answers exist only for input requests made after this call.
        """
        for question in self._open.values():
            question.beside = None
        self.log.forget()

    def deliver(self, answers: Mapping[str, JSONObject | Exception]) -> None:
        """Pass answers of the client to the tasks that wait for them. An answer can also be an exception.

        Input requests that aren't in ``answers`` stay open.
        """
        for key, answer in answers.items():
            question = self._open.get(key)
            if question is not None and question.is_open:
                if isinstance(answer, Exception):
                    question.fail(answer)
                else:
                    question.resolve(answer)

    def waits_for(self, key: str) -> bool:
        """Return true if a task of the request waits for the answer to the input request with this ``key``."""
        question = self._open.get(key)
        return question is not None and question.is_open

    @property
    def is_waiting(self) -> bool:
        """True if a task of the request waits for the client's answer to an input request."""
        return any(question.sent and question.is_open for question in self._open.values())

    # Between two rounds

    def park(self) -> None:
        """Record that the response with the input requests was sent. From now on, `resumed` waits until the client has
        retried the request."""
        self._resumed = trio.Event()

    def receive(self, responses: Mapping[str, JSONObject]) -> None:
        """Store the client's answers to input requests, which have arrived with its retry of the request. `resume`
        later passes them to the handler."""
        self._responses = responses

    async def resumed(self) -> None:
        """If the handler waits for the client's retry, wait until the retry has arrived and the request may continue.

        Otherwise, return at once.
        """
        if self._resumed is not None:
            await self._resumed.wait()

    def resume(self) -> None:
        """Continue the request by passing the client's answers to the waiting tasks.

        Input requests that the client left unanswered are sent again, and answers to unknown input requests are ignored
        (2026-07-28 mrtr, Error Handling).
        """
        assert self._resumed is not None, "it is parked"
        self._resumed.set()
        self._resumed = None
        answers, self._responses = self._responses, _NOTHING
        if self._log is not None:
            self._log.count_bytes(self._scope.request.size)
        for key, question in self._open.items():
            if question.sent and key in answers:
                question.resolve(answers[key])
            else:
                question.sent = False
        if self._unsent():
            self._announce()

    def close(self) -> None:
        """End all current and later input requests with an error, because the handler's request was cancelled or the
        handler's nursery is closed.

        Without this, a task that still waits would wait forever, because it is shielded or doesn't belong to the
        request. Idempotent.
        """
        self._over = True
        for question in self._open.values():
            if question.is_open:
                question.fail(_no_back_channel())


def sends_questions(scope: RequestScope) -> bool:
    """Return true if elicitation, sampling and roots requests are sent to the client as JSON-RPC requests.

    Otherwise, these requests are sent in the result, or in the background task.
    """
    return scope.request.revision.server_requests and (scope.task is None or not scope.task.has_started)


def keeps_answers(scope: RequestScope) -> bool:
    """Return true if the client's answers must be stored for another run of the handler after a restart.

    In that run, the handler may make the same input requests again.
    """
    return scope.task is not None and scope.task.keeps_answers


def ask_client(scope: RequestScope, method: str, params: JSONObject | None) -> Awaitable[Any]:
    """Send an elicitation, sampling or roots request to the client whose request ``scope`` represents.

    The client's protocol revision and transport determine in which form it is sent. Return the answer as plain data.
    """
    if sends_questions(scope) or method not in ASKABLE:
        return scope.ask(method, params, scope.request.revision)
    return require_input(scope, method, params)


def require_input(
    scope: RequestScope, method: str, params: JSONObject | None, key: str | None = None
) -> Awaitable[JSONObject]:
    """Request input from a client to which the server can't send JSON-RPC requests, and return the client's answer.

    See `Rounds.ask`.
    """
    rounds = scope.rounds
    if rounds is None:
        # Read `scope.runner` at each call: a retry on another connection replaces it with that connection's runner.
        rounds = Rounds(scope, lambda questions: scope.runner.park(scope, questions))
        if scope.nursery is None or scope.from_outside is not None:
            rounds.close()
        else:
            scope.rounds = rounds
            if scope.task is not None and scope.task.has_started:
                scope.task.collect_questions()
    return rounds.ask(method, params, key)


def _no_back_channel() -> NoBackChannel:
    return NoBackChannel("the request is over, so nothing can be asked for it any more")


@frozen
class Retry:
    """Result of `RequestHandler.answer_now` for a client's retry. It contains the client's answers for the waiting
    handler."""

    handle: bytes
    """Identifies the parked handler, as passed to `Seal`."""
    responses: dict[str, Any]
    """The client's answers as plain data, by the keys of the input requests."""


class Seal(Protocol):
    """Function that creates the ``requestState`` of an `InputRequiredResult`.

    Only this server and its replicas can read or change the ``requestState``.
    """

    def __call__(
        self,
        request: InboundRequest,
        principal: PrincipalId | None,
        *,
        handle: bytes = b"",
        asked: Sequence[str] = (),
        answers: Mapping[str, Any] | None = None,
        state: str = "",
    ) -> str:
        """Return the ``requestState`` to send in the response to ``request``.

        Only a retry of ``request`` can use this ``requestState``.

        ``handle``: the handle of the parked handler. If the handler isn't parked, pass the keys that were ``asked``
        now, the ``answers`` so far, and the handler's own ``state``.
        """
        ...
