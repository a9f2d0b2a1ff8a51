"""InputRequired: asking the client by returning, for handlers that are safe to run again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from inspect import Parameter
from types import UnionType
from typing import Any, Final, TypeAlias, Union, get_args, get_origin

import attrs
import trio

from ..jsonrpc.errors import INTERNAL_ERROR, CodedError
from ..runtime.request_scope import RequestScope
from ..runtime.rounds import Question, Rounds
from ..runtime.together import run_together
from ..spec.converters import unstructure
from ..spec.elicitation import ElicitFormParams, ElicitURLParams
from ..spec.input_required import InputRequest, InputRequiredResult, capability_for
from ..spec.revisions import Revision
from ..spec.sampling import CreateMessageParams
from ..state.requests import Continuation

__all__ = ["InputRequired", "replay", "settle", "without_questions"]

Asked: TypeAlias = CreateMessageParams | ElicitFormParams | ElicitURLParams | InputRequest

_NOTHING: Final = Continuation({})


@attrs.frozen
class InputRequired:
    """Returned by a handler: ask the client, and run the handler again, from the top, with the answers.

    ``requests`` are questions under keys of the handler's own: parameters of a sampling or an elicitation, or an
    `InputRequest` (``InputRequest("roots/list")``). Those that the client did not declare are left out. ``state``
    is the handler's own text; it travels sealed. The next run finds both in ``ctx.input_responses`` and
    ``ctx.request_state``. On legacy connections the questions are sent as requests, and the handler runs again in
    the same way.
    """

    requests: Mapping[str, Asked] = attrs.field(factory=dict[str, Asked])
    state: str = ""


def without_questions(returns: Any) -> Any:
    """A return annotation without `InputRequired`: what is left is what the handler gives in the end."""
    if returns is InputRequired:
        return Parameter.empty
    if get_origin(returns) in (Union, UnionType) and InputRequired in get_args(returns):
        return Union[tuple(member for member in get_args(returns) if member is not InputRequired)]  # noqa: UP007, made
    return returns


def replay(scope: RequestScope) -> None:
    """What this request asks, where it is asked by answering, stops its handler, which runs again with all answers
    so far. Nothing is kept here between the rounds (``@server.tool(replay=True)``)."""
    request, seal = scope.request, scope.wiring.seal
    if request.revision.server_requests or seal is None:
        return
    known = (request.continuation or _NOTHING).answers

    def send(questions: Sequence[Question]) -> None:
        asked = {question.key: question.request for question in questions}
        state = seal(request, asked=list(asked), answers=known)
        scope.run_again(InputRequiredResult(asked, state), "the client is asked; the handler runs again then")

    scope.rounds = Rounds(scope, send, known)


async def settle(value: InputRequired, scope: RequestScope, again: Callable[[], Awaitable[Any]]) -> Any:
    """What a handler that returned ``value`` comes to: a result that asks, in modern revisions; else what it
    returns, run ``again`` by us, as often as it takes."""
    if not scope.request.revision.server_requests:
        return _asking(value, scope)
    result: Any = value
    while isinstance(result, InputRequired):
        await trio.lowlevel.checkpoint()  # where nothing is asked, a handler that never ends could not be cancelled
        if scope.wiring.stateless:
            raise CodedError(INTERNAL_ERROR, "this server is run stateless, so it cannot ask a legacy client")
        responses = await _ask_all(_possible(result, scope), scope)
        scope.request.continuation = Continuation(responses, result.state)
        result = await again()
    return result


def _asking(value: InputRequired, scope: RequestScope) -> InputRequiredResult:
    requests, seal, state = _possible(value, scope), scope.wiring.seal, None
    answers = (scope.request.continuation or _NOTHING).answers
    if seal is not None and (value.state or answers):
        state = seal(scope.request, state=value.state, answers=answers)
    return InputRequiredResult(requests or None, state)


def _possible(value: InputRequired, scope: RequestScope) -> dict[str, InputRequest]:
    """The questions that this client can be asked. Raises `CodedError` when that leaves nothing to be said."""
    revision, supports = scope.request.revision, scope.request.capabilities.supports
    requests = {key: _request(asked, revision) for key, asked in value.requests.items()}
    # 2026-07-28 mrtr, Server Requirements 7: MUST NOT ask for what the client did not declare.
    possible = {key: one for key, one in requests.items() if all(map(supports, capability_for(one)))}
    if not possible and not value.state:
        raise CodedError(INTERNAL_ERROR, "Internal error: there is nothing that this client can be asked")
    return possible


def _request(asked: Asked, revision: Revision) -> InputRequest:
    if isinstance(asked, InputRequest):
        return asked
    method = "sampling/createMessage" if isinstance(asked, CreateMessageParams) else "elicitation/create"
    return InputRequest(method, unstructure(asked, revision))


async def _ask_all(requests: Mapping[str, InputRequest], scope: RequestScope) -> dict[str, Any]:
    revision = scope.request.revision
    calls = [partial(scope.ask, request.method, request.params, revision) for request in requests.values()]
    return dict(zip(requests, await run_together(calls), strict=True))
