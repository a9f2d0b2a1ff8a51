"""InputRequired: questions to the client in a handler's return value, for handlers that are safe to run again.

Questions by a call of the context and questions in a return value are checked here, in one place.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar, cast

import attrs
import trio

from ...classes import frozen
from ...concurrency.nurseries import run_together
from ...jsonrpc.codec import encode_value
from ...jsonrpc.errors import INTERNAL_ERROR, INVALID_PARAMS, CodedError, ProtocolViolation
from ...protocol.converters import NotExpressible, structure_params, structure_result, unstructure
from ...protocol.errors import BadAnswer, CapabilityMissing, NoBackChannel
from ...protocol.fields import JSONObject
from ...protocol.meta import check_meta_keys
from ...protocol.methods import METHODS, Method
from ...protocol.revisions import LATEST_MODERN, Revision
from ...protocol.types.elicitation import (
    ElicitFormParams,
    ElicitParams,
    ElicitURLParams,
    check_form_schema,
    check_url_question,
)
from ...protocol.types.input_required import (
    InputRequest,
    InputRequiredResult,
    capability_for,
    for_elicitation,
    for_sampling,
)
from ...protocol.types.sampling import CreateMessageParams
from ...runtime.calls import send_ignoring_reply
from ...runtime.requests.questions import Question
from ...runtime.requests.rounds import Rounds, ask_client, sends_questions
from ...runtime.requests.scope import RequestScope
from ...state.requests import Continuation
from ...tasks.task_state import TaskState

T = TypeVar("T")

Asked: TypeAlias = CreateMessageParams | ElicitFormParams | ElicitURLParams | InputRequest


AS_TASK: Final = "a question is no task by a parameter `task`: have the client run it as one by task_ttl=60.0, say"
"""What to write instead of a wish for a task among the parameters of a question, whose answer would be a task."""


def needed_for(asked: Asked) -> tuple[str, ...]:
    """Return the capabilities that a client must have declared to be asked this, in the order of their check."""
    match asked:
        case CreateMessageParams():
            has_tools = asked.tools is not None or asked.tool_choice is not None
            return for_sampling(tools=has_tools, context=asked.include_context)
        case InputRequest():
            return capability_for(asked)
        case ElicitFormParams():
            return for_elicitation("form")
        case ElicitURLParams():
            return for_elicitation("url")


def question(asked: Asked, revision: Revision) -> InputRequest:
    """Return the request for this question in ``revision``.

    Raises `CodedError` (-32602) for a form that is not flat and for a URL that nobody should be sent to, `ValueError`
    for invalid keys of ``_meta``, `NotExpressible` for a question that the revision cannot express, and
    `NotSerializable`. The parameters of an `InputRequest` are checked alike, and stay unchanged.
    """
    has_wish = "task" in (asked.params or {}) if isinstance(asked, InputRequest) else asked.task is not None
    if has_wish:
        raise CodedError(INVALID_PARAMS, f"Invalid params: {AS_TASK}")
    if isinstance(asked, InputRequest):
        encode_value(asked.params)
        params: Any = structure_params(asked.params, METHODS[asked.method].params, revision)
        if asked.method != "roots/list":  # roots/list has no parameters of its own
            checked_params(params, revision)
        return asked
    method = "sampling/createMessage" if isinstance(asked, CreateMessageParams) else "elicitation/create"
    return InputRequest(method, checked_params(asked, revision))


def checked_params(params: CreateMessageParams | ElicitParams, revision: Revision) -> JSONObject:
    """Return the parameters of a question in the form of ``revision``. Raises as `question`."""
    check_meta_keys(params.meta)
    if isinstance(params, ElicitFormParams):
        check_form_schema(params.requested_schema)
    elif isinstance(params, ElicitURLParams):
        check_url_question(params)
    return unstructure(params, revision)


def structured(method: str, result: Any, result_type: type[T], revision: Revision) -> T:
    """Return the answer to a question as a ``result_type``. Raises `ProtocolViolation`."""
    try:
        return structure_result(method, result, result_type)
    except ProtocolViolation as error:
        raise bad_answer(str(error), revision) from None


def bad_answer(reason: str, revision: Revision) -> ProtocolViolation:
    """Return the error for an answer that does not fit its question."""
    # 2026-07-28 mrtr, Error Handling: in modern revisions answers arrive as parameters of a request.
    return ProtocolViolation(reason) if revision.server_requests else BadAnswer(reason)


class Forwarded(dict[str, Any]):
    """The result of another server, in the words of the revision of a request, which goes out as it is."""


FINISHED: Final[tuple[type[InputRequiredResult], ...]] = (InputRequiredResult, cast("Any", Forwarded))
"""Results of handlers of which nothing is to be made."""

_FIRST_ROUND: Final = Continuation({})


@frozen
class InputRequired:
    """A return value that asks the client; the handler runs again, from the top, with the answers.

    ``requests`` are questions under keys of the handler's own: parameters of a sampling or an elicitation, or an
    `InputRequest` (``InputRequest("roots/list")``). They are checked like those of `RequestContext.elicit`. Questions
    whose capability the client did not declare, or that its revision cannot express, are left out; where that leaves
    none, the request is answered with `CapabilityMissing`, which names all that is missing. ``state``
    is the handler's own text; it travels sealed. The next run finds both in ``ctx.input_responses`` and
    ``ctx.request_state``. On legacy connections the questions are sent as requests, and the handler runs again in
    the same way.
    """

    requests: Mapping[str, Asked] = attrs.field(factory=dict[str, Asked])
    state: str = ""


def replay(scope: RequestScope) -> None:
    """Stop the handler of this request when it asks, in revisions where questions are sent in the answer; it runs again
    with all answers so far. Nothing is kept here between the rounds (``@server.tool(replay=True)``)."""
    request, seal = scope.request, scope.runner.seal
    if request.revision.server_requests or seal is None:
        return
    known = (request.continuation or _FIRST_ROUND).answers

    def send(questions: Sequence[Question]) -> None:
        asked = {question.key: question.request for question in questions}
        state = seal(request, scope.exchange.peer.principal, asked=list(asked), answers=known)
        scope.run_again(InputRequiredResult(asked, state), "the client is asked; the handler runs again then")

    scope.rounds = Rounds(scope, send, known)


async def settle(value: InputRequired, scope: RequestScope, again: Callable[[], Awaitable[Any]]) -> Any:
    """Return the result of a handler that returned ``value``: in modern revisions a result that asks; else, after the
    client was asked, what running the handler ``again`` gives. Raises `RuntimeError` when the handler asks more than
    `Limits.max_rounds` times."""
    if not (sends_questions(scope) or (scope.task is not None and scope.task.has_started)):
        return _asking(value, scope)
    result: Any = value
    rounds, most = 0, scope.runner.limits.max_rounds
    while isinstance(result, InputRequired):
        rounds += 1
        if rounds > most:
            raise RuntimeError(f"{scope.request.method.name}: the handler asked for input more than {most} times")
        await trio.lowlevel.checkpoint()  # without questions, a handler that never ends could not be cancelled
        if scope.runner.stateless and scope.request.revision.server_requests:
            raise no_back_channel_when_stateless(scope.request.method, scope.request.revision)
        asked = _askable(result, scope)
        calls = [partial(ask_client, scope, request.method, request.params) for request in asked.values()]
        responses = dict(zip(asked, await run_together(calls), strict=True))
        scope.request.continuation = Continuation(responses, result.state)
        result = await again()
    return result


def _asking(value: InputRequired, scope: RequestScope) -> InputRequiredResult:
    requests, seal, state = _askable(value, scope), scope.runner.seal, None
    answers = (scope.request.continuation or _FIRST_ROUND).answers
    if seal is not None and (value.state or answers):
        state = seal(scope.request, scope.exchange.peer.principal, state=value.state, answers=answers)
    return InputRequiredResult(requests or None, state)


def _askable(value: InputRequired, scope: RequestScope) -> dict[str, InputRequest]:
    """Return the questions that this client can be asked.

    Raises `CapabilityMissing` with all missing capabilities where there are questions and none can be asked, and
    `CodedError` for questions that nobody should be asked, see `question`.
    """
    request = scope.request
    possible: dict[str, InputRequest] = {}
    missing: list[str] = []
    unsaid: list[str] = []
    for key, asked in value.requests.items():
        # 2026-07-28 mrtr, Server Requirements 7: MUST NOT ask for what the client did not declare.
        if lacking := request.missing(needed_for(asked)):
            missing += lacking
            continue
        try:
            possible[key] = question(asked, request.revision)
        except NotExpressible as error:
            unsaid.append(str(error))
    if possible:
        return possible
    if missing:  # 2026-07-28 basic, Per-request protocol fields: MUST be refused with all of them
        raise CapabilityMissing(missing, request.revision)
    if unsaid:
        raise CodedError(INVALID_PARAMS, f"Invalid params: {'; '.join(unsaid)}")
    if not value.state:
        raise CodedError(
            INTERNAL_ERROR, "Internal error: input is required, and neither a question nor a state is given"
        )
    return possible


def no_back_channel(scope: RequestScope) -> NoBackChannel | None:
    """Return the error for each question of a request whose client cannot be asked at all; `None` elsewhere."""
    method, revision = scope.request.method, scope.request.revision
    if not revision.server_requests and not method.may_ask:
        return NoBackChannel(f"{method.name} cannot ask its client in revision {revision}")
    is_told = scope.rounds is not None or (scope.task is not None and scope.task.has_started)
    if scope.runner.stateless and (revision.server_requests or not is_told):
        return no_back_channel_when_stateless(method, revision)
    return None


def no_back_channel_when_stateless(method: Method, revision: Revision) -> NoBackChannel:
    """Return the error of a server that is run stateless and cannot ask its client; its text says what would help."""
    reason = "this server is run stateless, so it cannot"
    if revision.server_requests:
        return NoBackChannel(
            f"{reason} ask a client that speaks {revision}: serve it statefully, or have clients speak "
            f"{LATEST_MODERN}, where a handler may return input-required"
        )
    again = "declare the tool with replay=True or " if method.name == "tools/call" else ""
    return NoBackChannel(
        f"{reason} wait for an answer of its client: {again}return input-required, or serve it statefully"
    )


async def ask_as_task(scope: RequestScope, method: str, params: JSONObject | None, ttl: float) -> Any:
    """Have the client run a question of ``scope`` as a task that the client is to keep for ``ttl`` seconds, and return
    its result, plain data.

    Leaving the call for any reason cancels the task. Raises as `RequestScope.ask`, `TaskCancelled` for a task that was
    cancelled over there, and `ValueError` for a ``ttl`` that is no time.
    """
    from ...tasks.remote_task import CoreRemoteTask, task_params  # late: few servers ask so

    if not sends_questions(scope):
        raise NoBackChannel("the questions of a task go to its requestor, and are no tasks themselves")
    revision = scope.request.revision

    async def ask(method: str, params: JSONObject) -> Any:
        return await scope.ask(method, params, revision)

    def forget(task_id: str) -> None:
        send_ignoring_reply(scope.exchange.state, scope.outbox, "tasks/cancel", {"taskId": task_id}, revision)

    asked = {**(params or {}), "task": task_params(None if ttl == math.inf else ttl)}
    result = await scope.ask(method, asked, revision, cancel_task=forget)
    return await CoreRemoteTask.created(method, result, ask, forget).result(_ignore_state, cancels=True)


async def _ignore_state(_: TaskState) -> None:
    """Take a state that nobody wants to know."""
