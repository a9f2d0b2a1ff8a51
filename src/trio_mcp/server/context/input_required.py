"""`InputRequired`: a handler's return value that requests input from the client. Only for handlers that are safe to run
again.

This module also validates all questions, whether sent by a method of the context or returned.
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


AS_TASK: Final = "a question must not have a `task` parameter: to have the client run it as a task, pass task_ttl=60.0"
"""Advice in errors: what to do if an elicitation or sampling request has a ``task`` parameter, so that its result would
be a task."""


def needed_for(asked: Asked) -> tuple[str, ...]:
    """Return the capabilities that a client must declare before the server may send it the request ``asked``. Errors
    name missing capabilities in the order of the returned tuple."""
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
    """Return the elicitation, sampling or roots request ``asked`` as JSON data, as the protocol ``revision`` defines
    it.

    The parameters of an `InputRequest` are validated too, but stay unchanged.

    Raises:
        CodedError: (-32602) If the form isn't flat or the URL is unsafe.
        ValueError: If a key of ``_meta`` is invalid.
        NotExpressible: If the protocol revision cannot express the request.
        NotSerializable: If a value has no JSON form.
    """
    has_wish = "task" in (asked.params or {}) if isinstance(asked, InputRequest) else asked.task is not None
    if has_wish:
        raise CodedError(INVALID_PARAMS, f"Invalid params: {AS_TASK}")
    if isinstance(asked, InputRequest):
        encode_value(asked.params)
        params: Any = structure_params(asked.params, METHODS[asked.method].params, revision)
        if asked.method != "roots/list":  # roots/list has no parameters
            checked_params(params, revision)
        return asked
    method = "sampling/createMessage" if isinstance(asked, CreateMessageParams) else "elicitation/create"
    return InputRequest(method, checked_params(asked, revision))


def checked_params(params: CreateMessageParams | ElicitParams, revision: Revision) -> JSONObject:
    """Validate the parameters of an elicitation or sampling request. Return them as JSON data, as the protocol
    ``revision`` defines them.

    Raises the errors of `question`.
    """
    check_meta_keys(params.meta)
    if isinstance(params, ElicitFormParams):
        check_form_schema(params.requested_schema)
    elif isinstance(params, ElicitURLParams):
        check_url_question(params)
    return unstructure(params, revision)


def structured(method: str, result: Any, result_type: type[T], revision: Revision) -> T:
    """Convert the client's result of an elicitation, sampling or roots request to an instance of ``result_type``.
    Raises `ProtocolViolation` if the result doesn't fit."""
    try:
        return structure_result(method, result, result_type)
    except ProtocolViolation as error:
        raise bad_answer(str(error), revision) from None


def bad_answer(reason: str, revision: Revision) -> ProtocolViolation:
    """Return the error to raise if the client's result doesn't fit the elicitation, sampling or roots request."""
    # In modern protocol revisions, the client sends its answers as parameters of a retried request.
    return ProtocolViolation(reason) if revision.server_requests else BadAnswer(reason)


class Forwarded(dict[str, Any]):
    """A result that a proxy got from its upstream server, as JSON data.

    The data has the form of the request's revision, so it is sent to the client unchanged.
    """


FINISHED: Final[tuple[type[InputRequiredResult], ...]] = (InputRequiredResult, cast("Any", Forwarded))
"""Handler results that are sent without conversion."""

_FIRST_ROUND: Final = Continuation({})


@frozen
class InputRequired:
    """A handler returns an `InputRequired` to request input from the client. When the client has answered, the handler
    runs again from the top, with the client's answers.

        if not ctx.is_resubmit:
            return InputRequired({"roots": InputRequest("roots/list")})

    The next run finds the answers in ``ctx.input_responses``, and the state in ``ctx.request_state``. On legacy
    connections, the questions are sent as requests, and the handler runs again in the same way.

    Questions are left out if the client didn't declare their capability, or its revision cannot express them. If none
    remains, the request is answered with `CapabilityMissing`, which names all missing capabilities.
    """

    requests: Mapping[str, Asked] = attrs.field(factory=dict[str, Asked])
    """The requests to the client, under keys of your choice: sampling or elicitation parameters, or an `InputRequest`.
    They are validated like requests sent with `RequestContext.elicit`."""
    state: str = ""
    """A string of your choice that you get back with the answers. The client stores it in encrypted form between the
    runs of the handler."""


def replay(scope: RequestScope) -> None:
    """Let the request's handler end when it requests input from the client, as with ``@server.tool(replay=True)``. When
    the client has answered, the handler runs again from the top, with all answers so far.

    Applies to modern revisions, in which input requests are sent in the result. The server stores nothing between the
    runs.
    """
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
    """Return the final result of a request whose handler returned ``value``, an `InputRequired`.

    In modern revisions, return a result that contains the requests in ``value``. Otherwise, send these requests to the
    client, run the handler ``again``, and return the result of that run. Raises `RuntimeError` if the handler requests
    input more than `Limits.max_rounds` times.
    """
    if not (sends_questions(scope) or (scope.task is not None and scope.task.has_started)):
        return _asking(value, scope)
    result: Any = value
    rounds, most = 0, scope.runner.limits.max_rounds
    while isinstance(result, InputRequired):
        rounds += 1
        if rounds > most:
            raise RuntimeError(f"{scope.request.method.name}: the handler asked for input more than {most} times")
        # if the handler requested no input, this is the only checkpoint of the loop
        await trio.lowlevel.checkpoint()
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
    """Return those requests of an `InputRequired` that this client supports.

    Raises `CapabilityMissing`, with all missing capabilities, if there are requests and the client supports none of
    them. Raises `CodedError` for invalid requests: see `question`.
    """
    request = scope.request
    possible: dict[str, InputRequest] = {}
    missing: list[str] = []
    unsaid: list[str] = []
    for key, asked in value.requests.items():
        # By MCP 2026-07-28 (mrtr page), the server MUST NOT use capabilities that the client didn't declare.
        if lacking := request.missing(needed_for(asked)):
            missing += lacking
            continue
        try:
            possible[key] = question(asked, request.revision)
        except NotExpressible as error:
            unsaid.append(str(error))
    if possible:
        return possible
    if missing:  # by MCP 2026-07-28 (basic page), the error MUST name all missing capabilities
        raise CapabilityMissing(missing, request.revision)
    if unsaid:
        raise CodedError(INVALID_PARAMS, f"Invalid params: {'; '.join(unsaid)}")
    if not value.state:
        raise CodedError(INTERNAL_ERROR, "Internal error: InputRequired was returned with neither requests nor a state")
    return possible


def no_back_channel(scope: RequestScope) -> NoBackChannel | None:
    """Return `None` if the request's handler can send elicitation, sampling and roots requests to the client. Otherwise
    return the error that such a request raises."""
    method, revision = scope.request.method, scope.request.revision
    if not revision.server_requests and not method.may_ask:
        return NoBackChannel(f"{method.name} cannot ask its client in revision {revision}")
    is_told = scope.rounds is not None or (scope.task is not None and scope.task.has_started)
    if scope.runner.stateless and (revision.server_requests or not is_told):
        return no_back_channel_when_stateless(method, revision)
    return None


def no_back_channel_when_stateless(method: Method, revision: Revision) -> NoBackChannel:
    """Return the error for an elicitation, sampling or roots request on a stateless server. Its text says what to
    change."""
    reason = "this server is stateless, so it cannot"
    if revision.server_requests:
        return NoBackChannel(
            f"{reason} send requests to a client of revision {revision}: serve it without stateless=True, or use "
            f"clients of revision {LATEST_MODERN}, where a handler may return InputRequired"
        )
    again = "declare the tool with replay=True, " if method.name == "tools/call" else ""
    return NoBackChannel(
        f"{reason} wait for its client's answer: {again}return InputRequired, or serve it without stateless=True"
    )


async def ask_as_task(scope: RequestScope, method: str, params: JSONObject | None, ttl: float) -> Any:
    """Send a request to the client, which runs the request as an MCP task. ``scope`` represents the client's request
    whose handler needs the result.

    Wait for the task, and return its result as plain data. The client keeps the task for ``ttl`` seconds.

    Leaving the call for any reason cancels the task. Raises the errors of `RequestScope.ask`, `TaskCancelled` if the
    client cancelled the task, and `ValueError` if ``ttl`` isn't a valid number of seconds.
    """
    from ...tasks.remote_task import CoreRemoteTask, task_params  # lazy import: few servers send requests as tasks

    if not sends_questions(scope):
        raise NoBackChannel("requests that a task sends to its client cannot be tasks themselves: leave out task_ttl")
    revision = scope.request.revision

    async def ask(method: str, params: JSONObject) -> Any:
        return await scope.ask(method, params, revision)

    def forget(task_id: str) -> None:
        send_ignoring_reply(scope.exchange.state, scope.outbox, "tasks/cancel", {"taskId": task_id}, revision)

    asked = {**(params or {}), "task": task_params(None if ttl == math.inf else ttl)}
    result = await scope.ask(method, asked, revision, cancel_task=forget)
    return await CoreRemoteTask.created(method, result, ask, forget).result(_ignore_state, cancels=True)


async def _ignore_state(_: TaskState) -> None:
    """Do nothing when the client reports a state of the MCP task, because only the task's result is needed."""
